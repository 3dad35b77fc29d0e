"""The guard: a small process between a node supervisor and an attempt. It starts the attempt, adopts its orphans, and ends it with proof.

    supervisor -> guard -> torchrun -> ranks -> ...

It is a process of its own because three things must not depend on the supervisor: all that an attempt starts stays below one
subreaper that has no other children; reading /proc may hang, and a supervisor's loop may not; and when the supervisor dies,
however it dies, the attempt ends. Standard library only. `python -m ftsup.supervisor.guard SOCKET SPEC` is started by child.py.

    from the supervisor  {"stop": grace_s, "linger": true}     end of file: the supervisor is dead, stop at once
    to the supervisor    {"started": pid}        {"ended": code}        {"gone": {...}}, then the guard ends
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from ftsup.supervisor import proctree
from ftsup.supervisor.clock import BootClock, away_s

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_OOM_SCORE_ADJ = b"500"  # the kernel's choice under memory pressure is a rank, not we who tell the story
_NOT_STARTED = 127
_OTHER_GUARDS_S = 10.0
_RESCAN_S = 1.0
_TELL = 50
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP)
"""Slurm may signal every process of a step: what ends us is our supervisor's word or death."""
_RAISED = ("NOFILE", "NPROC", "MEMLOCK", "AS", "DATA", "RSS", "FSIZE", "CPU", "SIGPENDING", "MSGQUEUE")
"""Soft limits that go up to the hard ones: Slurm hands on those of the shell that submitted. The stack's stays: it sizes every thread."""


class Guard:
    """One attempt, or (sweep) whatever earlier ones left behind."""

    def __init__(self, talk: socket.socket, spec: dict[str, Any]) -> None:
        self.clock = BootClock()
        self.talk = talk
        self.mark: str = spec["mark"]
        self.sweep = "argv" not in spec
        self.kill_limit_s: float = spec["kill_limit_s"]
        self.main = 0
        self.code: int | None = None
        self.killed: set[tuple[int, int]] = set()
        self.alone = False
        self.linger = True
        """Whether the attempt's first process gets its grace also when nothing else of the attempt is left."""
        self._wake, self._wake_end = socket.socketpair()
        self._wake.settimeout(0)
        self._wake_end.settimeout(0)
        signal.set_wakeup_fd(self._wake_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    # The attempt ---------------------------------------------------------------------------------------------------------

    def start(self, spec: dict[str, Any]) -> None:
        """Fork and execute; a program that cannot be executed ends with 127 and a line in its error file."""
        guard = os.getpid()
        self.main = os.fork()
        if self.main == 0:
            _become(spec, guard=guard)
        self.say({"started": self.main})

    def watch(self) -> float:
        """Reap until we are told to stop; the grace."""
        while True:
            self.wait(None)
            self.reap()
            grace_s = self.hear()
            if grace_s is not None:
                return grace_s
            if self.alone:
                return 0.0

    def reap(self) -> None:
        """Collect the dead: the attempt's first process, and orphans of it that became ours."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.main:
                    self.code = os.waitstatus_to_exitcode(status)
                    self.say({"ended": self.code})

    # Ending it -----------------------------------------------------------------------------------------------------------

    def end(self, grace_s: float) -> dict[str, Any]:
        """CONT and TERM to all of it, after the grace KILL, until a look at everything finds nothing. Bounded."""
        began = self.clock.now()
        if self.sweep:
            self._let_other_guards_finish(began + _OTHER_GUARDS_S)
        if grace_s > 0:
            self._ask_to_end(began + grace_s)
        kill_from, rounds = self.clock.now(), 0
        while True:
            left = self.members()
            if not left or self.clock.now() - kill_from > self.kill_limit_s:
                break
            rounds += 1
            self.hear()
            before = self.clock.now()
            self._kill(left)
            kill_from += self._away_s(before)
        return {
            "code": self.code,
            "left": [proctree.describe(proc) for proc in left[:_TELL]],
            "unsure": self.sweep and bool(self.killed),  # their own guard should have done it
            "took_s": round(self.clock.now() - began, 3),
            "killed": len(self.killed),
            "rounds": rounds,
        }

    def members(self) -> list[proctree.Proc]:
        """All that is alive of it: below us, or marked, or below something marked; never we or who started us."""
        self.reap()
        processes = proctree.table()
        found = set() if self.sweep else proctree.below([os.getpid()], processes)
        marked = proctree.carrying(proctree.MARK, self.mark, processes.keys() - found)
        found |= marked | proctree.below(marked, processes)
        return [processes[pid] for pid in found - proctree.above(os.getpid(), processes) if pid in processes]

    def _ask_to_end(self, deadline: float) -> None:
        asked: set[tuple[int, int]] = set()
        while (members := self.members()) and self.clock.now() < deadline and not self.alone:
            awaited = [proc for proc in members if self.linger or proc.pid != self.main]
            if not awaited:
                return
            new = [proc for proc in members if (proc.pid, proc.start) not in asked]
            if not asked:
                self._send(new, (signal.SIGCONT, signal.SIGTERM))
            asked |= {(proc.pid, proc.start) for proc in new}
            before = self.clock.now()
            self._wait_for(awaited, min(deadline, before + _RESCAN_S))
            deadline += self._away_s(before)
            grace_s = self.hear()
            if grace_s is not None:
                deadline = min(deadline, self.clock.now() + grace_s)

    def _away_s(self, since: float) -> float:
        return away_s(self.clock.now() - since, expected_s=_RESCAN_S)

    def _kill(self, members: list[proctree.Proc]) -> None:
        self.killed |= {(proc.pid, proc.start) for proc in members}
        self._send(members, (signal.SIGKILL,))
        self._wait_for(members, self.clock.now() + 0.5)

    def _let_other_guards_finish(self, deadline: float) -> None:
        """Guards of a dead supervisor are at work already, and they also know the strays that carry no mark."""
        while self.clock.now() < deadline:
            processes = proctree.table()
            others = proctree.carrying(proctree.GUARD, self.mark, processes.keys() - {os.getpid()})
            if not others:
                return
            procs = [processes[pid] for pid in others]
            self._send([proc for proc in procs if proc.state == "T"], (signal.SIGCONT,))
            self._wait_for(procs, min(deadline, self.clock.now() + _RESCAN_S))

    def _send(self, procs: Iterable[proctree.Proc], signals: tuple[signal.Signals, ...]) -> None:
        """Signal processes, and nobody who got their pid meanwhile."""
        for proc in procs:
            with _pidfd(proc) as fd:
                if fd is not None:
                    for number in signals:
                        with contextlib.suppress(OSError):
                            signal.pidfd_send_signal(fd, number)

    def _wait_for(self, procs: list[proctree.Proc], deadline: float) -> None:
        """Until all of them are dead, or the supervisor has something to say, or it is too late."""
        with contextlib.ExitStack() as stack:
            waiting = {fd for proc in procs if (fd := stack.enter_context(_pidfd(proc))) is not None}
            while waiting and (left_s := deadline - self.clock.now()) > 0:
                ready = self.wait(left_s, waiting)
                self.reap()
                waiting -= ready
                if self.talk.fileno() in ready:
                    return

    # Talking -------------------------------------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None, fds: Iterable[int] = ()) -> set[int]:
        """The one blocking call."""
        poller = select.poll()
        mine = [self._wake.fileno()] if self.alone else [self._wake.fileno(), self.talk.fileno()]
        for fd in (*mine, *fds):
            poller.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(None if timeout_s is None else max(1, int(timeout_s * 1000)))}
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(4096)
        return ready

    def hear(self) -> float | None:
        """The grace, if the supervisor has said one; its death makes us `alone`."""
        if self.alone:
            return None
        try:
            data = self.talk.recv(65536)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self.alone = True
            return None
        word = json.loads(data)
        self.linger = word["linger"]
        self.kill_limit_s = word.get("kill_limit_s", self.kill_limit_s)
        return float(word["stop"])

    def say(self, word: dict[str, Any]) -> None:
        """Tell the supervisor; a dead one need not hear it."""
        with contextlib.suppress(OSError):
            self.talk.send(json.dumps(word).encode())


@contextlib.contextmanager
def _pidfd(proc: proctree.Proc) -> Iterator[int | None]:
    """A handle on exactly this process; None when it is gone."""
    try:
        fd = os.pidfd_open(proc.pid)
    except OSError:
        yield None
        return
    try:
        same = proctree.read(proc.pid)
        yield fd if same is not None and same.start == proc.start else None
    finally:
        os.close(fd)


def _become(spec: dict[str, Any], *, guard: int) -> NoReturn:
    """In the forked child: all that the attempt inherits is set here, then its program takes over."""
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(_NOT_STARTED)
        signal.set_wakeup_fd(-1)
        for number in {*_IGNORED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ, *spec["ignored"]}:
            signal.signal(number, signal.SIG_IGN if number in spec["ignored"] else signal.SIG_DFL)
        for fd, path in ((1, spec["out"]), (2, spec["err"])):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), fd)
        os.dup2(os.open(spec["stdin"], os.O_RDONLY), 0)
        _best_effort_limits()
        if spec["file_cap_bytes"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (spec["file_cap_bytes"], spec["file_cap_bytes"]))
        env = {**spec["env"], "FTSUP_MARK": spec["mark"], "FTSUP_SUPERVISOR": str(guard)}
        os.chdir(spec["cwd"])
        os.execvpe(spec["argv"][0], spec["argv"], env)  # noqa: S606 - the user's own command, on purpose
    except OSError as error:
        name = os.fsdecode(error.filename or "")
        where = f": {name}" if name and not name.endswith(spec["argv"][0]) else ""
        os.write(2, f"ftsup: cannot start {spec['argv'][0]}: {error.strerror}{where}\n".encode(errors="backslashreplace"))
    finally:
        os._exit(_NOT_STARTED)


def _best_effort_limits() -> None:
    with contextlib.suppress(OSError):
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, _OOM_SCORE_ADJ)
        os.close(fd)
    for limit in (getattr(resource, f"RLIMIT_{name}") for name in _RAISED):
        hard = resource.getrlimit(limit)[1]
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (hard, hard))
    resource.setrlimit(
        resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1])
    )  # 100 GB a rank, while its node must be freed


def _prctl(option: int, value: int | bytes) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def main(arguments: list[str]) -> None:
    """Guard an attempt, or sweep, until it is over."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    talk = socket.socket(fileno=int(arguments[0]))
    talk.settimeout(0)
    talk.set_inheritable(False)
    with os.fdopen(int(arguments[1]), "rb") as file:
        spec = json.loads(file.read())
    _prctl(_PR_SET_NAME, b"ftsup-guard")
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    guard = Guard(talk, spec)
    grace_s = 0.0
    if not guard.sweep:
        guard.start(spec)
        grace_s = guard.watch()
    gone = guard.end(grace_s)
    if spec.get("proof"):
        with contextlib.suppress(OSError), open(spec["proof"], "w") as file:  # noqa: PTH123 - no pathlib here
            json.dump(gone, file)
    guard.say({"gone": gone})


if __name__ == "__main__":
    main(sys.argv[1:])
