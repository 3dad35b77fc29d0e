"""Slurm does not answer: whatever cannot be started then is no node's fault, costs nothing, and is tried until it answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Epoch, Fault, How, Verdict, VerdictKind
from ftsup.policy import machine
from ftsup.policy.ending import ASK_SOON_S
from ftsup.policy.state import Stage
from tests.policy.test_review import NODES, ONE, RULES4, Desk

AWAY = ev.SlurmFailed(op="show", kind="Unavailable", why="scontrol show job: Unable to contact slurm controller (connect failure)")
HERE = ev.SlurmSaid(state="RUNNING")
JUST_BACK = ev.StepEnded(text="srun: error: Unable to create step for job 7: Memory required by task is not available")
NO_STEP = ev.StepEnded(text="srun: error: Unable to create step for job 7: Unable to contact slurm controller", unanswered=True)


def test_an_srun_that_slurm_does_not_answer_is_tried_again_and_costs_no_attempt() -> None:
    desk = Desk().lead()
    for _ in range(20):
        desk.tell(NO_STEP)
        assert desk.kinds() == []
        desk.tell(AWAY, ev.Tick(), after=1.0)
        assert desk.kinds() == []
        desk.tell(ev.Tick(), after=machine.STEP_AGAIN_S)
        assert desk.kinds() == ["StartStep", "AskSlurm"]
    desk.tell(HERE, *(ev.NodeUp(node=node, instance=f"{node}:1") for node in NODES))
    assert desk.state.stage is Stage.PICK
    assert (desk.state.epoch, desk.state.incident, desk.state.history.past) == (ONE, 0, ())


def test_slurm_answers_again_before_the_step_is_tried_again() -> None:
    desk = Desk().lead().tell(NO_STEP, HERE)
    desk.tell(ev.Tick(), after=machine.STEP_AGAIN_S)
    assert (desk.kinds(), desk.state.incident) == (["StartStep"], 0)
    desk.tell(*(ev.NodeUp(node=node, instance=f"{node}:1") for node in NODES))
    assert (desk.state.stage, desk.state.incident) == (Stage.PICK, 0)


@pytest.mark.parametrize("told", [(JUST_BACK, HERE), (HERE, JUST_BACK)], ids=["the step ends first", "Slurm answers first"])
def test_what_a_controller_says_that_has_just_come_back_is_no_nodes_fault_once(told: tuple[ev.LeaderEvent, ...]) -> None:
    """It knows its nodes only once they have registered; the step was started before it answered anything."""
    desk = Desk().lead().tell(NO_STEP, AWAY, ev.Tick()).tell(ev.Tick(), after=machine.STEP_AGAIN_S)
    assert desk.kinds() == ["StartStep", "AskSlurm"]
    desk.tell(*told)
    assert (desk.state.stage, desk.state.incident) == (Stage.GATHER, 0)
    desk.tell(ev.Tick(), after=machine.STEP_AGAIN_S)
    assert desk.kinds() == ["StartStep"]
    desk.tell(JUST_BACK)
    assert desk.state.incident == 1, "now it has had its time"


def test_an_srun_that_ends_while_slurm_answers_is_the_nodes_fault_as_before() -> None:
    desk = Desk().lead().tell(HERE, ev.StepEnded(text="srun: error: Task launch failed on node n2"))
    assert desk.state.incident == 1


def late(desk: Desk, limit_s: float) -> list[str]:
    """What is ordered once a limit is over; the first tick asks Slurm, as it is time to."""
    before = len(desk.all)
    desk.tell(ev.Tick(), after=limit_s + 1).tell(ev.Tick())
    return [type(order).__name__ for order in desk.all[before:]]


def test_nobody_says_hello_in_time() -> None:
    desk = Desk().lead().tell(AWAY)
    assert late(desk, RULES4.hello_s) == ["AskSlurm", "StartStep", "AskSlurm"]
    assert desk.state.incident == 0
    desk.tell(HERE)
    assert "Incident" in [*late(desk, RULES4.hello_s / 2), *late(desk, RULES4.hello_s / 2), *late(desk, RULES4.hello_s / 2)]


def test_half_of_the_wait_is_over_and_whoever_is_missing_is_started_once_more() -> None:
    """It may have been killed before it said anything (seen: srun tells of that task, and goes on)."""
    desk = Desk().lead().tell(HERE, ev.NodeUp(node="n1", instance="n1:1"))
    before = len(desk.all)
    desk.tell(ev.Tick(), after=RULES4.hello_s / 2).tell(ev.Tick())
    assert [order for order in desk.all[before:] if isinstance(order, ev.StartNode)] == [ev.StartNode(node="n2")]
    assert desk.state.incident == 0
    desk.tell(ev.Tick(), after=RULES4.hello_s / 2).tell(ev.Tick())
    assert [(fault.how, fault.node) for fault in desk.state.faults] == [(How.HELLO, "n2")]


def test_a_node_whose_supervisor_nobody_can_start_is_waited_for() -> None:
    desk = Desk().running().tell(AWAY)
    silent = ev.NodeSilent(node="n2", quiet_s=RULES4.node_grace_s * 3)
    desk.tell(*[silent] * (3 * machine.MISSING))
    assert (desk.state.stage, desk.kinds()) == (Stage.RUN, ["StartNode", "AskSlurm"])
    desk.tell(HERE, *[silent] * (machine.MISSING - 1))
    assert (desk.state.stage, desk.state.faults) == (Stage.RUN, ()), "Slurm answers: so many tries again"
    desk.tell(silent)
    assert desk.state.faults[-1] == Fault(how=How.HELLO, node="n2")


@pytest.mark.parametrize("silent", [(), ("n1",), ("n1", "n2")])
def test_an_order_is_given_again_to_those_that_nobody_could_start(silent: tuple[str, ...]) -> None:
    desk = Desk().prepared()
    desk.tell(*(ev.NodeSilent(node=node, quiet_s=RULES4.node_grace_s) for node in silent), AWAY)
    waits = silent == NODES
    assert ("Incident" in late(desk, RULES4.setup_s)) is not waits
    assert (desk.state.stage is Stage.PREPARE) is waits
    assert desk.kinds() == ["Prepare", "Prepare", "AskSlurm"] or not waits


def test_how_long_we_have_is_asked_again_soon() -> None:
    desk = Desk().running().tell(HERE)
    assert desk.state.ask_t is not None
    assert desk.state.ask_t - desk.t > ASK_SOON_S
    desk.tell(AWAY)
    assert desk.state.ask_t == desk.t + ASK_SOON_S
    refused = ev.SlurmFailed(op="show", kind="Refused", why="Access denied")
    desk.tell(refused)
    assert not desk.state.away
    assert desk.state.epoch == Epoch(1, 1)


GIVEN_UP = (
    ev.SlurmSaid(state="PENDING", restarts=1),
    ev.SlurmSaid(state="RUNNING", restarts=1),
    ev.Superseded(why="job 7 leads the run since Slurm began it again (1 restarts)"),
)


@pytest.mark.parametrize("said", GIVEN_UP)
@pytest.mark.parametrize("begin", [Desk.lead, Desk.running])
def test_a_grant_that_slurm_has_given_up_ends_its_ranks_and_asks_for_nothing(begin: Callable[[Desk], Desk], said: ev.LeaderEvent) -> None:
    """The node was DOWN for Slurm, and nobody could tell us (seen: munge away for longer than SlurmdTimeout)."""
    desk = begin(Desk()).tell(said)
    assert desk.state.stage is Stage.CLOSE
    before = len(desk.all)
    desk.tell(ev.Decided(mirrored=True))
    desk.tell(GIVEN_UP[-1])
    orders = desk.all[before:]
    assert [order.node for order in orders if isinstance(order, ev.Leave)] == list(NODES)
    assert ev.Quit(code=0) in orders
    assert not [order for order in desk.all if isinstance(order, ev.Requeue)]


@pytest.mark.parametrize("rule, most_s", [("time limit", 10.0), ("hello", 60.0)])
def test_a_requeue_is_asked_for_often_where_the_time_limit_waits_for_the_controller_too(rule: str, most_s: float) -> None:
    state = replace(Desk().running().state, stage=Stage.REQUEUE, verdict=Verdict(kind=VerdictKind.REQUEUE, reason="", rule=rule), tries=9)
    out = machine.step(state, ev.SlurmFailed(t=2000.0, op="requeue", kind="Unavailable", why="away"), RULES4)
    assert out.state.deadline_t == 2000.0 + most_s
