"""What both loops are made of: one place to wait, signals as flags, helper commands as children with a deadline.

Nothing here blocks but `Loop.wait`, and nothing here knows what the events mean.
"""

from __future__ import annotations

import contextlib
import math
import signal
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Generic, TypeVar

import msgspec
import zmq

from ftsup import proc
from ftsup.ports import Clock
from ftsup.supervisor.clock import away_s

T = TypeVar("T")


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """What one wait brought."""

    now: float
    away_s: float = 0.0
    """How much later than a tick we came back: we were stopped or suspended. 0: in time."""


class Signals:
    """Signals as flags: a handler only sets one, and wakes the poll."""

    def __init__(self, *numbers: int) -> None:
        self._came: list[int] = []
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)  # noqa: FBT003 - the socket's own signature
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)

    def fileno(self) -> int:
        """What to poll."""
        return self._read.fileno()

    def take(self) -> list[int]:
        """The signals since the last call."""
        with contextlib.suppress(BlockingIOError):
            while self._read.recv(4096):
                pass
        came, self._came = self._came, []
        return came


class Loop:
    """The one blocking call."""

    def __init__(self, clock: Clock, *, tick_s: float, late_s: float) -> None:
        self._clock = clock
        self._tick_s = tick_s
        self._late_s = late_s
        self._back_at = clock.now()

    def wait(self, sources: Iterable[zmq.Socket[bytes] | int], *, until_t: float | None) -> Turn:
        """Wait until a source is ready, `until_t` or the next tick."""
        now = self._clock.now()
        limit_t = self._back_at + self._tick_s
        wake_t = limit_t if until_t is None else min(limit_t, until_t)
        poller = zmq.Poller()
        for source in sources:
            poller.register(source, zmq.POLLIN)
        poller.poll(math.ceil(max(wake_t - now, 0.0) * 1000))
        now = self._clock.now()
        gap_s = now - self._back_at
        self._back_at = now
        return Turn(now=now, away_s=away_s(gap_s, expected_s=self._tick_s, late_s=self._late_s))


class _Call(Generic[T]):
    def __init__(self, running: proc.Running, deadline_t: float, limit_s: float, then: Callable[[proc.Done], T]) -> None:
        self.running = running
        self.deadline_t = deadline_t
        self.limit_s = limit_s
        self.then = then


class Calls(Generic[T]):
    """Helper commands on their way. Each ends in what its `then` makes of it; one that could not start as well."""

    def __init__(self) -> None:
        self._calls: list[_Call[T]] = []
        self._ready: list[T] = []

    def start(
        self,
        argv: Sequence[str],
        *,
        now: float,
        limit_s: float,
        then: Callable[[proc.Done], T],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        text: str = "",
    ) -> None:
        """Start one, with `limit_s` seconds to end."""
        running = proc.start(argv, env=env, cwd=cwd, text=text)
        if isinstance(running, proc.Done):
            self._ready.append(then(running))
            return
        self._calls.append(_Call(running, now + limit_s, limit_s, then))

    def sources(self) -> list[int]:
        """pidfds to poll."""
        return [call.running.pidfd for call in self._calls]

    def deadline_t(self) -> float | None:
        """When the next one is ended."""
        return min((call.deadline_t for call in self._calls), default=None)

    def take(self, now: float) -> list[T]:
        """What has ended since, or was ended."""
        results, self._ready = self._ready, []
        for call in list(self._calls):
            done = call.running.poll()
            if done is None and now >= call.deadline_t:
                done = call.running.kill(f"no answer within {call.limit_s:g} s")
            if done is not None:
                self._calls.remove(call)
                results.append(call.then(done))
        return results

    def forgive(self, away_s: float) -> None:
        """We were away for so long, and they may have been stopped as well."""
        for call in self._calls:
            call.deadline_t += away_s

    def end(self) -> None:
        """End all of them."""
        for call in self._calls:
            call.running.kill("not needed any more")
        self._calls = []


def soonest(*times: float | None) -> float | None:
    """The first of some times, of which any may be missing."""
    known = [t for t in times if t is not None]
    return min(known) if known else None
