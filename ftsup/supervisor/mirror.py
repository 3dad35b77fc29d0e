"""The event log's mirror in the run directory: whole lines of the local log, once, in order. Runs in the clerk.

The local log is right: where the mirror ends otherwise (torn, or lines that a dead leader's disk still delivered late), the mirror is
mended, and what is taken out is kept beside it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ftsup.eventlog import number, whole_lines, write_all
from ftsup.supervisor.files import make_folder, mode_below, sync_folder


class LaterGrant(Exception):
    """A later grant of the run writes there: it is not ours to mend."""


class _Known(NamedTuple):
    """How far a mirror is, as long as nobody else touched it."""

    source_offset: int
    target_size: int
    last_n: int


class Mirror:
    """Remembers how far each mirror is, so that a call costs what is new; a new clerk finds out by reading."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Known] = {}

    def bring(self, source: Path, target: Path) -> int:
        """Append what is missing; the number of the last line that the mirror holds then. OSError, LaterGrant: the mirror is as it was."""
        known = self._known.pop((str(source), str(target)), None)
        make_folder(target.parent)
        created = not target.exists()
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, mode_below(target.parent))
        try:
            if known is None or os.fstat(fd).st_size != known.target_size:
                known = self._compare(source, target, fd)
            known = self._append(source, fd, known)
        finally:
            os.close(fd)
        if created:
            sync_folder(target.parent)
        self._known[str(source), str(target)] = known
        return known.last_n

    def _append(self, source: Path, fd: int, known: _Known) -> _Known:
        with source.open("rb") as file:
            file.seek(known.source_offset)
            data = file.read()
        new = data[: data.rfind(b"\n") + 1]
        if not new:
            return known
        try:
            write_all(fd, new)
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, known.target_size)
            raise
        last_n = next((n for n in map(number, reversed(whole_lines(new))) if n is not None), known.last_n)
        return _Known(known.source_offset + len(new), known.target_size + len(new), last_n)

    def _compare(self, source: Path, target: Path, fd: int) -> _Known:
        """Find where the mirror ends in terms of the local log; cut what does not belong there."""
        ours = [(number(line), line) for line in whole_lines(source.read_bytes())]
        by_number = {n: line for n, line in ours if n is not None}
        first_n = min(by_number, default=sys.maxsize)
        size, last_n = 0, 0
        data = target.read_bytes()
        for line in whole_lines(data):
            n = number(line)
            if n is not None and n >= first_n and by_number.get(n) != line:
                break
            size += len(line) + 1
            last_n = last_n if n is None else n
        if size < len(data):
            _must_be_ours(data[size:], [line for _, line in ours])
            self._set_aside(target, data[size:])
            os.ftruncate(fd, size)
        offset = sum(len(line) + 1 for n, line in ours if n is None or n <= last_n) if last_n >= first_n else 0
        return _Known(offset, size, last_n)

    def _set_aside(self, target: Path, data: bytes) -> None:
        path = target.with_name(f"{target.stem}.cut{target.suffix}")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, mode_below(path.parent))
        try:
            write_all(fd, data if data.endswith(b"\n") else data + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)


def _must_be_ours(cut: bytes, ours: Sequence[bytes]) -> None:
    """What a dead leader's disk delivered late is of an earlier grant than ours. A later one begins only when Slurm has given ours up."""
    mine = next((grant for grant in map(_grant, reversed(ours)) if grant), None)
    for grant in filter(None, map(_grant, whole_lines(cut))):
        if mine is not None and grant > mine:
            raise LaterGrant(f"job {grant[0]} leads the run since Slurm began it again ({grant[1]} restarts)")


def _grant(line: bytes) -> tuple[int, int] | None:
    """The number of the job and its restarts, of a leader's first line. A job's successor has a greater number."""
    if b'"LeaderStarted"' not in line:
        return None
    try:
        event = json.loads(line)["event"]
        return int(event["job"].partition("_")[0]), int(event["restarts"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
