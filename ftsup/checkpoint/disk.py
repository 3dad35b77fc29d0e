"""The Disk port's real side, what is built from its calls (whole trees, small files, publishing), and the pace of background reading.

Everything in this room reaches files through a Disk, so that a test can fail, tear or kill each single call. Knows nothing of checkpoints.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ftsup.ports import Disk, Facts, What

_NOT_THERE = {errno.ENOENT, errno.ENOTDIR}
MEDIA = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})
"""How a disk says that it cannot give these bytes back."""
_TEMPORARY = ".tmp"
_CREDIT_S = 1.0
_LEFT_BY_NFS = ".nfs"
"""What an NFS client makes of a file that was removed while somebody had it open. It goes when that process closes it."""


class RealDisk:
    """The disk that the kernel shows us. `each` hears of all bytes that are read, piece by piece: progress, or a Pace that waits."""

    def __init__(self, *, each: Callable[[int], None] | None = None) -> None:
        self._each = each

    def look(self, path: Path) -> Facts | None:
        """What stands there; None: nothing does."""
        try:
            facts = path.stat()
        except OSError as error:
            if error.errno in _NOT_THERE:
                return None
            raise
        return Facts(what=_what(facts.st_mode), size_bytes=facts.st_size, mtime_ns=facts.st_mtime_ns, inode=facts.st_ino)

    def names(self, folder: Path) -> dict[str, What]:
        """What the folder holds."""
        with os.scandir(folder) as entries:
            found = {entry.name: _what_entry(entry) for entry in entries}
        return dict(sorted(found.items()))

    def open(self, path: Path) -> BinaryIO:
        """For reading."""
        return path.open("rb") if self._each is None else io.BufferedReader(_Told(path, self._each))

    def pieces(self, path: Path, *, size_bytes: int, stay_cached: bool) -> Iterator[memoryview]:
        """The whole file, piece by piece, in one buffer."""
        with path.open("rb", buffering=0) as file:
            fd = file.fileno()
            length = os.fstat(fd).st_size
            cached = [] if stay_cached else _cached(fd, length, size_bytes)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            piece = memoryview(bytearray(max(1, min(size_bytes, length))))
            number = 0
            while size := _fill(file.readinto, piece):
                yield piece[:size]
                if self._each is not None:
                    self._each(size)
                if not (stay_cached or cached[number : number + 1] == [True]):
                    os.posix_fadvise(fd, number * size_bytes, size, os.POSIX_FADV_DONTNEED)
                number += 1

    def write_new(self, path: Path, data: bytes) -> None:
        """Make a file, and bring its bytes to the disk."""
        shared = path.parent.stat().st_mode & 0o040
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640 if shared else 0o600)
        with os.fdopen(fd, "wb", buffering=0) as file:
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            os.fsync(fd)

    def rename(self, old: Path, new: Path) -> None:
        """Atomic."""
        old.rename(new)

    def sync(self, path: Path) -> None:
        """Bring bytes or names to the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def mkdir(self, folder: Path) -> None:
        """Make one folder."""
        folder.mkdir(mode=0o750 if folder.parent.stat().st_mode & 0o040 else 0o700)

    def unlink(self, path: Path) -> None:
        """Remove a file or a link."""
        path.unlink()

    def rmdir(self, folder: Path) -> None:
        """Remove an empty folder."""
        folder.rmdir()


class _Told(io.FileIO):
    """A file that tells what was read of it."""

    def __init__(self, path: Path, each: Callable[[int], None]) -> None:
        super().__init__(path)
        self._each = each

    def readinto(self, buffer: Any, /) -> int | None:  # noqa: ANN401 - whatever can be written to: its type has no name before 3.12
        size = super().readinto(buffer)
        self._each(size or 0)
        return size

    def readall(self) -> bytes:
        data = super().readall()
        self._each(len(data))
        return data


class Pace:
    """Holds reading to a rate: `spend` waits until the bytes are paid for. What took its time anyway is credited, up to a second of it."""

    def __init__(self, bytes_per_s: float, *, now: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._rate, self._now, self._sleep = bytes_per_s, now, sleep
        self._paid = now()

    def spend(self, size_bytes: int) -> None:
        """So many bytes were read."""
        now = self._now()
        self._paid = max(self._paid, now - _CREDIT_S) + size_bytes / self._rate
        if self._paid > now:
            self._sleep(self._paid - now)


def read_small(disk: Disk, path: Path) -> bytes | None:
    """A small file; None: not there. A disk that says EIO is asked once more."""
    for last in (False, True):
        try:
            with disk.open(path) as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            if last or error.errno not in MEDIA:
                raise
    raise AssertionError


def publish(disk: Disk, path: Path, data: bytes) -> None:
    """A small file, whole or not at all: temporary name, fsync, rename, fsync of the folder. What an interrupted one left goes."""
    begin = f".{path.name}."
    for name in disk.names(path.parent):
        if name.startswith(begin) and name.endswith(_TEMPORARY):
            disk.unlink(path.parent / name)
    aside = path.with_name(f"{begin}{secrets.token_hex(4)}{_TEMPORARY}")  # never a name that another writer could be at
    disk.write_new(aside, data)
    disk.rename(aside, path)
    disk.sync(path.parent)


def make_folders(disk: Disk, folder: Path, *, below: Path) -> None:
    """`folder` and those above it, down from `below`, which stands; each name is brought to the disk."""
    if folder == below or disk.look(folder) is not None:
        return
    make_folders(disk, folder.parent, below=below)
    try:
        disk.mkdir(folder)
    except FileExistsError:
        return
    disk.sync(folder.parent)


def files_below(disk: Disk, root: Path) -> dict[str, Facts]:
    """Every plain file of a tree by its path below the root; the root itself, as an empty path, if it is a file."""
    facts = disk.look(root)
    if facts is None:
        return {}
    return {"": facts} if facts.what is What.FILE else dict(_files(disk, root, "", (facts.inode,)))


def remove_tree(disk: Disk, root: Path) -> list[str]:
    """Remove a file, a link or a tree. What an NFS client holds on to stays, with the folders around it; its paths are returned."""
    if root.name.startswith(_LEFT_BY_NFS):
        return [str(root)]
    try:
        disk.unlink(root)
    except (IsADirectoryError, PermissionError) as error:  # EISDIR is Linux's word, EPERM is POSIX's
        if error.errno == errno.EACCES:
            raise
        left = [path for name in disk.names(root) for path in remove_tree(disk, root / name)]
        if not left:
            disk.rmdir(root)
        return left
    return []


def _files(disk: Disk, folder: Path, prefix: str, above: tuple[int, ...]) -> Iterator[tuple[str, Facts]]:
    for name, what in disk.names(folder).items():
        facts = disk.look(folder / name) if what is not What.OTHER and not name.startswith(_LEFT_BY_NFS) else None
        if facts is None:
            continue
        if facts.what is What.FILE:
            yield prefix + name, facts
        elif facts.what is What.FOLDER and facts.inode not in above:
            yield from _files(disk, folder / name, f"{prefix}{name}/", (*above, facts.inode))


def _what(mode: int) -> What:
    return What.FILE if stat.S_ISREG(mode) else What.FOLDER if stat.S_ISDIR(mode) else What.OTHER


def _what_entry(entry: os.DirEntry[str]) -> What:
    return What.FILE if entry.is_file() else What.FOLDER if entry.is_dir() else What.OTHER


def _fill(read_into: Callable[[memoryview], int | None], piece: memoryview) -> int:
    """Read until the piece is full or the file at its end."""
    size = 0
    while size < len(piece) and (got := read_into(piece[size:])):
        size += got
    return size


def _cached(fd: int, length: int, piece_bytes: int) -> list[bool]:
    """Which pieces the page cache holds now, told by a byte in the middle of each that is read only if no disk is needed for it.
    A freshly written checkpoint is there, and a restart will want it: only what we bring in ourselves is thrown out again.
    """
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # a look must not start reading ahead
    return [_is_cached(fd, min(begin + piece_bytes // 2, length - 1)) for begin in range(0, length, piece_bytes)]


def _is_cached(fd: int, offset: int) -> bool:
    try:
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except OSError:  # EAGAIN: it is not; EOPNOTSUPP: a network file system that cannot say
        return False
