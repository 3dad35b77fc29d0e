"""A directory of torch.distributed.checkpoint: `.metadata`, which is written last and names every file and the bytes that it needs of it.

Each item of a file is what torch.save wrote (a zip, so that its CRC-32 can be compared), or, where the writer was told so, a
safetensors blob for all tensors of the file. `.metadata` is a pickle: it is read in a child (`pickles.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from ftsup.checkpoint import pickles
from ftsup.checkpoint.formats import safetensors, torch_zip, zips
from ftsup.checkpoint.formats.kind import Completeness, Format, Kind, Place, Problem, Report, Span, Torn, Whole
from ftsup.ports import Disk, What

METADATA = ".metadata"
SUFFIX = ".distcp"
LATE_NS = 60 * 10**9
"""A file written so long after .metadata belongs to a later save over the same directory, which did not come to its end."""
TENSOR = "TensorStorageMetadata"
TRANSFORMED = "items that were compressed or otherwise transformed, or that no known writer made, can only be checked for their length"


def recognise(disk: Disk, path: Path) -> bool:
    """By `.metadata` or the name of its files."""
    facts = disk.look(path)
    if facts is None or facts.what is not What.FOLDER:
        return False
    return any(name.endswith((METADATA, SUFFIX)) for name in disk.names(path))


def complete(disk: Disk, path: Path) -> Completeness:
    """`.metadata` is there, and every file that it names, as long as it has to be, and not of a later save."""
    names = disk.names(path)
    if METADATA not in names:
        if any(name.endswith(METADATA) for name in names):
            return Completeness(whole=Whole.UNKNOWN, why="each rank wrote its own .metadata, and nothing says how many ranks there were")
        return Completeness(whole=Whole.NO, why="it has no .metadata, which is written last")
    try:
        said = _read(disk, path, METADATA)
    except Torn as torn:
        return Completeness(whole=Whole.NO, why=torn.what)
    except pickles.Unread as unread:
        return Completeness(whole=Whole.NO if unread.damaged else Whole.UNKNOWN, why=f"{METADATA}: {unread.why}")
    needs = _needs(disk, path, said)
    written = disk.look(path / METADATA)
    late = []
    for file, size_bytes in needs.items():
        facts = disk.look(path / file)
        if facts is None or facts.what is not What.FILE:
            return Completeness(whole=Whole.NO, why=f"{file} is missing")
        if facts.size_bytes < size_bytes:
            return Completeness(whole=Whole.NO, why=f"{file} has {facts.size_bytes} bytes, {size_bytes} needed")
        if written and facts.mtime_ns > written.mtime_ns + LATE_NS:
            late.append(file)
    files = (*needs, METADATA)
    if late:
        why = f"{late[0]} was written after its .metadata: another save began in the same directory, or the directory was copied"
        return Completeness(whole=Whole.UNKNOWN, why=why, files=files)
    return Completeness(whole=Whole.YES, why=f"its .metadata is there, and the {len(needs)} files that it names", files=files)


def check(disk: Disk, path: Path) -> Report:
    """Every item of every file."""
    problems: list[Problem] = []
    blind: set[str] = set()
    for metadata in _metadata(disk, path):
        try:
            said = _read(disk, path, metadata)
        except Torn as torn:
            problems.append(Problem(file=metadata, what=torn.what))
            continue
        except pickles.Unread as unread:
            blind.update(() if unread.damaged else (f"{metadata}: {unread.why}",))
            problems.extend([Problem(file=metadata, what=unread.why)] if unread.damaged else [])
            continue
        for file, items in _by_file(said).items():
            found, unseen = _check_file(disk, path, file, items)
            problems += found
            blind |= unseen
    return Report(problems=tuple(problems), blind="; ".join(sorted(blind)))


def locate(disk: Disk, path: Path, file: str, where: range) -> tuple[Place, ...]:
    """The items that these bytes belong to."""
    if file.endswith(METADATA):
        return (Place(region=METADATA),)
    places: list[Place] = []
    for metadata in _metadata(disk, path):
        try:
            items = _by_file(_read(disk, path, metadata)).get(file, [])
        except (Torn, pickles.Unread):
            continue
        with disk.open(path / file) as opened:
            blob = _blob(disk, path / file, opened, items)
            if blob is not None:
                places += safetensors.places(blob, range(where.start - blob.begin, where.stop - blob.begin))
                items = _beside(items, blob)
            places += [_place(opened, item, where) for item in items if _touches(item, where)]
    return tuple(places)


def _metadata(disk: Disk, path: Path) -> list[str]:
    names = disk.names(path)
    return [METADATA] if METADATA in names else [name for name in names if name.endswith(METADATA)]


def _read(disk: Disk, path: Path, metadata: str) -> pickles.Dcp:
    """What it says; Torn when it contradicts itself or names files elsewhere."""
    facts = disk.look(path / metadata)
    if facts is None or facts.size_bytes == 0:
        raise Torn(f"{metadata} is empty")
    said = pickles.ask(pickles.Dcp, path / metadata, offset=0, length=facts.size_bytes)
    known = set(said.names)
    for item in said.items:
        if item.file.startswith("/") or ".." in item.file.split("/") or item.offset < 0 or item.length < 0 or item.name not in known:
            raise Torn(f"{metadata} contradicts itself at {item.name} (in {item.file})")
    return said


def _by_file(said: pickles.Dcp) -> dict[str, list[pickles.Item]]:
    found: dict[str, list[pickles.Item]] = {}
    for item in sorted(said.items, key=lambda item: (item.file, item.offset)):
        found.setdefault(item.file, []).append(item)
    return found


def _needs(disk: Disk, path: Path, said: pickles.Dcp) -> dict[str, int]:
    """By file the length that it has to have."""
    needs = {}
    for file, items in _by_file(said).items():
        needs[file] = max(item.offset + item.length for item in items)
        if blob := _blob_at(items):
            needs[file] = max(needs[file], _blob_end(disk, path / file, blob))
    return needs


def _blob_at(items: list[pickles.Item]) -> int | None:
    """Where the tensors of a file lie in one safetensors blob: all of them say the same offset then."""
    offsets = [item.offset for item in items if item.kind == TENSOR and item.plain]
    return offsets[0] if len(offsets) > 1 and len(set(offsets)) == 1 else None


def _blob(disk: Disk, path: Path, opened: BinaryIO, items: list[pickles.Item]) -> Span | None:
    """That blob, where it looks like one."""
    at, facts = _blob_at(items), disk.look(path)
    if at is None or facts is None:
        return None
    span = Span(opened, begin=at, size=max(facts.size_bytes - at, 0))
    return span if safetensors.looks_like(span) else None


def _beside(items: list[pickles.Item], blob: Span) -> list[pickles.Item]:
    """The items that do not lie in it."""
    return [item for item in items if item.offset != blob.begin or item.kind != TENSOR]


def _blob_end(disk: Disk, path: Path, at: int) -> int:
    """The end of the blob by its own header; where it is not there, the first length that is too long."""
    facts = disk.look(path)
    if facts is None or facts.what is not What.FILE:
        return 0
    with disk.open(path) as file:
        try:
            safetensors.header(Span(file, begin=at, size=max(facts.size_bytes - at, 0)))
        except Torn:
            return facts.size_bytes + 1
    return facts.size_bytes


def _touches(item: pickles.Item, where: range) -> bool:
    return max(item.offset, where.start) < min(item.offset + item.length, where.stop)


def _place(opened: BinaryIO, item: pickles.Item, where: range) -> Place:
    """The region inside of the item, where the bytes lie in one."""
    span = Span(opened, begin=item.offset, size=item.length)
    inner = torch_zip.places(span, range(where.start - item.offset, where.stop - item.offset), {}) if zips.looks_like(span) else ()
    return Place(region=inner[0].region if len(inner) == 1 else "item", tensor=item.name)


def _check_file(disk: Disk, path: Path, file: str, items: list[pickles.Item]) -> tuple[list[Problem], set[str]]:
    facts = disk.look(path / file)
    if facts is None or facts.what is not What.FILE:
        return [Problem(file=file, what="it is missing")], set()
    problems: list[Problem] = []
    blind: set[str] = set()
    with disk.open(path / file) as opened:
        whole = Span(opened, begin=0, size=facts.size_bytes)
        blob = _blob(disk, path / file, opened, items)
        if blob is not None:
            blind.add(safetensors.BLIND)
            problems += _check_blob(blob, file)
            items = _beside(items, blob)
        for item in items:
            if item.offset + item.length > whole.size:
                what = f"it has {whole.size} bytes, {item.offset + item.length} needed for {item.name}"
                problems.append(Problem(file=file, what=what, offset=whole.size, tensor=item.name))
            else:
                found, unseen = _check_item(whole.part(item.offset, item.length), item)
                problems += found
                blind |= unseen
    return problems, blind


def _check_blob(span: Span, file: str) -> list[Problem]:
    try:
        safetensors.header(span)
    except Torn as torn:
        return [Problem(file=file, what=torn.what, offset=torn.offset)]
    return []


def _check_item(span: Span, item: pickles.Item) -> tuple[list[Problem], set[str]]:
    """A zip by its first or last bytes; a tensor that is none, and was not transformed, is damaged at both ends."""
    if item.plain and zips.looks_like(span):
        problems, unchecked = torch_zip.check_span(span, file=item.file)
        named = [Problem(file=item.file, what=f"{item.name}: {found.what}", offset=found.offset, tensor=item.name) for found in problems]
        return named, {torch_zip.NO_CRC} if unchecked else set()
    if item.plain and item.kind == TENSOR:
        what = f"{item.name} is not where .metadata says"
        return [Problem(file=item.file, what=what, offset=span.begin, tensor=item.name)], set()
    return [], {TRANSFORMED}


FORMAT = Format(kind=Kind.DCP, recognise=recognise, complete=complete, check=check, locate=locate)
