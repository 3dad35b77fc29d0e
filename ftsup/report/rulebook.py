"""The rules as tables with the numbers in force, from the code that decides: `ftsup rules`, and the tables of the README. Pure.

Nothing is said here a second time: rows of the judge, limits, budgets and signatures bring their own words.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from string import Formatter
from typing import get_type_hints

import msgspec
from msgspec import Meta

from ftsup.monitors import signatures
from ftsup.policy.judge import TABLE
from ftsup.policy.outlook import budgets
from ftsup.policy.rules import Budgets, Hang, Rules, Section, key_name
from ftsup.policy.state import State
from ftsup.report.words import short_time
from ftsup.units import duration
from ftsup.worker.beatfile import Phase

WIDTH = 80
_GAP = 2
_BESIDE = ("output_s", "reported_s", "stopped_s", "storage_s")
"""Limits of `hang` that belong to no phase."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table; its last column may be long."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def judge_table(rules: Rules) -> Table:
    """What follows a fault: read from the top, the first row that matches decides."""
    rows = tuple((row.name, _filled(row.when, rules), _filled(row.then, rules)) for row in TABLE)
    return Table(
        title="What follows when an attempt has ended badly: the first row that matches decides",
        head=("rule", "when", "what follows"),
        rows=rows,
        note=_requeues(rules),
    )


def _filled(said: str, rules: Rules) -> str:
    """A row's words with its numbers."""
    names = {name for _, name, _, _ in Formatter().parse(said) if name}
    return said.format(**{name: _number(name, rules) for name in names})


def _number(name: str, rules: Rules) -> str:
    if name == "elsewhere":
        return "requeue without that node" if rules.can_requeue else "restart here, within the budgets (requeue is off)"
    if name == "jitter":
        return f"{rules.policy.jitter:.0%}"
    if name in Budgets.__struct_fields__:
        return str(getattr(rules.policy, name))
    return duration(getattr(rules.policy, f"{name}_s"))


def _requeues(rules: Rules) -> str:
    if not rules.can_requeue:
        return "slurm.requeue is off: nothing is requeued."
    limits = rules.policy
    time = f", each for {duration(limits.avoid_for_s)}" if limits.avoid_for_s else ""
    return f"Without progress at most {limits.requeues} requeues, then stop; at most {limits.avoid_max} nodes are kept out{time}."


def limit_table(rules: Rules, *, median_s: float = 0.0, restart_s: float = 0.0) -> Table:
    """How long a rank may show no activity, by what it does."""
    hang, words = rules.hang, _words(Hang)
    rows = [
        (
            phase.name.lower().replace("_", " "),
            duration(round(hang.limit_s(phase, median_s=median_s, restart_s=restart_s), 1)),
            f"hang.{_field(phase)}: {words[f'{_field(phase)}_s']}",
        )
        for phase in Phase
        if phase is not Phase.EXITED
    ]
    rows += [(f"({key_name(field)})", duration(getattr(hang, field)), f"hang.{key_name(field)}: {words[field]}") for field in _BESIDE]
    return Table(
        title=f"How long a rank may stand still (hang.mode: {hang.mode.value})",
        head=("phase", "limit", "key, and why"),
        rows=tuple(rows),
        note=_learned(hang, median_s=median_s, restart_s=restart_s),
    )


def _field(phase: Phase) -> str:
    return phase.name.lower()


def _learned(hang: Hang, *, median_s: float, restart_s: float) -> str:
    """Where a step's limit comes from."""
    if hang.step_s is not None:
        return "step: as hang.step says."
    floor, factor = duration(hang.step_floor_s), f"{hang.step_factor:g}"
    if not median_s:
        return f"step: until some steps are measured; then the largest of {floor}, {factor} x their median and what a restart took."
    restart = f", a restart's {short_time(restart_s)}" if restart_s else ""
    return f"step: the largest of {floor}, {factor} x the measured median of {median_s:.3g} s{restart}."


def budget_table(rules: Rules, state: State | None = None) -> Table:
    """How often what may happen; with a run's state, what is left of it."""
    words, known = _words(Budgets), budgets(state, rules) if state is not None else {}
    rows = []
    for field in Budgets.__struct_fields__:
        value, key = getattr(rules.policy, field), key_name(field)
        shown = duration(value) if field.endswith("_s") else f"{value:g}"
        left = [str(known[key].left) if key in known else ""] if state is not None else []
        rows.append((key, shown, *left, words[field]))
    return Table(
        title="Budgets (policy): what is spent without progress; progress refills all but hard_cap",
        head=("key", "of", *(["left"] if state is not None else []), "what is counted"),
        rows=tuple(rows),
    )


def signature_table() -> Table:
    """What error messages are known, and what they lead to."""
    rows = [(row.name, row.kind.value, row.how.value, row.acts.value) for row in (*signatures.LINES, *signatures.ERRORS)]
    return Table(
        title="Error messages that are known: lines of logs and files, then what Python raises",
        head=("message", "kind", "counts as", "acted on"),
        rows=tuple(rows),
        note="when still: if the rank stands still after it; at end: it says why, should the rank end; never: it is told, and no more.",
    )


def _words(section: type[Section]) -> dict[str, str]:
    """The descriptions of the keys."""
    hints = get_type_hints(section, include_extras=True)
    return {
        field: next((meta.description for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, Meta) and meta.description), "")
        for field, hint in hints.items()
    }


# As text ------------------------------------------------------------------------------------------------------------------


def text(table: Table) -> str:
    """At most 80 columns: short columns as wide as they need, the long ones share the rest."""
    widths = _widths(table)
    lines = [*textwrap.wrap(table.title, WIDTH), _line(table.head, widths).rstrip(), _line(tuple("-" * width for width in widths), widths)]
    for row in table.rows:
        cells = [textwrap.wrap(cell, width, break_on_hyphens=False) or [""] for cell, width in zip(row, widths, strict=True)]
        high = max(map(len, cells))
        lines += [_line(tuple(cell[n] if n < len(cell) else "" for cell in cells), widths).rstrip() for n in range(high)]
    return "\n".join([*lines, *textwrap.wrap(table.note, WIDTH)])


def _widths(table: Table) -> list[int]:
    natural = [max(len(row[n]) for row in (table.head, *table.rows)) for n in range(len(table.head))]
    room = WIDTH - _GAP * (len(natural) - 1)
    short = [n for n, width in enumerate(natural) if width <= room // len(natural)]
    long = [n for n in range(len(natural)) if n not in short]
    if not long or sum(natural) <= room:
        return natural
    left = room - sum(natural[n] for n in short)
    return [natural[n] if n in short else left // len(long) for n in range(len(natural))]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return (" " * _GAP).join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))


def markdown(table: Table) -> str:
    """The same for a README."""
    return "\n".join(_markdown(table))


def _markdown(table: Table) -> Iterator[str]:
    yield f"| {' | '.join(table.head)} |"
    yield f"|{'---|' * len(table.head)}"
    yield from (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in table.rows)
    if table.note:
        yield ""
        yield table.note
