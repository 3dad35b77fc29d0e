"""What a pickle in a checkpoint says, asked of a child with limits of memory, CPU and time (`unpickle.py`), so that nothing in it can run
here, fill our memory or hold us up. The answers come back as plain data, decoded strictly. Knows no format.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeVar

import msgspec

from ftsup import proc

SIZE_CAP = 64 << 20
"""No pickle above this is looked into."""
MEMORY_BYTES = 144 << 20
MEMORY_PER_BYTE = 20
"""Limits of a child grow with its pickle: a large one that is what it says needs them (16 times its size, measured with DCP's .metadata),
and one that was made to harm has to bring its own bytes."""
ASSUMED_BYTES = 2 << 20
"""For a pickle that does not say how long it is."""
CPU_S = 1
CPU_BYTES_PER_S = 4 << 20
DEADLINE_S = 60.0
"""For a disk that hangs and a machine that is busy; the CPU's limit comes first."""

_T = TypeVar("_T", bound=msgspec.Struct)


class Unread(Exception):
    """A pickle that could not be read within the limits, and why. `damaged`: it is no pickle of this kind."""

    def __init__(self, why: str, *, damaged: bool) -> None:
        super().__init__(why)
        self.why = why
        self.damaged = damaged


class Storage(msgspec.Struct, frozen=True, kw_only=True):
    """One storage of torch.save: the first tensor name that leads to it."""

    name: str
    type: str
    elements: int


class TorchNames(msgspec.Struct, frozen=True, kw_only=True):
    """By storage key: `data/KEY` of the zip."""

    storages: dict[str, Storage]


class Legacy(msgspec.Struct, frozen=True, kw_only=True):
    """What stands before the storages in a file of the old format."""

    magic: str
    protocol: int
    little_endian: bool
    at: int
    keys: tuple[str, ...]
    storages: dict[str, Storage]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of a distributed checkpoint. `plain`: written without a transformation such as compression."""

    file: str
    offset: int
    length: int
    name: str
    kind: str
    plain: bool


class Dcp(msgspec.Struct, frozen=True, kw_only=True):
    """What .metadata says."""

    items: tuple[Item, ...]
    names: tuple[str, ...]


QUESTIONS: dict[type[msgspec.Struct], str] = {TorchNames: "torch", Legacy: "legacy", Dcp: "dcp"}


class _Why(msgspec.Struct, frozen=True):
    why: str
    limit: bool


def ask(kind: type[_T], path: Path, *, offset: int, length: int) -> _T:
    """What the pickle there says; Unread when the limits or its bytes do not allow it. Length 0: as far as it goes."""
    if length > SIZE_CAP:
        raise Unread(f"its pickle has {length} bytes, and only {SIZE_CAP} are looked into", damaged=False)
    argv = command(kind, path, offset=offset, length=length)
    memory, cpu_s = _limits(length)
    done = proc.run(argv, deadline_s=DEADLINE_S)
    limits = f"within {memory >> 20} MiB and {cpu_s} s of CPU"
    if not done.ok:
        how = done.why or (f"signal {-done.code}" if done.code and done.code < 0 else done.err.strip().rpartition("\n")[2][:200])
        raise Unread(f"its pickle could not be read {limits} ({how})", damaged=False)
    try:
        return msgspec.json.decode(done.out, type=kind)
    except msgspec.DecodeError as error:
        why = _why_not(done.out) or _Why(f"it says what no such pickle says: {error}", limit=False)
        what = f"its pickle could not be read {limits}" if why.limit else f"its pickle is damaged ({why.why})"
        raise Unread(what, damaged=not why.limit) from error


def command(kind: type[msgspec.Struct], path: Path, *, offset: int, length: int) -> tuple[str, ...]:
    """The child that reads it: without site-packages and the environment's Python settings."""
    script = str(Path(__file__).with_name("unpickle.py"))
    return (sys.executable, "-I", "-S", script, QUESTIONS[kind], str(path), *map(str, (offset, length, *_limits(length))))


def _limits(length: int) -> tuple[int, int]:
    """Bytes of memory and seconds of CPU."""
    assumed = length or ASSUMED_BYTES
    return MEMORY_BYTES + MEMORY_PER_BYTE * assumed, CPU_S + assumed // CPU_BYTES_PER_S


def _why_not(text: str) -> _Why | None:
    try:
        return msgspec.json.decode(text, type=_Why)
    except msgspec.DecodeError:
        return None
