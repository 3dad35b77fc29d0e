"""What `ftsup status` knows of a run, as facts: a pure function of what was read. `pagetext` says them in words."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ftsup.events import VerdictKind, WatchedBy
from ftsup.policy.outlook import Budget
from ftsup.ports import Job
from ftsup.report import ahead
from ftsup.report.minding import Deed
from ftsup.report.pace import rate_per_min
from ftsup.report.runs import View
from ftsup.report.story import UNPHASED, Incident, Stage, Story
from ftsup.report.words import parsed
from ftsup.worker.beatfile import Phase

SILENT_S = 60.0
"""The leader writes its view every few seconds; after so long without one it is said."""
WATCHED = 2


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One incident as a line of a table."""

    number: int
    epoch: str
    wall: str
    fault: str
    node: str | None = None
    rank: int | None = None
    step: int | None = None
    detected_s: float | None = None
    """From the fault to its detection."""
    back_s: float | None = None
    """From the fault to training again."""
    replayed: int | None = None
    verdict: VerdictKind | None = None
    reason: str = ""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asked for."""

    request: str
    who: str
    wall: str
    answer: str = ""
    """What the leader said to it."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """`ftsup status --json`. Fields are added, never renamed."""

    run: str
    path: str
    stage: Stage
    next: str
    """What comes next, or what a person can type."""
    job: str
    restarts: int
    grants: int
    attempts: int
    epoch: str
    nodes: tuple[str, ...]
    step: int | None
    rate_per_min: float | None
    """Steps a minute, over the last minutes in which it stepped."""
    phase: str
    saved_step: int | None
    saving: str
    """A save that is under way."""
    sealed: str | None
    """The newest checkpoint that is sealed: what a restart begins with."""
    sealed_step: int | None
    sealed_age_s: float | None
    at_risk: int | None
    """Steps that would be lost now; null: not known."""
    at_risk_s: float | None
    """What it would take to make them again."""
    watched_by: WatchedBy | None
    """What shows that it lives; null while it starts up."""
    troubles: tuple[str, ...]
    """What a disk keeps us from, as long as it does."""
    damaged: tuple[str, ...]
    """Checkpoints that were set aside: which, why, and where they lie."""
    quiet_s: float | None
    """Seconds since the leader last wrote; null: it never did."""
    left_s: float | None
    """What is left of the grant; null: no limit, or not known."""
    budgets: dict[str, Budget]
    """By the key of `policy`; empty: the leader has not told."""
    verdict: VerdictKind | None
    reason: str
    asked: tuple[Wanted, ...]
    incidents: tuple[Row, ...]
    cancelled: bool
    """Somebody asked for it."""
    queue: str
    """What Slurm says of a job that says nothing itself."""
    watched: tuple[Deed, ...]
    """What `ftsup watch` said and did about its job last."""
    told: tuple[str, ...]
    """What the leader told people last."""
    notes: tuple[str, ...]
    """What could not be read."""


def rows(story: Story) -> tuple[Row, ...]:
    """The incidents of a run, oldest first."""
    return tuple(_row(incident) for incident in story.incidents)


def _row(incident: Incident) -> Row:
    root, verdict = incident.root, incident.verdict
    return Row(
        number=incident.number,
        epoch=str(incident.epoch),
        wall=incident.found.wall,
        fault=incident.fault,
        node=root.node if root else None,
        rank=root.rank if root else None,
        step=incident.at_step if root is None or root.step is None else root.step,
        detected_s=incident.detected_s,
        back_s=incident.back_s,
        replayed=incident.replayed,
        verdict=verdict.kind if verdict else None,
        reason=verdict.reason if verdict else "",
    )


def silent(view: View, *, now: datetime) -> bool:
    """Whether nothing of the run speaks of itself, although it is not over: then Slurm may know more."""
    stage = view.story.stage
    quiet_s = since_s(_last_wall(view), now)
    return not stage.over and (stage in {Stage.WAITING, Stage.REQUEUED} or quiet_s is None or quiet_s > SILENT_S)


def page(view: View, *, now: datetime, job: Job | None = None, trouble: str = "", name: str = "") -> Page:
    """The facts of a status page. `job`: what Slurm said of a job that says nothing itself, or (`trouble`) why it said nothing.

    `name`: what people type for this run.
    """
    story = view.story
    quiet_s = since_s(_last_wall(view), now)
    stage = _stage(view, now)
    step_now, seen_s = _step_now(view), _seen_s(view)
    rate = rate_per_min(story, since_s=seen_s, step_now=step_now) if stage is Stage.TRAINING and not silent(view, now=now) else None
    sealed = story.sealed[-1] if story.sealed else None
    at_risk = None if step_now is None or sealed is None or sealed.step is None else max(step_now - sealed.step, 0)
    left_s = None if story.left_s is None or story.left_at is None else story.left_s - (since_s(story.left_at.wall, now) or 0.0)
    return Page(
        run=view.id,
        path=view.path,
        stage=stage,
        next=_next(view, stage, job, now=now, name=name or view.id, asked=bool(job or trouble)),
        job=story.job or view.job,
        restarts=story.restarts,
        grants=story.grants,
        attempts=story.attempts,
        epoch=str(story.epoch or ""),
        nodes=story.nodes,
        step=step_now,
        rate_per_min=None if rate is None else round(rate, 2),
        phase=_phase(view, story),
        saved_step=story.saved_step,
        saving=str(story.saving or ""),
        sealed=sealed.name if sealed else None,
        sealed_step=sealed.step if sealed else None,
        sealed_age_s=since_s(sealed.at.wall, now) if sealed else None,
        at_risk=at_risk,
        at_risk_s=None if at_risk is None or not rate else round(at_risk / rate * 60, 1),
        troubles=() if stage.over else tuple(story.troubles.values()),
        damaged=tuple(f"checkpoint {one.name} was set aside, {one.why}; it lies in {one.path}" for one in story.aside),
        watched_by=story.by,
        quiet_s=quiet_s,
        left_s=None if left_s is None or stage.over or stage is Stage.REQUEUED else max(left_s, 0.0),
        budgets=view.now.ahead.budgets if view.now else {},
        verdict=story.verdict.kind if story.verdict else None,
        reason=story.verdict.reason if story.verdict else "",
        asked=tuple(Wanted(request=wish.request, who=wish.who, wall=wish.at.wall, answer=wish.answer) for wish in story.wishes),
        incidents=rows(story),
        cancelled=view.cancelled,
        queue=trouble or (ahead.queue(job) if job else ""),
        watched=() if stage.over else tuple(deed for deed in view.watched if deed.job == view.job)[-WATCHED:],
        told=view.story.notes,
        notes=view.notes,
    )


def _next(view: View, stage: Stage, job: Job | None, *, now: datetime, name: str, asked: bool) -> str:
    if stage.over:
        return ahead.over(stage, name=name)
    if not view.job and stage is Stage.WAITING:
        return "nothing: it was never submitted"
    if silent(view, now=now):
        return ahead.gone(job, name=name, begun=view.story.grants > 0, asked=asked)
    if view.now is None:
        return "not known: the leader has written no status.json yet"
    return ahead.under_way(view.now, saving=view.story.saving, epoch=str(view.story.epoch or ""), trains=stage is Stage.TRAINING, at=now)


def _step_now(view: View) -> int | None:
    """Of the slowest rank: as the leader saw it a few seconds ago, else as it was told last."""
    story = view.story
    steps = [rank.step for rank in view.now.ranks.values() if rank.step is not None and rank.step >= 0] if view.now else []
    return min(steps) if steps and not story.stage.over and story.by not in UNPHASED else story.step


def _seen_s(view: View) -> float | None:
    """From the last point of the pace to the leader's last look at its ranks."""
    pace = view.story.pace
    when = parsed(view.now.wall) if view.now and pace and view.now.epoch == str(pace[-1].epoch) else None
    return None if when is None else since_s(pace[-1].at.wall, when)


def _phase(view: View, story: Story) -> str:
    """Of the slowest rank: as the leader saw it a few seconds ago, else as it was told last."""
    known = [rank.phase for rank in view.now.ranks.values() if isinstance(rank.phase, str)] if view.now else []
    phases = [Phase[phase.upper()] for phase in known if phase.upper() in Phase.__members__]
    return min(phases).name.lower() if phases and not story.stage.over and story.by not in UNPHASED else story.phase


def _stage(view: View, now: datetime) -> Stage:
    """The log's word, but a cancelled or paused run with no leader to write its end is over as well."""
    if view.cancelled and (silent(view, now=now) or view.story.stage is Stage.PAUSED):
        return Stage.CANCELLED
    return Stage.PAUSED if view.paused and silent(view, now=now) else view.story.stage


def _last_wall(view: View) -> str:
    walls = [view.now.wall if view.now else "", view.story.last.wall if view.story.last else ""]
    return max(walls, key=lambda wall: parsed(wall) or datetime.fromisoformat("1970-01-01T00:00:00+00:00"))


def since_s(wall: str, now: datetime) -> float | None:
    """Seconds since a time of the log; None: it cannot be read."""
    when = parsed(wall)
    return None if when is None else max(0.0, (now - when).total_seconds())
