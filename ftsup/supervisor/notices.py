"""What notify.command is told, and when: the first news at once, then what came meanwhile as one, the end of a grant always at once.

Pure: a fold over the event log, so that a leader that takes over repeats nothing and forgets nothing. Whoever starts the command logs a
Told first.
"""

from __future__ import annotations

import shlex
from collections import Counter
from typing import Any

import msgspec
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Line, VerdictKind

AT_ONCE = frozenset(kind.value for kind in VerdictKind if kind is not VerdictKind.RESTART)
"""Afterwards nobody is there to tell: the job waits in the queue, or the run is over."""
KEPT = 20
"""Pieces of news that are told in full; of older ones the number."""
_CONTINUE = "when what it needs is changed, {continue_} goes on with it"
_HINTS = {
    VerdictKind.STOP.value: f"{{explain}} shows what happened and what to change; {_CONTINUE}",
    VerdictKind.FINISHED.value: "{explain} shows what it took",
    VerdictKind.CANCELLED.value: "{explain} shows how far it came",
    VerdictKind.PAUSED.value: "{continue_} goes on with it",
    VerdictKind.REQUEUE.value: "nothing is to be done: it goes on by itself; {status} shows where it is",
    "incident": "nothing is to be done: it goes on by itself; {explain} shows what happened and what it cost",
    "no progress": "{explain} shows what it spends its time with; {logs} what the ranks print",
}
_COMMANDS = {VerdictKind.PAUSED.value: "continue_", VerdictKind.REQUEUE.value: "status"}
_EXPLAINED = {VerdictKind.STOP.value, VerdictKind.FINISHED.value, VerdictKind.CANCELLED.value, "incident", "no progress"}


class News(msgspec.Struct, frozen=True, kw_only=True):
    """Something that people are told."""

    kind: str
    text: str
    wall: str = ""


class Notices(msgspec.Struct, frozen=True, kw_only=True):
    """What was not told yet."""

    held: tuple[News, ...] = ()
    count: int = 0
    """Of all that are held, also of those whose text is not kept."""
    told_t: float | None = None
    """When the command was started last, in this grant."""
    grant: tuple[str, int] = ("", -1)


def follow(notices: Notices, line: Line) -> Notices:
    """What one more line of the log means."""
    event = line.event
    if isinstance(event, ev.LeaderStarted) and (event.job, event.restarts) != notices.grant:
        notices = replace(notices, grant=(event.job, event.restarts), told_t=None)  # another clock
    if isinstance(event, ev.Told):
        notices = replace(notices, held=(), count=0, told_t=event.t)
    for order in line.orders:
        if isinstance(order, ev.Notify):
            held = (*notices.held, News(kind=order.kind, text=order.text, wall=line.wall))[-KEPT:]
            notices = replace(notices, held=held, count=notices.count + 1)
    return notices


def due_t(notices: Notices, *, every_s: float, leaving: bool) -> float | None:
    """When to tell what is held; None: nothing is. `leaving`: later there is nobody to do it."""
    if not notices.held:
        return None
    at_once = leaving or any(news.kind in AT_ONCE for news in notices.held)
    return 0.0 if at_once or notices.told_t is None else notices.told_t + every_s


def message(notices: Notices, *, run: str, job: str, path: str) -> dict[str, Any]:
    """What the command gets: one sentence, what to type, and all that is grouped in it."""
    first = next((news for news in reversed(notices.held) if news.kind in AT_ONCE), notices.held[-1])
    place = shlex.quote(path)
    typed = {
        "explain": f"ftsup explain {place}",
        "status": f"ftsup status {place}",
        "logs": f"ftsup logs -f {place}",
        "continue_": f"ftsup submit --continue {place}",
    }
    return {
        "kind": first.kind,
        "text": _sentence(notices, first),
        "hint": _HINTS.get(first.kind, "{status} shows where it is").format(**typed),
        "command": typed[_COMMANDS.get(first.kind, "explain" if first.kind in _EXPLAINED else "status")],
        "run": run,
        "job": job,
        "path": path,
        "news": [{"kind": news.kind, "text": news.text, "wall": news.wall} for news in notices.held],
        "left_out": notices.count - len(notices.held),
    }


def _sentence(notices: Notices, first: News) -> str:
    if notices.count == 1:
        return first.text
    kinds = Counter(news.kind for news in notices.held)
    kinds.subtract([first.kind])
    others = [f"{count} of {kind}" for kind, count in kinds.items() if count]
    left = notices.count - len(notices.held)
    also = ", ".join([*others, *([f"{left} older"] if left else [])])
    return f"{first.text} (and {notices.count - 1} more since the last message: {also})"
