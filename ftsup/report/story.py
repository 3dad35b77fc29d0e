"""Folds the event log to what a report shows: where the run is, what went wrong, what each fault cost.

Pure: lines in, a story out, the same however often it is read. Inside a grant durations come from the leader's clock (`t`), from
grant to grant from the wall clock, which is good enough for people. The policy reads none of this.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import Enum
from functools import reduce

import msgspec
from msgspec.structs import replace

from ftsup import events
from ftsup.events import Epoch, Fault, Line, Verdict, VerdictKind, WatchedBy
from ftsup.policy.judge import describe, root

WORKS = {"step", "evaluation", "checkpoint"}
UNPHASED = {WatchedBy.OUTPUT, WatchedBy.BATCHES}
_NOTES = 5
_SEALED = 8
_PACE = 60
_PACE_S = 20.0


class Stage(Enum):
    """Where a run is."""

    WAITING = "waiting"
    """No leader has started yet."""
    STARTING = "starting"
    TRAINING = "training"
    RECOVERING = "recovering"
    """An incident is open."""
    REQUEUED = "requeued"
    """Decided: the job goes back to the queue."""
    FINISHED = "finished"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    PAUSED = "paused"

    @property
    def over(self) -> bool:
        """Nothing follows by itself."""
        return self in {Stage.FINISHED, Stage.STOPPED, Stage.CANCELLED, Stage.PAUSED}


_DECIDED = {
    VerdictKind.REQUEUE: Stage.REQUEUED,
    VerdictKind.FINISHED: Stage.FINISHED,
    VerdictKind.STOP: Stage.STOPPED,
    VerdictKind.CANCELLED: Stage.CANCELLED,
    VerdictKind.PAUSED: Stage.PAUSED,
}


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A line's time, on the leader's clock of one grant and on the wall."""

    wall: str = ""
    t: float = 0.0
    grant: int = 0


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One fault from its first sign to training again, and what it cost."""

    number: int
    """0: the leader opened none: the whole grant ended."""
    epoch: Epoch
    found: Moment
    root: Fault | None = None
    verdict: Verdict | None = None
    at_step: int | None = None
    """The last step that any rank is known to have made."""
    back: Moment | None = None
    resumed_step: int | None = None
    """Where the attempt that came back began."""
    unexplained: bool = False
    """The grant was told to end, and nobody said why."""

    @property
    def fault(self) -> str:
        """What happened, as a sentence."""
        if self.root:
            return describe(self.root)
        if self.verdict and self.verdict.kind is VerdictKind.REQUEUE:
            return "the job was requeued"
        if self.unexplained:
            return "the job was told to end (SIGTERM), and Slurm did not say why"
        return "the leader and its grant ended"

    @property
    def detected_s(self) -> float | None:
        """From the fault to its detection: how long it was quiet. Deaths are seen as they happen (0); None: not known."""
        return None if self.root is None else self.root.quiet_s

    @property
    def back_s(self) -> float | None:
        """From the fault to training again; None: not yet, or not known."""
        since_found_s = None if self.back is None else between_s(self.found, self.back)
        return None if since_found_s is None else (self.detected_s or 0.0) + since_found_s

    @property
    def replayed(self) -> int | None:
        """Steps that were made twice."""
        if self.back is None or self.resumed_step is None:
            return None
        return None if self.at_step is None else max(0, self.at_step - self.resumed_step)


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """A save that was asked for, and is not through."""

    number: int
    begun: bool = False
    """Every rank has agreed."""
    nodes: tuple[str, ...] = ()
    """Those that are not through."""

    def __str__(self) -> str:
        where = f" on {', '.join(self.nodes[:3])}{', ...' if len(self.nodes) > 3 else ''}"  # noqa: PLR2004 - a line holds three names
        return f"saving on request{where}" if self.begun else "a save is asked for"


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is whole, every byte of it in its manifest."""

    name: str
    step: int | None = None
    size_bytes: int = 0
    at: Moment = Moment()


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How far an attempt had come."""

    epoch: Epoch
    at: Moment
    step: int


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asked for."""

    request: str
    who: str
    at: Moment
    answer: str = ""
    """What the leader said to it."""


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """A run as its log tells it."""

    stage: Stage = Stage.WAITING
    job: str = ""
    restarts: int = 0
    version: str = ""
    nodes: tuple[str, ...] = ()
    grants: int = 0
    continued: int = 0
    """How often it was continued, as another job, after its end."""
    attempts: int = 0
    epoch: Epoch | None = None
    phase: str = ""
    step: int | None = None
    base_step: int | None = None
    """Where this attempt began."""
    saved_step: int | None = None
    saving: Saving | None = None
    sealed: tuple[Seal, ...] = ()
    """The newest checkpoints that are sealed, the newest last: it is what a restart begins with."""
    aside: tuple[events.Quarantined, ...] = ()
    """The newest checkpoints that turned out to be damaged."""
    pace: tuple[Pace, ...] = ()
    """The newest steps, some time apart, over attempts: what a rate is made of."""
    left_s: float | None = None
    """What was left of the grant at `left_at`, as Slurm said; None: no limit, or not known."""
    left_at: Moment | None = None
    wishes: tuple[Wish, ...] = ()
    """The newest."""
    resumed_path: str | None = None
    began: Moment | None = None
    last: Moment | None = None
    by: WatchedBy | None = None
    unphased: Moment | None = None
    """Since when this attempt is watched by something that tells no phase."""
    told: Moment | None = None
    """When this grant was told to end."""
    unexplained: bool = False
    """It was, and nobody has said why."""
    incidents: tuple[Incident, ...] = ()
    verdict: Verdict | None = None
    """What was decided about this grant."""
    notes: tuple[str, ...] = ()
    """The newest things that people were told."""
    troubles: dict[str, str] = {}
    """Trouble that stands, by whom it befalls and its kind: what people were told when it began."""
    lines: int = 0

    @property
    def open(self) -> tuple[Incident, ...]:
        """Incidents that training has not come back from."""
        return tuple(incident for incident in self.incidents if incident.back is None)


def tell(lines: Iterable[Line]) -> Story:
    """The story of a whole log."""
    return reduce(fold, lines, Story())


def between_s(begin: Moment, end: Moment) -> float | None:
    """Seconds from one moment to another; negative ones (a wall clock was set) count as 0; None: the wall time cannot be read."""
    if begin.grant == end.grant:
        return max(0.0, end.t - begin.t)
    try:
        return max(0.0, (datetime.fromisoformat(end.wall) - datetime.fromisoformat(begin.wall)).total_seconds())
    except (ValueError, TypeError):
        return None


def fold(story: Story, line: Line) -> Story:
    """The story with one more line."""
    event = line.event
    if isinstance(event, events.LeaderStarted):
        story = _leader(story, event)
    now = Moment(wall=line.wall, t=event.t, grant=story.grants)
    story = replace(story, lines=story.lines + 1, last=now, began=story.began or now)
    story = _event(story, event, now)
    for order in line.orders:
        story = _order(story, order, now)
    return story


def _leader(story: Story, event: events.LeaderStarted) -> Story:
    story = replace(story, nodes=event.nodes, version=event.version, troubles=_of_others(story.troubles, ""))
    if story.grants and (event.job, event.restarts) == (story.job, story.restarts):
        return story  # taken over within the grant: the attempt goes on
    if story.last and story.epoch and not story.open and not story.stage.over:
        lost = Incident(number=0, epoch=story.epoch, found=story.last, verdict=story.verdict, at_step=story.step)
        lost = replace(lost, unexplained=story.unexplained)
        story = replace(story, incidents=(*story.incidents, lost))
    return replace(
        story,
        job=event.job,
        restarts=event.restarts,
        grants=story.grants + 1,
        stage=Stage.STARTING if not story.open else Stage.RECOVERING,
        verdict=None,
        troubles={},
        told=None,
        unexplained=False,
        phase="",
        step=None,
        left_s=None,
        left_at=None,
    )


def _event(story: Story, event: events.LeaderEvent, now: Moment) -> Story:
    match event:
        case events.Progressed():
            return _progressed(story, event, now)
        case events.Saved(epoch=epoch, step=step) if epoch == story.epoch:
            return replace(story, saved_step=step)
        case events.SaveOver() if story.saving is not None and event.save == story.saving.number:
            return _save_over(story, event, story.saving)
        case events.AttemptOver(epoch=epoch, step=int() as step) if epoch == story.epoch:
            return _reached(story, step)
        case events.SlurmSaid(state="RUNNING"):
            return replace(story, left_s=event.left_s, left_at=now)
        case events.Asked(request=request, who=who):
            return replace(story, wishes=(*story.wishes, Wish(request=request.value, who=who, at=now))[-_NOTES:])
        case events.Signalled() | events.Terminated():
            return replace(story, told=story.told or now)
        case events.Continued(n=n, who=who):
            return replace(story, continued=n, notes=(*story.notes, f"continued by {who}")[-_NOTES:])
        case events.Reported(fault=fault, fatal=False):
            who = fault.node if fault.rank is None else f"rank {fault.rank} on {fault.node}"
            return replace(story, notes=(*story.notes, f"{who}: {fault.error}")[-_NOTES:])
        case events.Noted():
            return _noted(story, event)
        case events.NodeUp(node=node):
            return replace(story, troubles=_of_others(story.troubles, node))
        case _:
            return _checkpoint(story, event, now)


def _noted(story: Story, note: events.Noted) -> Story:
    text, kind = f"{note.node}: {note.text}" if note.node else note.text, f"{note.node}/{note.trouble}"
    story = replace(story, notes=(*story.notes, text)[-_NOTES:])
    if note.over:
        return replace(story, troubles={other: text for other, text in story.troubles.items() if other != kind})
    return replace(story, troubles={**story.troubles, kind: text}) if note.trouble else story


def _of_others(troubles: dict[str, str], node: str) -> dict[str, str]:
    """Without those of one supervisor, which has just begun: it finds out anew. The leader's node is empty."""
    return {kind: text for kind, text in troubles.items() if kind.partition("/")[0] != node}


def _checkpoint(story: Story, event: events.LeaderEvent, now: Moment) -> Story:
    match event:
        case events.Sealed(name=name):
            return _sealed(story, Seal(name=name, step=event.step, size_bytes=event.size_bytes, at=now))
        case events.Quarantined(name=name):
            return replace(_lost(story, (name,)), aside=(*story.aside, event)[-_NOTES:])
        case events.Pruned(names=names):
            return _lost(story, names)
        case events.CheckpointPicked(path=path, name=name, step=step, left=left):
            story = replace(_lost(story, tuple(one.name for one in left or ())), resumed_path=path)
            if not name or name in {one.name for one in story.sealed}:
                return story
            return _sealed(story, Seal(name=name, step=step, at=now))  # its seal was told before it was left behind, or by another run
        case _:
            return story


def _sealed(story: Story, seal: Seal) -> Story:
    others = tuple(one for one in story.sealed if one.name != seal.name)
    return replace(story, sealed=tuple(sorted((*others, seal), key=_sealed_step))[-_SEALED:])


def _lost(story: Story, names: tuple[str, ...]) -> Story:
    return replace(story, sealed=tuple(one for one in story.sealed if one.name not in names))


def _sealed_step(sealed: Seal) -> int:
    return -1 if sealed.step is None else sealed.step


def _save_over(story: Story, event: events.SaveOver, saving: Saving) -> Story:
    left = tuple(node for node in saving.nodes if node != event.node)
    step = story.saved_step if event.step is None else event.step
    return replace(story, saved_step=step, saving=replace(saving, nodes=left) if left else None)


def _reached(story: Story, step: int) -> Story:
    """How far an attempt came is known to the step once it is over; before, to the minute."""
    incidents = tuple(
        replace(incident, at_step=max(step, incident.at_step or 0)) if incident.epoch == story.epoch and incident.back is None else incident
        for incident in story.incidents
    )
    return replace(story, step=max(step, story.step or 0), incidents=incidents)


def _progressed(story: Story, event: events.Progressed, now: Moment) -> Story:
    if event.epoch != story.epoch:
        return story
    known = event.step is not None or event.by is None
    step = None if not known else story.step if event.step is None else max(event.step, story.step or 0)
    if event.by not in UNPHASED:
        works, since = event.phase in WORKS, now
        pace = story.pace if step is None else _paced(story.pace, event.epoch, now, step)
        story = replace(story, phase=event.phase, step=step, by=event.by, unphased=None, pace=pace)
    else:  # a script may print before it imports torch, and take a batch before it builds its optimizer: what is so a minute later stays so
        works, since = story.unphased is not None, story.unphased or now
        story = replace(story, phase="", step=None, by=event.by, unphased=since)
    if not works:
        return story
    if story.stage is Stage.TRAINING:  # nothing is open: so it is nearly always, and a log is long
        return story
    incidents = tuple(
        replace(incident, back=since, resumed_step=story.base_step) if incident.back is None and event.epoch > incident.epoch else incident
        for incident in story.incidents
    )
    story = replace(story, incidents=incidents)
    return story if story.open or story.verdict else replace(story, stage=Stage.TRAINING)


def _paced(pace: tuple[Pace, ...], epoch: Epoch, now: Moment, step: int) -> tuple[Pace, ...]:
    """One more point, where the last one is some time ago: nodes tell their first steps all at once."""
    last = pace[-1] if pace else None
    if last and last.epoch == epoch and now.t - last.at.t < _PACE_S:
        return pace
    return (*pace[1 - _PACE :], Pace(epoch=epoch, at=now, step=step))


def _order(story: Story, order: events.LeaderOrder, now: Moment) -> Story:
    match order:
        case events.Launch(epoch=epoch) if epoch != story.epoch:
            story = replace(story, epoch=epoch, attempts=story.attempts + 1, base_step=order.base_step, step=order.base_step)
            return replace(story, phase="", by=None, unphased=None)
        case events.AskRanks(ask=events.Ask.ABORT):
            return replace(story, saving=None)
        case events.AskRanks():
            return replace(story, saving=_asked(story.saving, order))
        case events.Unexplained(over=over):
            return replace(story, unexplained=not over)
        case events.Incident():
            return _incident(replace(story, saving=None), order, now)
        case events.Decide(verdict=verdict):
            return _decided(replace(story, saving=None), verdict, now)
        case events.Notify(kind="asked" | "refused", text=text) if story.wishes and not story.wishes[-1].answer:
            return replace(story, wishes=(*story.wishes[:-1], replace(story.wishes[-1], answer=text)))
        case events.Notify(text=text):
            return replace(story, notes=(*story.notes, text)[-_NOTES:])
        case _:
            return story


def _asked(saving: Saving | None, order: events.AskRanks) -> Saving | None:
    if order.ask is events.Ask.COUNT and order.beats == 0:  # whether anybody listens shows next
        return saving
    begun = order.ask is events.Ask.COMMIT
    known = saving.nodes if saving is not None and (saving.number, saving.begun) == (order.save, begun) else ()
    return Saving(number=order.save, begun=begun, nodes=known if order.node in known else (*known, order.node))


def _incident(story: Story, order: events.Incident, now: Moment) -> Story:
    known = {incident.number: incident for incident in story.incidents if incident.number}
    steps = [fault.step for fault in (order.root, *order.faults) if fault and fault.step is not None]
    if story.step is not None and order.epoch == story.epoch:
        steps.append(story.step)
    old = known.get(order.number) or Incident(number=order.number, epoch=order.epoch, found=now)
    new = replace(
        old,
        root=order.root or old.root or (root(order.faults) if order.faults else None),
        verdict=order.verdict or old.verdict,
        at_step=max([*steps, *([] if old.at_step is None else [old.at_step])], default=None),
    )
    if order.number in known:
        incidents = tuple(new if incident.number == new.number else incident for incident in story.incidents)
    else:
        incidents = (*story.incidents, new)
    return replace(story, incidents=incidents, stage=story.stage if story.verdict else Stage.RECOVERING)


def _decided(story: Story, verdict: Verdict, now: Moment) -> Story:
    stage = _DECIDED.get(verdict.kind, story.stage)
    incidents = tuple(
        replace(incident, verdict=verdict) if incident.back is None and incident.verdict is None else incident
        for incident in story.incidents
    )
    if verdict.kind is VerdictKind.REQUEUE and story.epoch and not story.open:
        incidents = (*incidents, Incident(number=0, epoch=story.epoch, found=story.told or now, verdict=verdict, at_step=story.step))
    return replace(story, verdict=verdict, stage=stage, incidents=incidents)
