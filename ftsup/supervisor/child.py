"""An attempt as the node supervisor holds it: start, stop, what became of it. Never blocks; the work is done by its guard.

Also starts the other programs of ours (the clerk, a sweep). It knows processes, and nothing of why they are started or ended.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import msgspec

from ftsup import proc

KILL_LIMIT_S = 30.0
"""What does not die of SIGKILL for so long is said to be unkillable (a GPU's memory takes its time)."""
SWEEPS = 3
"""Whoever kills a guard may kill a sweep as well; what was not proven to be gone is worth another one."""
_GUARD_SLACK_S = 30.0
_HASTE_S = 5.0
"""The same where little time is left."""
_MESSAGE = 262144


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What to start, and as whom: `mark` names the attempt in the environment of all its processes."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    mark: str
    out: Path
    err: Path
    proof: Path | None = None
    """Where the guard writes that it is through: without it, it was killed itself."""
    stdin: Path | None = None
    file_cap_bytes: int = 0
    """No file that it writes becomes longer; 0: as long as the system lets it."""
    ignored: tuple[signal.Signals, ...] = ()
    """Signals that mean nothing to the attempt, from its first instruction on; a program that sets a handler hears them again."""


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt's first process runs."""

    pid: int


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt's first process ended; negative: by a signal; 127: it could not be executed (see the error file)."""

    code: int


class Gone(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing is left, or `left` names what cannot be killed. `code`: of the first process, None when nobody saw it end."""

    code: int | None = None
    left: tuple[str, ...] = ()
    unsure: bool = False
    """The guard was killed, and with it who knew those processes that carry no mark: only a cgroup could find them now."""
    took_s: float = 0.0
    killed: int = 0
    rounds: int = 0


ChildEvent = Union[Started, Ended, Gone]  # noqa: UP007


class Program:
    """A Python module of ours in a process of its own, with a socket between us."""

    def __init__(
        self, module: str, *arguments: str, kind: socket.SocketKind, spec: bytes = b"", env: Mapping[str, str] | None = None
    ) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, kind)
        fd = os.memfd_create("spec")
        try:
            os.write(fd, spec)
            os.lseek(fd, 0, os.SEEK_SET)
            with proc.deaf():
                self.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    [sys.executable, "-m", module, str(theirs.fileno()), str(fd), *arguments],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), fd),
                    cwd="/",  # no `ftsup` or `json.py` of the user's folder is imported
                    env={**os.environ, **(env or {})},
                    start_new_session=True,
                )
        finally:
            os.close(fd)
            theirs.close()
        self.socket.settimeout(0)
        self.pidfd = os.pidfd_open(self.process.pid)

    def signal(self, number: signal.Signals) -> None:
        """Signal it, if it still runs."""
        self.process.send_signal(number)

    def dead(self) -> bool:
        """Whether it ended (and it is reaped then)."""
        return self.process.poll() is not None

    def reap(self, *, limit_s: float) -> None:
        """Wait for the end of one that was killed, and not long: it may hang in the kernel, and is nobody's then."""
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.returncode = -signal.SIGKILL  # else Python warns that nobody waited, at any later moment

    def close(self) -> None:
        """Let go of it; it sees the end of the socket."""
        self.socket.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class Child:
    """One attempt on this node, from its start to the proof that nothing is left; or a sweep, which only has the end.

    Register `fds()`, call `poll(now)` after each poll. The last thing that it tells is always one Gone.
    """

    def __init__(self, program: Program, *, mark: str, sweeping: bool = False) -> None:
        self.mark = mark
        self.pid: int | None = None
        self.code: int | None = None
        self.over = False
        self._program = program
        self._open = True
        self._gone: Gone | None = None
        self._deadline: float | None = None
        self._sweeps = 1 if sweeping else 0
        self._unsure = False

    def fds(self) -> list[int]:
        """What to poll for reading."""
        if self.over:
            return []
        return [self._program.socket.fileno() if self._open else self._program.pidfd]

    @property
    def guard_pid(self) -> int:
        """The process that does the work."""
        return self._program.process.pid

    def due_at(self) -> float | None:
        """When `poll` has to look even if nothing comes."""
        return None if self.over else self._deadline

    def stop(self, *, grace_s: float, now: float, linger: bool = True, kill_limit_s: float | None = None) -> None:
        """CONT and TERM, after `grace_s` KILL, then proof. May be repeated with a shorter grace.

        Without `linger` the first process, once nothing else of the attempt is left, is not waited for: a torchrun whose ranks are
        gone and that has nothing to tell needs 0.6 s to leave. What does not die of KILL within `kill_limit_s` is given up.
        """
        if self.over:
            return
        limit = {} if kill_limit_s is None else {"kill_limit_s": kill_limit_s}
        deadline = now + grace_s + (KILL_LIMIT_S + _GUARD_SLACK_S if kill_limit_s is None else kill_limit_s + _HASTE_S)
        self._deadline = deadline if self._deadline is None else min(deadline, self._deadline)
        if self._open:
            try:
                self._program.socket.send(json.dumps({"stop": grace_s, "linger": linger} | limit).encode())
                self._program.signal(signal.SIGCONT)  # whoever stopped the guard
            except OSError:
                pass  # it is dead: poll finds out

    def forgive(self, away_s: float) -> None:
        """We were away for so long, and the guard may have been stopped as well."""
        if self._deadline is not None:
            self._deadline += away_s

    def poll(self, now: float) -> list[ChildEvent]:
        """What happened since the last call."""
        if self.over:
            return []
        found = self._hear()
        if not self._open and self._program.dead():
            found += self._end_or_sweep(now)
        elif self._deadline is not None and now > self._deadline:
            self._program.signal(signal.SIGKILL)
            found.append(self._finish(Gone(code=self.code, left=(f"the guard of {self.mark} does not answer",))))
        return found

    def close(self) -> None:
        """Let go. An attempt that still runs is ended at once by its guard."""
        self.over = True
        self._program.close()

    def _hear(self) -> list[ChildEvent]:
        found: list[ChildEvent] = []
        while self._open:
            try:
                data = self._program.socket.recv(_MESSAGE)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self._open = False
                break
            found += self._understand(json.loads(data))
        return found

    def _understand(self, word: dict[str, Any]) -> list[ChildEvent]:
        if "started" in word:
            self.pid = word["started"]
            return [Started(pid=word["started"])]
        if "ended" in word:
            self.code = word["ended"]
            return [Ended(code=word["ended"])]
        gone = msgspec.convert(word["gone"], Gone)
        self._gone = gone if gone.code is not None else msgspec.structs.replace(gone, code=self.code)
        return []  # told once the guard itself is gone

    def _end_or_sweep(self, now: float) -> list[ChildEvent]:
        """The guard is gone: after its work, or before (killed), and then a sweep does it."""
        if self._gone is not None:
            return [self._finish(self._gone)]
        self._unsure = self._unsure or self._sweeps == 0
        if self._sweeps == SWEEPS:
            return [self._finish(Gone(code=self.code, left=(f"the sweep of {self.mark} was killed",)))]
        self._sweeps += 1
        self._program.close()
        self._program = _sweeper(self.mark)
        self._open = True
        self._deadline = now + KILL_LIMIT_S + _GUARD_SLACK_S
        return []

    def _finish(self, gone: Gone) -> Gone:
        self.close()
        return msgspec.structs.replace(gone, unsure=gone.unsure or self._unsure)


def start(spec: Spec, *, kill_limit_s: float = KILL_LIMIT_S) -> Child:
    """Start an attempt. OSError when not even its guard can be started."""
    fields = {
        "argv": spec.argv,
        "env": dict(spec.env),
        "cwd": str(spec.cwd),
        "mark": spec.mark,
        "out": str(spec.out),
        "err": str(spec.err),
        "proof": str(spec.proof or ""),
        "stdin": str(spec.stdin or os.devnull),
        "file_cap_bytes": spec.file_cap_bytes,
        "ignored": spec.ignored,
        "kill_limit_s": kill_limit_s,
    }
    return Child(_guard(fields), mark=spec.mark)


def sweep(mark: str, *, now: float, kill_limit_s: float = KILL_LIMIT_S) -> Child:
    """End all that carries the mark, or one below it where it ends with `/`, and prove it: a new supervisor's first act."""
    child = Child(_sweeper(mark, kill_limit_s), mark=mark, sweeping=True)
    child.stop(grace_s=0.0, now=now)
    return child


def clean(folders: Sequence[Path]) -> None:
    """Remove an attempt's own folders in node-local memory, once nothing of it is left. Never follows a link."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _sweeper(mark: str, kill_limit_s: float = KILL_LIMIT_S) -> Program:
    return _guard({"mark": mark, "kill_limit_s": kill_limit_s})


def _guard(fields: dict[str, Any]) -> Program:
    env = {"FTSUP_GUARD": fields["mark"]}
    return Program("ftsup.supervisor.guard", kind=socket.SOCK_SEQPACKET, spec=json.dumps(fields).encode(), env=env)
