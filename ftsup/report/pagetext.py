"""A status page in words, at most 80 columns wide. Pure.

The worst comes first, since mostly it is read when something is broken; a healthy run takes less than ten lines.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from datetime import datetime

from ftsup.events import VerdictKind, WatchedBy
from ftsup.policy.outlook import Budget
from ftsup.report.page import SILENT_S, Page, Row, since_s
from ftsup.report.story import Stage
from ftsup.report.words import ago, count, names, one_line, short_time

WIDTH = 80
SHOWN = 3
"""So many incidents are told; `ftsup explain` has all of them."""


def text(facts: Page, *, now: datetime) -> str:
    """The page, at most 80 columns wide."""
    lines: list[str] = []
    for indent, line in _lines(facts, now):
        flat = one_line(line, width=2000)
        lines += textwrap.wrap(flat, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)
    return "\n".join(lines)


def in_short(facts: Page) -> str:
    """The page in one line, for a log of what changed."""
    parts = [f"{facts.run}: {facts.stage.value}", *(counters(facts) if facts.grants else ())]
    if facts.sealed is not None:
        parts.append(f"sealed {facts.sealed}")
    if facts.incidents:
        parts.append(count(len(facts.incidents), "incident"))
    if facts.stage is not Stage.TRAINING:
        parts.append(facts.reason or facts.next)
    return one_line("; ".join(parts), width=400)


def _lines(facts: Page, now: datetime) -> Iterator[tuple[str, str]]:
    yield "", f"{facts.run}: {facts.stage.value}"
    if facts.reason:
        yield "  ", facts.reason
    unmended = (incident(row, now) for row in facts.incidents if _open(row, facts))
    for line in (*unmended, *worries(facts), f"next: {facts.next}", *_where(facts), *_asked(facts, now)):
        yield "  ", line
    yield from _incidents(facts, now)


def worries(facts: Page) -> Iterator[str]:
    """What is wrong beside the incidents, and what Slurm says to it."""
    if facts.cancelled and not facts.stage.over:
        yield "cancel was asked for, and is on its way"
    if facts.quiet_s is not None and facts.quiet_s > SILENT_S and not (facts.stage.over or facts.stage is Stage.REQUEUED):
        yield f"the leader has said nothing for {short_time(facts.quiet_s)}"
    if facts.queue:
        yield facts.queue
    yield from (f"trouble: {text}" for text in facts.troubles)
    yield from facts.damaged
    yield from (f"note: {note}" for note in facts.notes)


def _where(facts: Page) -> Iterator[str]:
    """How far it is, what a restart would begin with, and what it has left."""
    if not facts.grants:
        if facts.job and not facts.queue:
            yield f"job {facts.job}"
        return
    yield "; ".join(counters(facts))
    yield checkpoint(facts)
    left = "" if facts.left_s is None else f"; {short_time(facts.left_s)} of the grant left"
    attempt = f"attempt {facts.epoch}" if facts.epoch else "no attempt yet"
    restarts = f" (restart {facts.restarts})" if facts.restarts else ""
    yield f"job {facts.job}{restarts}, {attempt}, on {names(facts.nodes)}{left}"
    if facts.budgets and not facts.stage.over:
        yield f"budgets left: {budgets(facts.budgets)}"


def budgets(left: dict[str, Budget]) -> str:
    """What is spent of them; the rest is full."""
    said = {"hard_cap": "attempts"}
    spent = [f"{said.get(key, key)} {budget.left} of {budget.of}" for key, budget in left.items() if budget.left < budget.of]
    full = [] if len(spent) == len(left) else ["the others full"] if spent else ["all full"]
    return ", ".join([*spent, *full])


def counters(facts: Page) -> Iterator[str]:
    """How far it is, and how fast."""
    rate = "" if facts.rate_per_min is None else f", {facts.rate_per_min:.3g} steps/min"
    yield f"step {facts.step}{rate}" if facts.step is not None else "step not known"
    if facts.phase not in {"", "step"} and not facts.stage.over:
        yield f"phase {facts.phase}"
    if facts.watched_by and facts.watched_by is not WatchedBy.STEPS and not facts.stage.over:
        yield f"watched by {facts.watched_by.value}"


def checkpoint(facts: Page) -> str:
    """What a restart would begin with, and what would be lost."""
    saved = f"saved step {facts.saved_step}" if facts.saved_step is not None else "nothing saved yet"
    if facts.sealed is None:
        return f"{saved}; no sealed checkpoint"
    age = "" if facts.sealed_age_s is None else f", {ago(facts.sealed_age_s)}"
    if facts.at_risk is None or facts.stage is not Stage.TRAINING:
        return f"sealed {facts.sealed}{age}"
    cost = "" if facts.at_risk_s is None else f" ({short_time(facts.at_risk_s)})"
    lost = f"{_steps(facts.at_risk)}{cost}" if facts.at_risk else "nothing"
    return f"sealed {facts.sealed}{age}; {lost} would be lost now"


def _asked(facts: Page, now: datetime) -> Iterator[str]:
    if facts.asked and not facts.stage.over:
        for wish in reversed(facts.asked[-2:]):
            yield f"{_ago(wish.wall, now)}: {wish.answer or f'{wish.who} asked for {wish.request}'}"
    for deed in reversed(facts.watched):
        yield f"{_ago(deed.wall, now)}: ftsup watch: {deed.text}{f'; that failed: {deed.failed}' if deed.failed else ''}"


def _incidents(facts: Page, now: datetime) -> Iterator[tuple[str, str]]:
    closed = [row for row in facts.incidents if not _open(row, facts)]
    shown = closed[-SHOWN:]
    more = len(closed) - len(shown)
    if shown:
        told = count(len(facts.incidents), "incident")
        yield (
            "  ",
            f"{told}, {count(facts.attempts, 'attempt')} in {count(facts.grants, 'grant')}"
            + (f"; the newest {len(shown)}:" if more else ":"),
        )
    for row in reversed(shown):
        yield "    ", incident(row, now)
    if more:
        yield "    ", f"{more} older: ftsup explain {facts.run}"


def incident(row: Row, now: datetime) -> str:
    """One incident: when, what, what was done, what it cost."""
    name = f"incident {row.number}" if row.number else "requeue" if row.verdict is VerdictKind.REQUEUE else "interruption"
    what = [] if row.fault in row.reason else [row.fault]
    if row.verdict:
        what.append(row.reason if row.verdict is VerdictKind.RESTART else f"{row.verdict.value}: {row.reason}")
    found = [] if row.detected_s is None else [f"found after {short_time(row.detected_s)}" if row.detected_s else "found at once"]
    back = "not back at work" if row.back_s is None else f"back at work after {short_time(row.back_s)}, {_steps(row.replayed)} replayed"
    return f"{name}, {_ago(row.wall, now)}, attempt {row.epoch}: {'; '.join([*what, *found, back])}"


def _open(row: Row, facts: Page) -> bool:
    return row.back_s is None and not facts.stage.over


def _ago(wall: str, now: datetime) -> str:
    past_s = since_s(wall, now)
    return "some time ago" if past_s is None else ago(past_s)


def _steps(number: int | None) -> str:
    return "an unknown number of steps" if number is None else count(number, "step")
