"""Processes as /proc shows them: who carries our mark, who descends from us, who catches a signal; and one round of ending them.

Looks and signals, never waits: loops and deadlines belong to the caller. Only our own user's processes are ever seen, and they are
signalled through pidfds after their start time was compared again, so that a reused pid is never hit.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from ftsup.policy import watch
from ftsup.worker import places

PROC = Path("/proc")
COMMAND_CAP = 120
_CHUNK = 1 << 20


State = watch.Process
"""The policy's words: RUNNING (or sleeping, or held by a debugger), STOPPED, DISK (state D), GONE (or a zombie), UNKNOWN."""

_STATES = {"T": State.STOPPED, "D": State.DISK, "Z": State.GONE, "X": State.GONE, "x": State.GONE}


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process. `started` (clock ticks since boot) tells it from a later one with the same pid."""

    pid: int
    started: int
    parent: int
    state: State
    command: str = ""


def look(pid: int, *, proc: Path = PROC) -> Process | None:
    """The process as it is now, without its command; None when there is none."""
    text = _read(proc / str(pid) / "stat")
    if not text:
        return None
    fields = text.rpartition(b")")[2].split()
    letter, threads = fields[0].decode(), int(fields[17])
    state = _STATES.get(letter, State.RUNNING)
    if letter == "Z" and threads > 1:  # only the main thread has ended
        state = State.RUNNING
    return Process(pid=pid, started=int(fields[19]), parent=int(fields[1]), state=state)


def state_of(pid: int, *, started: int, proc: Path = PROC) -> State:
    """The state of exactly this process: of a later one with its pid it is GONE."""
    if pid <= 0:
        return State.UNKNOWN
    process = look(pid, proc=proc)
    return State.GONE if process is None or process.started != started else process.state


def marked(prefix: str, *, proc: Path = PROC) -> list[Process]:
    """Living processes of ours whose FTSUP_MARK begins with `prefix` (end it with a slash). Misses a cleared environment."""
    assert prefix, "an empty mark would match every attempt of every run"
    needle = f"{places.MARK}={prefix}".encode()
    found = []
    for pid in _ours(proc):
        environment = _read(proc / str(pid) / "environ")
        if environment.startswith(needle) or b"\0" + needle in environment:
            found.append(pid)
    return _living(found, proc)


def below(root: int, *, proc: Path = PROC) -> list[Process]:
    """Living processes of ours that descend from `root` (which is a child subreaper, so that orphans stay below it)."""
    children: dict[int, list[Process]] = {}
    for pid in _ours(proc):
        process = look(pid, proc=proc)
        if process is not None:
            children.setdefault(process.parent, []).append(process)
    found: list[int] = []
    waiting = [root]
    while waiting:
        family = children.pop(waiting.pop(), [])
        waiting += [process.pid for process in family]
        found += [process.pid for process in family]
    return _living(found, proc)


def catches(pid: int, signal_number: int, *, proc: Path = PROC) -> bool:
    """Whether the process has a handler for the signal: without one, most signals kill."""
    for line in _read(proc / str(pid) / "status").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal_number - 1) & 1)
    return False


def strike(process: Process, signal_number: int, *, proc: Path = PROC) -> bool:
    """Send a signal to exactly this process; False when it is gone or not ours."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        again = look(process.pid, proc=proc)
        if again is None or again.started != process.started:
            return False
        signal.pidfd_send_signal(fd, signal_number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def sweep(
    mark: str, *, root: int | None, spare: Collection[int] = (), signal_number: int = signal.SIGKILL, proc: Path = PROC
) -> list[Process]:
    """One round: signal everything of the mark, and everything below `root`; returns who was alive. Call it until that is nobody.

    We ourselves and `spare` are left out. Nobody is proof: it was looked twice, as a process may fork behind the first look's back.
    """
    for _ in range(2):
        left = {process.pid: process for process in marked(mark, proc=proc)}
        if root is not None:
            left.update({process.pid: process for process in below(root, proc=proc)})
        found = [process for pid, process in left.items() if pid != os.getpid() and pid not in spare]
        if found:
            for process in found:
                strike(process, signal_number, proc=proc)
            return found
    return []


def _living(pids: Collection[int], proc: Path) -> list[Process]:
    looks = (look(pid, proc=proc) for pid in pids)
    return [
        msgspec.structs.replace(one, command=_command(one.pid, proc)) for one in looks if one is not None and one.state is not State.GONE
    ]


def _command(pid: int, proc: Path) -> str:
    words = _read(proc / str(pid) / "cmdline") or _read(proc / str(pid) / "comm")
    return words.replace(b"\0", b" ").decode(errors="replace").strip()[:COMMAND_CAP]


def _ours(proc: Path) -> Iterator[int]:
    """Pids of our user. The owner of /proc/<pid> is the effective user, whatever the process has done to hide its memory."""
    uid = os.geteuid()
    with os.scandir(proc) as entries:
        for entry in entries:
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if entry.stat().st_uid == uid:
                        yield int(entry.name)


def _read(path: Path) -> bytes:
    """The file; empty when the process is gone or hides it."""
    try:
        with path.open("rb", buffering=0) as file:
            return b"".join(iter(lambda: file.read(_CHUNK), b""))
    except OSError:
        return b""
