"""Safetensors: one file (a length, a JSON header, the tensors without a gap), or a directory of shards with an index.

Complete when the header's offsets cover the file exactly, and every shard that the index names is. A writer that stops early leaves a file
that is too short; one that was allocated beforehand has its length and zeros, which nobody can tell from weights: there is no checksum.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from ftsup.checkpoint.formats.kind import Completeness, Format, Kind, Place, Problem, Report, Span, Torn, Whole
from ftsup.ports import Disk, What

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
HEADER_CAP = 100_000_000
"""The library's own limit."""
INDEX_CAP = 256 << 20
BLIND = "its format has no checksum, so a flipped bit of a weight cannot be seen"
BITS = {
    **dict.fromkeys(("F4", "I4", "U4"), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
"""Bits of one element; of a type that is not here, only the offsets are checked."""
WEIGHTS_ONLY = {".safetensors", ".json", ".txt", ".model", ".jinja", ".md"}
"""Names of a directory that is a model and nothing else: where an optimizer or a trainer wrote too, the index does not speak for them."""
_LENGTH_BYTES = 8


class _Tensor(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor's bytes in the file."""

    name: str
    begin: int
    end: int


def recognise(disk: Disk, path: Path) -> bool:
    """By its name or its first bytes; a directory of a model by its index."""
    facts = disk.look(path)
    if facts is None:
        return False
    if facts.what is What.FOLDER:
        return _index_name(disk, path) is not None and _weights_only(disk, path)
    if facts.what is not What.FILE:
        return False
    if path.suffix == SUFFIX:
        return True
    with disk.open(path) as file:
        return looks_like(Span(file, begin=0, size=facts.size_bytes))


def looks_like(span: Span) -> bool:
    """Begins with the length of a header and a header."""
    try:
        head = span.read(0, _LENGTH_BYTES + 1)
    except Torn:
        return False
    return int.from_bytes(head[:_LENGTH_BYTES], "little") <= min(HEADER_CAP, span.size) and head[_LENGTH_BYTES:] == b"{"


def header(span: Span) -> list[Stored]:
    """Every tensor in the order of the file; Torn when they do not cover it exactly."""
    if span.size < _LENGTH_BYTES:
        raise Torn("its header is not there" if span.size else "it is empty", offset=span.begin + span.size)
    length = int.from_bytes(span.read(0, _LENGTH_BYTES), "little")
    if length > HEADER_CAP or _LENGTH_BYTES + length > span.size:
        raise Torn(f"its header claims {length} bytes", offset=span.begin)
    text = span.read(_LENGTH_BYTES, length)
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        msgspec.json.decode(raw.pop("__metadata__", b"{}"), type=dict[str, str])
        tensors = {name: msgspec.json.decode(tensor, type=_Tensor) for name, tensor in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Torn(f"its header is damaged ({error})", offset=span.begin + _LENGTH_BYTES) from error
    found, at = [], 0
    data_at = _LENGTH_BYTES + length
    for name, tensor in sorted(tensors.items(), key=lambda pair: pair[1].data_offsets):
        begin, end = tensor.data_offsets
        if begin != at or end < begin or not _size_fits(tensor):
            raise Torn(
                f"its header is damaged: {name} is not where the tensor before it ends, or not as long as its shape", offset=_LENGTH_BYTES
            )
        found.append(Stored(name=name, begin=data_at + begin, end=data_at + end))
        at = end
    if data_at + at != span.size:
        raise Torn(f"it has {span.size} bytes, {data_at + at} expected", offset=span.begin + min(span.size, data_at + at))
    return found


def _size_fits(tensor: _Tensor) -> bool:
    bits = BITS.get(tensor.dtype)
    begin, end = tensor.data_offsets
    return bits is None or (min(tensor.shape, default=1) >= 0 and math.prod(tensor.shape) * bits == 8 * (end - begin))


def complete(disk: Disk, path: Path) -> Completeness:
    """The file, or the index and every file that it names."""
    try:
        files = _files(disk, path)
    except Torn as torn:
        return Completeness(whole=Whole.NO, why=torn.what)
    for file in files:
        if (why := _torn(disk, path / file)) is not None:
            return Completeness(whole=Whole.NO, why=f"torn: {f'{file}: ' if file else ''}{why.what}", files=files)
    said = "its header fits it" if files == ("",) else f"{len(files)} files are as their index says"
    index = _index_name(disk, path) if files != ("",) else None
    return Completeness(whole=Whole.YES, why=said, files=(*files, index) if index else files)


def check(disk: Disk, path: Path) -> Report:
    """Headers, and that the index and the shards name the same tensors."""
    problems = []
    try:
        index = _index(disk, path)
        for file in _files(disk, path):
            why = _torn(disk, path / file)
            if why is not None:
                problems.append(Problem(file=file, what=why.what, offset=why.offset))
                continue
            names = {tensor.name for tensor in _tensors(disk, path / file)}
            wrong = sorted(names ^ {name for name, shard in index.items() if shard == file}) if index else []
            if wrong:
                problems.append(
                    Problem(file=file, what=f"the index and the file do not name the same tensors ({wrong[0]})", tensor=wrong[0])
                )
    except Torn as torn:
        problems.append(Problem(file=_index_name(disk, path) or "", what=torn.what, offset=torn.offset))
    return Report(problems=tuple(problems), blind=BLIND)


def locate(disk: Disk, path: Path, file: str, where: range) -> tuple[Place, ...]:
    """The tensors that these bytes belong to."""
    if file.endswith(INDEX_SUFFIX):
        return (Place(region="index"),)
    facts = disk.look(path / file)
    with disk.open(path / file) as opened:
        return places(Span(opened, begin=0, size=facts.size_bytes if facts else 0), where)


def places(span: Span, where: range) -> tuple[Place, ...]:
    """The tensors that these bytes of it belong to."""
    try:
        stored = header(span)
    except Torn:
        return (Place(region="header"),) if where.start < _LENGTH_BYTES else ()
    begin = min((tensor.begin for tensor in stored), default=where.stop)
    head = (Place(region="header"),) if where.start < begin else ()
    found = [tensor for tensor in stored if max(tensor.begin, where.start) < min(tensor.end, where.stop)]
    return (*head, *(Place(region="data", tensor=tensor.name) for tensor in found))


def _tensors(disk: Disk, path: Path) -> list[Stored]:
    facts = disk.look(path)
    if facts is None:
        raise Torn("it is missing")
    with disk.open(path) as opened:
        return header(Span(opened, begin=0, size=facts.size_bytes))


def _torn(disk: Disk, path: Path) -> Torn | None:
    try:
        _tensors(disk, path)
    except Torn as torn:
        return torn
    return None


def _files(disk: Disk, path: Path) -> tuple[str, ...]:
    return tuple(sorted(set(_index(disk, path).values()))) or ("",)


def _index(disk: Disk, path: Path) -> dict[str, str]:
    """By tensor the shard; nothing for a single file."""
    name = _index_name(disk, path)
    if name is None:
        return {}
    try:
        with disk.open(path / name) as opened:
            found = msgspec.json.decode(opened.read(INDEX_CAP), type=_Index).weight_map
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Torn(f"its index {name} is damaged ({error})") from error
    if not found or any("/" in shard or not shard.endswith(SUFFIX) for shard in found.values()):
        raise Torn(f"its index {name} names files that are no shards")
    return found


def _index_name(disk: Disk, path: Path) -> str | None:
    facts = disk.look(path)
    if facts is None or facts.what is not What.FOLDER:
        return None
    return next((name for name in disk.names(path) if name.endswith(INDEX_SUFFIX)), None)


def _weights_only(disk: Disk, path: Path) -> bool:
    """A model and nothing else. `checkpoint-500` is a trainer's, which writes its own state afterwards."""
    names = disk.names(path)
    trained = path.name.startswith("checkpoint-") or "trainer_state.json" in names
    return not trained and all(Path(name).suffix in WEIGHTS_ONLY for name in names)


FORMAT = Format(kind=Kind.SAFETENSORS, recognise=recognise, complete=complete, check=check, locate=locate)
