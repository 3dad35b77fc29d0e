"""Taking a checkpoint out of the way, in steps that may each be the last: into quarantine (damaged, never deleted) or into the trash.

The checkpoint always moves first, by one rename, and its manifest follows: what was sealed is never seen without its manifest. `sweep`
finishes what an interrupted process left.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ftsup.checkpoint.disk import files_below, make_folders, publish, remove_tree
from ftsup.checkpoint.home import Home, encoded, of_numbered
from ftsup.ports import Disk

_WHY = "why.txt"
_MANIFEST = "manifest.json"


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What was freed, and what an NFS client holds on to: it is tried again the next time."""

    names: tuple[str, ...] = ()
    size_bytes: int = 0
    held: tuple[str, ...] = ()


def quarantine(disk: Disk, home: Home, name: str, *, why: str) -> Path:
    """Move a checkpoint and its manifest aside, with the reason; where it is now."""
    make_folders(disk, home.quarantine, below=home.folder)
    last = home.checkpoint(name).name
    box = next(box for box in _numbered(home.quarantine, name) if disk.look(box / last) is None)
    make_folders(disk, box, below=home.folder)
    publish(disk, box / _WHY, f"{name}\n{why}\n".encode())
    disk.rename(home.checkpoint(name), box / last)
    _move_manifest(disk, home, name, box)
    disk.sync(box)
    disk.sync(home.checkpoint(name).parent)
    return box / last


def trash(disk: Disk, home: Home, name: str) -> None:
    """Out of sight by one rename; `sweep` frees the room."""
    make_folders(disk, home.trash, below=home.folder)
    disk.rename(home.checkpoint(name), next(path for path in _numbered(home.trash, name) if disk.look(path) is None))
    forget(disk, home, name)


def sweep(disk: Disk, home: Home) -> Removed:
    """Finish what was begun: manifests follow into quarantine, the trash is emptied."""
    for box in _names(disk, home.quarantine):
        name = of_numbered(box)
        moved = disk.look(home.quarantine / box / Path(name).name) and not disk.look(home.quarantine / box / _MANIFEST)
        if moved and not disk.look(home.checkpoint(name)):
            _move_manifest(disk, home, name, home.quarantine / box)
    names, size_bytes, held = [], 0, []
    for old in _names(disk, home.trash):
        name = of_numbered(old)
        if not disk.look(home.checkpoint(name)):
            forget(disk, home, name)
        size = sum(facts.size_bytes for facts in files_below(disk, home.trash / old).values())
        left = remove_tree(disk, home.trash / old)
        held += left
        if not left:
            names.append(name)
            size_bytes += size
    return Removed(names=tuple(names), size_bytes=size_bytes, held=tuple(held))


def _names(disk: Disk, folder: Path) -> list[str]:
    try:
        return list(disk.names(folder))
    except FileNotFoundError:
        return []


def _numbered(folder: Path, name: str) -> Iterator[Path]:
    return (folder / f"{encoded(name)}.{number}" for number in itertools.count(1))


def _move_manifest(disk: Disk, home: Home, name: str, box: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        disk.rename(home.manifest(name), box / _MANIFEST)


def forget(disk: Disk, home: Home, name: str) -> None:
    """What we know about a checkpoint that is gone, and the folders that it leaves empty."""
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(home.manifest(name))
    above = home.checkpoint(name).parent
    while above != home.folder:
        with contextlib.suppress(OSError):
            disk.rmdir(above)
        above = above.parent
