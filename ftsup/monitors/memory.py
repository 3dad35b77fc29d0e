"""What the kernel says of memory: how often it killed for it in our control group, which the ranks are in as well, and the limits there.

A few small files, no memory of their own. Says nothing about who was killed: that a process died of SIGKILL is known elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from ftsup.units import size

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_HOST = Path("/proc/vmstat")
"""Counts for the whole host: the last resort, where there are no control groups of memory."""
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_UNLIMITED = 1 << 60
"""Version 1 says "no limit" with a number that is larger than any memory."""


class _Layout(NamedTuple):
    """Names of one version's files."""

    kills: str
    limits: tuple[str, ...]
    peaks: tuple[str, ...]
    facts: tuple[str, ...]


_V1 = _Layout(
    "memory.oom_control",
    ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    ("memory.max_usage_in_bytes",),
    ("memory.oom_control", "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.usage_in_bytes", "memory.failcnt"),
)
_V2 = _Layout(
    "memory.events",
    ("memory.max",),
    ("memory.peak", "memory.current"),  # before 5.19 there is no peak
    ("memory.events", "memory.max", "memory.peak", "memory.current", "memory.swap.max"),
)


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """One look at it."""

    kills: int = 0
    """Processes that the kernel has killed for memory."""
    counter: str = ""
    """The file that says so; empty: none does."""
    limit_bytes: int | None = None
    """The tightest of our group and those around it."""
    peak_bytes: int | None = None
    """The most that was ever used under that limit."""


def look(*, own: Path = _OWN, root: Path = _CGROUPS, host: Path = _HOST) -> Memory:
    """What the kernel says now. Nothing of it is certain to be there."""
    for layout, groups in _groups(own, root):
        kills = _count(groups[0] / layout.kills)
        if kills is not None:
            # Step and job have the same limit, and the job's is hit first: the batch step is in it as well.
            limits = [
                (limit, group) for group in reversed(groups) for name in layout.limits if (limit := _number(group / name)) is not None
            ]
            limit_bytes, group = min(limits, default=(None, groups[0]), key=lambda one: one[0])
            peaks = (_number(group / name) for name in layout.peaks)
            peak_bytes = next((peak for peak in peaks if peak is not None), None)
            return Memory(kills=kills, counter=layout.kills, limit_bytes=limit_bytes, peak_bytes=peak_bytes)
    kills = _count(host)
    return Memory() if kills is None else Memory(kills=kills, counter=str(host))


def facts(*, own: Path = _OWN, root: Path = _CGROUPS, host: Path = _HOST) -> dict[str, str]:
    """The files themselves, for the evidence: of our group and those around it."""
    found = {group / name: _text(group / name) for layout, groups in _groups(own, root) for group in groups for name in layout.facts}
    kills = _count(host)
    told = {} if kills is None else {str(host): f"oom_kill {kills}"}
    return {str(path): text for path, text in found.items() if text} | told


def killed(before: Memory, now: Memory) -> str:
    """What the kernel did between two looks, in words with the numbers; empty: nothing."""
    if now.counter != before.counter or now.kills <= before.kills:
        return ""
    count = now.kills - before.kills
    where = "on this host" if now.counter.startswith("/") else "of the job here"
    said = f"the kernel killed {count} process{'es' if count > 1 else ''} {where} ({now.counter}: oom_kill {before.kills} -> {now.kills})"
    limit = "" if now.limit_bytes is None else f"; limit {size(now.limit_bytes)} (slurm.mem)"
    peak = "" if not limit or now.peak_bytes is None else f", peak {_rounded(now.peak_bytes)}"
    return f"out of memory on host: {said}{limit}{peak}"


def _groups(own: Path, root: Path) -> Iterator[tuple[_Layout, list[Path]]]:
    """Our group and those around it, innermost first. `0::/path` is version 2, `4:memory:/path` version 1."""
    for line in _text(own).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        parts = [part for part in path.split("/") if part]
        if controllers == "" or "memory" in controllers.split(","):
            layout, top = (_V2, root) if controllers == "" else (_V1, root / "memory")
            yield layout, [top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _rounded(value_bytes: int) -> str:
    """To a MiB: a peak is no round number."""
    return size(max(value_bytes >> 20, 1) << 20)


def _count(path: Path) -> int | None:
    found = _COUNT.search(_text(path))
    return int(found[1]) if found else None


def _number(path: Path) -> int | None:
    """Bytes; None where there is no limit, or no such file."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
