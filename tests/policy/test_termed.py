"""Told to end, and Slurm does not say why: it waits for our end, so we go once nothing is left to end; what it says is in test_told."""

from __future__ import annotations

import pytest

from ftsup import events as ev
from ftsup.policy.ending import TERMED_S, TOLD
from ftsup.policy.state import Stage
from tests.policy.test_review import NODES, ONE, Desk

ENDING = ev.SlurmSaid(state="UNKNOWN", completing=True, code="0:9")
"""The batch script was killed: that says nothing about the job."""


@pytest.fixture
def desk() -> Desk:
    made = Desk().running()
    made.tell(ev.Signalled(signal="SIGTERM"), *(ev.Terminated(node=node) for node in NODES))
    assert made.state.stage is Stage.TERMED
    return made


def quits(desk: Desk) -> list[int]:
    return [order.code for order in desk.all if isinstance(order, ev.Quit)]


def test_once_the_nodes_are_gone(desk: Desk) -> None:
    desk.tell(ENDING, ev.Tick(), ENDING)
    assert quits(desk) == []
    desk.tell(ev.StepEnded(text="srun ended"))
    assert desk.kinds() == ["AskSlurm"]
    desk.tell(ENDING, ENDING)
    assert quits(desk) == [TOLD]
    assert not any(isinstance(order, (ev.Decide, ev.Requeue)) for order in desk.all), "nobody knows what it was"


def test_once_the_nodes_have_said_all_although_the_step_does_not_end(desk: Desk) -> None:
    """A clerk that hangs with its disk, and that nothing can kill, is in it."""
    for node in NODES:
        desk.tell(ENDING, ev.Tick())
        assert quits(desk) == []
        desk.tell(ev.AttemptOver(node=node, epoch=ONE, code=-15))
    assert desk.kinds() == ["AskSlurm"]
    desk.tell(ENDING)
    assert quits(desk) == [TOLD]


def test_slurm_that_does_not_answer_is_asked_for_a_while(desk: Desk) -> None:
    away = ev.SlurmFailed(op="show", kind="Unavailable", why="controller away")
    desk.tell(ev.StepEnded(text="srun ended"))
    for _ in range(5):
        desk.tell(away, ev.Tick(), after=2.0)
    assert quits(desk) == []
    assert desk.kinds() == ["AskSlurm"]
    desk.tell(ev.Tick(), after=TERMED_S)
    assert quits(desk) == [TOLD]
    assert [order.over for order in desk.all if isinstance(order, ev.Unexplained)][-1] is False, "the word stays in the run directory"


def test_slurm_tells_the_nodes_only(desk: Desk) -> None:
    """As scancel does; COMPLETING is said of the whole job."""
    other = Desk().running().tell(*(ev.Terminated(node=node) for node in NODES), ev.StepEnded(text="killed"), ENDING)
    assert quits(other) == [TOLD]


def test_a_supervisor_that_came_after_the_step_is_waited_for(desk: Desk) -> None:
    other = Desk().running().tell(ev.StepEnded(text="srun was killed"), ev.NodeUp(node="n1", instance="n1:1"))
    other.tell(ev.Signalled(signal="SIGTERM"), ENDING)
    assert quits(other) == []
