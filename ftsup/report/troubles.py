"""Trouble that stood for a while (a disk that is full, a Slurm that does not answer), over a whole run: each kind is said once.

Pure: lines in, sums out. Trouble that still stands is the status page's; what befell training is an incident's, and not here.
"""

from __future__ import annotations

import msgspec

from ftsup import events
from ftsup.events import Line
from ftsup.report.story import Moment, between_s


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of trouble of one supervisor."""

    wall: str
    """When it first began."""
    text: str
    """What people were told then."""
    times: int
    whole_s: float
    """All times together."""
    stands: bool
    """It is not over yet, as far as the log tells."""
    others: int = 0
    """So many more supervisors told the same of theirs: a disk that is away is away for all nodes."""


class Troubles:
    """What stood, while the log is read."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Trouble] = {}
        self._since: dict[tuple[str, str], Moment] = {}

    def take(self, line: Line, before: Moment, now: Moment) -> None:
        """One more line; `before`: of the line before it."""
        event = line.event
        if isinstance(event, events.LeaderStarted):  # it finds out anew; and where a grant begins, every node does
            over = [who for who in self._since if not who[0] or now.grant != before.grant]
            self._end(over, before)
        elif isinstance(event, events.NodeUp):
            self._end([who for who in self._since if who[0] == event.node], now)
        elif isinstance(event, events.Noted) and event.trouble:
            who = (event.node, event.trouble)
            if event.over:
                self._end([who], now)
            elif who not in self._since:
                self._begin(who, event, line.wall, now)

    def _begin(self, who: tuple[str, str], note: events.Noted, wall: str, now: Moment) -> None:
        text = f"{note.node}: {note.text}" if note.node else note.text
        known = self._known.get(who) or Trouble(wall=wall, text=text, times=0, whole_s=0.0, stands=True)
        self._since[who] = now
        self._known[who] = msgspec.structs.replace(known, times=known.times + 1, stands=True)

    def _end(self, whose: list[tuple[str, str]], now: Moment) -> None:
        for who in whose:
            since = self._since.pop(who, None)
            if since is not None:
                known = self._known[who]
                spent_s = known.whole_s + (between_s(since, now) or 0.0)
                self._known[who] = msgspec.structs.replace(known, whole_s=spent_s, stands=False)

    def all(self) -> tuple[Trouble, ...]:
        """In the order in which they first began; the same kind of several supervisors is one, as whoever came first has told it."""
        kinds: dict[str, list[Trouble]] = {}
        for (_, kind), known in self._known.items():
            kinds.setdefault(kind, []).append(known)
        return tuple(map(_folded, kinds.values()))


def _folded(same: list[Trouble]) -> Trouble:
    return msgspec.structs.replace(
        same[0],
        times=max(one.times for one in same),
        whole_s=max(one.whole_s for one in same),
        stands=any(one.stands for one in same),
        others=len(same) - 1,
    )
