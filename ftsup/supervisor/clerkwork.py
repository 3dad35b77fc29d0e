"""The clerk's own process: does what its supervisor asks on the shared disk, one request after the other, and may hang in it.

`python -m ftsup.supervisor.clerkwork SOCKET SPEC`, started by clerk.py. It dies with its supervisor, imports neither sockets
of the link nor torch, and decides nothing: each request names its files.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import ipaddress
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.same import difference
from ftsup.checkpoint.trouble import told
from ftsup.errors import FtsupError
from ftsup.events import Files
from ftsup.supervisor import ranklogs, requests
from ftsup.supervisor.files import write_whole
from ftsup.supervisor.mirror import LaterGrant, Mirror

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_FILE_CAP = 8 << 20
_ELSEWHERE = frozenset({"say", "see", "leader"})
"""Work that does not write to the run directory."""
_COPY_CAP = 64 << 20
_LEADER_CAP = 1 << 14


class Work:
    """What the clerk can do; each answers a JSON value or raises OSError or FtsupError."""

    def __init__(self) -> None:
        self._mirror = Mirror()

    def table(self) -> dict[str, Callable[..., Any]]:
        """By name."""
        return {
            "mirror": self.mirror,
            "write": self.write,
            "remove": self.remove,
            "requests": self.requests,
            "add_line": self.add_line,
            "say": self.say,
            "copy": self.copy,
            "see": self.see,
            "leader": self.leader,
            "logs": self.logs,
        }

    def mirror(self, *, source: str, target: str) -> int | str:
        """Bring the event log's mirror up to date; the number of its last line, or why it is not ours any more."""
        try:
            return self._mirror.bring(Path(source), Path(target))
        except LaterGrant as later:
            return str(later)

    def write(self, *, path: str, text: str) -> None:
        """A small file, whole or not at all."""
        write_whole(Path(path), text.encode(errors="surrogateescape"))

    def remove(self, *, path: str) -> None:
        """A small file of ours, if it is there."""
        Path(path).unlink(missing_ok=True)

    def requests(self, *, folder: str, known: list[str], cancelled: str = "", paused: str = "") -> Any:  # noqa: ANN401 - JSON
        """What people ask for: only our own user's plain files. Those that are known are set aside; the marks of a run stay."""
        found = requests.look(Path(folder), known=known)
        marked = requests.marks(cancelled=cancelled, paused=paused)
        return msgspec.to_builtins(msgspec.structs.replace(found, found=found.found + marked))

    def say(self, *, text: str) -> None:
        """A line for the output of the batch script, which is ours as well."""
        os.write(sys.stderr.fileno(), f"ftsup: {text}\n".encode(errors="replace"))

    def leader(self, *, path: str) -> list[str]:
        """Where the leader says that it is; where that cannot be read, nowhere."""
        data = _read_plain(path, cap_bytes=_LEADER_CAP)
        with contextlib.suppress(msgspec.DecodeError, ValueError):
            return [found for found in msgspec.json.decode(data or b"[]", type=list[str]) if _is_address(found)]
        return []

    def add_line(self, *, path: str, line: str) -> None:
        """Add a line to a small file, once."""
        add_line(Path(path), line)

    def copy(self, *, source: str, target: str) -> int:
        """Copy a folder of evidence, file by file; how many files."""
        return copy_folder(Path(source), Path(target))

    def see(self, *, worker: str, folder: str = "", name: str = "", files: dict[str, Any] | None = None) -> str | None:
        """What differs between a checkpoint as it is seen here and where it was picked. Empty: nothing; None: the run directory is gone."""
        try:
            Path(worker).stat()
        except FileNotFoundError:
            return None
        except OSError:  # ranks may fare better, or say it better
            pass
        return "" if files is None else difference(RealDisk(), Path(folder), name, msgspec.convert(files, Files))

    def logs(self, *, out: str, target: str, final: bool = False) -> bool:
        """Bring ranks' output over; whether there is more."""
        return ranklogs.bring(Path(out), Path(target), final=final) if Path(out).is_dir() else False


def _is_address(text: str) -> bool:
    """As `LeaderLink.addresses` writes them."""
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    return text == f"tcp://{ipaddress.IPv4Address(host)}:{int(port)}" and 0 < int(port) < 1 << 16


def add_line(path: Path, line: str) -> None:
    """The file with the line at its end, unless it has it."""
    before = path.read_text() if path.exists() else ""
    if line not in before.splitlines():
        write_whole(path, f"{before}{line}\n".encode())


def _read_plain(path: str, *, cap_bytes: int) -> bytes | None:
    """The beginning of a plain file; None for a link, a pipe or a folder."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO, errno.EACCES, errno.ENOENT}:
            return None
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        parts = []
        while cap_bytes > 0 and (part := os.read(fd, cap_bytes)):
            parts.append(part)
            cap_bytes -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def copy_folder(source: Path, target: Path) -> int:
    """Plain files only, each whole or not at all, and no more than an incident may weigh."""
    left, copied = _COPY_CAP, 0
    for path in sorted(source.iterdir()):
        data = _read_plain(str(path), cap_bytes=min(_FILE_CAP, left))
        if data is not None:
            write_whole(target / path.name, data)
            left -= len(data)
            copied += 1
    return copied


def _must_be_there(run: str) -> None:
    """An unmounted disk leaves an empty place: what is written there is in nobody's record, and hidden when the disk comes back."""
    if run and not Path(run).is_dir():
        raise FileNotFoundError(errno.ENOENT, "the run directory is gone", run)


def answer(work: Mapping[str, Callable[..., Any]], request: dict[str, Any], *, worked_before: bool = True) -> dict[str, Any]:
    """Do one request. What keeps us from it has a sentence, and a kind by which it is known again, whichever file it names next.

    `worked_before`: as the run directory did when the run began.
    """
    try:
        if request["do"] not in _ELSEWHERE:
            _must_be_there(request.get("run", ""))
        return {"n": request["n"], "answer": work[request["do"]](**request["with"])}
    except FtsupError as error:
        return {"n": request["n"], "why": str(error), "kind": type(error).__name__}
    except OSError as error:
        return {"n": request["n"], "why": told(error, worked_before=worked_before), "kind": error.strerror or type(error).__name__}


def settle(arguments: list[str], *, name: bytes) -> socket.socket | None:
    """What a program of this kind does first; the way to its supervisor. None: that is gone already."""
    parent = os.getppid()
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NAME, name, 0, 0, 0)
    if os.getppid() != parent or parent == 1:
        return None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # Slurm may signal every process of a step; we end with our supervisor
    os.close(int(arguments[1]))
    talk = socket.socket(fileno=int(arguments[0]))
    talk.settimeout(None)
    return talk


def serve(talk: socket.socket, work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """One request after the other, until the supervisor is gone."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError), talk:
        for line in talk.makefile("rb"):
            talk.sendall(json.dumps(work(json.loads(line))).encode() + b"\n")


def main(arguments: list[str]) -> None:
    """Work until the supervisor is gone."""
    talk = settle(arguments, name=b"ftsup-clerk")
    if talk is not None:
        serve(talk, functools.partial(answer, Work().table()))


if __name__ == "__main__":
    main(sys.argv[1:])
