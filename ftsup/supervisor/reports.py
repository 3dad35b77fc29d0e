"""What the node supervisor hears of errors from an attempt's files, and remembers for a moment: a rank that ends now may end of it.

It lives as long as one attempt. What is done about a report is the policy's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from ftsup.events import Fault, How, Kind
from ftsup.monitors import memory
from ftsup.monitors.errorfiles import ErrorFiles
from ftsup.monitors.memory import Memory
from ftsup.policy.reports import Acts, Report, explained

RECENT_S = 120.0
"""So long after its last words a rank may end of what they said; torch's watchdog may take a minute to end its process."""
_ORDER = tuple(Acts)


class Reports:
    """One attempt's."""

    def __init__(self, out: Path, *, node: str, ranks: tuple[int, ...], look: Callable[[], Memory] = memory.look) -> None:
        self.node = node
        self._files = ErrorFiles(out, node=node, ranks=ranks)
        self._recent: dict[tuple[int | None, str], tuple[float, Report]] = {}
        self._look_at_memory = look
        self._memory = look()

    def look(self, now: float, *, final: bool = False) -> tuple[Report, ...]:
        """What is new."""
        found = self._files.look(final=final)
        self._recent = {key: one for key, one in self._recent.items() if now - one[0] < RECENT_S}
        for report in found:
            if report.acts is not Acts.NEVER:
                self._recent.setdefault((report.fault.rank, report.name), (now, report))
        return found

    def explain(self, ends: Iterable[Fault]) -> tuple[Fault, ...]:
        """How ranks ended, and where something was written of it, why: by the gravest words, then by the first."""
        reports = sorted(self._recent.values(), key=lambda one: (_ORDER.index(one[1].acts), one[0]))
        return tuple(self._explain(end, [report for _, report in reports]) for end in ends)

    def _explain(self, end: Fault, reports: list[Report]) -> Fault:
        mine = (explained(end, report.fault) for report in reports if report.fault.rank in {end.rank, None})
        told = next((told for told in mine if told is not end), end)
        killed = self.killed() if end.signal == "SIGKILL" or told.kind is Kind.HOST_MEMORY else ""
        if not killed:
            return told
        if told.kind is Kind.HOST_MEMORY:  # a data loader's end, Slurm's own word: the numbers are the kernel's
            return replace(told, error=f"{told.error}; {killed}")
        return explained(told, Fault(how=How.SIGNAL, node=self.node, kind=Kind.HOST_MEMORY, error=killed))

    def killed(self) -> str:
        """What the kernel killed for memory since the attempt began, in words; empty: nothing."""
        return memory.killed(self._memory, self._look_at_memory())
