"""What goes over the link, and what makes it reliable: numbered items that are kept until acknowledged, and told apart when repeated.

Both directions use the same two halves, `Outbox` and `Inbox`. Nothing here knows sockets, and no message has a meaning here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Union

import msgspec

PROTOCOL = 1
MESSAGE_CAP = 1024 * 1024
BATCH_CAP = 256 * 1024
RESEND_S = 5.0
KEEP = 2000


class Counter(msgspec.Struct, frozen=True, array_like=True):
    """How far one rank is: for people, and for choosing a step to save at."""

    rank: int
    step: int
    beats: int
    activity: int
    phase: str
    asks: bool = False
    """Its script calls asked()."""


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Items in the order of their numbers. `prev`: the one that goes before them and may still be on its way; 0: none is."""

    prev: int = 0
    items: tuple[tuple[int, msgspec.Raw], ...] = ()


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """A node's first word to a leader. Its shape is for ever; `up` (a NodeUp) is read once the protocol is known to be ours."""

    protocol: int
    node: str
    instance: str
    version: str
    up: msgspec.Raw


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """A node to the leader that it knows: new events, acknowledged orders, counters when asked. Empty: still here."""

    leader: str
    ack: int = 0
    events: Batch = Batch()
    counters: tuple[Counter, ...] | None = None


class Word(msgspec.Struct, frozen=True, kw_only=True, tag="word"):
    """The leader to a node: acknowledged events, new orders. Empty: still here."""

    leader: str
    ack: int = 0
    orders: Batch = Batch()
    ask: bool = False


class Who(msgspec.Struct, frozen=True, kw_only=True, tag="who"):
    """The leader to somebody it does not know: say hello."""


class No(msgspec.Struct, frozen=True, kw_only=True, tag="no"):
    """The leader to a node that it cannot talk with."""

    why: str


ToLeader = Union[Hello, Report]  # noqa: UP007
ToNode = Union[Word, Who, No]  # noqa: UP007

encode = msgspec.msgpack.Encoder().encode


class Outbox:
    """What the other side has to get, until it says that it has it."""

    def __init__(self) -> None:
        self._next = 1
        self._sent = 0
        self._sent_at = 0.0
        self._kept: deque[tuple[int, msgspec.Raw, bool]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, item: object, *, spare: bool = False) -> None:
        """Keep an item for the other side; `spare` ones go first when too many wait."""
        raw = msgspec.Raw(encode(item))
        if len(raw) > BATCH_CAP:
            raise ValueError(f"{type(item).__name__} of {len(raw)} bytes is too big for the link (at most {BATCH_CAP})")
        self._kept.append((self._next, raw, spare))
        self._next += 1
        if len(self._kept) > KEEP:
            oldest = next((index for index, kept in enumerate(self._kept) if kept[2]), 0)
            del self._kept[oldest]

    def acknowledge(self, number: int) -> None:
        """The other side has everything up to `number`."""
        while self._kept and self._kept[0][0] <= number:
            self._kept.popleft()

    def again(self) -> None:
        """The other side is somebody new: it has nothing of what is kept."""
        self._sent = 0

    def batch(self, now: float) -> Batch:
        """What is to be sent now: what is new, or everything once the answer takes too long. Maybe empty."""
        if self._kept and self._sent >= self._kept[0][0] and now - self._sent_at >= RESEND_S:
            self._sent = 0
        prev, unsent = 0, []
        for kept in reversed(self._kept):
            if kept[0] <= self._sent:
                prev = kept[0]
                break
            unsent.append(kept)
        size = 0
        items: list[tuple[int, msgspec.Raw]] = []
        for number, raw, _ in reversed(unsent):
            size += len(raw)
            if items and size > BATCH_CAP:
                break
            items.append((number, raw))
        return Batch(prev, tuple(items))

    def sent(self, batch: Batch, now: float) -> None:
        """The batch was handed to the network."""
        if batch.items:
            self._sent = batch.items[-1][0]
            self._sent_at = now

    def due_at(self) -> float | None:
        """When `batch` has something to send again if nothing else happens; None: never."""
        if not self._kept:
            return None
        return 0.0 if self._kept[-1][0] > self._sent else self._sent_at + RESEND_S


class Inbox:
    """What of the other side's items was taken already."""

    def __init__(self, last: int | None = None) -> None:
        self.last = last

    def take(self, batch: Batch) -> Sequence[msgspec.Raw]:
        """Items not seen before. Nothing when an earlier batch is missing: it comes again."""
        if batch.prev and (self.last is None or self.last < batch.prev):
            return ()
        new = [raw for number, raw in batch.items if self.last is None or number > self.last]
        if batch.items:
            self.last = max(self.last or 0, batch.items[-1][0])
        return new
