"""A requeue that is decided and was not seen yet, as it lies in the run directory (`RunDir.requeue`), and whether it is still to be done.

The leader writes it before it asks Slurm, and removes it once the requeue shows or another verdict takes its place. Where it stays (the
controller was away, the leader was killed) the next leader or `ftsup watch` reads it. Pure: it asks nobody, and knows no file.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class Spool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`requeue.json`: what was decided about one grant of one job."""

    job: str
    """As scontrol takes it: `123`, or `120_7`."""
    restarts: int
    """Its restart count when this was decided: a higher one shows that it was requeued."""
    reason: str = ""
    """The verdict's sentence, for people."""
    chain: bool = False
    """Not a requeue of the job, which Slurm refuses: exactly one successor of it is to be in the queue."""
    avoid: tuple[str, ...] = ()
    """The nodes that the run keeps out, the newest last."""


class Carry(Enum):
    """What is left to do of it."""

    NOTHING = "nothing"
    """It was done, or must not be: the spool may be removed."""
    LOOK_AGAIN = "look again"
    """Nobody can say yet: COMPLETING hides whether the job is on its way back, or was cancelled."""
    REQUEUE = "requeue"
    """`scontrol requeue incomplete` the job."""
    SUBMIT = "submit"
    """See to it that one successor is in the queue (`slurm.chain.successor`): the job itself does not come back."""
    TELL = "tell"
    """Slurm has forgotten the job, and it may have been cancelled: only a person can go on (`ftsup submit --continue`)."""


LIVES = frozenset({"RUNNING", "SUSPENDED"})
FOR_GOOD = frozenset({"CANCELLED", "COMPLETED", "DEADLINE"})
"""Somebody ended it, or it came to its end: such a job has no successor."""
BROKEN = frozenset({"FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "OUT_OF_MEMORY"})
"""It ended before it could be requeued."""


def carry(spool: Spool, *, state: str, completing: bool, restarts: int, over: bool = False) -> Carry:
    """What is left to do, given what Slurm says of `spool.job` (a `ports.JobState` value; a look-up that failed is no answer).

    `over`: the run was cancelled or paused (the marks `RunDir.cancelled`, `RunDir.paused`), has ended by a later verdict, or was continued.
    """
    if over or restarts > spool.restarts or (state == "PENDING" and not completing):
        return Carry.NOTHING
    if completing:
        return Carry.LOOK_AGAIN
    if state in LIVES:
        return Carry.SUBMIT if spool.chain else Carry.REQUEUE
    if state in FOR_GOOD:
        return Carry.NOTHING
    if state in BROKEN:
        return Carry.SUBMIT
    return Carry.TELL if state == "GONE" else Carry.LOOK_AGAIN
