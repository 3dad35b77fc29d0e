"""What ranks printed, as it lies in the run directory: read on without loss and without repetition, whatever the writer does meanwhile.

Knows the files (see `supervisor.ranklogs`, which writes them) and lines, not what lines mean. Files are opened at each look instead of
asked for their size: an open is what makes a network disk tell the truth.
"""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from ftsup.events import Epoch
from ftsup.plain import open_plain
from ftsup.rundir import RunDir, rank_log_part

OURS = b"[ftsup] "
"""What stands before our own words among the ranks'."""
_PIECE = 1 << 20
_LINE_CAP = 16 << 20
"""What is longer counts as a line also without its end."""
_PATIENCE = 60
"""Looks at bytes that a network disk shows as 0 because it has not got them yet, before they count as they are."""
_BACK = (1 << 20, 16 << 20)
"""So far back the last lines are looked for, at first."""
_PART = re.compile(r"(.+)\.log(?:\.([1-9]\d{0,8}))?")
_EPOCH = re.compile(r"(\d{1,9})\.(\d{1,9})")


class Source(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """What the ranks of one attempt printed on one node."""

    epoch: Epoch
    node: str
    head: Path
    parts: tuple[int, ...] = ()
    """Those that follow the head and are there, in their order."""


def epochs(run: RunDir) -> list[Epoch]:
    """The attempts that have printed something, in their order."""
    return sorted(epoch for epoch in map(epoch_of, names(run.root / "logs")) if epoch is not None)


def epoch_of(name: str) -> Epoch | None:
    """The attempt of that name; None: it is no such name."""
    match = _EPOCH.fullmatch(name)
    return Epoch(int(match[1]), int(match[2])) if match else None


def sources(run: RunDir, epoch: Epoch) -> list[Source]:
    """The logs of an attempt, by node, as they are now."""
    folder = run.root / "logs" / str(epoch)
    parts: dict[str, list[int]] = {}
    for name in names(folder):
        if match := _PART.fullmatch(name):
            parts.setdefault(match[1], []).append(int(match[2] or 0))
    return [
        Source(epoch=epoch, node=node, head=folder / f"{node}.log", parts=tuple(sorted(set(found) - {0})))
        for node, found in sorted(parts.items())
    ]


def names(folder: Path) -> list[str]:
    """The names in a folder; none where there is no folder, or it cannot be read."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - names are all that is wanted
    except OSError:
        return []


class Tail:
    """A reader of one log; each call goes on where the last one ended."""

    def __init__(self) -> None:
        self._part = 0
        self._offset = 0
        self._shorter = self._gone = False
        self._blank = 0
        self._unfinished = -1
        """The size at which all that is new was the beginning of a line: it is not read again and again."""
        self._failed = ""

    def lines(self, source: Source, *, end: bool) -> Iterator[bytes]:
        """The lines that came, without their newlines. `end`: nobody writes any more, so that an unfinished one counts as well."""
        while True:
            following = min((part for part in source.parts if part > self._part), default=None)
            yield from self._rest(source, end=end or following is not None)  # one that another part follows is complete
            if following is None:
                return
            if following > self._part + 1 or self._gone:
                yield OURS + b"lines are left out here: of what a node prints in an attempt, the first and the last MiB are kept"
            self._part, self._offset, self._shorter = following, 0, False

    def last(self, source: Source, number: int, wanted: Callable[[bytes], bool], *, end: bool) -> list[bytes]:
        """The last lines that are wanted; the next call goes on behind them."""
        found: deque[bytes] = deque(maxlen=number)
        for back in (*_BACK, None):
            begun = self._go_back(source, back)
            found = deque((line for line in self.lines(source, end=end) if wanted(line)), maxlen=number)
            if begun or len(found) == number:
                break
        return list(found)

    def _go_back(self, source: Source, size: int | None) -> bool:
        """Begin so many bytes before the end of the newest part, at a line; whether that is the beginning of all."""
        part = 0 if size is None else max(source.parts, default=0)
        self._part, self._offset, self._shorter = part, 0, False
        try:
            with open_plain(rank_log_part(source.head, part)) as file:
                offset = 0 if size is None else max(file.seek(0, os.SEEK_END) - size, 0)
                if offset:
                    file.seek(offset)
                    self._offset = offset + len(file.readline(_LINE_CAP))
        except OSError as error:
            return bool(self._fail(error))
        return (part, self._offset) == (0, 0)

    def _rest(self, source: Source, *, end: bool) -> Iterator[bytes]:
        """What came to this part."""
        whole = False
        while not whole:
            found, whole = self._piece(rank_log_part(source.head, self._part), end=end)
            yield from found

    def _piece(self, path: Path, *, end: bool) -> tuple[list[bytes], bool]:
        """The next lines of this part; whether that is all of it now."""
        try:
            with open_plain(path) as file:
                size = file.seek(0, os.SEEK_END)
                if size < self._offset:
                    return self._cut(), True
                if size == self._unfinished and not end:
                    return [], True
                data_at = _behind_hole(file, self._offset, size)
                if data_at > self._offset and not end:
                    return [], True
                self._offset = file.seek(data_at)
                data = file.read(_PIECE)
                data += file.readline(_LINE_CAP) if data and not data.endswith(b"\n") else b""
                whole = file.tell() >= size
        except FileNotFoundError:  # not yet there, or removed before all of it was read
            self._gone = True
            return [], True
        except OSError as error:
            return self._fail(error), True
        self._failed, self._gone = "", False
        before = self._offset
        lines = self._taken(data, end=end)
        stuck = self._offset == before
        self._unfinished = size if stuck and b"\0" not in data else -1
        return lines, whole or stuck

    def _taken(self, data: bytes, *, end: bool) -> list[bytes]:
        """The lines of what was read, up to where they can be trusted."""
        hole = data.find(b"\0")
        if hole >= 0 and not end and self._blank < _PATIENCE:
            self._blank += 1
            data = data[:hole]
        else:
            self._blank = 0
        till = len(data) if end or len(data) >= _LINE_CAP else data.rfind(b"\n") + 1
        self._offset += till
        return data[:till].removesuffix(b"\n").replace(b"\0", b"").split(b"\n") if till else []

    def _cut(self) -> list[bytes]:
        """Somebody cut it: what is written from now on goes where it would have gone."""
        said = [] if self._shorter else [OURS + b"somebody has cut this log: what comes next follows"]
        self._shorter = True
        return said

    def _fail(self, error: OSError) -> list[bytes]:
        said = error.strerror or str(error)
        new = [] if said == self._failed else [OURS + f"this log cannot be read: {said}".encode()]
        self._failed = said
        return new


def _behind_hole(file: BinaryIO, offset: int, size: int) -> int:
    """Where the next bytes are that somebody wrote: a hole may be large, and holds nothing."""
    try:
        return os.lseek(file.fileno(), offset, os.SEEK_DATA)
    except OSError as error:
        return size if error.errno == errno.ENXIO else offset
