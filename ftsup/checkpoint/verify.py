"""Bytes read back against their manifest. Damage is told by file and block, and by tensor where the kind knows which one lies there."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ftsup.checkpoint.digests import Each, digests, nothing
from ftsup.checkpoint.disk import MEDIA, files_below
from ftsup.checkpoint.formats import table
from ftsup.checkpoint.manifest import FileSum, Manifest, rewritten
from ftsup.ports import Disk

MISSING = "missing"
OTHER_BYTES = "other bytes than were sealed"
_TENSORS_TOLD = 3
_BLOCKS_TOLD = 8
"""A file that was overwritten as a whole is told by its first blocks."""


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not as it was sealed. `block` and `offset` are those of the block that differs."""

    file: str
    what: str
    block: int | None = None
    offset: int | None = None
    tensor: str | None = None
    absent: bool = False
    """The file, or its end, is not there: on a slow NFS it may still come."""
    unreadable: bool = False
    """The disk does not give the bytes back; they may be right."""

    def __str__(self) -> str:
        """For people."""
        block = f", block {self.block} (at byte {self.offset})" if self.block is not None else ""
        return f"{self.file or 'the file'}{block}: {self.what}{f', in {self.tensor}' if self.tensor else ''}"


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What reading back showed. `rewritten`: files that somebody wrote since the seal; `extra`: later ones, which it does not cover."""

    damages: tuple[Damage, ...] = ()
    rewritten: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


def verify(disk: Disk, path: Path, manifest: Manifest, *, each: Each = nothing, stay_cached: bool = True) -> Verified:
    """Read all that was sealed. The cheap look comes first: with a file missing or of another size nothing big is read."""
    now = files_below(disk, path)
    damages = glance(disk, path, manifest)
    if not damages:
        found = [found for file in manifest.files for found in _verify_file(disk, path, manifest, file, each=each, stay_cached=stay_cached)]
        damages = _explained(disk, path, manifest, found)
    sealed = {file.path for file in manifest.files}
    return Verified(
        damages=damages, rewritten=tuple(rewritten(manifest, now)), extra=tuple(sorted(name for name in now if name not in sealed))
    )


def glance(disk: Disk, path: Path, manifest: Manifest) -> tuple[Damage, ...]:
    """Files that are missing here or have another size: what every node can afford to look at before a launch."""
    now = files_below(disk, path)
    found = []
    for file in manifest.files:
        facts = now.get(file.path)
        if facts is None:
            found.append(Damage(file=file.path, what=MISSING, absent=True))
        elif facts.size_bytes != file.size_bytes:
            what = f"{facts.size_bytes} bytes long, sealed with {file.size_bytes}"
            found.append(Damage(file=file.path, what=what, absent=facts.size_bytes < file.size_bytes))
    return tuple(found)


def _verify_file(disk: Disk, path: Path, manifest: Manifest, file: FileSum, *, each: Each, stay_cached: bool) -> list[Damage]:
    size = manifest.block_bytes
    try:
        found = digests(disk, path / file.path, block_bytes=size, whole=False, stay_cached=stay_cached, each=each)
    except OSError as error:
        if error.errno not in MEDIA:
            raise
        return [Damage(file=file.path, what=f"cannot be read: {error.strerror}", unreadable=True)]
    if found.size_bytes != file.size_bytes:
        return [Damage(file=file.path, what="changes while it is read")]
    differ = [number for number, (was, now) in enumerate(zip(file.blocks, found.blocks, strict=True)) if was != now]
    damages = [Damage(file=file.path, block=number, offset=number * size, what=OTHER_BYTES) for number in differ[:_BLOCKS_TOLD]]
    if len(differ) > _BLOCKS_TOLD:
        damages.append(Damage(file=file.path, what=f"and {len(differ) - _BLOCKS_TOLD} more blocks"))
    return damages


def _explained(disk: Disk, path: Path, manifest: Manifest, damages: list[Damage]) -> tuple[Damage, ...]:
    """What the kind knows about damaged blocks: from checksums of its own exactly what is hit, else what lies there."""
    if not any(damage.block is not None for damage in damages):
        return tuple(damages)
    kind = table.recognise(disk, path)
    problems = kind.check(disk, path).problems
    sizes = {file.path: file.size_bytes for file in manifest.files}
    explained = []
    for damage in damages:
        if damage.offset is None:
            explained.append(damage)
            continue
        span = range(damage.offset, min(damage.offset + manifest.block_bytes, sizes[damage.file]))
        hits = [each for each in problems if each.file == damage.file and (each.offset is None or each.offset in span)]
        tensors = [each.tensor for each in hits if each.tensor]
        if not hits:
            tensors = [place.tensor or place.region for place in kind.locate(disk, path, damage.file, span)]
        what = f"{damage.what} ({hits[0].what})" if hits else damage.what
        explained.append(msgspec.structs.replace(damage, what=what, tensor=_few(tensors)))
    return tuple(explained)


def _few(names: list[str]) -> str | None:
    names = list(dict.fromkeys(names))
    more = f" or {len(names) - _TENSORS_TOLD} more" if len(names) > _TENSORS_TOLD else ""
    return " or ".join(names[:_TENSORS_TOLD]) + more if names else None
