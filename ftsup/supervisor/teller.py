"""Tells people: notify.command gets what the log says they are to know, at its time.

Wiring between `notices`, which knows what and when, and `hook`, which knows how.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ftsup import events as ev
from ftsup.config import Config
from ftsup.events import Line
from ftsup.rundir import LocalDir, RunDir
from ftsup.supervisor import notices
from ftsup.supervisor.hook import Hook
from ftsup.supervisor.notices import Notices


class Teller:
    """One leader's. Log what `due` gives before `tell`: what is logged is never told again."""

    def __init__(self, config: Config, held: Notices, folder: Path, *, run: RunDir, job: str, env: Mapping[str, str]) -> None:
        """`held`: what the log tells of it so far."""
        mark = LocalDir(config.local_base(env), run.id, job, "leader").mark("notify")
        self._hook = Hook(config.notify.command, folder, cwd=Path(config.workdir or folder), mark=mark, env=env)
        self._wanted, self._every_s = bool(config.notify.command), config.notify.every_s
        self._held, self._run, self._job = held, run, job
        self._next = ""
        self.leaving = False
        """Nobody will be here later."""

    @property
    def busy(self) -> bool:
        """Whether somebody is being told something, or is about to be."""
        return self._hook.busy or self._due_t() is not None

    def logged(self, line: Line) -> None:
        """One more line of the log."""
        self._held = notices.follow(self._held, line)

    def due(self, now: float) -> ev.Told | None:
        """What is to be logged now, because everything that is held is told next."""
        due_t = self._due_t()
        if due_t is None or now < due_t:
            return None
        message = notices.message(self._held, run=self._run.id, job=self._job, path=str(self._run.root))
        self._next = msgspec.json.encode(message).decode()
        return ev.Told(t=now, count=self._held.count)

    def tell(self, now: float) -> list[str]:
        """Tell it. What there is to say about that."""
        return self._hook.call(self._next, now=now)

    def poll(self, now: float) -> list[str]:
        """What there is to say about the command since."""
        return self._hook.poll(now)

    def sources(self) -> list[int]:
        """What to poll for reading."""
        return self._hook.fds()

    def deadline_t(self) -> float | None:
        """When to look even if nothing comes."""
        return self._hook.due_at() if self._hook.busy else self._due_t()

    def forgive(self, away_s: float) -> None:
        """We were away for so long."""
        self._hook.forgive(away_s)

    def close(self) -> None:
        """Whoever is still being told is cut off."""
        self._hook.close()

    def _due_t(self) -> float | None:
        if not self._wanted or self._hook.busy:
            return None
        return notices.due_t(self._held, every_s=self._every_s, leaving=self.leaving)
