"""What lies in an incident's folder: names and a few facts, for those who will look into it. Reads only, follows no link, and is bounded.

Everything there may be torn or missing: what cannot be read is not told.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from ftsup.incident.stacks import Frame, main_thread
from ftsup.plain import decode_plain, open_plain
from ftsup.report.words import one_line

_NODES, _FILES = 64, 400
"""More than this nobody reads; a folder may hold a thousand nodes' files on a slow disk."""
_CAP = 256 * 1024
_LINES = 16
_STACK = "stacks."
T = TypeVar("T", bound=msgspec.Struct)


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """An incident's folder."""

    path: str
    files: int = 0
    stacks: tuple[str, ...] = ()
    """Stack files, below the folder."""
    sentence: str = ""
    """What `incident.json` says happened."""
    missing: tuple[str, ...] = ()
    """What could not be taken, and why."""


class _Told(msgspec.Struct):
    sentence: str = ""


class _Node(msgspec.Struct):
    missing: tuple[str, ...] = ()


def look(folder: Path) -> Evidence | None:
    """What there is; None: no folder, or one that is somewhere else."""
    if folder.is_symlink() or not folder.is_dir():
        return None
    found = list(_names(folder))
    stacks = tuple(name for name in found if Path(name).name.startswith(_STACK))
    notes = [note for name in found if name.endswith("/node.json") for note in _read(folder / name, _Node()).missing]
    return Evidence(
        path=str(folder),
        files=len(found),
        stacks=stacks,
        sentence=one_line(_read(folder / "incident.json", _Told()).sentence, width=400),
        missing=tuple(one_line(note, width=200) for note in notes),
    )


def stack(evidence: Evidence, *, node: str, rank: int) -> tuple[str, tuple[Frame, ...]]:
    """The innermost lines of a rank's stack, without ours, and the file that has all of them. Empty: there is none."""
    name = f"{node}/{_STACK}{rank}.txt"
    if name not in evidence.stacks:
        return "", ()
    path = Path(evidence.path) / name
    try:
        with open_plain(path) as file:
            frames = main_thread(file.read(_CAP).decode(errors="replace"))
    except OSError:
        return str(path), ()
    return str(path), tuple(frame for frame in frames if "/ftsup_worker/" not in frame.file)[:_LINES]


def _names(folder: Path) -> Iterator[str]:
    """Plain files in the folder and in the nodes' folders below it."""
    folders, left = [""], _FILES
    for below in folders:
        try:
            with os.scandir(folder / below) as found:
                there = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in there:
            name = f"{below}/{entry.name}" if below else entry.name
            if entry.is_dir(follow_symlinks=False) and not below and len(folders) <= _NODES:
                folders.append(name)
            elif entry.is_file(follow_symlinks=False) and left:
                left -= 1
                yield name


def _read(path: Path, default: T) -> T:
    try:
        with open_plain(path) as file:
            return decode_plain(file.read(_CAP), type(default))
    except (OSError, ValueError):
        return default
