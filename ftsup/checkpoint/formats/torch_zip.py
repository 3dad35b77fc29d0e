"""A file that torch.save writes since 1.6 (Lightning's .ckpt too): a zip, complete once its directory is there, which is written last.

torch.load does not compare the CRC-32 that torch.save wrote; the deep check here does, and every other byte with the zip directory.
Which tensor lies in which record is asked of the pickle inside, without running it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ftsup.checkpoint import pickles
from ftsup.checkpoint.formats import zips
from ftsup.checkpoint.formats.kind import Completeness, Format, Kind, Place, Problem, Report, Span, Torn, Whole
from ftsup.ports import Disk, Facts, What

SUFFIXES = {".pt", ".pth", ".ckpt", ".bin"}
NO_CRC = "no CRC-32 was written with its data (torch.serialization.set_crc32_options, skip_data), so a flipped bit there cannot be seen"


def recognise(disk: Disk, path: Path) -> bool:
    """A zip by its first or last bytes; a name of torch's with nothing in it yet."""
    facts = disk.look(path)
    if facts is None or facts.what is not What.FILE:
        return False
    if facts.size_bytes == 0:
        return path.suffix in SUFFIXES
    with disk.open(path) as file:
        return zips.looks_like(Span(file, begin=0, size=facts.size_bytes))


def complete(disk: Disk, path: Path) -> Completeness:
    """Its directory is there and fits."""
    facts = disk.look(path)
    if facts is None or facts.size_bytes == 0:
        return Completeness(whole=Whole.NO, why="empty", files=("",))
    try:
        with disk.open(path) as file:
            zips.layout(Span(file, begin=0, size=facts.size_bytes))
    except Torn as torn:
        return Completeness(whole=Whole.NO, why=f"torn: {torn.what}", files=("",))
    return Completeness(whole=Whole.YES, why="its zip directory is there and fits", files=("",))


def check(disk: Disk, path: Path) -> Report:
    """Every byte against the zip directory."""
    facts = disk.look(path)
    with disk.open(path) as file:
        span = Span(file, begin=0, size=facts.size_bytes if facts else 0)
        problems, unchecked = check_span(span, file="")
        if problems:
            names = _names(path, span)
            problems = [problem_with_tensor(problem, span, names) for problem in problems]
    return Report(problems=tuple(problems), blind=NO_CRC if unchecked else "")


def check_span(span: Span, *, file: str) -> tuple[list[Problem], int]:
    """As `zips.check`, with a directory that does not hold as a problem too."""
    try:
        return zips.check(span, zips.layout(span), file=file)
    except Torn as torn:
        return [Problem(file=file, what=torn.what, offset=torn.offset)], 0


def locate(disk: Disk, path: Path, file: str, where: range) -> tuple[Place, ...]:
    """The records that these bytes belong to, with the tensors that lie there."""
    assert not file
    facts: Facts | None = disk.look(path)
    with disk.open(path) as opened:
        span = Span(opened, begin=0, size=facts.size_bytes if facts else 0)
        return places(span, where, _names(path, span))


def places(span: Span, where: range, names: Mapping[str, str]) -> tuple[Place, ...]:
    """What lies in these bytes of a zip; nothing when its directory cannot be read."""
    try:
        pieces = tuple(zips.pieces(span, zips.layout(span)))
    except Torn:
        return ()
    found = (piece for piece in pieces if max(piece.begin, where.start) < min(piece.end, where.stop))
    return tuple(Place(region=piece.region, tensor=names.get(piece.record or "")) for piece in found)


def problem_with_tensor(problem: Problem, span: Span, names: Mapping[str, str]) -> Problem:
    """The same, with the tensor that lies there."""
    if problem.offset is None:
        return problem
    at = problem.offset - span.begin
    tensor = next((place.tensor for place in places(span, range(at, at + 1), names) if place.tensor), None)
    return Problem(file=problem.file, what=problem.what, offset=problem.offset, tensor=tensor)


def _names(path: Path, span: Span) -> dict[str, str]:
    """By record (`data/3`), the tensor; nothing where the pickle cannot be read."""
    try:
        record = next((record for record in zips.layout(span).records if record.short == "data.pkl"), None)
        if record is None:
            return {}
        data = zips.data_of(span, record)
        said = pickles.ask(pickles.TorchNames, path, offset=data.begin, length=data.size)
    except (Torn, pickles.Unread):
        return {}
    return {f"data/{key}": storage.name for key, storage in said.storages.items()}


FORMAT = Format(kind=Kind.TORCH_ZIP, recognise=recognise, complete=complete, check=check, locate=locate)
