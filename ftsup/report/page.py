"""What `ftsup status` shows, as text of 80 columns and as JSON: pure functions of what was read."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from datetime import datetime

import msgspec

from ftsup.events import VerdictKind, WatchedBy
from ftsup.report.runs import View
from ftsup.report.story import UNPHASED, Incident, Stage, Story
from ftsup.report.words import one_line, short_time
from ftsup.worker.beatfile import Phase

WIDTH = 80
SILENT_S = 60.0
"""The leader writes its view every few seconds; after so long without one it is said."""


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


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """`ftsup status --json`."""

    run: str
    path: str
    stage: Stage
    job: str
    restarts: int
    grants: int
    attempts: int
    epoch: str
    nodes: tuple[str, ...]
    step: int | None
    phase: str
    saved_step: int | None
    saving: str
    """A save that is under way."""
    sealed: str | None
    """The newest checkpoint that is sealed: what a restart begins with."""
    sealed_step: int | None
    at_risk: int | None
    """Steps that would be lost now; null: not known."""
    watched_by: WatchedBy | None
    """What shows that it lives; null while it starts up."""
    damaged: tuple[str, ...]
    """Checkpoints that were set aside: which, why, and where they lie."""
    quiet_s: float | None
    """Seconds since the leader last wrote; null: it never did."""
    verdict: VerdictKind | None
    reason: str
    incidents: tuple[Row, ...]
    cancelled: bool
    """Somebody asked for it."""
    queue: str
    """What Slurm says of a job that says nothing yet."""
    notes: tuple[str, ...]


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


def page(view: View, *, now: datetime, queue: str = "") -> Page:
    """The facts of a status page."""
    story = view.story
    steps = [rank.step for rank in view.now.ranks.values() if rank.step is not None and rank.step >= 0] if view.now else []
    live = steps and not story.stage.over
    quiet_s = _since_s(_last_wall(view), now)
    step_now = min(steps) if live and story.by not in UNPHASED else story.step
    sealed = story.sealed[-1] if story.sealed else None
    sealed_step = sealed.step if sealed else None
    return Page(
        run=view.id,
        path=view.path,
        stage=_stage(view, quiet_s),
        job=story.job or view.job,
        restarts=story.restarts,
        grants=story.grants,
        attempts=story.attempts,
        epoch=str(story.epoch or ""),
        nodes=story.nodes,
        step=step_now,
        phase=_phase(view, story),
        saved_step=story.saved_step,
        saving=str(story.saving or ""),
        sealed=sealed.name if sealed else None,
        sealed_step=sealed_step,
        at_risk=None if step_now is None or sealed_step is None else max(step_now - sealed_step, 0),
        damaged=tuple(f"checkpoint {one.name} was set aside, {one.why}; it lies in {one.path}" for one in story.aside),
        watched_by=story.by,
        quiet_s=quiet_s,
        verdict=story.verdict.kind if story.verdict else None,
        reason=story.verdict.reason if story.verdict else "",
        incidents=rows(story),
        cancelled=view.cancelled,
        queue=queue,
        notes=view.notes,
    )


def _phase(view: View, story: Story) -> str:
    """Of the slowest rank: as the leader saw it a few seconds ago, else as it was told last."""
    names = [rank.phase for rank in view.now.ranks.values()] if view.now else []
    known = [Phase[name.upper()] for name in names if isinstance(name, str) and name.upper() in Phase.__members__]
    return min(known).name.lower() if known and not story.stage.over and story.by not in UNPHASED else story.phase


def _stage(view: View, quiet_s: float | None) -> Stage:
    """The log's word, but a cancelled run with no leader to write its end is over as well."""
    stage = view.story.stage
    gone = stage in {Stage.WAITING, Stage.REQUEUED} or quiet_s is None or quiet_s > SILENT_S
    return Stage.CANCELLED if view.cancelled and not stage.over and gone else stage


def _last_wall(view: View) -> str:
    walls = [view.now.wall if view.now else "", view.story.last.wall if view.story.last else ""]
    return max(walls, key=lambda wall: _parsed(wall) or datetime.fromisoformat("1970-01-01T00:00:00+00:00"))


def _parsed(wall: str) -> datetime | None:
    try:
        when = datetime.fromisoformat(wall)
    except ValueError:
        return None
    return when if when.tzinfo else None


def _since_s(wall: str, now: datetime) -> float | None:
    when = _parsed(wall)
    return None if when is None else max(0.0, (now - when).total_seconds())


def text(facts: Page) -> str:
    """The page, at most 80 columns wide."""
    lines: list[str] = []
    for indent, line in _lines(facts):
        flat = one_line(line, width=2000)
        lines += (
            textwrap.wrap(flat, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False) if flat else [""]
        )
    return "\n".join(lines)


def _lines(facts: Page) -> Iterator[tuple[str, str]]:
    yield "", f"{facts.run}: {facts.stage.value}"
    if facts.cancelled and not facts.stage.over:
        yield "  ", "cancel was asked for, and is on its way"
    if facts.reason:
        yield "  ", facts.reason
    if facts.queue:
        yield "  ", facts.queue
    if facts.grants:
        yield "  ", f"job {facts.job}, restart {facts.restarts}, attempt {facts.epoch or 'none yet'}, on {', '.join(facts.nodes)}"
        yield "  ", "; ".join(_counters(facts))
        yield "  ", f"{_count(facts.attempts, 'attempt')} in {_count(facts.grants, 'grant')}, {_count(len(facts.incidents), 'incident')}"
    elif facts.job and not facts.queue:
        yield "  ", f"job {facts.job}"
    if facts.quiet_s is not None and facts.quiet_s > SILENT_S and facts.stage not in {Stage.REQUEUED, *(s for s in Stage if s.over)}:
        yield "  ", f"the leader has said nothing for {short_time(facts.quiet_s)}"
    for damaged in facts.damaged:
        yield "  ", damaged
    for note in facts.notes:
        yield "  ", f"note: {note}"
    for row in facts.incidents:
        yield "", ""
        yield from _incident_lines(row)


def _counters(facts: Page) -> Iterator[str]:
    yield f"step {facts.step}" if facts.step is not None else "step not known"
    if facts.phase and not facts.stage.over:
        yield f"phase {facts.phase}"
    if facts.watched_by and not facts.stage.over:
        yield f"watched by {facts.watched_by.value}"
    yield f"saved step {facts.saved_step}" if facts.saved_step is not None else "nothing saved yet"
    if facts.saving and not facts.stage.over:
        yield facts.saving
    if facts.sealed is not None:
        lost = "" if facts.at_risk is None or facts.stage.over else f", {_steps(facts.at_risk)} would be lost now"
        yield f"sealed {facts.sealed}{lost}"


def _incident_lines(row: Row) -> Iterator[tuple[str, str]]:
    name = f"incident {row.number}" if row.number else "requeue" if row.verdict is VerdictKind.REQUEUE else "interruption"
    yield "", f"{name}, {row.wall[:19].replace('T', ' ')}, attempt {row.epoch}"
    if not row.reason.startswith(row.fault):
        yield "  ", row.fault
    if row.verdict:
        yield "  ", row.reason if row.verdict is VerdictKind.RESTART else f"{row.verdict.value}: {row.reason}"
    found = "" if row.detected_s is None else f"found after {short_time(row.detected_s)}, " if row.detected_s else "found at once, "
    if row.back_s is None:
        yield "  ", f"{found}not back at work"
    else:
        yield "  ", f"{found}back at work after {short_time(row.back_s)}, {_steps(row.replayed)} replayed"


def _steps(count: int | None) -> str:
    return "an unknown number of steps" if count is None else _count(count, "step")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
