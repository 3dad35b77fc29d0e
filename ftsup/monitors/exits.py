"""How ranks ended: their own exit records, and what torchrun says on its stderr about those that left none.

Turns files and text into plain values. Garbage becomes a value that says so: the outside may write what it likes.
"""

from __future__ import annotations

import re
import signal
from enum import Enum
from pathlib import Path

import msgspec

RECORD_CAP = 1 << 20
"""Bytes; the worker's own caps keep a record far below it."""


class Ended(Enum):
    """How the script ended, in the rank's own words."""

    RETURNED = "returned"
    EXIT = "exit"
    EXCEPTION = "exception"
    INTERRUPTED = "interrupted"


class ExitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank left when its script ended. No record: a signal or os._exit."""

    version: int
    rank: int
    pid: int
    how: Ended
    code: int | None = None
    """None: it dies of SIGINT."""
    step: int = -1
    monotonic_ns: int = 0
    """Orders the ends on one node, to the microsecond; torchrun's stamps are whole seconds."""
    type: str = ""
    message: str = ""
    where: str = ""
    traceback: str = ""
    fingerprint: str = ""

    @property
    def finished(self) -> bool:
        """The script says that it is done."""
        return self.code == 0

    @property
    def error(self) -> str:
        """One line: `ValueError: x`."""
        first = self.message.strip().partition("\n")[0]
        return ": ".join(part for part in (self.type, first) if part)


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """There is an exit record, and it makes no sense."""

    rank: int
    why: str


class RankExit(msgspec.Struct, frozen=True, kw_only=True):
    """What torchrun says about the end of one of its ranks."""

    local_rank: int
    pid: int
    code: int
    """As Python has it: negative for a signal."""
    rank: int | None = None
    """None until torchrun has printed its table."""
    first: bool = False
    """torchrun saw it first. In a cascade that may be a victim: compare exit records."""
    closed: bool = False
    """torchrun itself ended it, because another one had failed."""

    @property
    def signal(self) -> str:
        """`SIGKILL`; empty for an exit code."""
        return signal_name(-self.code) if self.code < 0 else ""


def records(beats: Path) -> dict[int, ExitRecord | Unreadable]:
    """The exit records in the attempt's directory, by rank."""
    numbered = {path: path.name.split(".")[1] for path in beats.glob("exit.*.json")}
    return {int(number): read_record(path, rank=int(number)) for path, number in numbered.items() if number.isdecimal()}


def read_record(path: Path, *, rank: int) -> ExitRecord | Unreadable:
    """One exit record."""
    try:
        with path.open("rb") as file:
            record = msgspec.json.decode(file.read(RECORD_CAP), type=ExitRecord)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return Unreadable(rank=rank, why=f"{path.name}: {error}")
    if record.version != 1 or record.rank != rank:
        return Unreadable(rank=rank, why=f"{path.name}: version {record.version} of rank {record.rank}")
    return record


_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\) of binary")
_ROW = re.compile(r"^ +rank +: (\d+) \(local_rank: (\d+)\)\n +exitcode +: (-?\d+) \(pid: (\d+)\)", re.MULTILINE)
_CLOSED = re.compile(r"Sending process (\d+) closing signal|Unable to shutdown process (\d+) via")
_ROOT = "Root Cause (first observed failure):"
_PORT_TAKEN = re.compile(r"server socket has failed to listen on any local network address.*(EADDRINUSE|errno: 98\b)")


def rank_exits(stderr: str) -> list[RankExit]:
    """The ends of ranks that torchrun's stderr tells of, as far as it is written, the first failure in front."""
    ended = closed(stderr)
    found: dict[int, RankExit] = {}
    for code, local_rank, pid in _FAILED.findall(stderr):
        found[int(pid)] = RankExit(local_rank=int(local_rank), pid=int(pid), code=int(code), first=not found)
    root_at = stderr.find(_ROOT)
    for row in _ROW.finditer(stderr):
        rank, local_rank, code, pid = (int(number) for number in row.groups())
        first = 0 <= root_at < row.start()
        found[pid] = RankExit(rank=rank, local_rank=local_rank, pid=pid, code=code, first=first, closed=pid in ended)
    return sorted(found.values(), key=lambda one: (not one.first, one.closed, one.local_rank))


def closed(stderr: str) -> set[int]:
    """The processes that torchrun ends itself, because another one has failed, or since it was told to end."""
    return {int(one or other) for one, other in _CLOSED.findall(stderr)}


def port_taken(stderr: str) -> bool:
    """torchrun could not listen on its rendezvous port: somebody else has it."""
    return _PORT_TAKEN.search(stderr) is not None


def signal_name(number: int) -> str:
    """`SIGKILL`, `SIGRTMIN+7`, or `signal 99` for what this system does not know."""
    try:
        return signal.Signals(number).name
    except ValueError:
        real_time = signal.SIGRTMIN < number < signal.SIGRTMAX
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if real_time else f"signal {number}"
