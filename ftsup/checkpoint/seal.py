"""Sealing: a checkpoint that is complete by its kind gets a manifest, read and written so that no crash and no writer can fool it.

List the files, read all of them, bring them to the disk, list again: equal, and the manifest is published. Quiet time never seals.
Knows no clock: times and rates come in from outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import msgspec

from ftsup.checkpoint.digests import Each, digests, nothing
from ftsup.checkpoint.disk import files_below, make_folders, publish
from ftsup.checkpoint.entries import Entry, manifest_of
from ftsup.checkpoint.formats import table
from ftsup.checkpoint.formats.kind import Whole
from ftsup.checkpoint.home import Home, of_manifest
from ftsup.checkpoint.manifest import BLOCK_BYTES, FileSum, Manifest, encode, rewritten
from ftsup.errors import CheckpointError
from ftsup.events import Epoch
from ftsup.ports import Disk, Facts


class Outcome(Enum):
    """What came of it."""

    SEALED = "sealed"
    ALREADY = "already"
    """Sealed before, and nobody wrote since."""
    INCOMPLETE = "incomplete"
    UNKNOWN = "unknown"
    """Nothing says that it is whole."""
    CHANGING = "changing"
    """Somebody wrote while it was read."""
    CHANGED = "changed"
    """Somebody wrote after it was sealed: the old manifest stands."""
    DAMAGED = "damaged"
    """Its manifest cannot be read."""


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """What only the caller knows about a checkpoint."""

    step: int | None = None
    epoch: Epoch | None = None
    """The attempt that wrote it."""
    writer: str = ""
    """The run that wrote it; empty: it was found, and is not ours to remove."""
    wall: str = ""


class Sealing(msgspec.Struct, frozen=True, kw_only=True):
    """What sealing one checkpoint came to."""

    name: str
    outcome: Outcome
    why: str
    files: int = 0
    size_bytes: int = 0


class Sign(Enum):
    """What says that a checkpoint is whole whose kind cannot. Which of them holds is found out in attempts.py."""

    NONE = "none"
    NEWER = "a newer one exists"
    """Of the same attempt, as far as anybody knows."""
    ENDED = "its attempt ended by itself with success"
    SAID = "a person said so"


def sealed_names(disk: Disk, home: Home) -> frozenset[str]:
    """The checkpoints that have a manifest, be they there or not."""
    try:
        return frozenset(name for file in disk.names(home.sealed) if (name := of_manifest(file)) is not None)
    except FileNotFoundError:
        return frozenset()


def seal(
    disk: Disk,
    home: Home,
    entry: Entry,
    *,
    label: Label,
    marker: str = "",
    sign: Sign = Sign.NONE,
    each: Each = nothing,
    stay_cached: bool = False,
    anew: bool = False,
) -> Sealing:
    """Seal one checkpoint, or say why not. OSError when the disk says no; then nothing is sealed, and it may be tried again.

    `anew`: the caller knows that a new save has taken the place of the one that was sealed.
    """
    path = home.checkpoint(entry.name)
    before = files_below(disk, path)
    refused = None if anew else _old_seal(disk, home, entry, before, label)
    if refused:
        return refused
    why, refused = _complete(disk, home, entry, before, marker=marker, sign=sign)
    if refused:
        return refused
    try:
        files = _read(disk, path, before, each=each, stay_cached=stay_cached)
    except FileNotFoundError:
        files = []
    moved = _differ(before, files_below(disk, path))
    if moved or [file.size_bytes for file in files] != [facts.size_bytes for facts in before.values()]:
        return Sealing(name=entry.name, outcome=Outcome.CHANGING, why=f"{_named(moved)} changed while it was read: a writer is at work")
    step = entry.step if label.step is None else label.step
    manifest = Manifest(
        name=entry.name,
        kind=table.recognise(disk, path).kind.value,
        whole=why,
        step=step,
        epoch=label.epoch,
        writer=label.writer,
        wall=label.wall,
        files=tuple(files),
    )
    make_folders(disk, home.sealed, below=home.folder)
    publish(disk, home.manifest(entry.name), encode(manifest))
    return Sealing(name=entry.name, outcome=Outcome.SEALED, why=why, files=len(files), size_bytes=manifest.size_bytes)


def _read(disk: Disk, path: Path, files: Mapping[str, Facts], *, each: Each, stay_cached: bool) -> list[FileSum]:
    """Digest all files, and bring them to the disk: what a crash of this node could still lose must not count as sealed."""
    sums = []
    for name, facts in files.items():
        found = digests(disk, path / name, block_bytes=BLOCK_BYTES, whole=True, stay_cached=stay_cached, each=each)
        disk.sync(path / name)
        sums.append(
            FileSum(
                path=name,
                size_bytes=found.size_bytes,
                mtime_ns=facts.mtime_ns,
                inode=facts.inode,
                xxh3_128=found.whole,
                blocks=found.blocks,
            )
        )
    for folder in sorted({(path / name).parent for name in files}):
        disk.sync(folder)
    return sums


def _old_seal(disk: Disk, home: Home, entry: Entry, now: Mapping[str, Facts], label: Label) -> Sealing | None:
    """What an earlier manifest says about sealing now; None: there is none, or a new save has taken the old one's place."""
    try:
        old = manifest_of(disk, home, entry.name)
    except CheckpointError as error:
        return Sealing(name=entry.name, outcome=Outcome.DAMAGED, why=error.message)
    if old is None:
        return None
    changed = rewritten(old, now)
    if not changed:
        return Sealing(name=entry.name, outcome=Outcome.ALREADY, why="sealed before", files=len(old.files), size_bytes=old.size_bytes)
    later = label.epoch is not None and (old.epoch is None or label.epoch > old.epoch)
    if len(changed) == len(old.files) and (entry.rolling or later):
        return None
    why = f"{_named(changed)} was written or removed after the seal: a writer came back, or there are two"
    return Sealing(name=entry.name, outcome=Outcome.CHANGED, why=why)


def _complete(disk: Disk, home: Home, entry: Entry, now: Mapping[str, Facts], *, marker: str, sign: Sign) -> tuple[str, Sealing | None]:
    """How one knows that it is whole, or why it is not sealed."""
    if not now:
        return "", Sealing(name=entry.name, outcome=Outcome.INCOMPLETE, why="it holds no file")
    said = table.complete(disk, home.checkpoint(entry.name), marker=marker)
    if said.whole is Whole.NO:
        return "", Sealing(name=entry.name, outcome=Outcome.INCOMPLETE, why=said.why)
    if said.whole is Whole.YES:
        return said.why, None
    if sign is Sign.NONE:
        return "", Sealing(name=entry.name, outcome=Outcome.UNKNOWN, why=said.why)
    return sign.value, None


def _differ(before: Mapping[str, Facts], after: Mapping[str, Facts]) -> list[str]:
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def _named(files: list[str]) -> str:
    first = (files[0] if files else "") or "the file"
    return first if len(files) <= 1 else f"{first} (and {len(files) - 1} more)"
