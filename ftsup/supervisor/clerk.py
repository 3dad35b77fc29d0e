"""The clerk as its supervisor holds it: requests for shared-disk work, each answered by a reply or by a ClerkFailed, in time.

The work is done by a child process (`clerkwork.py`), one request after the other. A shared disk can hang for ever: a clerk that does not
answer is killed and *not* waited for, and another one takes its place. Nothing here touches a disk, and nothing here blocks.
"""

from __future__ import annotations

import json
import signal
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from ftsup.events import Noted
from ftsup.supervisor.child import Program

T = TypeVar("T")
_BACK_OFF_MAX_S = 30.0
_AWAY_S = 5.0
_ABANDONED_MAX = 8
"""Clerks that hang in the kernel and cannot be killed: a disk that is away for a day must not gather thousands."""
_FAIR_PART = 0.2
"""Of its time that a request has at least once it is begun: what waited for one that hung does not hang itself."""
_REAP_S = 0.5
"""For all of them together: what hangs longer is the kernel's, and dies when its disk is back."""
_FORGET_S = 600.0
"""Trouble that did not show for so long is told anew."""
_SHOWN = {"say": "the batch script's output", "logs": "what ranks print", "mirror": "events.jsonl", "leader": "leader.json"}
"""What people know under another name."""
_DIED, _HANGS = "died", "hangs"


class ClerkFailed(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was not done, or of which nobody knows whether it was."""

    what: str
    why: str
    late: bool = False
    """The disk has not said no: nobody has answered."""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class _Request(Generic[T]):
    def __init__(
        self,
        what: str,
        arguments: dict[str, Any],
        *,
        number: int,
        until_t: float,
        limit_s: float,
        then: Callable[[object], T],
        each: Callable[[int], T] | None,
    ) -> None:
        self.what, self.arguments, self.then, self.each = what, arguments, then, each
        self.number, self.until_t, self.limit_s = number, until_t, limit_s


class Clerk(Generic[T]):
    """Register `sources()`, call `take(now)` after every poll: it gives what the requests' `then` made of their answers."""

    def __init__(self, *, now: float, module: str = "ftsup.supervisor.clerkwork", run: str = "") -> None:
        self._now = now
        self._module = module
        self._run = run
        """The run directory: where it is gone, nothing is made in its place."""
        self._queue: deque[_Request[T]] = deque()
        self._busy = False
        self._numbers = 0
        self._in, self._out = b"", b""
        self._abandoned: list[Program] = []
        self._program: Program | None = None
        self._failures = 0
        self._again_t = now
        self._wrong: dict[str, dict[str, float]] = {}
        """Kind of trouble -> the work that it keeps us from, and when it last did."""
        self._notes: list[Noted] = []
        self._start()

    @property
    def pid(self) -> int | None:
        """The process that does the work now."""
        return self._program.process.pid if self._program else None

    def ask(
        self,
        what: str,
        *,
        now: float,
        limit_s: float,
        then: Callable[[object], T],
        each: Callable[[int], T] | None = None,
        **arguments: object,
    ) -> None:
        """Ask for a piece of work; `then` gets its answer or a ClerkFailed, at the latest `limit_s` from now, or a fifth more.

        Work that reads much tells how many bytes it has by now: `each` gets them, and from then on it has `limit_s` again.
        """
        self._numbers += 1
        self._queue.append(_Request(what, arguments, number=self._numbers, until_t=now + limit_s, limit_s=limit_s, then=then, each=each))
        self._send()

    def renew(self) -> None:
        """Another process for what comes now; what is asked for is forgotten, whatever became of it."""
        if self._program:
            self._drop()
        self._queue.clear()
        self._take_back()
        self._again_t = self._now
        self._start()

    def sources(self) -> list[int]:
        """What to poll for reading."""
        return [self._program.socket.fileno()] if self._program else []

    def deadline_t(self) -> float | None:
        """When `take` has to look even if nothing comes."""
        times = [request.until_t for request in self._queue]
        if self._out:
            times.append(self._now)  # the socket was full
        if self._queue and self._program is None and self._room():
            times.append(self._again_t)
        return min(times, default=None)

    def take(self, now: float) -> list[T]:
        """What became of requests since the last call."""
        self._forgive(now)
        self._abandoned = [program for program in self._abandoned if not program.dead()]
        found = self._hear()
        if self._program is None and now >= self._again_t:
            self._start()
        found += self._expire(now)
        self._send()
        return found

    def notes(self) -> list[Noted]:
        """What people should know: a kind of trouble is said once, whatever work it keeps us from, and once that it is over."""
        notes, self._notes = self._notes, []
        return notes

    def close(self) -> None:
        """No more work. Waits a moment for the dead, and not for one that hangs."""
        if self._program:
            self._drop()
        for program in self._abandoned:
            program.reap(limit_s=_REAP_S / len(self._abandoned))

    def _room(self) -> bool:
        return len(self._abandoned) < _ABANDONED_MAX

    def _start(self) -> None:
        if not self._room():
            return
        try:
            self._program = Program(self._module, kind=socket.SOCK_STREAM)
        except OSError as error:
            self._note("clerk", f"cannot be started: {error.strerror}", kind=f"start {error.strerror}")
            self._wait_longer()
        else:
            self._works("clerk")

    def _forgive(self, now: float) -> None:
        """We were away (stopped, suspended): the clerk may have been so as well."""
        away_s = now - self._now
        if away_s > _AWAY_S:
            for request in self._queue:
                request.until_t += away_s
        self._now = now

    def _send(self) -> None:
        """One request at a time is with the clerk; the others wait here, where they can be taken back."""
        if self._program is None:
            return
        if self._queue and not self._busy:
            first = self._queue[0]
            first.until_t = max(first.until_t, self._now + _FAIR_PART * first.limit_s)
            self._out = json.dumps({"n": first.number, "do": first.what, "with": first.arguments, "run": self._run}).encode() + b"\n"
            self._busy = True
        while self._out:
            try:
                self._out = self._out[self._program.socket.send(self._out) :]
            except BlockingIOError:
                return
            except OSError:  # dead: its end of file is about to be read
                return

    def _hear(self) -> list[T]:
        found: list[T] = []
        while self._program:
            try:
                data = self._program.socket.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                found += self._died()
                break
            *lines, self._in = (self._in + data).split(b"\n")
            for reply in map(json.loads, lines):
                found += self._goes_on(reply) if "bytes" in reply else [self._answer(reply)]
                self._failures = 0
        return found

    def _goes_on(self, word: dict[str, Any]) -> list[T]:
        request = self._queue[0]
        assert request.number == word["n"], "the clerk works in order"
        request.until_t = self._now + request.limit_s
        return [request.each(word["bytes"])] if request.each else []

    def _answer(self, reply: dict[str, Any]) -> T:
        request = self._queue.popleft()
        assert request.number == reply["n"], "the clerk answers in order"
        self._busy = False
        self._send()
        if "why" in reply:
            return self._fail(request, reply["why"], kind=reply["kind"])
        self._works(request.what)
        return request.then(reply["answer"])

    def _died(self) -> list[T]:
        """Whatever it had in hand is answered; what it did of that, nobody knows."""
        self._drop()
        self._wait_longer()
        return [self._fail(self._queue.popleft(), "the clerk died", kind=_DIED)] if self._take_back() else []

    def _expire(self, now: float) -> list[T]:
        found = []
        if self._busy and self._queue and now >= self._queue[0].until_t:
            self._drop()
            self._wait_longer()
            self._take_back()
            late = self._queue.popleft()
            why = f"no answer within {late.limit_s:g} s: the disk hangs; another clerk takes over"
            found.append(self._fail(late, why, kind=_HANGS))
        waiting = list(self._queue)[1 if self._busy else 0 :]
        for request in [request for request in waiting if now >= request.until_t]:
            self._queue.remove(request)
            why = f"not begun within {request.limit_s:g} s: {self._absence()}"
            found.append(request.then(ClerkFailed(what=request.what, why=why, late=True)))
        return found

    def _absence(self) -> str:
        """Why nothing is begun. Nobody is told: whatever keeps the clerk busy tells by its own end, and why there is none was told."""
        if self._busy:
            return "the clerk is busy"
        return "there is no clerk now" if self._room() else f"{_ABANDONED_MAX} clerks hang with their disk"

    def _take_back(self) -> bool:
        """Whether a request was with the clerk that is gone."""
        was, self._busy = self._busy, False
        return was

    def _drop(self) -> None:
        """Kill it and forget it; it may stay in the kernel until its disk comes back."""
        assert self._program is not None
        self._program.close()
        self._program.signal(signal.SIGKILL)
        self._abandoned.append(self._program)
        self._program = None
        self._in, self._out = b"", b""

    def _wait_longer(self) -> None:
        self._again_t = self._now + (min(2.0 ** (self._failures - 1), _BACK_OFF_MAX_S) if self._failures else 0.0)
        self._failures += 1

    def _fail(self, request: _Request[T], why: str, *, kind: str) -> T:
        self._note(request.what, why, kind=kind)
        return request.then(ClerkFailed(what=request.what, why=why, late=kind in {_DIED, _HANGS}))

    def _note(self, what: str, why: str, *, kind: str) -> None:
        kept = self._wrong.get(kind, {})
        if all(self._now - since > _FORGET_S for since in kept.values()):
            self._notes.append(Noted(text=f"{_SHOWN.get(what, what)}: {why}", trouble=f"{self._module} {kind}"))
            kept = {}
        self._wrong[kind] = {**kept, what: self._now}

    def _works(self, what: str) -> None:
        """It does again; so does whatever was not tried since it last did not."""
        for kind, kept in list(self._wrong.items()):
            if what not in kept:
                continue
            self._wrong[kind] = {other: t for other, t in kept.items() if t > kept[what]}
            if not self._wrong[kind]:
                del self._wrong[kind]
                self._notes.append(Noted(text=f"{_SHOWN.get(what, what)}: works again", trouble=f"{self._module} {kind}", over=True))


def nothing(_answer: object) -> list[Any]:
    """For an answer that changes nothing: what failed is in the notes."""
    return []
