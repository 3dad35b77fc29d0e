"""The leader is a run's only poller: seldom outside of a decision, never in a hurry with a controller that wants peace, never credulous."""

from __future__ import annotations

import itertools

import pytest

from ftsup import events as ev
from ftsup.policy.ending import SURE
from ftsup.policy.state import Stage
from tests.policy.test_review import Desk

RUNS = ev.SlurmSaid(state="RUNNING", left_s=90_000.0, kill_wait_s=30.0)
GONE = ev.SlurmSaid(state="GONE")
LIMITED = ev.SlurmFailed(
    op="show", kind="Unavailable", why="scontrol show job: slurm_load_jobs error: Rate limit exceeded, please retry later"
)
HOURS = 3


@pytest.mark.parametrize("answer", [RUNS, LIMITED])
def test_in_a_long_quiet_run_slurm_is_asked_at_most_once_a_minute_whether_it_answers_or_not(answer: ev.LeaderEvent) -> None:
    desk = Desk().running().tell(RUNS)
    asked_t: list[float] = []
    for second in range(0, HOURS * 3600, 5):
        beats = ev.Progressed(node="n1", epoch=desk.state.epoch, phase="step", step=second + 2, beats=second + 2, by=ev.WatchedBy.STEPS)
        desk.tell(*([beats] if second % 60 == 0 else []), ev.Tick(), after=5.0)
        if any(isinstance(order, ev.AskSlurm) for order in desk.orders):
            asked_t.append(desk.t)
            desk.tell(answer)
            assert not any(isinstance(order, ev.AskSlurm) for order in desk.orders)
    assert len(asked_t) >= HOURS * 3600 / 300 - 2, "an admin who moves the limit is followed"
    assert min(later - sooner for sooner, later in itertools.pairwise(asked_t)) >= 60.0
    assert desk.state.stage is Stage.RUN


def test_that_slurm_does_not_know_the_job_we_live_in_is_believed_when_it_says_so_again_and_again() -> None:
    desk = Desk().running()
    for _ in range(SURE - 1):
        desk.tell(GONE)
        assert desk.orders == ()
        desk.tell(ev.Tick(), after=2.0)
        assert desk.kinds() == ["AskSlurm"]
    desk.tell(RUNS)
    for _ in range(SURE - 1):
        desk.tell(GONE).tell(LIMITED)
        assert desk.orders == ()
    desk.tell(GONE)
    assert desk.kinds() == ["Leave", "Leave", "Quit"]
    assert desk.state.verdict is None, "the run is not over"


def test_told_to_end_and_nobody_says_why_slurm_is_asked_less_and_less_often() -> None:
    desk = Desk().running().tell(ev.Signalled(signal="SIGTERM"))
    asked_t = [desk.t]
    while desk.state.stage is Stage.TERMED and desk.state.end_t is not None:
        desk.tell(ev.Tick())
        if "AskSlurm" in desk.kinds():
            asked_t.append(desk.t)
            desk.tell(LIMITED, after=0.0)
    assert desk.kinds() == ["Leave", "Leave", "Quit"]
    pauses = [later - sooner for sooner, later in itertools.pairwise(asked_t)]
    assert pauses[:5] == [2.0] * 5
    assert pauses == sorted(pauses)
    assert pauses[-1] > 40.0
