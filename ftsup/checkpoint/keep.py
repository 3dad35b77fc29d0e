"""Which checkpoints may go: a pure function of a list, and the list. The moving and deleting is in moves.py.

What ftsup did not seal for this run, what is pinned or needed, and the newest `keep` that were verified never go; and nothing goes
that is not older than all of those.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from urllib.parse import unquote

import msgspec

from ftsup.checkpoint.disk import make_folders
from ftsup.checkpoint.entries import entries, manifest_of
from ftsup.checkpoint.home import Home, encoded
from ftsup.checkpoint.moves import Removed, forget, sweep, trash
from ftsup.checkpoint.seal import sealed_names
from ftsup.errors import CheckpointError, Missing
from ftsup.ports import Disk


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint, as keeping sees it."""

    name: str
    step: int | None = None
    sealed: bool = False
    verified: bool = False
    """Its bytes were read back and matched: by whoever asks, lately."""
    pinned: bool = False
    ours: bool = False
    """Sealed by ftsup for this run: not found, not an input."""
    size_bytes: int = 0


def removable(items: Sequence[Item], *, keep: int, needed: Collection[str] = ()) -> list[Item]:
    """Those that may go, of a list with the newest first. `needed`: what an attempt resumed from, or would."""
    verified = [number for number, item in enumerate(items) if item.sealed and item.verified]
    if keep < 1 or len(verified) < keep:
        return []
    older = items[verified[keep - 1] + 1 :]
    return [item for item in older if item.sealed and item.ours and not item.pinned and item.name not in needed]


def items(disk: Disk, home: Home, *, pattern: str, writer: str, verified: Collection[str]) -> list[Item]:
    """The list, newest first. `writer`: the run whose checkpoints are ours; none is without one."""
    sealed, pinned = sealed_names(disk, home), pins(disk, home)
    found = []
    for entry in entries(disk, home, pattern=pattern):
        item = Item(name=entry.name, step=entry.step, pinned=entry.name in pinned)
        if entry.name in sealed:
            try:
                manifest = manifest_of(disk, home, entry.name)
            except CheckpointError:
                manifest = None
            if manifest is not None:
                item = Item(
                    name=entry.name,
                    step=entry.step,
                    sealed=True,
                    verified=entry.name in verified,
                    pinned=item.pinned,
                    ours=bool(writer) and manifest.writer == writer,
                    size_bytes=manifest.size_bytes,
                )
        found.append(item)
    return found


def prune(disk: Disk, home: Home, names: Collection[str]) -> Removed:
    """Remove these, and what an interrupted prune left. An error in between loses nothing: the next one goes on."""
    for name in names:
        trash(disk, home, name)
    return sweep(disk, home)


def forget_lost(disk: Disk, home: Home, *, pattern: str) -> list[str]:
    """Drop the manifests of checkpoints that their own training rotated away: those older than one that is still there."""
    there = entries(disk, home, pattern=pattern)
    newest = max((entry.step for entry in there if entry.step is not None), default=None)
    lost = []
    for name in sorted(sealed_names(disk, home) - {entry.name for entry in there}):
        try:
            manifest = manifest_of(disk, home, name)
        except CheckpointError:
            continue
        old = manifest is not None and manifest.step is not None and newest is not None and manifest.step < newest
        if old and disk.look(home.checkpoint(name)) is None:
            forget(disk, home, name)
            lost.append(name)
    return lost


def pins(disk: Disk, home: Home) -> frozenset[str]:
    """The names that are pinned."""
    try:
        held = disk.names(home.pins)
    except FileNotFoundError:
        return frozenset()
    return frozenset(map(unquote, held))


def pin(disk: Disk, home: Home, name: str) -> None:
    """Whatever its age, it stays."""
    if disk.look(home.checkpoint(name)) is None:
        raise Missing(f"{home.folder} has no {name}", hint="ftsup checkpoints list shows the names")
    if name not in pins(disk, home):
        make_folders(disk, home.pins, below=home.folder)
        disk.write_new(home.pins / encoded(name), b"")
        disk.sync(home.pins)


def unpin(disk: Disk, home: Home, name: str) -> None:
    """It may go again when its time comes."""
    if name in pins(disk, home):
        disk.unlink(home.pins / encoded(name))
        disk.sync(home.pins)
