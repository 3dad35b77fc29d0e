"""Disks that break: the real one, and at the n-th call something that a disk, a kernel or a scheduler does to us.

Nothing here inherits RealDisk. A call that writes can also be torn: half of it happens, and then the process is dead.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ftsup.checkpoint.disk import RealDisk


class Killed(BaseException):
    """The process died here; nothing in the program may catch it."""


WRITES = ("write_new", "rename", "mkdir", "unlink", "rmdir")


class BrokenDisk:
    """Calls go through `strike(number, name, path)`, which may raise; number counts from 1, all calls or only those named in `count`.
    `end` comes behind a torn write.
    """

    def __init__(
        self, strike: Callable[[int, str, Path], None], *, count: tuple[str, ...] = (), end: Callable[[], None] = lambda: None
    ) -> None:
        self._real, self._strike, self._count, self._end, self.calls = RealDisk(), strike, count, end, 0

    def _call(self, name: str, path: Path, *more: Any, **named: Any) -> Any:
        if not self._count or name in self._count:
            self.calls += 1
            self._strike(self.calls, name, path)
        return getattr(self._real, name)(path, *more, **named)

    def look(self, path):
        return self._call("look", path)

    def names(self, folder):
        return self._call("names", folder)

    def open(self, path):
        return self._call("open", path)

    def pieces(self, path, *, size_bytes, stay_cached) -> Iterator[memoryview]:
        yield from self._call("pieces", path, size_bytes=size_bytes, stay_cached=stay_cached)

    def write_new(self, path, data):
        try:
            self._call("write_new", path, data)
        except Killed as killed:
            if killed.args == ("torn",):
                path.write_bytes(data[: len(data) // 2])
                self._end()
            raise

    def rename(self, old, new):
        self._call("rename", old, new)

    def sync(self, path):
        self._call("sync", path)

    def mkdir(self, folder):
        self._call("mkdir", folder)

    def unlink(self, path):
        self._call("unlink", path)

    def rmdir(self, folder):
        self._call("rmdir", folder)


def kills(at: int, *, torn: bool = False) -> BrokenDisk:
    """The process dies at this call; a write is half done then, if `torn`."""

    def strike(number: int, name: str, path: Path) -> None:
        if number == at:
            raise Killed(*(["torn"] if torn else []))

    return BrokenDisk(strike)


def fails(code: int, *, at: int | None = None, calls: tuple[str, ...] = WRITES, below: str = "") -> BrokenDisk:
    """These calls fail with this errno: the n-th of them, or all from now on."""

    def strike(number: int, name: str, path: Path) -> None:
        if name in calls and below in str(path) and at in {None, number}:
            raise OSError(code, os.strerror(code), str(path))

    return BrokenDisk(strike, count=calls)


def healthy() -> BrokenDisk:
    """Counts."""
    return BrokenDisk(lambda number, name, path: None)


FULL, QUOTA, READ_ONLY, SICK, DENIED = errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES
