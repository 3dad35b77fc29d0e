"""The kinds of checkpoints: a table, read from the top; the first that recognises a path is its kind. One more kind is one more module
and one more line here.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import msgspec

from ftsup.checkpoint.disk import files_below
from ftsup.checkpoint.formats import anything, dcp, safetensors, torch_legacy, torch_zip
from ftsup.checkpoint.formats.kind import Completeness, Format, Whole
from ftsup.errors import Missing
from ftsup.ports import Disk, What

FORMATS: tuple[Format, ...] = (
    dcp.FORMAT,
    torch_zip.FORMAT,
    torch_legacy.FORMAT,
    safetensors.FORMAT,
    anything.FOLDER,
    anything.FILE,
)
_JSON_CAP = 64 << 20


def recognise(disk: Disk, path: Path) -> Format:
    """The kind of what stands there; Missing when nothing does."""
    for known in FORMATS:
        if known.recognise(disk, path):
            return known
    raise Missing(f"{path} is neither a file nor a directory")


def complete(disk: Disk, path: Path, *, marker: str = "") -> Completeness:
    """Whether all of it is there: by its kind, and for a directory by the marker (a glob) too, which has to be there where one is named."""
    found = recognise(disk, path).complete(disk, path)
    facts = disk.look(path)
    if not marker or facts is None or facts.what is not What.FOLDER or found.whole is Whole.NO:
        return found
    there = [file for file in files_below(disk, path) if PurePosixPath(file).match(marker)]
    if not there:
        return Completeness(whole=Whole.NO, why=f"has no {marker}", files=found.files)
    torn = [file for file in there if file.endswith(".json") and not _is_json(disk, path / file)]
    if torn:
        return Completeness(whole=Whole.NO, why=f"{torn[0]} is torn", files=found.files)
    return Completeness(whole=Whole.YES, why=f"has {there[0]}", files=found.files)


def _is_json(disk: Disk, path: Path) -> bool:
    with disk.open(path) as file:
        try:
            msgspec.json.decode(file.read(_JSON_CAP))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
    return True
