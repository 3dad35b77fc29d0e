"""A file that torch.save wrote before 1.6 (or with `_use_new_zipfile_serialization=False`): pickles, then the storages one by one, each
with its length. Complete when these lengths fill the file exactly. It has no checksum: a flipped bit of a weight cannot be seen.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ftsup.checkpoint import pickles
from ftsup.checkpoint.formats.kind import Completeness, Format, Kind, Place, Problem, Report, Span, Torn, Whole
from ftsup.ports import Disk, What

MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""The pickle of torch's magic number, with which such a file begins."""
MAGIC_NUMBER, PROTOCOL = "1950a86a20f9469cfc6c", 1001
BLIND = "its format has no checksum, so a flipped bit of a weight cannot be seen"
SIZES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Untyped", "QUInt8", "QInt8", "QUInt4x2", "QUInt2x4"), 1),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Float", "Int", "QInt32"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
"""Bytes of one element of torch's `...Storage`."""
_LENGTH_BYTES = 8


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    begin: int
    end: int
    key: str
    tensor: str


def recognise(disk: Disk, path: Path) -> bool:
    """By the magic number."""
    facts = disk.look(path)
    if facts is None or facts.what is not What.FILE or facts.size_bytes == 0:
        return False
    with disk.open(path) as file:
        return file.read(len(MAGIC)) == MAGIC


def complete(disk: Disk, path: Path) -> Completeness:
    """Its storages fill the file exactly."""
    try:
        _walk(disk, path)
    except Torn as torn:
        return Completeness(whole=Whole.NO, why=f"torn: {torn.what}", files=("",))
    except pickles.Unread as unread:
        return Completeness(whole=Whole.NO if unread.damaged else Whole.UNKNOWN, why=unread.why, files=("",))
    return Completeness(whole=Whole.YES, why="its storages fill it exactly", files=("",))


def check(disk: Disk, path: Path) -> Report:
    """Lengths, and what the pickle says of each storage."""
    try:
        _walk(disk, path)
    except Torn as torn:
        return Report(problems=(Problem(file="", what=torn.what, offset=torn.offset),), blind=BLIND)
    except pickles.Unread as unread:
        return Report(
            problems=(Problem(file="", what=unread.why),) if unread.damaged else (), blind=BLIND if unread.damaged else unread.why
        )
    return Report(blind=BLIND)


def locate(disk: Disk, path: Path, file: str, where: range) -> tuple[Place, ...]:
    """The storages that these bytes belong to."""
    assert not file
    try:
        stored = _walk(disk, path)
    except (Torn, pickles.Unread):
        return ()
    head = [Place(region="pickle")] if stored and where.start < stored[0].begin else []
    found = [item for item in stored if max(item.begin, where.start) < min(item.end, where.stop)]
    return (*head, *(Place(region=f"storage {item.key}", tensor=item.tensor) for item in found))


def _walk(disk: Disk, path: Path) -> list[_Stored]:
    """Every storage in its order, its length as written held against what the pickle says."""
    facts = disk.look(path)
    said = pickles.ask(pickles.Legacy, path, offset=0, length=0)
    if (said.magic, said.protocol) != (MAGIC_NUMBER, PROTOCOL):
        raise Torn("it does not begin with torch's magic number and protocol", offset=0)
    if set(said.keys) != set(said.storages):
        raise Torn("its list of storages is not what its tensors need")
    found = []
    with disk.open(path) as file:
        span = Span(file, begin=0, size=facts.size_bytes if facts else 0)
        at = said.at
        for key in said.keys:
            storage = said.storages[key]
            size = SIZES.get(storage.type.removesuffix("Storage"))
            if size is None:
                raise pickles.Unread(f"a storage of type {storage.type}, whose length is not known", damaged=False)
            elements = int.from_bytes(span.read(at, _LENGTH_BYTES), "little" if said.little_endian else "big", signed=True)
            if elements != storage.elements:
                raise Torn(f"storage {key} ({storage.name}) claims {elements} elements, its tensor says {storage.elements}", offset=at)
            end = at + _LENGTH_BYTES + elements * size
            if end > span.size:
                raise Torn(f"it ends inside of storage {key} ({storage.name})", offset=span.size)
            found.append(_Stored(begin=at, end=end, key=key, tensor=storage.name))
            at = end
        if at != span.size:
            raise Torn(f"{span.size - at} bytes follow its last storage", offset=at)
    return found


FORMAT = Format(kind=Kind.TORCH_LEGACY, recognise=recognise, complete=complete, check=check, locate=locate)
