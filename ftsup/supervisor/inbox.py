"""The leader's side of people's requests: each is heard once, whatever dies in between, and what is none is said once.

A request is known by its file's name, which the log keeps. Its file is set aside only when the run directory's mirror holds the line, so a
new leader finds it there, or in the log. Reading is the clerk's work (requests.py); what a request leads to is the policy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from ftsup import events as ev
from ftsup.events import LeaderEvent, Line, Request
from ftsup.supervisor.clerk import ClerkFailed
from ftsup.supervisor.requests import Found, Look

OLD_S = 86400.0
"""By the wall clocks of two hosts, which may differ by minutes. Only the wish to end it for good has no age."""


class Inbox:
    """What was asked for so far."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = {line.event.id: line.n for line in lines if isinstance(line.event, ev.Asked) and line.event.id}
        """Name of the file -> the number of its line."""
        self._marks: set[Request] = set()
        self._said: set[str] = set()

    def known(self, *, mirrored: int) -> list[str]:
        """The files that may be set aside."""
        return [name for name, n in self._lines.items() if n <= mirrored]

    def logged(self, event: ev.Asked, n: int) -> None:
        """It is line `n` of the log."""
        if event.id:
            self._lines[event.id] = n

    def hear(self, answer: object, *, wall: str) -> list[LeaderEvent]:
        """What is new in an answer of the clerk's."""
        if isinstance(answer, ClerkFailed):
            return []
        look = msgspec.convert(answer, Look)
        strange = [text for text in look.strange if text not in self._said]
        self._said.update(strange)
        events: list[LeaderEvent] = [ev.Noted(text=text) for text in strange]
        for found in look.found:
            events += self._hear(found, wall)
        return events

    def _hear(self, found: Found, wall: str) -> list[LeaderEvent]:
        wanted = found.wanted
        if found.id in self._lines or (not found.id and wanted.request in self._marks):
            return []
        if not found.id:
            self._marks.add(wanted.request)
        elif (age_s := _age_s(wanted.wall, wall)) > OLD_S and wanted.request is not Request.CANCEL:
            self._lines[found.id] = 0
            who = f"{wanted.who} asked for it" if wanted.who else "it was asked for"
            return [ev.Noted(text=f"a request ({wanted.request.value}) is set aside: {who} {age_s / 3600:.0f} h ago")]
        asked = ev.Asked(
            request=wanted.request, who=wanted.who, wall=wanted.wall, from_step=wanted.from_step, avoid=wanted.avoid, id=found.id
        )
        return [asked]


def _age_s(then: str, now: str) -> float:
    """0 where one of them cannot be read."""
    try:
        return (datetime.fromisoformat(now) - datetime.fromisoformat(then)).total_seconds()
    except (ValueError, TypeError):
        return 0.0
