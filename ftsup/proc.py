"""Runs helper commands (Slurm, hooks, node_setup): an argv list, a deadline, never a shell.

`run` blocks, for the command line and for child processes of our own; `start` gives something that a loop can poll. Both end
the whole process group at the deadline. Output is kept up to a cap, so that a chatty helper cannot fill our memory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

REAP_S = 0.5
"""What was killed is dead within this, or it hangs in the kernel: then nobody waits for it."""
OUTPUT_CAP = 64 * 1024 * 1024
"""Bytes of stdout and stderr read back, each: `squeue --json` of a big cluster is tens of MB."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """How a helper command ended. `code` is negative for a signal; None when the deadline ended it or it never started."""

    argv: tuple[str, ...]
    code: int | None
    out: str = ""
    err: str = ""
    why: str = ""
    """Why there is no code: `timed out after 10 s`, `not found`, ..."""

    @property
    def ok(self) -> bool:
        """Ran to its end and exited 0."""
        return self.code == 0


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """What a supervisor starts meanwhile ignores the warning that the supervisor handles, instead of dying of it.

    Slurm may send it to everything of a step. One that comes in this millisecond is lost, and EndTime says the same.
    """
    heard = {number: handler for number in (signal.SIGUSR1, signal.SIGUSR2) if callable(handler := signal.getsignal(number))}
    for number in heard:
        signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)


def program(name: str, *, env: Mapping[str, str] | None = None) -> str:
    """Where a program is. A folder of PATH that is relative (`.`) is passed over: anybody may have laid something where we stand."""
    if os.sep in name:
        return name
    for folder in map(Path, os.get_exec_path(env)):
        path = folder / name
        if folder.is_absolute() and path.is_file() and os.access(path, os.X_OK):
            return str(path)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


class Running:
    """A helper command on its way. Poll it, or hand `pidfd` to a poller; `kill` ends its whole group."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, text: str = "") -> None:
        self.argv = tuple(argv)
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - they live as long as the command
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        self._in = tempfile.TemporaryFile()  # noqa: SIM115
        self._in.write(text.encode())
        self._in.seek(0)
        try:
            with deaf():
                self._process = subprocess.Popen(  # noqa: S603 - an argv list of ours, no shell
                    self.argv,
                    executable=program(argv[0], env=env),
                    stdin=self._in,
                    stdout=self._out,
                    stderr=self._err,
                    env=env,
                    cwd=cwd,
                    start_new_session=True,
                )
        except OSError:
            for file in (self._in, self._out, self._err):
                file.close()
            raise
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)

    def poll(self) -> Done | None:
        """The end, once there is one."""
        code = self._process.poll()
        return None if code is None else self._finish(code, "")

    def kill(self, why: str) -> Done:
        """End it with its whole group, now."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(REAP_S)
        return self._finish(None, why)

    def wait(self, deadline_s: float) -> Done:
        """Block until it ends, at most `deadline_s` seconds; then it is ended."""
        try:
            return self._finish(self._process.wait(deadline_s), "")
        except subprocess.TimeoutExpired:
            return self.kill(f"timed out after {deadline_s:g} s")

    def _finish(self, code: int | None, why: str) -> Done:
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read(OUTPUT_CAP).decode("utf-8", "replace"))
            file.close()
        self._in.close()
        os.close(self.pidfd)
        return Done(argv=self.argv, code=code, out=texts[0], err=texts[1], why=why)


def start(argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, text: str = "") -> Running | Done:
    """Start a helper; a Done straight away when it cannot be started."""
    try:
        return Running(argv, env=env, cwd=cwd, text=text)
    except OSError as error:
        return Done(argv=tuple(argv), code=None, why=f"{argv[0]}: {error.strerror or error}")


def run(argv: Sequence[str], *, deadline_s: float, env: Mapping[str, str] | None = None, cwd: Path | None = None, text: str = "") -> Done:
    """Run a helper to its end, at most `deadline_s` seconds."""
    running = start(argv, env=env, cwd=cwd, text=text)
    return running if isinstance(running, Done) else running.wait(deadline_s)


class Detached:
    """A command that outlives us."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def ended(self) -> bool:
        """Whether it is over (and reaped then)."""
        return self._process.poll() is not None


def detach(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: Path) -> Detached:
    """Start a command that outlives us, in a session of its own, its output appended to a file; OSError when it cannot start."""
    with output.open("ab") as file, deaf():
        process = subprocess.Popen(  # noqa: S603 - an argv list of ours, no shell
            tuple(argv),
            executable=program(argv[0], env=env),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
    return Detached(process)
