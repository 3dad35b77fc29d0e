"""Processes of this machine: telling one from a later namesake, finding a tree, finding what carries a job's mark, ending them.

Knows /proc and signals and nothing of jobs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from ftsup.mockslurm.model import Ident

PR_SET_CHILD_SUBREAPER = 36
_STATE, _PPID, _START = 0, 1, 19
_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One process at one look."""

    ppid: int
    start: int
    zombie: bool


def look(pid: int) -> Seen | None:
    """One process now."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return Seen(ppid=int(fields[_PPID]), start=int(fields[_START]), zombie=fields[_STATE] in {b"Z", b"X"})


def soft_limits() -> dict[int, int]:
    """Ours."""
    return {kind: resource.getrlimit(kind)[0] for kind in _LIMITS}


def set_soft_limits(limits: dict[int, int]) -> None:
    """Ours, as far as we may."""
    for kind, soft in limits.items():
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))


def identify(pid: int) -> Ident:
    """Name a process that we know to be there (or that is gone already: then nobody matches)."""
    seen = look(pid)
    return Ident(pid=pid, start=seen.start if seen else -1)


def alive(who: Ident | None) -> bool:
    """It runs: not gone, not a zombie, not another process with its pid."""
    seen = look(who.pid) if who else None
    return bool(who and seen and seen.start == who.start and not seen.zombie)


def _pids() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def table() -> dict[int, Seen]:
    """Every process now, zombies included: their children still hang below them."""
    found = {pid: look(pid) for pid in _pids()}
    return {pid: seen for pid, seen in found.items() if seen}


def below(roots: Iterable[int], *, spare: Iterable[int] = ()) -> set[int]:
    """The living descendants of some processes, without those of `spare`."""
    seen = table()
    children: dict[int, list[int]] = {}
    for pid, one in seen.items():
        children.setdefault(one.ppid, []).append(pid)
    spared, found, todo = set(spare), set(), list(roots)
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in spared and pid not in found:
                found.add(pid)
                todo.append(pid)
    return {pid for pid in found if not seen[pid].zombie}


def marked(marks: Iterable[str]) -> set[int]:
    """The living processes whose environment holds all of these `NAME=value`. Never this process."""
    wanted = [mark.encode() for mark in marks]
    found = set()
    for pid in _pids():
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if pid != os.getpid() and all(mark in environment for mark in wanted):
                found.add(pid)
    return {pid for pid in found if (seen := look(pid)) and not seen.zombie}


def send(pids: Iterable[int], number: int) -> None:
    """Signal processes; those that are gone are gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end(find: Callable[[], set[int]], *, patience_s: float) -> bool:
    """SIGKILL what `find` finds until it finds nothing; False when something is still there after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while pids := find():
        if time.monotonic() > deadline:
            return False
        send(pids, signal.SIGKILL)
        reap()
        time.sleep(0.005)
    return True


def end_trees(roots: Iterable[Ident], *, patience_s: float) -> bool:
    """SIGKILL processes and whatever hangs below them, also what is adopted by others while they die."""
    known = {who for who in roots if alive(who)}

    def left() -> set[int]:
        known.update(identify(pid) for pid in below(who.pid for who in known if alive(who)))
        return {who.pid for who in known if alive(who)}

    return end(left, patience_s=patience_s)


def reap() -> dict[int, int]:
    """Collect every child that has ended: pid -> wait status."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = status
    return ended


def adopt_orphans() -> None:
    """Become the parent of what our descendants leave behind."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
