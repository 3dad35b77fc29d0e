"""The event log on disk: append, read, follow. One JSON line an event with the orders that it led to, numbered without a gap.

It knows files and lines, and nothing of what they mean. Appends go to a node's local disk and are on it when `append` returns;
the mirror in the run directory is the clerk's work, which uses `whole_lines` and `number` from here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ftsup.errors import RuleBroken
from ftsup.events import SCHEMA, LeaderEvent, LeaderOrder, Line
from ftsup.plain import open_plain, read_plain

CAP_BYTES = 1 << 30
"""A log that is longer than that is none."""
_MAX_NOTES = 20
"""A log that is damaged all over is said to be so, not listed."""


class _Envelope(msgspec.Struct):
    """A line whose words may be unknown to us."""

    n: int
    event: msgspec.Raw
    v: int = SCHEMA
    wall: str = ""
    orders: tuple[msgspec.Raw, ...] = ()


class Log:
    """The log that one leader writes. The file ends with a whole line before and after every call, also a failed one."""

    def __init__(self, path: Path, *, next_n: int = 1) -> None:
        """Goes on where the file ends; `next_n` counts where it does not exist or is empty. OSError when the disk says no."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        self.dropped_bytes = len(data) - whole
        self._size = whole
        self._torn = self.dropped_bytes > 0
        numbers = [n for n in map(number, data[:whole].splitlines()) if n is not None]
        self.next_n = max(numbers) + 1 if numbers else next_n

    def append(self, lines: Sequence[Line]) -> None:
        """Put lines on the disk: one write, one fsync. OSError: none of them is in the log, and the call may be repeated."""
        if [line.n for line in lines] != list(range(self.next_n, self.next_n + len(lines))):
            raise RuleBroken(f"the event log goes on at {self.next_n}, not with {[line.n for line in lines]}")
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        if self._torn:
            self._cut()
        try:
            write_all(self._fd, data)
            os.fsync(self._fd)
        except OSError:
            self._torn = True
            with contextlib.suppress(OSError):  # tried again before the next append
                self._cut()
            raise
        self._size += len(data)
        self.next_n += len(lines)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _cut(self) -> None:
        """Take away what a failed append, or the death of our predecessor, left behind the last whole line."""
        os.ftruncate(self._fd, self._size)
        self._torn = False


def resume(path: Path, mirror: Path, *, current: Callable[[Sequence[Line]], bool] = bool) -> tuple[Log, list[Line], list[str]]:
    """Go on with a run: the log to append to, everything that happened so far, and notes.

    The local log counts if it holds the mirror's last line or begins behind it: it is what the mirror has, and what it did not get.
    Otherwise it is an old one (an earlier grant was led from this host, later ones from others): it is set aside, and the mirror counts.
    `current` says whether the local log is this grant's: then it is enough where the mirror cannot be read (else: OSError).
    """
    ours, our_notes = read(path)
    try:
        theirs, their_notes = read(mirror)
    except OSError as error:  # a disk that is away for a moment must not keep a grant from the leader that takes over in it
        if not current(ours):
            raise
        return Log(path), ours, [*our_notes, f"{mirror.name} cannot be read ({error.strerror}): our own log counts"]
    if theirs and theirs[-1] not in ours and not (ours and ours[0].n == theirs[-1].n + 1):
        if path.exists():
            path.replace(path.with_name(f"{path.stem}.until-{theirs[-1].n}{path.suffix}"))
        return Log(path, next_n=theirs[-1].n + 1), theirs, their_notes
    before = [line for line in theirs if not ours or line.n < ours[0].n]
    return Log(path), before + ours, our_notes


def read(path: Path) -> tuple[list[Line], list[str]]:
    """All readable lines, and what there is to say about the others. A missing file has no lines."""
    notes: list[str] = []
    return list(stream(path, notes)), notes


def stream(path: Path, notes: list[str]) -> Iterator[Line]:
    """The lines of `read`, one after the other, for logs that are long; what there is to say is in `notes` at the end."""
    reader = _Reader()
    try:
        with open_plain(path, cap_bytes=CAP_BYTES) as file:
            for text in file:
                if not text.endswith(b"\n"):
                    reader.say(f"the last line is torn ({len(text)} bytes): dropped")
                elif (line := reader.take(text[:-1])) is not None:
                    yield line
    except FileNotFoundError:
        return
    notes += reader.notes_of(path)


def gist(path: Path, *, last: int = 20) -> Iterator[Line]:
    """The lines that led to orders, those of leaders and continuations that began, the last ones, and the last that tell of progress.

    The routine that lies between, nearly all of a long log, is not even decoded.
    """
    try:
        texts = read_plain(path, cap_bytes=CAP_BYTES).split(b"\n")[:-1]
    except FileNotFoundError:
        return
    reader = _Reader(gaps=False)
    wanted = {*range(len(texts))[-last:], *[n for n, text in enumerate(texts) if b'"Progressed"' in text][-last:]}
    for n, text in enumerate(texts):
        if n in wanted or b'"orders":[' in text or b'"LeaderStarted"' in text or b'"Continued"' in text:
            line = reader.take(text)
            if line is not None:
                yield line


def follow(path: Path, offset: int = 0) -> tuple[list[Line], list[str], int]:
    """The lines that came after `offset`, notes, and the offset for the next call. A torn last line waits for its end.

    A file shorter than `offset` was replaced or cut: it is read from its start, and said.
    """
    try:
        with open_plain(path, cap_bytes=CAP_BYTES) as file:
            size = file.seek(0, os.SEEK_END)
            start = offset if offset <= size else 0
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return [], [], 0
    reader = _Reader(gaps=False)
    if start != offset:
        reader.say("the log became shorter: read again from its start")
    lines = [line for line in map(reader.take, whole_lines(data)) if line is not None]
    return lines, reader.notes_of(path), start + data.rfind(b"\n") + 1


def whole_lines(data: bytes) -> list[bytes]:
    """The lines that end with a newline."""
    return data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]


def number(text: bytes) -> int | None:
    """The number of a line; None for one that is not readable."""
    try:
        return _ENVELOPE.decode(text).n
    except _STRANGE:
        return None


_STRANGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ENVELOPE = msgspec.json.Decoder(_Envelope)
_LINE = msgspec.json.Decoder(Line)


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401 - a union of events or orders
    """For strange lines only: to make one takes some milliseconds, of which every command would wait for two."""
    return msgspec.json.Decoder(kind)


class _Reader:
    """Lines one after the other, with a memory for numbers and for what was said."""

    def __init__(self, *, gaps: bool = True) -> None:
        self._notes: list[str] = []
        self._hidden = 0
        self._gaps = gaps
        self._seen = 0
        self._last_n: int | None = None
        self._newer = False

    def take(self, text: bytes) -> Line | None:
        """What the text says; None: nothing that counts."""
        self._seen += 1
        try:
            line = _LINE.decode(text)
        except _STRANGE as error:
            return self._take_strange(text, error)
        return line if self._accept(line.n, line.v) else None

    def _take_strange(self, text: bytes, error: Exception) -> Line | None:
        """A damaged line, or one with words of a newer ftsup."""
        try:
            envelope = _ENVELOPE.decode(text)
        except _STRANGE:
            self.say(f"line {self._seen} is unreadable: {error}")
            self._last_n = None if self._last_n is None else self._last_n + 1
            return None
        if not self._accept(envelope.n, envelope.v):
            return None
        try:
            event = _decoder(LeaderEvent).decode(envelope.event)
        except _STRANGE as why:
            self.say(f"line {self._seen} (number {envelope.n}) holds an event that this ftsup does not know: {why}")
            return None
        orders = [order for order in map(_known_order, envelope.orders) if order is not None]
        unknown = len(envelope.orders) - len(orders)
        self.say(f"line {self._seen} (number {envelope.n}) holds {unknown} order(s) that this ftsup does not know")
        return Line(n=envelope.n, wall=envelope.wall, event=event, orders=tuple(orders), v=envelope.v)

    def _accept(self, n: int, v: int) -> bool:
        if v > SCHEMA and not self._newer:
            self._newer = True
            self.say(f"written by a newer ftsup (schema {v}; this one knows {SCHEMA})")
        last = self._last_n
        if last is not None and n <= last:
            self.say(f"line {self._seen} repeats number {n}: dropped")
            return False
        if self._gaps and last is not None and n != last + 1:
            self.say(f"line {self._seen} has number {n} where {last + 1} was expected")
        self._last_n = n
        return True

    def say(self, text: str) -> None:
        if len(self._notes) < _MAX_NOTES:
            self._notes.append(text)
        else:
            self._hidden += 1

    def notes_of(self, path: Path) -> list[str]:
        more = [f"and {self._hidden} more"] if self._hidden else []
        return [f"{path.name}: {note}" for note in self._notes + more]


def _known_order(raw: msgspec.Raw) -> Any:  # noqa: ANN401 - one of LeaderOrder
    try:
        return _decoder(LeaderOrder).decode(raw)
    except msgspec.DecodeError:
        return None


def write_all(fd: int, data: bytes) -> None:
    """One write; a short one (disk nearly full) goes on until the error shows."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
