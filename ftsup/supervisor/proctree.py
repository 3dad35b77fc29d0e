"""Which processes belong to an attempt: by descent and by the mark in their environment. Reads /proc, signals nobody.

Standard library only: the guard runs with this. A read of another process's environment can hang in the kernel while that
process is stuck, so nothing here may be called from a supervisor's loop.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

MARK = b"FTSUP_MARK="
GUARD = b"FTSUP_GUARD="


class Proc(NamedTuple):
    """One process at one moment. (pid, start) names it for ever, pid alone does not."""

    pid: int
    start: int
    ppid: int
    state: str
    name: str


def read(pid: int) -> Proc | None:
    """The process now; None when there is none, or only a zombie: it runs no code and holds nothing."""
    data = _contents(f"/proc/{pid}/stat")
    if not data:
        return None
    head, _, tail = data.rpartition(b")")
    fields = tail.split()
    state, threads = fields[0].decode(), int(fields[17])
    if state in "XZ" and threads <= 1:  # the first thread of a living process may be a zombie
        return None
    return Proc(pid, int(fields[19]), int(fields[1]), state, head.partition(b"(")[2].decode(errors="replace"))


def table() -> dict[int, Proc]:
    """All living processes."""
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    return {pid: proc for pid in pids if (proc := read(pid)) is not None}


def below(roots: Iterable[int], processes: dict[int, Proc]) -> set[int]:
    """The descendants of `roots`, without them."""
    children: dict[int, list[int]] = {}
    for proc in processes.values():
        children.setdefault(proc.ppid, []).append(proc.pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        new = [child for child in children.get(todo.pop(), ()) if child not in found]
        found.update(new)
        todo += new
    return found


def above(pid: int, processes: dict[int, Proc]) -> set[int]:
    """`pid` and its ancestors: those who act are never acted upon."""
    found: set[int] = set()
    while pid and pid not in found:
        found.add(pid)
        pid = processes[pid].ppid if pid in processes else 0
    return found


def carrying(variable: bytes, value: str, pids: Iterable[int]) -> set[int]:
    """Those processes of our user whose environment has the variable with this value, or below it where it ends with `/`."""
    wanted = b"\0" + variable + os.fsencode(value) + (b"" if value.endswith("/") else b"\0")
    return {pid for pid in pids if wanted in b"\0" + _contents(f"/proc/{pid}/environ", of=os.geteuid()) + b"\0"}


def describe(proc: Proc) -> str:
    """For people: what it is and where it stands."""
    wchan = _contents(f"/proc/{proc.pid}/wchan").decode(errors="replace").strip()
    return f"{proc.pid} ({proc.name}) in state {proc.state}" + (f" at {wchan}" if wchan not in ("", "0") else "")


def _contents(path: str, *, of: int | None = None) -> bytes:
    """The file; empty when the process is gone, hides it, or belongs to another user than `of`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        if of is not None and os.fstat(fd).st_uid != of:
            return b""
        return b"".join(iter(lambda: os.read(fd, 1 << 20), b""))
    except OSError:
        return b""
    finally:
        os.close(fd)
