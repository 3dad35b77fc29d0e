"""What a report leads to (a line of a log, of an error file): acted on, waited for, told; and how it explains a rank's end.

Pure. It never trusts a line alone where the rank itself can be asked: one that goes on after the line was written is well.
"""

from __future__ import annotations

from enum import Enum

import msgspec
from msgspec.structs import replace

from ftsup.events import Fault, How, Kind
from ftsup.policy.rules import Rules
from ftsup.policy.watch import Watch
from ftsup.worker.beatfile import Phase

FORGET_S = 60.0
"""A rank that still moves so long after the line was written got over it."""
STEPS = 5
"""A rank stands still when nothing moved for so many of its steps, and for `hang.reported`."""


class Acts(Enum):
    """How far a report goes."""

    AT_ONCE = "at once"
    """Printed by a process that takes itself down."""
    WHEN_STILL = "when still"
    """Fatal to most that print it: to those who then stand still."""
    AT_END = "at end"
    """Says why, should the rank end now."""
    NEVER = "never"
    """Told, and no more."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. The fault has its kind and its line; where it may end a rank, the `how` of that end."""

    fault: Fault
    acts: Acts
    name: str
    """The signature's."""


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """A report that waits for what the rank does."""

    report: Report
    since_t: float


def still(doubts: tuple[Doubt, ...], watch: Watch, t: float, rules: Rules) -> tuple[tuple[Doubt, ...], tuple[Fault, ...]]:
    """Which reports go on waiting, and which came true: only in training proper, where everything else beats in time."""
    limit_s = max(rules.hang.reported_s, STEPS * watch.median_s)
    waiting, true = [], []
    for doubt in doubts:
        mark = watch.marks.get(-1 if doubt.report.fault.rank is None else doubt.report.fault.rank)
        moved_t = doubt.since_t if mark is None else max(mark.moved_t, doubt.since_t)
        if moved_t - doubt.since_t >= FORGET_S:
            continue
        if mark is not None and mark.beat.phase is Phase.STEP and t - moved_t >= limit_s:
            true.append(replace(doubt.report.fault, quiet_s=round(t - mark.moved_t, 1), limit_s=round(limit_s, 1)))
        else:
            waiting.append(doubt)
    return tuple(waiting), tuple(true)


_ABORTS = frozenset({"SIGABRT", "SIGTERM", ""})
"""A C++ exception that nobody catches; torchrun's TERM, which came later; not told."""
_EXPLAINS = {
    Kind.HOST_MEMORY: frozenset({"SIGKILL", "SIGBUS", "SIGABRT"}),
    Kind.FILES: frozenset({"SIGBUS", "SIGABRT"}),
    Kind.USER: frozenset({"SIGABRT"}),
}


def explained(end: Fault, report: Fault) -> Fault:
    """A rank's end in the words of a report, if that is how such a report ends; else the end as it is."""
    assert report.kind is not None
    by_signal = end.how is How.SIGNAL and end.signal in _EXPLAINS.get(report.kind, _ABORTS)
    by_exit = end.how is How.EXIT and report.how in {How.EXCEPTION, How.DISK, How.DEVICE}
    if not by_signal and not by_exit:
        return end
    return replace(
        end,
        how=report.how,
        kind=report.kind,
        error=report.error,
        line=report.line,
        where=end.where or report.where,
        quiet_s=end.quiet_s or report.quiet_s,
        limit_s=end.limit_s or report.limit_s,
    )
