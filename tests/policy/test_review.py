"""What an adversary found: one event after the other, by hand, where the fake world's own order of things would hide it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Epoch, Fault, How, VerdictKind
from ftsup.policy import machine, nodestate
from ftsup.policy import node as noding
from ftsup.policy.ending import decide
from ftsup.policy.nodestate import Stage as NodeStage
from ftsup.policy.rules import Hang, Rules
from ftsup.policy.state import Stage, State
from ftsup.policy.watch import Process, Sight
from ftsup.worker.beatfile import Beat, Phase
from tests.world import RULES, World

NODES = ("n1", "n2")
ONE = Epoch(1, 1)
RULES4 = replace(RULES, workers_per_node=2)


class Desk:
    """The leader's machine, and events by hand; a second between two of them."""

    def __init__(self, rules: Rules = RULES4) -> None:
        self.rules, self.state, self.t = rules, State(), 1000.0
        self.orders: tuple[ev.LeaderOrder, ...] = ()
        self.all: list[ev.LeaderOrder] = []

    def tell(self, *events: Any, after: float = 1.0) -> Desk:
        for event in events:
            self.t += after
            out = machine.step(self.state, replace(event, t=self.t), self.rules)
            self.state, self.orders = out.state, out.orders
            self.all += out.orders
        return self

    def lead(self) -> Desk:
        return self.tell(ev.LeaderStarted(job="7", restarts=0, host="n1", pid=1, nodes=NODES))

    def gathered(self) -> Desk:
        self.lead()
        return self.tell(*(ev.NodeUp(node=node, instance=f"{node}:1") for node in NODES))

    def prepared(self) -> Desk:
        self.gathered().tell(ev.CheckpointPicked(epoch=self.state.epoch))
        return self

    def running(self) -> Desk:
        self.prepared()
        self.tell(*(ev.Prepared(node=node, epoch=ONE, address="a", port=1) for node in NODES))
        self.tell(*(ev.Launched(node=node, epoch=ONE, pid=1) for node in NODES))
        assert self.state.stage is Stage.RUN
        return self

    def returned(self, *ranks: int) -> Desk:
        faults = [Fault(how=How.RETURNED, node=NODES[rank // 2], rank=rank, code=0) for rank in ranks]
        return self.tell(*(ev.RankEnded(node=fault.node, epoch=ONE, fault=fault) for fault in faults))

    def kinds(self) -> list[str]:
        return [type(order).__name__ for order in self.orders]


def stuck(rank: int) -> ev.Stalled:
    node = NODES[rank // 2]
    fault = Fault(how=How.QUIET, node=node, rank=rank, phase="shutdown", quiet_s=30.0, limit_s=30.0)
    return ev.Stalled(node=node, epoch=ONE, faults=(fault,))


def test_a_wait_for_storage_has_an_end_under_a_new_leader_too() -> None:
    world = World(rules=replace(RULES, hang=Hang(step_s=20.0, storage_s=200.0)))

    def disk_hangs() -> None:
        for node in world.nodes.values():
            for rank in node.ranks:
                rank.process = Process.DISK

    world.at(20, disk_hangs).at(100, world.kill_leader).at(110, world.start_leader)
    world.run(limit_s=600)
    assert world.over is not None
    assert world.over.kind is VerdictKind.FINISHED


def test_hang_in_shutdown_waits_for_ranks_that_still_work() -> None:
    """Rank 0 writes the last checkpoint for minutes after the others have returned."""
    desk = Desk().running().returned(1, 2, 3).tell(stuck(3))
    assert desk.state.stage is Stage.RUN
    desk.returned(0)
    assert desk.state.stage is Stage.COLLECT
    desk.tell(*(ev.Collected(node=node, epoch=ONE, incident=1) for node in NODES))
    desk.tell(*(ev.AttemptOver(node=node, epoch=ONE, code=None) for node in NODES))
    assert desk.state.verdict is not None
    assert desk.state.verdict.kind is VerdictKind.FINISHED


def test_hang_in_shutdown_is_ended_when_the_other_node_is_over() -> None:
    desk = Desk().running().returned(1, 2, 3, 0).tell(ev.AttemptOver(node="n1", epoch=ONE, code=0), stuck(3))
    assert desk.state.stage is Stage.COLLECT


def test_hang_in_shutdown_does_not_hide_a_hang_of_those_who_work() -> None:
    quiet = Fault(how=How.QUIET, node="n1", rank=0, step=60, phase="checkpoint", quiet_s=1800.0, limit_s=1800.0)
    desk = Desk().running().returned(1, 2, 3).tell(stuck(3), ev.Stalled(node="n1", epoch=ONE, faults=(quiet,)))
    assert desk.state.stage is Stage.COLLECT


def test_a_report_that_comes_twice_is_one_rank() -> None:
    """A new leader gets again what the old one logged and had not acknowledged."""
    assert Desk().running().returned(1, 1, 1, 1).tell(stuck(3)).state.stage is Stage.RUN


def test_checkpoint_that_cannot_be_chosen_is_no_nodes_fault() -> None:
    desk = Desk().gathered()
    for _ in range(5):
        assert (desk.state.stage, desk.state.history.avoided) == (Stage.PICK, ())
        desk.tell(ev.PickFailed(epoch=desk.state.epoch, why="none is whole"))
        if desk.state.stage is Stage.BACK_OFF:
            desk.tell(ev.Tick(), ev.Tick(), after=150.0)
    assert desk.state.verdict is not None
    assert desk.state.verdict.kind is VerdictKind.STOP
    assert desk.state.verdict.reason == "5 times without progress (policy.starts): the job could not start: none is whole"


@pytest.mark.parametrize("watched", [True, False])
def test_dead_node_ends_a_run_that_may_not_requeue(watched: bool) -> None:  # noqa: FBT001 - pytest's way
    desk = Desk(replace(RULES4, can_requeue=False, watched=watched)).gathered()
    for _ in range(10):
        if desk.state.verdict is not None:
            break
        if desk.state.stage is Stage.PICK:
            desk.tell(ev.CheckpointPicked(epoch=desk.state.epoch))
        desk.tell(ev.Prepared(node="n1", epoch=desk.state.epoch, address="a", port=1))
        while desk.state.stage in {Stage.PREPARE, Stage.COLLECT, Stage.STOP, Stage.GATHER, Stage.BACK_OFF}:
            desk.tell(ev.Tick(), after=2000.0).tell(ev.Tick())
            if desk.state.stage is Stage.STOP:
                desk.tell(ev.AttemptOver(node="n1", epoch=desk.state.epoch, code=None))
    assert desk.state.verdict is not None, desk.state
    assert desk.state.verdict.kind is VerdictKind.STOP


def test_told_to_end_before_the_requeue_was_asked_for() -> None:
    """The decision is on its way to the disk when somebody cancels the job."""
    desk = (
        Desk().running().tell(ev.SlurmSaid(state="RUNNING", left_s=10.0), ev.Tick(), ev.SlurmSaid(state="RUNNING", left_s=5.0), ev.Tick())
    )
    assert desk.state.stage is Stage.CLOSE
    desk.tell(ev.Signalled(signal="SIGTERM"), ev.Decided(mirrored=True))
    assert (desk.state.stage, desk.kinds()) == (Stage.TERMED, ["AskSlurm", "Unexplained"])
    desk.tell(ev.SlurmSaid(state="CANCELLED"))
    assert desk.state.verdict is not None
    assert desk.state.verdict.kind is VerdictKind.CANCELLED
    assert not any(isinstance(order, ev.Requeue) for order in desk.all)


def chained() -> Desk:
    desk = Desk().running()
    desk.tell(ev.SlurmSaid(state="RUNNING", left_s=10.0), ev.Tick(), ev.SlurmSaid(state="RUNNING", left_s=5.0), ev.Tick())
    desk.tell(ev.Decided(mirrored=True), ev.Chained(job="8"))
    assert desk.kinds() == ["Decide", "Leave", "Leave", "Quit"]
    return desk


def test_leader_that_takes_over_after_the_chain_goes_as_well() -> None:
    desk = chained().lead()
    assert desk.kinds() == ["Decide", "Leave", "Leave", "Quit"]
    assert decide(desk.state).done


def test_unknown_progress_does_not_stop_at_the_time_limit() -> None:
    desk = Desk(replace(RULES4, watched=False))
    for restarts in range(10):
        desk.tell(ev.LeaderStarted(job="7", restarts=restarts, host="n1", pid=1, nodes=NODES))
        desk.tell(*(ev.NodeUp(node=node, instance=f"{node}:{restarts}") for node in NODES))
        desk.tell(ev.SlurmSaid(state="RUNNING", left_s=10.0), ev.Tick(), ev.SlurmSaid(state="RUNNING", left_s=5.0), ev.Tick())
        assert desk.state.verdict is not None
        assert desk.state.verdict.kind is VerdictKind.REQUEUE


def test_supervisor_that_dies_after_it_was_ready_gets_ready_again() -> None:
    desk = Desk().prepared()
    desk.tell(ev.Prepared(node="n1", epoch=ONE, address="a", port=1), ev.NodeUp(node="n1", instance="n1:2"))
    assert desk.kinds() == ["Prepare"]
    desk.tell(ev.Prepared(node="n2", epoch=ONE))
    assert desk.state.stage is Stage.PREPARE
    desk.tell(ev.Prepared(node="n1", epoch=ONE, address="a", port=2))
    assert desk.state.stage is Stage.LAUNCH
    assert desk.state.port == 2


def test_leader_that_takes_over_asks_again_for_a_single_missing_node() -> None:
    desk = Desk().lead().tell(ev.NodeUp(node="n1", instance="n1:1")).lead()
    assert desk.orders == (ev.StartNode(node="n2"),)


def test_silences_that_passed_do_not_add_up() -> None:
    desk = Desk().running()
    for _ in range(30):
        desk.tell(ev.NodeSilent(node="n2", quiet_s=31.0), after=3600.0)
    assert desk.state.stage is Stage.RUN
    for count in range(1, 12):
        desk.tell(ev.NodeSilent(node="n2", quiet_s=30.0 * count), after=30.0)
    assert desk.state.stage is Stage.COLLECT


def test_wish_to_cancel_is_taken_once() -> None:
    desk = Desk().running().tell(ev.Asked(request=ev.Request.CANCEL, who="me"))
    assert desk.kinds() == ["Notify", "Decide"]
    assert desk.tell(ev.Asked(request=ev.Request.CANCEL, who="me")).kinds() == ["Notify"]


# The node's machine -------------------------------------------------------------------------------------------------------


class Bench:
    """A node's machine, and orders by hand."""

    def __init__(self) -> None:
        self.state, self.acts = nodestate.State(node="n1"), ()

    def happen(self, *happenings: nodestate.Happening) -> Bench:
        for happening in happenings:
            self.state, self.acts = noding.step(self.state, happening, RULES)
        return self

    def order(self, order: ev.NodeOrder) -> Bench:
        return self.happen(nodestate.Ordered(t=0.0, order=order))

    def kinds(self) -> list[str]:
        return [type(act.event if isinstance(act, nodestate.Tell) else act).__name__ for act in self.acts]

    def running(self) -> Bench:
        self.order(ev.Prepare(node="n1", epoch=ONE, node_rank=0)).happen(nodestate.SetupEnded(t=0.0)).happen(
            nodestate.FilesSeen(t=0.0, epoch=ONE)
        )
        self.order(ev.Launch(node="n1", epoch=ONE, node_rank=0, nodes=1, address="a", port=1))
        assert self.state.stage is NodeStage.RUNNING
        return self


@pytest.mark.parametrize(
    "order, then",
    [
        (ev.Prepare(node="n1", epoch=Epoch(1, 2), node_rank=0), ["AttemptOver", "LookAt"]),
        (ev.Stop(node="n1", epoch=Epoch(1, 2), grace_s=1.0), ["AttemptOver", "AttemptOver"]),
    ],
)
def test_order_for_a_newer_attempt_waits_for_the_end_of_the_old_one(order: ev.NodeOrder, then: list[str]) -> None:
    """The leader gave the attempt up without proof: no "over", and no "ready", while its ranks live."""
    bench = Bench().running().order(order)
    assert bench.kinds() == ["EndChild"]
    assert bench.order(order).acts == ()
    bench.happen(nodestate.ChildEnded(t=1.0, code=-15), nodestate.Gone(t=2.0))
    assert bench.kinds() == then


def test_node_setup_never_runs_twice_at_once() -> None:
    bench = Bench().order(ev.Prepare(node="n1", epoch=ONE, node_rank=1))
    assert bench.kinds() == ["RunSetup"]
    bench.order(ev.Stop(node="n1", epoch=ONE, grace_s=1.0)).order(ev.Prepare(node="n1", epoch=Epoch(1, 2), node_rank=1))
    assert bench.acts == ()
    assert bench.happen(nodestate.SetupEnded(t=9.0)).kinds() == ["LookAt"]
    assert bench.happen(nodestate.FilesSeen(t=9.0, epoch=Epoch(1, 2))).kinds() == ["Prepared"]


def test_a_requeue_that_was_not_taken_is_asked_for_again() -> None:
    bench = Bench().running()
    for _ in range(2):
        assert bench.happen(nodestate.LeaderQuiet(t=1.0)).kinds() == ["AskBatchHost"]
        assert bench.happen(nodestate.BatchHost(t=2.0, alive=False)).kinds() == ["RequeueAlone"]


def test_hanging_torchrun_is_not_told_before_it_is_known_how_its_ranks_ended() -> None:
    """A rank that left by os._exit(0) is known to have returned only after a moment: until then the training may be done or not."""
    bench = Bench().running()
    gone = {0: Sight(beat=Beat(pid=1, phase=Phase.STEP), process=Process.GONE)}
    for t in range(40):
        bench.happen(nodestate.Looked(t=float(t), sights=gone))
        assert "Stalled" not in bench.kinds()
    returned = Fault(how=How.RETURNED, node="n1", rank=0, code=0)
    bench.happen(nodestate.RanksEnded(t=40.0, faults=(returned,)), nodestate.Looked(t=41.0, sights=gone))
    (act,) = bench.acts
    assert isinstance(act, nodestate.Tell)
    assert isinstance(act.event, ev.Stalled)
    assert act.event.faults[0].phase == "shutdown"


STUCK = "4711 (python) in state D at nfs_wait"


def test_what_an_earlier_grant_left_on_a_node_and_cannot_be_killed_is_avoided() -> None:
    desk = Desk().lead().tell(ev.NodeUp(node="n1", instance="n1:1"), ev.NodeUp(node="n2", instance="n2:1", left=(STUCK,)))
    assert desk.state.verdict is not None
    assert (desk.state.verdict.rule, desk.state.verdict.avoid) == ("unkillable", ("n2",))
    assert STUCK in desk.state.verdict.reason


def test_what_a_dead_supervisor_left_and_cannot_be_killed_is_avoided() -> None:
    up = ev.NodeUp(node="n2", instance="n2:2", left=(STUCK,))
    desk = Desk().running().tell(up)
    assert desk.state.stage is Stage.COLLECT
    assert [fault.how for fault in desk.state.faults] == [How.UNKILLABLE, How.NODE]
    desk.tell(up)  # it says so to each new leader
    assert len(desk.state.faults) == 2
    desk.tell(ev.Collected(node="n1", epoch=ONE, incident=1), ev.AttemptOver(node="n1", epoch=ONE, code=None))
    assert desk.state.verdict is not None
    assert (desk.state.verdict.kind, desk.state.verdict.avoid) == (VerdictKind.REQUEUE, ("n2",))
