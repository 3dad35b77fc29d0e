"""The words of the formats: what a kind of checkpoint can say about itself.

Each kind is one module beside this one and one `Format` in the table of `table.py`. Paths inside a checkpoint are relative
to it; the only file of a single-file checkpoint is "". Nothing here knows a kind.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import BinaryIO

import msgspec

from ftsup.ports import Disk

CHUNK_BYTES = 1 << 20
"""How much is read at once: what is checked by streaming never lies in memory as a whole."""


class Kind(Enum):
    """The name of a kind, as manifests hold it."""

    TORCH_ZIP = "torch_zip"
    TORCH_LEGACY = "torch_legacy"
    DCP = "dcp"
    SAFETENSORS = "safetensors"
    DIRECTORY = "directory"
    FILE = "file"


class Whole(Enum):
    """Whether a checkpoint is complete."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """Its kind has no rule that could say so."""


class Completeness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether all of it is there, how one knows, and the files that the kind's rule counts on."""

    whole: Whole
    why: str
    files: tuple[str, ...] = ()


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as its writer left it. `tensor`: what is hit, where the kind tells."""

    file: str
    what: str
    offset: int | None = None
    tensor: str | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a deep check found. `blind`: what it could not see, so that a clean report is not taken for more than it is."""

    problems: tuple[Problem, ...] = ()
    blind: str = ""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What some bytes of a file are: `data/3`, `zip directory`, `padding of data/3`; with the tensor where one is stored there."""

    region: str
    tensor: str | None = None


class Torn(Exception):
    """The structure of a file does not hold; where, if one place is to blame."""

    def __init__(self, what: str, *, offset: int | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.offset = offset


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One kind: four questions, each answered from a disk and a path."""

    kind: Kind
    recognise: Callable[[Disk, Path], bool]
    complete: Callable[[Disk, Path], Completeness]
    """Quick: reads what is small."""
    check: Callable[[Disk, Path], Report]
    """The deep check: reads everything that the kind has a checksum for, once."""
    locate: Callable[[Disk, Path, str, range], tuple[Place, ...]]
    """What lies in these bytes of this file, in their order."""


class Span:
    """A piece of an open file, read by its own offsets: a file, or one item of a file that holds many."""

    def __init__(self, file: BinaryIO, *, begin: int, size: int) -> None:
        self._file = file
        self.begin = begin
        self.size = size

    def read(self, offset: int, size: int) -> bytes:
        """These bytes; Torn when they end early."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise Torn(f"{size} bytes at {offset} lie beyond its end", offset=self.begin + min(max(offset, 0), self.size))
        self._file.seek(self.begin + offset)
        parts = []
        while size:
            part = self._file.read(size)
            if not part:
                raise Torn("it became shorter while it was read", offset=self.begin + offset)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def part(self, offset: int, size: int) -> Span:
        """A piece of this piece."""
        return Span(self._file, begin=self.begin + offset, size=min(size, max(self.size - offset, 0)))
