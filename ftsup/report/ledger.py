"""The time of a run, cut into spells: each second in exactly one, by what was done then.

Pure: lines in, a ledger out. Inside a grant seconds are the leader's own, from grant to grant the wall clock's (`story.between_s`).
What the log does not tell is called unknown, and never guessed. What it all means is in `costs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec
from msgspec.structs import replace

from ftsup import events
from ftsup.events import Fault, Line, VerdictKind
from ftsup.policy.judge import HANGS
from ftsup.report.gauge import Gauge, Measured
from ftsup.report.story import WORKS, Incident, Moment, Story, between_s, fold
from ftsup.report.troubles import Trouble, Troubles

_ENDS = {"shutdown", "exited"}


class Part(Enum):
    """What a run does, at each second one thing."""

    TRAINING = "training"
    STARTUP = "startup"
    """A grant began, or an attempt that no incident asked for, and no step is made yet."""
    QUIET = "quiet"
    """It stood still, and nobody knew."""
    STOP = "stop"
    """An incident: taking evidence, and ending what is left."""
    RESTART = "restart"
    """An incident: from the verdict to training again in the same grant, back-off included."""
    QUEUE = "queue"
    """From the decision to requeue, or from being told to end, to the next grant's leader."""
    ENDING = "ending"
    IDLE = "idle"
    """The run was over, or paused, until somebody continued it."""
    UNKNOWN = "unknown"
    """A grant ended without a word: nobody can tell the training of then from the queue."""


class Spell(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time in which one thing was done."""

    part: Part
    spent_s: float
    grant: int
    incident: int | None = None
    """Index of the one that it belongs to."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asked for."""

    wall: str
    who: str
    request: str
    answer: str = ""
    """What the leader said to it."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """A run's story, and its time."""

    story: Story = Story()
    spells: tuple[Spell, ...] = ()
    faults: dict[int, tuple[Fault, ...]] = {}
    """Number of an incident -> all that was known of its ranks when it was judged."""
    wishes: tuple[Wish, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    measured: Measured = Measured()

    @property
    def whole_s(self) -> float:
        """From the first leader's beginning to the last line, without the time in which the run was over."""
        return sum(spell.spent_s for spell in self.spells if spell.part is not Part.IDLE)

    @property
    def idle_s(self) -> float:
        """The time in which the run was over, until somebody continued it."""
        return sum(spell.spent_s for spell in self.spells if spell.part is Part.IDLE)


def keep(lines: Iterable[Line]) -> Ledger:
    """The ledger of a whole log."""
    book = _Book()
    for line in lines:
        book.take(line)
    return book.close()


class _Book:
    """The ledger while it is written: lines are many, and spells few."""

    def __init__(self) -> None:
        self.story = Story()
        self.spells: list[Spell] = []
        self.place: tuple[Part, int | None] = (Part.STARTUP, None)
        self.since = Moment()
        self.told = False
        """Told to end, and nothing of ours went on since."""
        self.stopped = False
        """An attempt is being ended that no incident has ended: a person asked for another one."""
        self.stalled: tuple[Moment, float] | None = None
        """Since when ranks are known to stand still, and for how long they had then."""
        self.quiet_s: dict[int, float] = {}
        self.faults: dict[int, tuple[Fault, ...]] = {}
        self.wishes: list[Wish] = []
        self.troubles = Troubles()
        self.gauge = Gauge()

    def take(self, line: Line) -> None:
        before, event = self.story, line.event
        after = self.story = fold(before, line)
        now = after.last or Moment()
        if not isinstance(event, events.Progressed):  # nearly every line is one
            self.troubles.take(line, before.last or now, now)
            self._event(line, before, now)
        self.gauge.see(line, before, now)
        for order in line.orders:
            self._order(order, now)
        self._go(_place(after, told=self.told, stopped=self.stopped), now)

    def _event(self, line: Line, before: Story, now: Moment) -> None:
        event = line.event
        if isinstance(event, events.LeaderStarted):
            self._leader(before, self.story, now)
        elif isinstance(event, (events.Signalled, events.Terminated)):
            self.told = True
        elif isinstance(event, events.Stalled) and self.stalled is None:
            self.stalled = (now, max((fault.quiet_s for fault in event.faults), default=0.0))
        elif isinstance(event, events.Moving):
            self.stalled = None
        elif isinstance(event, (events.Asked, events.Continued)):
            self.wishes.append(_wish(line, event))
            if isinstance(event, events.Continued) and before.last is not None:
                self._gap(Part.IDLE, None, since=before.last, now=now)

    def _order(self, order: events.LeaderOrder, now: Moment) -> None:
        if isinstance(order, events.Incident):
            if order.number not in self.faults and self.stalled is not None:
                seen, quiet_s = self.stalled
                self.quiet_s[len(self.story.incidents) - 1] = quiet_s + (between_s(seen, now) or 0.0)
            self.faults[order.number] = order.faults or self.faults.get(order.number, ())
        if isinstance(order, (events.Incident, events.Launch)):
            self.told, self.stopped, self.stalled = False, False, None
        elif isinstance(order, events.Stop):
            self.stopped = _open(self.story) is None

    def _leader(self, before: Story, after: Story, now: Moment) -> None:
        """A leader takes over, and what was done goes on; or a grant begins, and between it and the last one lies a gap."""
        if after.grants == before.grants:
            self.gauge.leaders += 1
            return
        if before.last is not None:
            part = _between(before, told=self.told)
            self._gap(part, None if part is Part.IDLE else _open(after), since=before.last, now=now)
        self.since, self.place = now, _place(after, told=False, stopped=False)
        self.told, self.stopped, self.stalled = False, False, None

    def _gap(self, part: Part, incident: int | None, *, since: Moment, now: Moment) -> None:
        """Nobody wrote in between."""
        self._go((Part.UNKNOWN, None), since)
        self._spend(part, incident, between_s(since, now) or 0.0)
        self.since = now

    def _go(self, place: tuple[Part, int | None], now: Moment) -> None:
        """From now on it does something else."""
        if place != self.place:
            self._spend(*self.place, between_s(self.since, now) or 0.0)
            self.place, self.since = place, now

    def _spend(self, part: Part, incident: int | None, spent_s: float) -> None:
        if spent_s > 0 or incident is not None:  # what was over at once may have been quiet for long
            self.spells.append(Spell(part=part, incident=incident, spent_s=spent_s, grant=self.since.grant))

    def close(self) -> Ledger:
        if self.story.last is not None:
            self._spend(*self.place, between_s(self.since, self.story.last) or 0.0)
        spells = _with_quiet(_adopted(self.spells), self.story.incidents, self.quiet_s)
        return Ledger(
            story=self.story,
            spells=tuple(spells),
            faults=self.faults,
            wishes=tuple(self.wishes),
            troubles=self.troubles.all(),
            measured=self.gauge.measured(),
        )


def _wish(line: Line, event: events.Asked | events.Continued) -> Wish:
    if isinstance(event, events.Continued):
        changed = f"with other values of {', '.join(event.changed)}" if event.changed else "with the same configuration"
        return Wish(wall=line.wall, who=event.who, request="continue", answer=f"{event.who} continued the run, {changed}")
    answers = (order.text for order in line.orders if isinstance(order, events.Notify) and order.kind in {"asked", "refused"})
    return Wish(wall=line.wall, who=event.who, request=event.request.value, answer=next(answers, ""))


def _open(story: Story) -> int | None:
    """The newest incident, while training has not come back from it."""
    return len(story.incidents) - 1 if story.incidents and story.incidents[-1].back is None else None


def _place(story: Story, *, told: bool, stopped: bool) -> tuple[Part, int | None]:
    """What is done after this line."""
    index = _open(story)
    if story.verdict is not None and story.verdict.kind is not VerdictKind.REQUEUE:
        return Part.ENDING, None
    if story.verdict is not None or told:
        return Part.QUEUE, index
    if index is not None:
        incident = story.incidents[index]
        if incident.found.grant != story.grants:
            return Part.STARTUP, index
        return (Part.STOP if incident.verdict is None else Part.RESTART), index
    if stopped:
        return Part.STARTUP, None
    if story.phase in WORKS or (story.unphased is not None and not story.phase):
        return Part.TRAINING, None
    return (Part.ENDING if story.phase in _ENDS else Part.STARTUP), None


def _between(before: Story, *, told: bool) -> Part:
    """What the time between two grants was."""
    if before.verdict is not None and before.verdict.kind is not VerdictKind.REQUEUE:
        return Part.IDLE
    return Part.QUEUE if before.verdict is not None or told else Part.UNKNOWN


def _adopted(spells: Sequence[Spell]) -> list[Spell]:
    """The spells, where being told to end belongs to the requeue that came of it."""
    found: list[Spell] = []
    for spell in reversed(spells):
        heir = found[-1] if found else None
        if spell.part is Part.QUEUE and spell.incident is None and heir is not None and heir.part in {Part.QUEUE, Part.STARTUP}:
            found.append(replace(spell, incident=heir.incident))
        else:
            found.append(spell)
    return found[::-1]


def _with_quiet(spells: Sequence[Spell], incidents: Sequence[Incident], quiet_s: dict[int, float]) -> list[Spell]:
    """The spells, where the time before an incident in which its ranks stood still already is the incident's own."""
    found: list[Spell] = []
    seen: set[int] = set()
    for spell in spells:
        index = spell.incident
        if index is not None and index not in seen:
            seen.add(index)
            root = incidents[index].root
            known_s = root.quiet_s if root else 0.0
            wanted_s = max(known_s, quiet_s.get(index, 0.0)) if root and root.how in HANGS else known_s
            taken_s = _take_back(found, wanted_s, grant=spell.grant)
            if taken_s > 0:
                found.append(Spell(part=Part.QUIET, incident=index, spent_s=taken_s, grant=spell.grant))
        found.append(spell)
    return found


def _take_back(found: list[Spell], wanted_s: float, *, grant: int) -> float:
    """Take so many seconds from the newest spells of this grant; how many there were."""
    taken_s = 0.0
    while found and taken_s < wanted_s and found[-1].grant == grant and found[-1].part in {Part.TRAINING, Part.STARTUP, Part.RESTART}:
        last = found.pop()
        part_s = min(last.spent_s, wanted_s - taken_s)
        taken_s += part_s
        if last.spent_s > part_s:
            found.append(replace(last, spent_s=last.spent_s - part_s))
            break
    return taken_s
