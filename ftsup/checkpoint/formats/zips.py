"""The bytes of a zip file, as torch.save writes it: where each record lies, and whether every byte is what the directory says.

Python's zipfile is not strict enough here: it never compares a record's own header with the directory, and takes padding, descriptors
and gaps as they are. Everything is streamed. Knows nothing of tensors.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator

import msgspec

from ftsup.checkpoint.formats.kind import CHUNK_BYTES, Problem, Span, Torn

MAGIC = b"PK\x03\x04"
END_MAGIC = b"PK\x05\x06"
_LOCAL = struct.Struct("<4s5H3L2H")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_DESCRIPTOR = struct.Struct("<4s3L")
_DESCRIPTOR64 = struct.Struct("<4sL2Q")
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_FLAG_DESCRIPTOR = 8
_STORED, _DEFLATED = 0, 8
_EXTRA_ZIP64, _EXTRA_PADDING = 1, 0x4246  # "FB": torch moves each record's data to a multiple of 64 with it
_MADE_BY = {0x031E, 45}
"""What torch and Python write into a 64-bit end."""
_DIRECTORY_CAP = 256 << 20


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the directory."""

    name: str
    raw_name: bytes
    at: int
    """Where its own header begins."""
    size: int
    """Bytes of it in the file; `full_size` once inflated."""
    full_size: int
    crc: int
    method: int
    flags: int
    shared: tuple[int, ...]
    """What its own header has to say too: version, flags, method, time, date."""
    usual: tuple[int, ...]
    """What one writer writes into every line."""
    wide: bool
    """Has sizes of 64 bits."""
    line_at: int

    @property
    def short(self) -> str:
        """The name without the archive's own, as torch names records: `data/3`."""
        return self.name.partition("/")[2] or self.name


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Where everything lies, in the order of the file."""

    records: tuple[Record, ...]
    directory_at: int


def looks_like(span: Span) -> bool:
    """A zip by its first or by its last bytes: one of them may be damaged."""
    try:
        return span.read(0, 4) == MAGIC or span.read(span.size - _END.size, 4) == END_MAGIC
    except Torn:
        return False


def layout(span: Span) -> Layout:
    """Read the directory, which is written last; Torn when it is not there or does not fit the file."""
    count, size, at = _ending(span)
    if size > _DIRECTORY_CAP:
        raise Torn(f"its directory claims {size} bytes", offset=span.begin + at)
    records = sorted(_lines(span.read(at, size), count=count, at=at, span=span), key=lambda record: record.at)
    if records and records[0].at != 0:
        raise Torn("its first record is missing", offset=span.begin)
    if any(record.at + _LOCAL.size + record.size > at for record in records):
        raise Torn("its records do not fit before its directory", offset=span.begin + at)
    return Layout(records=tuple(records), directory_at=at)


def _ending(span: Span) -> tuple[int, int, int]:
    """Number of records, size and place of the directory."""
    if span.size < _END.size:
        raise Torn("it has no zip directory: its writer did not come to its end", offset=span.begin + span.size)
    end_at = span.size - _END.size
    magic, disk, first_disk, here, count, size, at, comment = _END.unpack(span.read(end_at, _END.size))
    if magic != END_MAGIC:
        raise Torn("it has no zip directory at its end: its writer did not come to its end", offset=span.begin + end_at)
    if (disk, first_disk, comment) != (0, 0, 0) or here != count:
        raise Torn("the end of its zip directory is damaged", offset=span.begin + end_at)
    wide_at = end_at - _LOCATOR.size - _END64.size
    wide = wide_at >= 0 and span.read(end_at - _LOCATOR.size, 4) == b"PK\x06\x07"
    if not wide:
        if count == _FULL16 or _FULL32 in (size, at) or at + size != end_at:
            raise Torn("its zip directory is not where its end says", offset=span.begin + end_at)
        return count, size, at
    small = (count, size, at)
    count, size, at = _ending64(span, wide_at)
    if small != (min(count, _FULL16), min(size, _FULL32), min(at, _FULL32)) or at + size != wide_at:
        raise Torn("its zip directory is not where its end says", offset=span.begin + wide_at)
    return count, size, at


def _ending64(span: Span, at: int) -> tuple[int, int, int]:
    magic, size, made_by, needed, disk, first_disk, here, count, directory_size, directory_at = _END64.unpack(span.read(at, _END64.size))
    _, where_disk, where, disks = _LOCATOR.unpack(span.read(at + _END64.size, _LOCATOR.size))
    expected = (b"PK\x06\x06", _END64.size - 12, 45, 0, 0, count, 0, at, 1)
    if made_by not in _MADE_BY or (magic, size, needed, disk, first_disk, here, where_disk, where, disks) != expected:
        raise Torn("the 64-bit end of its zip directory is damaged", offset=span.begin + at)
    return count, directory_size, directory_at


def _lines(data: bytes, *, count: int, at: int, span: Span) -> Iterator[Record]:
    position = 0
    for _ in range(count):
        line_at = span.begin + at + position
        if position + _ENTRY.size > len(data):
            raise Torn("its zip directory ends early", offset=line_at)
        (magic, made_by, needed, flags, method, time, date, crc, size, full, name_n, extra_n, comment_n, disk, inner, outer, where) = (
            _ENTRY.unpack_from(data, position)
        )
        position += _ENTRY.size
        name, extra = data[position : position + name_n], data[position + name_n : position + name_n + extra_n]
        position += name_n + extra_n
        if magic != b"PK\x01\x02" or disk or comment_n or position > len(data):
            raise Torn("a line of its zip directory is damaged", offset=line_at)
        fields = dict(_extras(extra, line_at))
        wide = fields.get(_EXTRA_ZIP64, b"")
        if len(wide) != 8 * (full, size, where).count(_FULL32) or set(fields) - {_EXTRA_ZIP64}:
            raise Torn("a line of its zip directory is damaged", offset=line_at)
        numbers = iter(struct.unpack(f"<{len(wide) // 8}Q", wide))
        full, size, where = (next(numbers) if value == _FULL32 else value for value in (full, size, where))
        yield Record(
            name=name.decode("utf-8", "replace"),
            raw_name=name,
            at=where,
            size=size,
            full_size=full,
            crc=crc,
            method=method,
            flags=flags,
            shared=(needed, flags, method, time, date),
            usual=(made_by, needed, flags & ~_FLAG_DESCRIPTOR, time, date, inner, outer),  # nothing to tell after an empty tensor
            wide=bool(wide),
            line_at=line_at,
        )
    if position != len(data):
        raise Torn("its zip directory has more than its records", offset=span.begin + at + position)


def _extras(data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        kind, size = struct.unpack_from("<2H", data, position) if position + 4 <= len(data) else (0, len(data))
        position += 4 + size
        if position > len(data):
            raise Torn("the extra fields of a record are damaged", offset=at)
        yield kind, data[position - size : position]


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Some bytes and what they are."""

    begin: int
    end: int
    region: str
    record: str | None = None
    """The short name, for bytes of a record's data."""


def pieces(span: Span, found: Layout) -> Iterator[Piece]:
    """What each byte is, as far as the headers can be believed."""
    for record in found.records:
        data_at = _data_at(span, record)
        yield Piece(begin=record.at, end=record.at + _LOCAL.size + len(record.raw_name), region=f"zip header of {record.short}")
        yield Piece(begin=record.at + _LOCAL.size + len(record.raw_name), end=data_at, region=f"padding before {record.short}")
        yield Piece(begin=data_at, end=data_at + record.size, region=record.short, record=record.short)
        end = data_at + record.size + _descriptor_size(record)
        yield Piece(begin=data_at + record.size, end=end, region=f"zip descriptor of {record.short}")
    yield Piece(begin=found.directory_at, end=span.size, region="zip directory")


def data_of(span: Span, record: Record) -> Span:
    """Where the record's bytes lie."""
    return span.part(_data_at(span, record), record.size)


def _data_at(span: Span, record: Record) -> int:
    *_, name_n, extra_n = _LOCAL.unpack(span.read(record.at, _LOCAL.size))
    return record.at + _LOCAL.size + int(name_n) + int(extra_n)


def _descriptor_size(record: Record) -> int:
    if not record.flags & _FLAG_DESCRIPTOR:
        return 0
    return _DESCRIPTOR64.size if record.wide else _DESCRIPTOR.size


def check(span: Span, found: Layout, *, file: str) -> tuple[list[Problem], int]:
    """Compare every byte with the directory, in one pass; the problems, and how many records carry no CRC-32."""
    problems: list[Problem] = []
    unchecked = 0
    usual = Counter(record.usual for record in found.records).most_common(1)
    for record, after in zip(found.records, [*(record.at for record in found.records[1:]), found.directory_at], strict=True):
        if record.usual != usual[0][0]:
            problems.append(
                Problem(file=file, what=f"the zip directory's line of {record.short} is unlike the others", offset=record.line_at)
            )
        try:
            end = _header(span, record)
            unchecked += _data(span, record, data_at=end)
            end = _descriptor(span, record, at=end + record.size)
        except Torn as torn:
            problems.append(Problem(file=file, what=torn.what, offset=torn.offset, tensor=None))
            continue
        if end != after:
            what = f"{record.short} ends at {end} and what follows begins at {after}"
            problems.append(Problem(file=file, what=what, offset=span.begin + min(end, after)))
    return problems, unchecked


def _header(span: Span, record: Record) -> int:
    """Hold a record's own header against the directory; where its data begins."""
    at = span.begin + record.at
    magic, *shared, crc, size, full, name_n, extra_n = _LOCAL.unpack(span.read(record.at, _LOCAL.size))
    if magic != MAGIC or tuple(shared) != record.shared or name_n != len(record.raw_name):
        raise Torn(f"the zip header of {record.short} is not what the directory says", offset=at)
    rest = span.read(record.at + _LOCAL.size, name_n + extra_n)
    fields = list(_extras(rest[name_n:], at + _LOCAL.size + name_n))
    wide = dict(fields).get(_EXTRA_ZIP64)
    later = bool(record.flags & _FLAG_DESCRIPTOR)
    expected = [(record.crc, record.size, record.full_size), *([(0, 0, 0)] if later else [])]
    if wide is not None and not later:
        expected = [(record.crc, _FULL32, _FULL32)]
    if rest[:name_n] != record.raw_name or (crc, size, full) not in expected or not _wide_fits(wide, record):
        raise Torn(f"the zip header of {record.short} is not what the directory says", offset=at)
    if any(kind == _EXTRA_PADDING and data.strip(b"Z") for kind, data in fields):
        raise Torn(f"the padding before {record.short} is damaged", offset=at + _LOCAL.size + name_n)
    if len({kind for kind, _ in fields} | {_EXTRA_PADDING, _EXTRA_ZIP64}) > 2 or len(fields) > 2:  # noqa: PLR2004 - those two
        raise Torn(f"the padding before {record.short} is damaged", offset=at + _LOCAL.size + name_n)
    return record.at + _LOCAL.size + int(name_n) + int(extra_n)


def _wide_fits(wide: bytes | None, record: Record) -> bool:
    """torch writes the full size, 0 for the other one that it does not know yet, and the place; others write both sizes."""
    if wide is None:
        return not record.wide
    sizes = (b"", struct.pack("<2Q", record.full_size, 0), struct.pack("<2Q", record.full_size, record.size))
    return wide in {size + at for size in sizes for at in (b"", struct.pack("<Q", record.at))} - {b""}


def _data(span: Span, record: Record, *, data_at: int) -> bool:
    """Hold the data against the CRC-32; whether it has none."""
    if record.method not in {_STORED, _DEFLATED}:
        raise Torn(f"{record.short} is compressed by method {record.method}, which torch does not use", offset=span.begin + record.at)
    inflate = zlib.decompressobj(-zlib.MAX_WBITS) if record.method == _DEFLATED else None
    crc, full, at, end = 0, 0, data_at, data_at + record.size
    try:
        while at < end:
            chunk = span.read(at, min(CHUNK_BYTES, end - at))
            at += len(chunk)
            while chunk:
                out = inflate.decompress(chunk, CHUNK_BYTES) if inflate else chunk
                chunk = inflate.unconsumed_tail if inflate else b""
                crc, full = zlib.crc32(out, crc), full + len(out)
                if full > record.full_size:
                    raise Torn(f"{record.short} is longer than the directory says", offset=span.begin + data_at)
    except zlib.error as error:
        raise Torn(f"{record.short} cannot be inflated ({error})", offset=span.begin + data_at) from error
    if full != record.full_size:
        raise Torn(f"{record.short} has {full} bytes, {record.full_size} expected", offset=span.begin + data_at)
    if record.crc == 0 and crc != 0:  # torch.serialization.set_crc32_options(False), skip_data: one flipped bit cannot make this
        return True
    if crc != record.crc:
        raise Torn(f"CRC-32 of {record.short} is {crc:08x}, {record.crc:08x} expected", offset=span.begin + data_at)
    return False


def _descriptor(span: Span, record: Record, *, at: int) -> int:
    if not record.flags & _FLAG_DESCRIPTOR:
        return at
    shape = _DESCRIPTOR64 if record.wide else _DESCRIPTOR
    if shape.unpack(span.read(at, shape.size)) != (b"PK\x07\x08", record.crc, record.size, record.full_size):
        raise Torn(f"the zip descriptor of {record.short} is not what the directory says", offset=span.begin + at)
    return at + shape.size
