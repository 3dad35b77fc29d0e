"""Request files: the shape in which people's wishes lie in the run directory, and how a leader's clerk reads them.

One file a request, whole or not at all, named by whoever asks. It stays until the log that is shared holds it, so that a leader that dies
in between costs nothing; then it is set aside, and so is what is no request. Nothing here knows what a request leads to.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path

import msgspec

from ftsup.errors import RunError
from ftsup.events import Request

CAP_BYTES = 64 * 1024
MOST = 64
"""Files that one look takes; the others wait for the next."""
_NUMBER = re.compile(r"(\d{6})-")
TAKEN, REFUSED = ".taken", ".refused"


class Wanted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request file holds. Unknown fields are ignored: a newer ftsup may have written it."""

    request: Request
    who: str = ""
    wall: str = ""
    from_step: int | None = None
    avoid: tuple[str, ...] = ()


class Continuation(msgspec.Struct, frozen=True, kw_only=True):
    """`continued.json`: what `ftsup submit --continue` leaves for the leader of the next job."""

    n: int
    who: str = ""
    wall: str = ""
    changed: tuple[str, ...] = ()


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One request, with the name of its file. A mark that stays (a cancelled or a paused run) has none."""

    id: str = ""
    wanted: Wanted


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What one look found: requests in the order in which they were written, and sentences about what is none."""

    found: tuple[Found, ...] = ()
    strange: tuple[str, ...] = ()


def look(folder: Path, *, known: Collection[str] = ()) -> Look:
    """The requests in a folder. Those that are `known` by their names are heard: they are set aside."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return Look()
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            return Look(strange=(f"{folder.name}/ belongs to somebody else: nothing in it is read",))
        found, strange = [], []
        for name in _names(fd):
            if name in known:
                _aside(fd, name, TAKEN)
                continue
            try:
                found.append(Found(id=name, wanted=msgspec.json.decode(_read(fd, name), type=Wanted)))
            except FileNotFoundError:  # taken back
                continue
            except ValueError as error:
                strange.append(f"{folder.name}/{name} is no request, and is set aside: {error}")
                _aside(fd, name, REFUSED)
        return Look(found=tuple(found), strange=tuple(strange))
    finally:
        os.close(fd)


def continuation(path: Path) -> Continuation | None:
    """None: it never was continued. RunError: whether to begin anew is not to be guessed."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Continuation)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunError(f"{path} cannot be read: {error}", hint="ftsup submit --continue writes it anew") from error


def marks(*, cancelled: str = "", paused: str = "") -> tuple[Found, ...]:
    """The marks of a run that is not to go on: they ask as long as they are there."""
    return tuple(
        Found(wanted=Wanted(request=request, who=text.strip().rpartition(" ")[2] or "somebody"))
        for request, path in ((Request.CANCEL, cancelled), (Request.PAUSE, paused))
        if path and (text := _mark(Path(path))) is not None
    )


def _names(fd: int) -> list[str]:
    """The oldest first: by their numbers; those of an ftsup that gave none by when they were written."""
    names = [name for name in os.listdir(fd) if name.endswith(".json") and not name.startswith(".")]
    return sorted(names, key=lambda name: (number(name), _written_ns(fd, name), name))[:MOST]


def number(name: str) -> int:
    """What a request's name begins with: it counts those that lie there, since a clock may be set back between two. 0: nothing."""
    found = _NUMBER.match(name)
    return int(found[1]) if found else 0


def _written_ns(fd: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime_ns
    except OSError:
        return 0


def _read(folder: int, name: str) -> bytes:
    """A plain, small file of ours; ValueError: it is another thing."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.ENXIO, errno.EACCES}:
            raise
        message = "it is no plain file that we may read"
        raise ValueError(message) from None
    try:
        facts = os.fstat(fd)
        if facts.st_uid != os.geteuid():
            message = f"it belongs to user {facts.st_uid}"
            raise ValueError(message)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > CAP_BYTES:
            message = "it is no plain, small file"
            raise ValueError(message)
        return os.read(fd, CAP_BYTES)
    finally:
        os.close(fd)


def _mark(path: Path) -> str | None:
    """A mark of ours counts whatever it holds; a folder or a link is none."""
    try:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return _read(fd, path.name).decode(errors="replace")
    except (FileNotFoundError, ValueError):
        return None
    finally:
        os.close(fd)


def _aside(fd: int, name: str, suffix: str) -> None:
    """Under a name that is not read again. A folder that takes no change keeps it: whoever looks remembers."""
    try:
        os.rename(name, f"{name}{suffix}", src_dir_fd=fd, dst_dir_fd=fd)
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR}:
            raise
