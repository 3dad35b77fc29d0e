"""A spooled requeue: what is left to do of it, whatever became of its job meanwhile."""

from __future__ import annotations

import msgspec
import pytest

from ftsup.policy.spool import Carry, Spool, carry
from ftsup.ports import JobState

SPOOL = Spool(job="7", restarts=1)
CHAIN = Spool(job="120_7", restarts=1, chain=True)

TABLE = {
    JobState.RUNNING: (Carry.REQUEUE, Carry.SUBMIT),
    JobState.SUSPENDED: (Carry.REQUEUE, Carry.SUBMIT),
    JobState.PENDING: (Carry.NOTHING, Carry.NOTHING),
    JobState.COMPLETED: (Carry.NOTHING, Carry.NOTHING),
    JobState.CANCELLED: (Carry.NOTHING, Carry.NOTHING),
    JobState.DEADLINE: (Carry.NOTHING, Carry.NOTHING),
    JobState.FAILED: (Carry.SUBMIT, Carry.SUBMIT),
    JobState.TIMEOUT: (Carry.SUBMIT, Carry.SUBMIT),
    JobState.NODE_FAIL: (Carry.SUBMIT, Carry.SUBMIT),
    JobState.PREEMPTED: (Carry.SUBMIT, Carry.SUBMIT),
    JobState.BOOT_FAIL: (Carry.SUBMIT, Carry.SUBMIT),
    JobState.OUT_OF_MEMORY: (Carry.SUBMIT, Carry.SUBMIT),
    JobState.GONE: (Carry.TELL, Carry.TELL),
    JobState.UNKNOWN: (Carry.LOOK_AGAIN, Carry.LOOK_AGAIN),
}


def test_every_state_has_its_answer() -> None:
    assert set(TABLE) == set(JobState)


@pytest.mark.parametrize("state", JobState)
def test_what_is_left(state: JobState) -> None:
    found = tuple(carry(spool, state=state.value, completing=False, restarts=1) for spool in (SPOOL, CHAIN))
    assert found == TABLE[state]


@pytest.mark.parametrize("spool", [SPOOL, CHAIN])
@pytest.mark.parametrize("state", JobState)
def test_nothing_once_it_shows_or_the_run_is_over(spool: Spool, state: JobState) -> None:
    for completing in (False, True):
        assert carry(spool, state=state.value, completing=completing, restarts=2) is Carry.NOTHING
        assert carry(spool, state=state.value, completing=completing, restarts=1, over=True) is Carry.NOTHING


@pytest.mark.parametrize("spool", [SPOOL, CHAIN])
def test_completing_hides_a_cancel(spool: Spool) -> None:
    """The restart count is what tells a requeue from it."""
    assert carry(spool, state="UNKNOWN", completing=True, restarts=1) is Carry.LOOK_AGAIN
    assert carry(spool, state="PENDING", completing=True, restarts=1) is Carry.LOOK_AGAIN


def test_it_goes_to_disk_and_back() -> None:
    spool = Spool(job="120_7", restarts=0, reason="n2 never said hello", chain=True, avoid=("n2",))
    assert msgspec.json.decode(msgspec.json.encode(spool), type=Spool) == spool
