"""Helper commands under a loop: time is passed in."""

from __future__ import annotations

import pytest

from ftsup import proc
from ftsup.supervisor.loop import Calls


@pytest.fixture
def calls():
    calls: Calls[proc.Done] = Calls()
    yield calls
    calls.end()


def test_a_helper_is_ended_at_its_deadline_and_not_for_the_time_that_we_were_away(calls):
    calls.start(["sleep", "600"], now=100.0, limit_s=10.0, then=lambda done: done)
    calls.forgive(3600.0)
    assert calls.take(3705.0) == []
    assert calls.deadline_t() == 3710.0
    (done,) = calls.take(3710.0)
    assert (done.code, done.why) == (None, "no answer within 10 s")


def test_a_helper_that_cannot_start_is_answered(calls):
    calls.start(["/no/such/program"], now=100.0, limit_s=10.0, then=lambda done: done)
    (done,) = calls.take(100.0)
    assert (done.ok, done.why) == (False, "/no/such/program: No such file or directory")
