"""Where the time of a run went, by cause, and what each incident cost: sums over the spells of its ledger. Pure.

The parts always sum to the whole, and none is negative.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from ftsup.events import How, VerdictKind
from ftsup.policy.judge import CRASHES, ERRORS, HANGS
from ftsup.report.ledger import Ledger, Part
from ftsup.report.story import Incident

_NODES = {How.NODE, How.HELLO, How.UNKILLABLE, How.DEVICE}
_STARTS = {How.SETUP, How.PORT}


class Cause(Enum):
    """Why time was not training, or was training for nothing. The values are what people read."""

    TRAINING = "training"
    REPLAYED = "steps made again"
    SAVING = "saving"
    STARTUP = "start-up and end"
    HANG = "hangs"
    CRASH = "crashes"
    NODE = "nodes"
    QUEUE = "requeue and queue"
    UNKNOWN = "unknown"


_BY_PART = {
    Part.TRAINING: Cause.TRAINING,
    Part.STARTUP: Cause.STARTUP,
    Part.ENDING: Cause.STARTUP,
    Part.QUEUE: Cause.QUEUE,
    Part.UNKNOWN: Cause.UNKNOWN,
}


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What one incident cost, in seconds."""

    quiet_s: float = 0.0
    stop_s: float = 0.0
    restart_s: float = 0.0
    queue_s: float = 0.0
    startup_s: float = 0.0
    """Of the grant after it."""
    unknown_s: float = 0.0
    replayed_s: float = 0.0
    """Of training before it that had to be made again."""

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.quiet_s + self.stop_s + self.restart_s + self.queue_s + self.startup_s + self.unknown_s + self.replayed_s


def cause(incident: Incident) -> Cause:
    """What an incident counts as."""
    how = incident.root.how if incident.root else None
    if how is None:
        requeued = incident.verdict is not None and incident.verdict.kind is VerdictKind.REQUEUE
        return Cause.QUEUE if requeued else Cause.UNKNOWN
    if how in HANGS:
        return Cause.HANG
    if how in _NODES:
        return Cause.NODE
    if how in _STARTS:
        return Cause.STARTUP
    return Cause.CRASH if how in CRASHES | ERRORS | {How.TORCHRUN, How.SAVED} else Cause.UNKNOWN


def by_cause(ledger: Ledger) -> dict[Cause, float]:
    """Seconds by cause; they sum to the whole. What was made again, and saves, are taken out of training, and never more than that."""
    found = dict.fromkeys(Cause, 0.0)
    incidents = ledger.story.incidents
    for spell in ledger.spells:
        if spell.part is Part.IDLE:
            continue
        of_incident = spell.part in {Part.QUIET, Part.STOP, Part.RESTART} and spell.incident is not None
        found[cause(incidents[spell.incident or 0]) if of_incident else _BY_PART.get(spell.part, Cause.UNKNOWN)] += spell.spent_s
    again_s = sum(one.replayed_s for one in costs(ledger))
    again_s += min(ledger.measured.asked_again * (ledger.measured.step_s or 0.0), found[Cause.TRAINING] - again_s)
    saving_s = min(ledger.measured.saving_s or 0.0, found[Cause.TRAINING] - again_s)
    found[Cause.REPLAYED], found[Cause.SAVING] = again_s, saving_s
    found[Cause.TRAINING] -= again_s + saving_s
    return found


def costs(ledger: Ledger) -> tuple[Cost, ...]:
    """What each incident cost, in their order. Steps are made again in training time, of which there is only so much."""
    parts: list[dict[str, float]] = [{} for _ in ledger.story.incidents]
    for spell in ledger.spells:
        if spell.incident is not None and spell.part in _FIELDS:
            mine = parts[spell.incident]
            mine[_FIELDS[spell.part]] = mine.get(_FIELDS[spell.part], 0.0) + spell.spent_s
    left_s = sum(spell.spent_s for spell in ledger.spells if spell.part is Part.TRAINING)
    for mine, incident in zip(parts, ledger.story.incidents, strict=True):
        again_s = min(left_s, (incident.replayed or 0) * (ledger.measured.step_s or 0.0))
        mine["replayed_s"] = again_s
        left_s -= again_s
    return tuple(Cost(**mine) for mine in parts)


_FIELDS = {
    Part.QUIET: "quiet_s",
    Part.STOP: "stop_s",
    Part.RESTART: "restart_s",
    Part.QUEUE: "queue_s",
    Part.STARTUP: "startup_s",
    Part.UNKNOWN: "unknown_s",
}
