"""What comes too late, twice, or from nowhere: it changes nothing, is answered again, or has a limit. And rows of the judge that a
whole world seldom comes to.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.errors import RuleBroken
from ftsup.events import Epoch, Fault, How, VerdictKind
from ftsup.policy import blame, machine, nodestate
from ftsup.policy import node as noding
from ftsup.policy import watch as watching
from ftsup.policy.judge import Case, History, Past, judge
from ftsup.policy.nodestate import Stage as NodeStage
from ftsup.policy.rules import Budgets
from ftsup.policy.state import Stage, State
from ftsup.policy.watch import Sight, Watch
from ftsup.worker.beatfile import Beat, Phase
from tests.policy.test_review import NODES, ONE, RULES4, Desk

OLD, NEXT = Epoch(1, 0), Epoch(1, 2)
DIED = Fault(how=How.SIGNAL, node="n1", rank=0, signal="SIGKILL")
QUIET = Fault(how=How.QUIET, node="n1", rank=0, phase="step", step=7, quiet_s=20.0, limit_s=20.0)


def closed(desk: Desk) -> ev.Verdict:
    assert desk.state.verdict is not None
    return desk.state.verdict


# The leader ---------------------------------------------------------------------------------------------------------------


def test_words_without_a_rule_are_our_bug() -> None:
    desk = Desk().running()
    with pytest.raises(RuleBroken, match="no rule for Facts in stage run"):
        machine.step(desk.state, type("Facts", (), {"t": 1.0})(), RULES4)  # type: ignore[arg-type]
    with pytest.raises(RuleBroken, match="Tick before LeaderStarted"):
        machine.step(State(), ev.Tick(t=1.0), RULES4)
    nothing = State(stage=Stage.STOP, nodes=("n1",), waiting=("n1",), epoch=ONE)
    with pytest.raises(RuleBroken, match="nothing to judge"):
        machine.step(nothing, ev.AttemptOver(t=1.0, node="n1", epoch=ONE, code=None), RULES4)


@pytest.mark.parametrize(
    "late",
    [
        ev.CheckpointPicked(epoch=OLD, path="/c/x", step=1),
        ev.PickFailed(epoch=OLD, why="no"),
        ev.Prepared(node="n1", epoch=OLD),
        ev.Launched(node="n1", epoch=OLD, pid=1),
        ev.LaunchFailed(node="n1", epoch=OLD, fault=DIED),
        ev.Busy(node="n1", epoch=OLD, phase="checkpoint", limit_s=60.0),
        ev.Moving(node="n1", epoch=OLD),
        ev.Stalled(node="n1", epoch=OLD, faults=(QUIET,)),
        ev.Progressed(node="n1", epoch=OLD, phase="step", step=9, beats=9),
        ev.NodeSilent(node="n9", quiet_s=1000.0),
        ev.Noted(text="a disk is ill"),
        ev.RankEnded(node="n1", epoch=OLD, fault=DIED),
        ev.Collected(node="n1", epoch=OLD, incident=1),
        ev.AttemptOver(node="n1", epoch=OLD, code=1),
        ev.NodeUp(node="n9", instance="n9:1"),
        ev.Chained(job="8"),
        ev.Tick(),
    ],
    ids=lambda event: type(event).__name__,
)
def test_news_of_an_attempt_that_is_over_and_of_nodes_that_are_not_ours_change_nothing(late: Any) -> None:
    desk = Desk().running()
    before = desk.state
    desk.tell(late)
    assert (desk.state, desk.orders) == (before, ())


def test_a_pick_that_takes_too_long_is_a_failed_start() -> None:
    desk = Desk().gathered()
    desk.tell(ev.Tick(), after=RULES4.pick_s + 1).tell(ev.Tick())  # the first one asks Slurm how long there is
    assert desk.state.history.past[-1].root.error == "choosing the checkpoint took too long"
    assert desk.state.history.past[-1].root.how is How.SETUP


def test_a_hello_again_while_it_launches_counts_as_launched_and_later_gets_its_orders_again() -> None:
    desk = Desk().prepared()
    desk.tell(*(ev.Prepared(node=node, epoch=ONE, address="a", port=1) for node in NODES))
    desk.tell(*(ev.NodeUp(node=node, instance=f"{node}:1", running=ONE) for node in NODES))
    assert desk.state.stage is Stage.RUN
    desk.tell(ev.RankEnded(node="n1", epoch=ONE, fault=DIED))
    desk.tell(ev.NodeUp(node="n1", instance="n1:1", running=ONE))
    assert [(type(order), order.node) for order in desk.orders if isinstance(order, ev.Collect)] == [(ev.Collect, "n1")]


def test_a_supervisor_that_is_another_one_after_the_end_was_decided_changes_nothing() -> None:
    desk = Desk().running()
    desk.tell(ev.CheckpointsTaken(why="another run has them"))
    assert desk.state.stage is Stage.CLOSE
    desk.tell(ev.NodeUp(node="n1", instance="n1:2"))
    assert (desk.state.stage, desk.orders) == (Stage.CLOSE, ())


def test_the_second_reason_to_end_comes_too_late_and_what_is_over_has_no_deadline() -> None:
    desk = Desk().running()
    desk.tell(ev.CheckpointsTaken(why="another run has them"))
    decided = desk.state
    desk.tell(ev.CheckpointsTaken(why="a third one"))
    assert (desk.state, desk.orders) == (decided, ())
    over = replace(decided, stage=Stage.OVER, deadline_t=1.0)
    out = machine.step(over, ev.Tick(t=2.0), RULES4)
    assert (out.state, out.orders, out.deadline_t) == (replace(over, deadline_t=None), (), None)


@pytest.mark.parametrize("stage", [Stage.COLLECT, Stage.STOP])
def test_a_node_that_is_silent_again_and_again_while_an_incident_is_open_is_waited_for_no_more(stage: Stage) -> None:
    desk = Desk().running()
    desk.tell(ev.RankEnded(node="n1", epoch=ONE, fault=DIED))
    if stage is Stage.STOP:
        desk.tell(*(ev.Collected(node=node, epoch=ONE, incident=1) for node in NODES))
    assert desk.state.stage is stage
    silent = ev.NodeSilent(node="n2", quiet_s=RULES4.node_grace_s * 3)
    for _ in range(machine.MISSING):
        desk.tell(silent, after=0.01)
        assert desk.kinds() == ["StartNode", "AskSlurm"]
    desk.tell(silent, after=0.01)
    assert "n2" in desk.state.over
    assert "n2" not in desk.state.waiting


def test_a_launch_that_fails_while_the_incident_is_open_is_an_answer() -> None:
    desk = Desk().running()
    desk.tell(ev.RankEnded(node="n1", epoch=ONE, fault=DIED))
    desk.tell(ev.LaunchFailed(node="n2", epoch=ONE, fault=Fault(how=How.SETUP, node="n2", error="no")))
    assert (desk.state.stage, desk.state.waiting) == (Stage.COLLECT, ("n1",))


def test_an_attempt_that_ends_without_a_word_is_torchruns_end() -> None:
    desk = Desk().running()
    desk.tell(ev.AttemptOver(node="n1", epoch=ONE, code=3))
    assert [(fault.how, fault.code) for fault in desk.state.faults] == [(How.TORCHRUN, 3)]


def test_a_script_whose_steps_nobody_knows_shows_its_progress_by_what_it_saves() -> None:
    desk = Desk(replace(RULES4, watched=False)).gathered()
    desk.state = replace(desk.state, path="/c/step10", base_step=10, history=replace(desk.state.history, requeues=2))
    desk.tell(ev.CheckpointPicked(epoch=ONE, path="/c/step20", step=20))
    assert (desk.state.moved, desk.state.history.requeues) == (True, 0)


# The end of a grant -------------------------------------------------------------------------------------------------------


def test_where_every_node_is_over_before_its_evidence_came_nothing_is_left_to_stop() -> None:
    desk = Desk().running()
    desk.tell(ev.RankEnded(node="n1", epoch=ONE, fault=DIED))
    desk.tell(*(ev.AttemptOver(node=node, epoch=ONE, code=1) for node in NODES))
    assert (desk.state.stage, desk.state.epoch) == (Stage.PICK, NEXT)


def test_what_is_decided_is_done_although_the_disk_does_not_take_it() -> None:
    desk = Desk().running()
    desk.tell(ev.CheckpointsTaken(why="another run has them"))
    desk.tell(ev.Tick(), after=1000.0)
    assert (desk.state.stage, desk.kinds()[-1]) == (Stage.OVER, "Quit")


def test_what_begun_elsewhere_after_the_end_was_decided_changes_nothing() -> None:
    desk = Desk().running()
    desk.tell(ev.CheckpointsTaken(why="another run has them"))
    decided = desk.state
    desk.tell(ev.Superseded(why="job 8 leads the run"))
    assert (desk.state, desk.orders) == (decided, ())


def restarted(desk: Desk) -> Desk:
    """A new leader takes over in the same grant."""
    return desk.tell(ev.LeaderStarted(job="7", restarts=0, host="n1", pid=2, nodes=NODES))


def test_a_new_leader_decides_again_what_was_decided() -> None:
    desk = Desk().running()
    desk.tell(ev.CheckpointsTaken(why="another run has them"))
    restarted(desk)
    assert (desk.state.stage, desk.kinds()) == (Stage.CLOSE, ["Decide"])


def test_a_new_leader_does_not_wait_again_for_the_next_attempt() -> None:
    desk = Desk().running()
    desk.state = replace(desk.state, stage=Stage.BACK_OFF, deadline_t=desk.t + 60.0)
    restarted(desk)
    assert (desk.state.stage, desk.state.deadline_t) == (Stage.BACK_OFF, desk.t)


def test_a_new_leader_of_a_job_that_was_told_to_end_asks_slurm() -> None:
    desk = Desk().running()
    desk.tell(ev.Signalled(signal="SIGTERM"))
    assert desk.state.stage is Stage.TERMED
    restarted(desk)
    assert (desk.state.stage, desk.kinds()) == (Stage.TERMED, ["AskSlurm", "Unexplained"])
    desk.tell(ev.SlurmSaid(state="CANCELLED"))
    assert closed(desk).kind is VerdictKind.CANCELLED


def test_the_time_limit_that_ended_it_before_a_requeue_is_said() -> None:
    desk = Desk().running()
    desk.tell(ev.Signalled(signal="SIGTERM"), ev.SlurmSaid(state="TIMEOUT", completing=True))
    assert closed(desk).reason == "the time limit ended the job before a requeue was asked for: we requeue it now"


def requeueing(desk: Desk, *, avoided: tuple[str, ...] = ()) -> Desk:
    """The time limit is near: a requeue is decided and asked for."""
    desk.state = replace(desk.state, end_t=desk.t, end_checked=True, history=replace(desk.state.history, avoided=avoided))
    desk.tell(ev.Tick(), ev.Decided(mirrored=True), ev.SlurmFailed(op="job", kind="Unavailable", why="no answer"))
    assert desk.state.stage is Stage.REQUEUE
    return desk


def test_a_requeue_that_somebody_cancels_is_cancelled() -> None:
    desk = requeueing(Desk().running())
    desk.tell(ev.SlurmSaid(state="RUNNING"))
    assert desk.state.seen is False
    desk.tell(ev.SlurmSaid(state="CANCELLED", completing=True))
    assert closed(desk).reason == "cancelled while it was being requeued"


@pytest.mark.parametrize(
    "attempts,requeues,said",
    [(3, 9, "9 requeues without progress (policy.requeues)"), (50, 0, "50 attempts in this run (policy.hard_cap)")],
)
def test_the_time_limit_asks_for_no_requeue_past_the_budgets(attempts: int, requeues: int, said: str) -> None:
    desk = Desk(replace(RULES4, policy=Budgets(hard_cap=50, requeues=9))).running()
    history = replace(desk.state.history, attempts=attempts, requeues=requeues)
    desk.state = replace(desk.state, end_t=desk.t, end_checked=True, moved=False, history=history)
    desk.tell(ev.Tick())
    assert (closed(desk).kind, closed(desk).reason) == (VerdictKind.STOP, said)


# A node -------------------------------------------------------------------------------------------------------------------


def node(stage: NodeStage, **more: Any) -> nodestate.State:
    return nodestate.State(node="n1", stage=stage, epoch=ONE, **more)


def do(state: nodestate.State, happening: nodestate.Happening) -> nodestate.Change:
    return noding.step(state, happening, RULES4)


def order(what: ev.NodeOrder) -> nodestate.Ordered:
    return nodestate.Ordered(t=1.0, order=what)


FILES = ev.Files(count=1, size_bytes=1, digest="d")
LAUNCH = ev.Launch(node="n1", epoch=ONE, node_rank=0, nodes=1, address="a", port=1)


@pytest.mark.parametrize(
    "state,happening",
    [
        (node(NodeStage.RUNNING), order(ev.Stop(node="n1", epoch=OLD, grace_s=1.0))),
        (node(NodeStage.RUNNING), order(ev.Prepare(node="n1", epoch=ONE, node_rank=0))),
        (node(NodeStage.ENDING), order(ev.Stop(node="n1", epoch=ONE, grace_s=1.0))),
        (node(NodeStage.SETUP), order(LAUNCH)),
        (node(NodeStage.LOOK), nodestate.FilesSeen(t=1.0, epoch=OLD)),
        (node(NodeStage.IDLE, setup_done=True), nodestate.SetupEnded(t=1.0)),
        (node(NodeStage.IDLE), nodestate.PortFound(t=1.0, address="a", port=1)),
        (node(NodeStage.ENDING), nodestate.RanksEnded(t=1.0, faults=(DIED,))),
        (node(NodeStage.IDLE), nodestate.ChildEnded(t=1.0, code=1)),
        (node(NodeStage.IDLE), nodestate.Gone(t=1.0)),
        (node(NodeStage.IDLE), nodestate.Heard(t=1.0, reports=())),
        (node(NodeStage.IDLE), nodestate.Looked(t=1.0, sights={})),
        (node(NodeStage.IDLE), nodestate.Glanced(t=1.0, beats={})),
        (node(NodeStage.RUNNING), nodestate.BatchHost(t=1.0, alive=True)),
        (node(NodeStage.RUNNING, leaving=True), nodestate.LeaderQuiet(t=1.0)),
    ],
    ids=lambda value: f"{type(value).__name__}-{value.order.__class__.__name__}" if isinstance(value, nodestate.Ordered) else None,
)
def test_a_node_lets_be_what_is_not_for_now(state: nodestate.State, happening: nodestate.Happening) -> None:
    after, acts = do(state, happening)
    assert (after, acts) == (state, ())


def test_an_order_to_prepare_that_comes_twice_looks_once() -> None:
    prepare = order(ev.Prepare(node="n1", epoch=ONE, node_rank=0, path="/c/x", files=FILES))
    state, acts = do(node(NodeStage.IDLE, setup_done=True), prepare)
    assert acts == (nodestate.LookAt(epoch=ONE, path="/c/x", files=FILES),)
    assert do(state, prepare) == (state, ())


def test_what_keeps_a_node_from_starting_is_told() -> None:
    def fault(change: nodestate.Change) -> Fault:
        state, (tell,) = change
        assert state.stage is NodeStage.IDLE
        assert isinstance(tell, nodestate.Tell)
        assert isinstance(tell.event, ev.LaunchFailed)
        return tell.event.fault

    assert fault(do(node(NodeStage.SETUP), nodestate.SetupEnded(t=1.0, why="it failed"))).error == "it failed"
    assert fault(do(node(NodeStage.RUNNING), nodestate.NotStarted(t=1.0, fault=DIED))) == DIED
    error = fault(do(node(NodeStage.IDLE), order(replace(LAUNCH, epoch=NEXT)))).error
    assert error == "its supervisor was started again between set-up and launch"


def test_an_attempt_that_is_over_is_told_again_when_it_is_asked_for() -> None:
    over = ev.AttemptOver(node="n1", epoch=ONE, code=0)
    state = node(NodeStage.IDLE, over=over)
    for asked in (LAUNCH, ev.Stop(node="n1", epoch=ONE, grace_s=1.0)):
        assert do(state, order(asked)) == (state, (nodestate.Tell(event=over),))


def test_a_save_is_told_and_a_supervisor_that_was_away_counts_anew() -> None:
    beats = [Beat(pid=7, started=1, activity=step, beats=step, step=step, phase=Phase.STEP, saved_step=step - 8) for step in (8, 9)]
    state = node(NodeStage.RUNNING, alone_t=3.0)
    told: list[ev.NodeEvent] = []
    for second, beat in enumerate(beats):
        state, acts = do(state, nodestate.Looked(t=10.0 + second, sights={0: Sight(beat=beat)}))
        told += [act.event for act in acts if isinstance(act, nodestate.Tell)]
    assert [event.step for event in told if isinstance(event, ev.Saved)] == [0, 1]
    away, acts = do(replace(state, alone_t=3.0), nodestate.WasAway(t=500.0))
    assert (acts, away.alone_t, away.watch.marks[0].moved_t) == ((), 500.0, 500.0)
    assert do(state, nodestate.WasAway(t=500.0))[0].alone_t is None


def test_nobody_has_made_a_step_where_nobody_is() -> None:
    assert watching.steps(Watch()) == (None, 0)


# Blame, and the judge -----------------------------------------------------------------------------------------------------


def test_what_a_rank_that_stood_still_was_seen_to_wait_for_and_how_it_ended() -> None:
    def both(old: Fault, new: Fault) -> How:
        return blame.merge(blame.merge(State(), (old,)), (new,)).faults[0].how

    assert both(QUIET, replace(QUIET, how=How.WAITING)) is How.WAITING
    assert both(replace(QUIET, how=How.WAITING), QUIET) is How.WAITING
    assert both(QUIET, replace(DIED, signal="")) is How.SIGNAL
    assert both(replace(DIED, signal=""), replace(DIED, how=How.EXIT, code=3, signal="")) is How.EXIT


def case(fault: Fault, *past: Past, nodes: tuple[str, ...] = NODES, **history: Any) -> Case:
    return Case(epoch=ONE, faults=(fault,), nodes=nodes, history=History(past=past, **history))


def before(fault: Fault, rule: str = "otherwise") -> Past:
    return Past(epoch=OLD, root=fault, rule=rule)


@pytest.mark.parametrize(
    "judged,requeue,kind,rule,said",
    [
        (case(QUIET, before(QUIET)), True, VerdictKind.REQUEUE, "same step", "twice at one step on one node"),
        (case(QUIET, before(QUIET)), False, VerdictKind.STOP, "same step", "requeue is off"),
        (case(QUIET, before(QUIET, "same step")), True, VerdictKind.STOP, "same step", "at step 7 again, on other nodes too"),
        (case(QUIET, before(replace(QUIET, node="n2"))), True, VerdictKind.RESTART, "otherwise", "stood still"),
        (case(QUIET, before(QUIET), requeues=99), True, VerdictKind.STOP, "same step", "99 requeues brought no progress"),
        (
            case(Fault(how=How.SETUP, node="n1", error="no"), before(Fault(how=How.SETUP, node="n1", error="no"))),
            True,
            VerdictKind.REQUEUE,
            "start errors",
            "requeue without n1",
        ),
        (
            Case(
                epoch=ONE,
                faults=tuple(Fault(how=How.SETUP, node=node, error="no") for node in NODES),
                nodes=NODES,
                history=History(past=(before(Fault(how=How.SETUP, node="n1", error="no")),)),
            ),
            True,
            VerdictKind.STOP,
            "start errors",
            "2 of 2 nodes could not start, twice",
        ),
    ],
    ids=["elsewhere", "requeue off", "elsewhere too", "another node", "requeues spent", "start", "start of all"],
)
def test_rows_of_the_judge(judged: Case, requeue: bool, kind: VerdictKind, rule: str, said: str) -> None:  # noqa: FBT001 - a column of the table
    verdict = judge(judged, replace(RULES4, can_requeue=requeue))
    assert (verdict.kind, verdict.rule) == (kind, rule)
    assert said in verdict.reason
