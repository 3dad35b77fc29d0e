"""Runs notify.command, one call after the other: bounded in time and in what it writes, and nothing of it is left behind.

The work is done by a guard, as for an attempt: also what a hook starts in a session of its own is found. What goes wrong is said once,
until it is another thing.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from ftsup.monitors.exits import signal_name
from ftsup.supervisor import child as children
from ftsup.supervisor.files import write_whole

LIMIT_S = 30.0
LINGER_S = 0.5
"""What the hook started may end this much after it; a daemon does not."""
FILE_CAP_BYTES = 16 << 20
"""Of each file that it writes, its output among them."""
_LAST_WORDS = 300
_NOT_STARTED = 127


class Hook:
    """One command, called when there is news. Register `fds()`, call `poll` after each poll."""

    def __init__(self, argv: Sequence[str], folder: Path, *, cwd: Path, mark: str, env: Mapping[str, str]) -> None:
        """`folder`: on the local disk, for what it gets and prints; `cwd`: where it runs."""
        self._argv, self._folder, self._cwd, self._mark, self._env = tuple(argv), folder, cwd, mark, env
        self._child: children.Child | None = None
        self._code: int | None = None
        self._limit_t = 0.0
        self._late = False
        self._said = ""

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return self._child is not None

    def call(self, text: str, *, now: float) -> list[str]:
        """Call it with this on its standard input. What is to be said about that."""
        paths = {name: self._folder / f"notify.{name}" for name in ("in", "out", "err")}
        try:
            for name in ("out", "err"):
                paths[name].unlink(missing_ok=True)
            write_whole(paths["in"], text.encode(errors="surrogateescape"))
            spec = children.Spec(
                argv=self._argv,
                env=self._env,
                cwd=self._cwd,
                mark=self._mark,
                out=paths["out"],
                err=paths["err"],
                stdin=paths["in"],
                file_cap_bytes=FILE_CAP_BYTES,
                ignored=(signal.SIGUSR1, signal.SIGUSR2),  # `scancel --full --signal` reaches what the leader has started, too
            )
            self._child = children.start(spec)
        except OSError as error:
            return self._outcome(f"cannot be started: {error.strerror}")
        self._code, self._late, self._limit_t = None, False, now + LIMIT_S
        return []

    def fds(self) -> list[int]:
        """What to poll for reading."""
        return self._child.fds() if self._child else []

    def due_at(self) -> float | None:
        """When `poll` has to look even if nothing comes."""
        if self._child is None:
            return None
        due_t = self._child.due_at()
        return self._limit_t if due_t is None else min(due_t, self._limit_t)

    def poll(self, now: float) -> list[str]:
        """What is to be said since the last call."""
        if self._child is None:
            return []
        for event in self._child.poll(now):
            if isinstance(event, children.Ended):
                self._code, self._limit_t = event.code, now + LINGER_S
            elif isinstance(event, children.Gone):
                self._child = None
                return self._outcome(self._trouble(event))
        if now >= self._limit_t:
            self._late, self._limit_t = self._code is None, float("inf")
            self._child.stop(grace_s=0.0, now=now)
        return []

    def forgive(self, away_s: float) -> None:
        """We were away for so long, and it may have been stopped as well."""
        self._limit_t += away_s
        if self._child:
            self._child.forgive(away_s)

    def close(self) -> None:
        """What still runs is ended by its guard."""
        if self._child:
            self._child.close()

    def _trouble(self, gone: children.Gone) -> str:
        """In a few words, what went wrong; empty: nothing."""
        if self._late:
            return f"no answer within {LIMIT_S:g} s: ended"
        if self._code == -signal.SIGXFSZ:
            return f"wrote more than {FILE_CAP_BYTES >> 20} MiB: ended"
        if self._code:
            how = "ended by " + signal_name(-self._code) if self._code < 0 else f"exit code {self._code}"
            last = self._last_words()
            return (
                last.removeprefix("ftsup: ")
                if self._code == _NOT_STARTED and last.startswith("ftsup: ")
                else f"{how}{last and f': {last}'}"
            )
        return f"left {gone.killed} process{'es' if gone.killed > 1 else ''} behind: ended" if gone.killed else ""

    def _last_words(self) -> str:
        try:
            with (self._folder / "notify.err").open("rb") as file:
                text = file.read(FILE_CAP_BYTES)[-_LAST_WORDS:].decode(errors="replace")
        except OSError:
            return ""
        return " ".join((text.strip().splitlines() or [""])[-1].split())

    def _outcome(self, trouble: str) -> list[str]:
        before, self._said = self._said, trouble
        if trouble == before:
            return []
        return [f"notify.command: {trouble}" if trouble else "notify.command: works again"]
