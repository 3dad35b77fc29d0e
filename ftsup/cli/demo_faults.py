"""The demo's faults: which there are, and which of them strike where for a seed. Values and a draw; no hand is laid on anything here."""

from __future__ import annotations

import random
from collections.abc import Collection
from datetime import datetime
from enum import Enum

import msgspec

from ftsup.events import Epoch


class Kind(Enum):
    """What the demo does to a run, in the order in which it strikes."""

    SLEEP = "time.sleep(3600)"
    """In the training code of one rank."""
    KILL = "kill -9"
    """Of one rank, from outside."""
    FLIP = "a flipped bit"
    """In the newest checkpoint, once it is sealed; right after the rank was killed, and before anybody resumes."""
    LEADER = "kill -9 of the leader"
    WARNING = "Slurm's warning"
    """The time limit comes near, and Slurm sends the signal that it was asked for."""


KINDS = tuple(Kind)
_SAID = {Kind.SLEEP: "in", Kind.KILL: "of"}


class Strike(msgspec.Struct, frozen=True, kw_only=True):
    """One fault that is going to strike, once all ranks have made so many steps."""

    kind: Kind
    step: int
    rank: int | None = None
    place: float = 0.0
    """Of a flipped bit, among all the bits of the checkpoint's tensors: 0 is the first, 1 comes after the last."""

    @property
    def text(self) -> str:
        """For people."""
        return self.kind.value if self.rank is None else f"{self.kind.value} {_SAID[self.kind]} rank {self.rank}"


class Struck(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that did strike: when, and what was known of its place at that moment."""

    strike: Strike
    at: str
    """By the wall clock, as the event log writes it."""
    step: int
    """That all ranks had made."""
    epoch: Epoch | None = None
    name: str = ""
    """The checkpoint that a bit was flipped in."""
    offset: int = 0
    """Of the byte with that bit."""
    older: str = ""
    """The checkpoint before that one, sealed as well."""

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.strike.text} in {self.name}" if self.name else self.strike.text


def instant(wall_s: float) -> str:
    """An instant of `time.time()` as the event log writes it."""
    return datetime.fromtimestamp(wall_s).astimezone().isoformat(timespec="milliseconds")


def passed_s(begin: str, end: str) -> float:
    """From one such instant to another; negative when that was earlier."""
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()


def choose(seed: int, *, steps: int, ranks: int, kinds: Collection[Kind] = KINDS) -> tuple[Strike, ...]:
    """The faults of a seed, in their order: each gets a stretch of the run to itself, so that there is progress between them.

    A bit is flipped for the resume after a kill, so that one comes with it.
    """
    dice = random.Random(seed)  # noqa: S311 - places of faults, no secret

    def within(low: float, high: float) -> int:
        return dice.randint(round(low * steps), round(high * steps))

    sleep = Strike(kind=Kind.SLEEP, rank=dice.randrange(ranks), step=within(0.13, 0.18))
    kill = Strike(kind=Kind.KILL, rank=dice.randrange(ranks), step=within(0.30, 0.36))
    flip = Strike(kind=Kind.FLIP, step=kill.step, place=dice.random())
    leader = Strike(kind=Kind.LEADER, step=within(0.478, 0.525))
    warning = Strike(kind=Kind.WARNING, step=within(0.645, 0.70))  # slow machines make twenty steps until the job ends
    wanted = {*kinds, *([Kind.KILL] if Kind.FLIP in kinds else [])}
    return tuple(strike for strike in (sleep, kill, flip, leader, warning) if strike.kind in wanted)
