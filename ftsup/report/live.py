"""What `ftsup top` shows, as lines that fill a terminal: a pure function of what was read, of the size, and of what was seen before.

The same facts as `ftsup status`, plus a map of the ranks and the course of the rate. It knows no terminal and no keys.
"""

from __future__ import annotations

import textwrap
from datetime import datetime

import msgspec
from rich.text import Text

from ftsup.report import pagetext, rankmap
from ftsup.report.pace import bars, course, on_the_wall
from ftsup.report.page import Page, page, silent
from ftsup.report.rankmap import Glyphs, Seats
from ftsup.report.runs import View
from ftsup.report.story import Moment, Pace, Stage
from ftsup.report.words import count, one_line, parsed, short_time, to_the_minute

COLUMNS, ROWS = 80, 24
"""The least."""
_POINTS = 400
_SPANS_S = (120.0, 600.0, 3600.0)
"""The course is of the last so many seconds: the smallest that holds what was seen, or the largest."""
_KEYS = "q quits  {} scroll  {} tells all of it"
_STAGE = {
    Stage.TRAINING: "bold green",
    Stage.RECOVERING: "bold yellow",
    Stage.STOPPED: "bold red",
    Stage.CANCELLED: "bold red",
}


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """How far the run was, as often as it was looked at: finer than the log, which has a point a minute."""

    points: tuple[Pace, ...] = ()

    def after(self, view: View) -> Track:
        """With one more look."""
        story = view.story
        points = self.points or tuple(point for point in map(on_the_wall, story.pace) if point)
        when = parsed(view.now.wall) if view.now is not None and view.now.epoch == str(story.epoch) else None
        steps = [rank.step for rank in view.now.ranks.values() if rank.step is not None and rank.step >= 0] if view.now else []
        if when is None or not steps or story.epoch is None or story.step is None or (points and points[-1].at.t >= when.timestamp()):
            return Track(points=points)
        point = Pace(epoch=story.epoch, at=Moment(t=when.timestamp(), grant=story.grants), step=min(steps))
        return Track(points=(*points, point)[-_POINTS:])


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """Of a terminal, in characters."""

    columns: int
    rows: int

    @property
    def enough(self) -> bool:
        """Whether everything has its place."""
        return self.columns >= COLUMNS and self.rows >= ROWS


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One picture: as many lines as the terminal has rows, none longer than a row."""

    lines: tuple[Text, ...]
    most: int
    """How far the incidents can be scrolled."""


def frame(view: View, track: Track, *, now: datetime, size: Size, glyphs: Glyphs, scroll: int = 0) -> Frame:
    """The picture of now."""
    if not size.enough:
        said = f"ftsup top needs {COLUMNS} columns and {ROWS} rows; here are {size.columns} and {size.rows}. q quits"
        lines = [Text(line) for line in textwrap.wrap(said, max(size.columns, 1))]
        return Frame(lines=_fill(lines, size), most=0)
    facts = page(view, now=now)
    head = [*_head(facts, now, size), *_where(facts, track, now, size, glyphs)]
    keys = Text(_KEYS.format(glyphs.arrows, f"ftsup explain {facts.run}"), "dim")
    room = size.rows - len(head) - 1
    seated = rankmap.seats(view, silent=silent(view, now=now))
    ranks = _ranks(view, seated, size, glyphs, height=max(room // 2 - 1, 3))
    told, most = _told(facts, now, size, glyphs, height=room - len(ranks), scroll=scroll)
    return Frame(lines=(*_fill([*head, *ranks, *told], msgspec.structs.replace(size, rows=size.rows - 1)), _cut(keys, size)), most=most)


def _head(facts: Page, now: datetime, size: Size) -> list[Text]:
    """Which run, where it stands, and what comes next."""
    clock = f"{now:%H:%M:%S}"
    name = one_line(facts.run, width=size.columns - 10)
    left = "" if facts.left_s is None else f"; {to_the_minute(facts.left_s)} of the grant left"
    job = f"; job {facts.job}, {_attempt(facts)}, {count(len(facts.nodes), 'node')}" if facts.grants else ""
    lines = [
        Text.assemble((f"{name:<{size.columns - len(clock)}}", "bold"), (clock, "dim")),
        Text.assemble((facts.stage.value, _STAGE.get(facts.stage, "bold")), f"{job}{left}"),
    ]
    worries = [facts.reason] if facts.reason else []
    worries += pagetext.worries(facts)
    for line, style in [*((worry, "yellow") for worry in worries[:2]), (f"next: {facts.next}", "")]:
        lines += [Text(part, style) for part in textwrap.wrap(one_line(line, width=2 * size.columns - 10), size.columns)]
    return lines


def _attempt(facts: Page) -> str:
    restarts = f"restart {facts.restarts}, " if facts.restarts else ""
    return restarts + (f"attempt {facts.epoch}" if facts.epoch else "no attempt yet")


def _where(facts: Page, track: Track, now: datetime, size: Size, glyphs: Glyphs) -> list[Text]:
    """How far it is, its course, what a restart would begin with, and what it has left."""
    if not facts.grants:
        return []
    said = "; ".join(pagetext.counters(facts))
    lines = [_course(said, track, now, size, glyphs), Text(pagetext.checkpoint(facts))]
    if facts.saving and not facts.stage.over:
        lines.append(Text(facts.saving, "cyan"))
    if facts.budgets and not facts.stage.over:
        lines.append(Text(f"budgets left: {pagetext.budgets(facts.budgets)}"))
    return lines


def _course(said: str, track: Track, now: datetime, size: Size, glyphs: Glyphs) -> Text:
    if len(track.points) < 2:  # noqa: PLR2004 - a rate has two ends
        return Text(said)
    end_s = now.timestamp()
    age_s = end_s - track.points[0].at.t
    span_s = next((span for span in _SPANS_S if span >= age_s), _SPANS_S[-1])
    slots = min(60, size.columns - len(said) - 20)
    if slots < 10:  # noqa: PLR2004 - fewer bars show nothing
        return Text(said)
    # slots have fixed places on the clock, so that bars do not tremble between two looks
    slot_s = span_s / slots
    values = course(track.points, end_s=(end_s // slot_s) * slot_s, span_s=span_s, slots=slots)
    return Text.assemble(said, "  ", (bars(values, glyphs=glyphs.bars), "green"), (f"  last {short_time(span_s)}", "dim"))


def _ranks(view: View, seated: Seats, size: Size, glyphs: Glyphs, *, height: int) -> list[Text]:
    """The map, its legend, and who is to blame."""
    if not seated.nodes:
        return []
    blamed = [one_line(incident.fault, width=size.columns - 2) for incident in view.story.open[-1:] if incident.root]
    rows, unit = rankmap.draw(seated, width=size.columns, height=height - 1 - len(blamed), glyphs=glyphs)
    title = f"{count(seated.ranks, 'rank')} on {count(len(seated.nodes), 'node')}, {unit}"
    culprits = [Text(f"{glyphs.ranks[0]} {text}", rankmap.STYLE[rankmap.Seen.FAULT]) for text in blamed]
    return [_rule(title, size, glyphs), *rows, rankmap.legend(seated, glyphs), *culprits]


def _told(facts: Page, now: datetime, size: Size, glyphs: Glyphs, *, height: int, scroll: int) -> tuple[list[Text], int]:
    """Incidents, the newest first, as far as there is room; then what people asked for and were told."""
    asked = [f"{wish.request} was asked for by {wish.who}" for wish in facts.asked[-2:]]
    known = {row.reason for row in facts.incidents} | {facts.reason}
    told = [note for note in facts.told if note not in known]
    notes = [part for note in (*told, *asked) for part in textwrap.wrap(one_line(note, width=2 * size.columns - 10), size.columns)]
    notes = notes[-max(height // 3, 1) :]
    below = [_rule("notes", size, glyphs), *(Text(note) for note in notes)] if notes else []
    room = height - len(below) - 1
    lines: list[Text] = []
    for row in reversed(facts.incidents):
        said = pagetext.incident(row, now)
        style = "" if row.back_s is not None or facts.stage.over else "yellow"
        lines += [Text(line, style) for line in textwrap.wrap(one_line(said, width=1000), size.columns, subsequent_indent="  ")]
    most = max(len(lines) - room, 0)
    at = min(scroll, most)
    more = f", {at} to {min(at + room, len(lines))} of {len(lines)} lines" if most else ""
    title = f"{count(len(facts.incidents), 'incident')}, {count(facts.attempts, 'attempt')} in {count(facts.grants, 'grant')}{more}"
    shown = lines[at : at + room]
    return [_rule(title, size, glyphs), *shown, *([Text()] * (room - len(shown))), *below], most


def _rule(title: str, size: Size, glyphs: Glyphs) -> Text:
    return Text(f"{glyphs.rule} {title} ".ljust(size.columns, glyphs.rule), "dim")


def _cut(text: Text, size: Size) -> Text:
    """No longer than a row, and nothing that a terminal would obey."""
    if not text.plain.isprintable():
        text = Text(one_line(text.plain, width=len(text.plain)))
    if text.cell_len > size.columns:
        text.truncate(size.columns - 3)
        text.append("...")
    return text


def _fill(lines: list[Text], size: Size) -> tuple[Text, ...]:
    """Exactly so many."""
    return tuple([*(_cut(line, size) for line in lines), *([Text()] * max(size.rows - len(lines), 0))][: size.rows])
