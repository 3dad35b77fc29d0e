"""The demo's faults: which ones for a seed, how each strikes, and whether the run's story shows what really struck.

Strikes only at processes of the demo's own run. Knows nothing of screens. What the supervisor made of a fault is read from the story
of its event log, never from the plan.
"""

from __future__ import annotations

import random
import signal
from datetime import datetime
from enum import Enum
from pathlib import Path

import msgspec

from ftsup.events import How, VerdictKind
from ftsup.monitors import procs
from ftsup.monitors.heartbeat import RankSight, sights
from ftsup.report.story import Incident, Moment, Story
from ftsup.rundir import LocalDir


class Kind(Enum):
    """What the demo does to a run."""

    SLEEP = "time.sleep(3600)"
    """In the training code of one rank."""
    KILL = "kill -9"
    """Of one rank, from outside."""
    REQUEUE = "scontrol requeue"
    """Of the job, by somebody else than ftsup."""


class Strike(msgspec.Struct, frozen=True, kw_only=True):
    """One fault that is going to strike, once all ranks have made so many steps."""

    kind: Kind
    step: int
    rank: int | None = None

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.kind.value} in rank {self.rank}" if self.kind is Kind.SLEEP else self._outside

    @property
    def _outside(self) -> str:
        return self.kind.value if self.rank is None else f"{self.kind.value} of rank {self.rank}"


class Struck(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that did strike, and when."""

    strike: Strike
    at: Moment


def choose(seed: int, *, steps: int, ranks: int) -> tuple[Strike, ...]:
    """The faults of a seed, in their order: each gets a stretch of the run to itself, so that there is progress between them."""
    dice = random.Random(seed)  # noqa: S311 - places of faults, no secret

    def within(low: float, high: float) -> int:
        return dice.randint(round(low * steps), round(high * steps))

    return (
        Strike(kind=Kind.SLEEP, rank=dice.randrange(ranks), step=within(0.15, 0.25)),
        Strike(kind=Kind.KILL, rank=dice.randrange(ranks), step=within(0.40, 0.50)),
        Strike(kind=Kind.REQUEUE, step=within(0.62, 0.72)),
    )


def moment(wall_s: float) -> Moment:
    """An instant of `time.time()` as the event log writes it."""
    return Moment(wall=datetime.fromtimestamp(wall_s).astimezone().isoformat(timespec="milliseconds"))


# Where the ranks are -----------------------------------------------------------------------------------------------------


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """A rank as the demo sees it."""

    node: str
    sight: RankSight


def ranks_now(story: Story, *, base: Path, run_id: str) -> dict[int, Seat]:
    """Every rank of the running attempt: this machine holds all nodes, so all beats can be read."""
    if story.epoch is None:
        return {}
    seats = {}
    for node in story.nodes:
        for rank, sight in sights(LocalDir(base, run_id, story.job, node).beats(str(story.epoch))).items():
            seats[rank] = Seat(node=node, sight=sight)
    return dict(sorted(seats.items()))


def slowest(seats: dict[int, Seat]) -> int:
    """The step that all ranks have made."""
    return min((seat.sight.step or 0 for seat in seats.values()), default=0)


def kill(seat: Seat, *, mark: str) -> bool:
    """SIGKILL for exactly this rank, if it carries the run's mark; False when it is gone already."""
    for process in procs.marked(mark):
        if (process.pid, process.started) == (seat.sight.pid, seat.sight.started):
            return procs.strike(process, signal.SIGKILL)
    return False


# What became of them -----------------------------------------------------------------------------------------------------


def answer(story: Story, strike: Strike) -> Incident | None:
    """The incident that is about this strike: the right kind, at the right rank."""
    return next((incident for incident in story.incidents if _is_about(incident, strike)), None)


def _is_about(incident: Incident, strike: Strike) -> bool:
    root, verdict = incident.root, incident.verdict
    if strike.kind is Kind.REQUEUE:
        return root is None and verdict is not None and verdict.kind is VerdictKind.REQUEUE
    if root is None or root.rank != strike.rank:
        return False
    if strike.kind is Kind.SLEEP:
        return root.how is How.QUIET and root.step == strike.step
    return root.how is How.SIGNAL and root.signal == "SIGKILL"


def missing(story: Story, plan: tuple[Strike, ...], struck: tuple[Struck, ...]) -> list[str]:
    """What does not hold of "every fault struck, was seen as what it was, and was survived"; nothing when all of it does."""
    found = [f"did not strike: {strike.text}" for strike in plan if strike not in {one.strike for one in struck}]
    answers = {one.strike: answer(story, one.strike) for one in struck}
    found += [f"was not seen as what it was: {strike.text}" for strike, incident in answers.items() if incident is None]
    for strike, incident in answers.items():
        if incident is None:
            continue
        expected = VerdictKind.REQUEUE if strike.kind is Kind.REQUEUE else VerdictKind.RESTART
        if incident.verdict is None or incident.verdict.kind is not expected:
            said = incident.verdict.reason if incident.verdict else "nothing"
            found.append(f"{expected.value} should have been decided after {strike.text}; decided: {said}")
        if incident.back is None:
            found.append(f"training did not come back after {strike.text}")
    about = [incident for incident in answers.values() if incident is not None]
    found += [f"nobody struck, and yet: {incident.fault}" for incident in story.incidents if incident not in about]
    return found
