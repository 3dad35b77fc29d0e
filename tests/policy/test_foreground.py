"""`ftsup run`: a leader that a person started. SIGTERM by hand to it alone is that person's wish; of a batch job's leader it is nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import VerdictKind
from ftsup.policy.told import ALONE_S
from tests.policy.test_review import NODES, Desk

RUNS = ev.SlurmSaid(state="RUNNING", left_s=90_000.0, kill_wait_s=30.0)


class Typed(Desk):
    """`ftsup run`, typed by a person."""

    foreground = True

    def lead(self) -> Desk:
        return self.tell(ev.LeaderStarted(job="7", restarts=0, host="n1", pid=1, nodes=NODES, foreground=self.foreground))


class Batch(Typed):
    """The leader of a batch script."""

    foreground = False


def told(desk: Desk, answer: ev.SlurmSaid = RUNS) -> Desk:
    desk.running()
    desk.tell(ev.Progressed(node="n1", epoch=desk.state.epoch, phase="step", step=1, beats=1, by=ev.WatchedBy.STEPS))
    desk.tell(ev.Signalled(signal="SIGTERM"), answer)
    return desk.tell(replace(answer), after=ALONE_S + 1)


def test_it_is_asked_to_save_and_to_end_once_slurm_has_shown_that_nobody_else_wants_it() -> None:
    desk = told(Typed())
    assert any("SIGTERM by hand asked for a stop: " in order.text for order in desk.all if isinstance(order, ev.Notify))
    assert desk.state.verdict is not None, "this script cannot save on request, so nothing is waited for"
    assert (desk.state.verdict.kind, "stopped by SIGTERM by hand" in desk.state.verdict.reason) == (VerdictKind.STOP, True)


@pytest.mark.parametrize("desk, answer", [(Batch(), RUNS), (Typed(), replace(RUNS, preempted=True))])
def test_nobody_asked_where_slurm_ends_it_or_the_leader_is_a_batch_job_s(desk: Desk, answer: ev.SlurmSaid) -> None:
    assert (told(desk, answer).state.wish, desk.state.verdict) == (None, None)
