"""What `ftsup checkpoints` says: the table, a line for each checkpoint, the sentence at the end; and the shapes of its JSON. Pure text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ftsup.checkpoint.byhand import Fate, Finding
from ftsup.checkpoint.disk import files_below
from ftsup.checkpoint.moves import Removed
from ftsup.checkpoint.seal import Outcome, Sealing
from ftsup.checkpoint.survey import Row, Standing, Survey
from ftsup.cli.checkpointdir import Where
from ftsup.cli.meter import size_text
from ftsup.ports import Disk
from ftsup.report.words import one_line

_NAME_WIDTH = 40
_TEXT_WIDTH = 300
_DAMAGES = 20
_MINUTES = len("2026-01-02T03:04")


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """`verify --json`."""

    schema: int = 1
    dir: str
    checkpoints: tuple[Finding, ...]
    read_bytes: int


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """`seal --json`."""

    schema: int = 1
    dir: str
    checkpoints: tuple[Sealing, ...]
    read_bytes: int


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """`prune --json`."""

    schema: int = 1
    dir: str
    dry_run: bool
    plan: tuple[Fate, ...]
    removed: Removed


def count(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def size_of(disk: Disk, path: Path) -> int:
    """For a bar; 0 where nobody knows."""
    try:
        return sum(facts.size_bytes for facts in files_below(disk, path).values())
    except OSError:
        return 0


def table(held: Survey) -> list[str]:
    """A line for each checkpoint, the newest first, under a head."""
    if not held.checkpoints:
        return []
    width = min(max(4, *(len(row.name) for row in held.checkpoints)), _NAME_WIDTH)
    head = f"{'NAME':<{width}}  {'KIND':<12} {'STEP':>9} {'EPOCH':>6} {'SIZE':>8}  STATE"
    return [head, *(_line(row, width) for row in held.checkpoints)]


def _line(row: Row, width: int) -> str:
    step = "-" if row.step is None else str(row.step)
    read = row.verified[:_MINUTES].replace("T", " ")
    state = {Standing.VERIFIED: f"verified {read}", Standing.SEALED: "sealed, not read since"}.get(row.standing, row.standing.value)
    pinned = ", pinned" if row.pinned else ""
    why = f": {one_line(row.why, width=_TEXT_WIDTH)}" if row.why else ""
    found = f" (found {read})" if row.why and read else ""
    size = size_text(row.size_bytes)
    return f"{_name(row.name):<{width}}  {row.kind or '-':<12} {step:>9} {row.epoch or '-':>6} {size:>8}  {state}{pinned}{why}{found}"


def beside(held: Survey, *, pattern: str) -> Iterator[str]:
    """What else there is to know."""
    if not held.checkpoints:
        yield f"{one_line(held.dir, width=_TEXT_WIDTH)} has no checkpoint that matches {pattern}"
    if held.owner:
        yield f"owner: run {held.owner.run}" + (f", job {held.owner.job}" if held.owner.job else "")
    for aside in held.quarantined:
        why = one_line(aside.why, width=_TEXT_WIDTH)
        yield f"in quarantine: {_name(aside.name)} ({size_text(aside.size_bytes)}) in {one_line(aside.path, width=_TEXT_WIDTH)}: {why}"
    for thing in held.litter:
        yield f"litter: {one_line(thing.path, width=_TEXT_WIDTH)} ({size_text(thing.size_bytes)}): {thing.what}"
    for note in held.notes:
        yield f"note: {one_line(note, width=_TEXT_WIDTH)}"


def finding(found: Finding) -> str:
    """What reading one showed; each damage on a line of its own."""
    name = _name(found.name)
    if found.damages and found.standing in {Standing.DAMAGED, Standing.UNREADABLE}:
        lines = [f"{name}: {found.standing.value}: {one_line(str(damage), width=_TEXT_WIDTH)}" for damage in found.damages[:_DAMAGES]]
        return "\n".join([*lines, *([f"{name}: and {len(found.damages) - _DAMAGES} more"] if found.damages[_DAMAGES:] else [])])
    size = f", {size_text(found.size_bytes)}" if found.standing is Standing.VERIFIED else ""
    blind = f"; what this could not see: {one_line(found.blind, width=_TEXT_WIDTH)}" if found.blind else ""
    return f"{name}: {found.standing.value}{size}: {one_line(found.why, width=_TEXT_WIDTH)}{blind}"


def verified(results: Sequence[Finding], found: Where, *, summary: str) -> str:
    """The sentence at the end."""
    if not results:
        return f"{found.shown} has no checkpoint that matches {found.pattern}"
    return f"{_tally(result.standing.value for result in results)}; {summary}"


def sealing(result: Sealing, *, dry_run: bool) -> str:
    """What sealing one came to."""
    if result.outcome is Outcome.SEALED:
        verb = "would be sealed" if dry_run else "sealed"
        files = f"{count(result.files, 'file')}, {size_text(result.size_bytes)}"
        return f"{_name(result.name)}: {verb}: {files} ({one_line(result.why, width=_TEXT_WIDTH)})"
    verb = {Outcome.ALREADY: "left as it is", Outcome.UNKNOWN: "not sealed"}.get(result.outcome, f"not sealed, {result.outcome.value}")
    return f"{_name(result.name)}: {verb}: {one_line(result.why, width=_TEXT_WIDTH)}"


def sealed(results: Sequence[Sealing], found: Where, *, summary: str) -> str:
    """The sentence at the end."""
    if not results:
        return f"{found.shown} has no checkpoint that matches {found.pattern}"
    return f"{_tally(result.outcome.value for result in results)}; {summary}"


def fates(plan: Sequence[Fate]) -> list[str]:
    """A line for each checkpoint: goes or stays, and why."""
    width = min(max([4, *(len(fate.name) for fate in plan)]), _NAME_WIDTH)
    return [
        f"{'goes' if fate.goes else 'stays':<6} {_name(fate.name):<{width}} {size_text(fate.size_bytes):>8}  {fate.why}" for fate in plan
    ]


def pruned(plan: Sequence[Fate], removed: Removed, held: Survey, *, dry_run: bool) -> Iterator[str]:
    """What came of it, or would."""
    going = [fate for fate in plan if fate.goes]
    room = size_text(sum(fate.size_bytes for fate in going))
    if dry_run:
        yield f"{count(len(going), 'checkpoint')} would go, {room}; {len(plan) - len(going)} would stay"
    else:
        left = count(len(plan) - len(going), "checkpoint")
        yield f"{count(len(removed.names), 'checkpoint')} removed, {size_text(removed.size_bytes)}; {left} left"
    for path in removed.held:
        yield f"left over: {one_line(path, width=_TEXT_WIDTH)}: a process still has it open; the next prune tries again"
    for thing in held.litter if dry_run else ():
        yield f"litter: {one_line(thing.path, width=_TEXT_WIDTH)} ({size_text(thing.size_bytes)}): {thing.what}"


def _name(name: str) -> str:
    return one_line(name, width=200)


def _tally(words: Iterator[str]) -> str:
    return ", ".join(f"{number} {word}" for word, number in Counter(words).items())
