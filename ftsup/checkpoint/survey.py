"""What a directory of checkpoints holds, told without reading the checkpoints: names, sizes, manifests and the kinds' own quick rules.

For people who look. Nothing is changed, and what cannot be read is said instead of raised, but for the directory itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path

import msgspec

from ftsup.checkpoint.disk import files_below, read_small
from ftsup.checkpoint.entries import Entry, entries, is_temporary, manifest_of, sayable
from ftsup.checkpoint.formats import table
from ftsup.checkpoint.formats.kind import Whole
from ftsup.checkpoint.home import Home, of_numbered
from ftsup.checkpoint.keep import pins
from ftsup.checkpoint.manifest import Manifest, Newer, rewritten
from ftsup.checkpoint.owner import Owner, read_owner
from ftsup.checkpoint.readback import ReadBack, read_backs, seal_of
from ftsup.checkpoint.seal import sealed_names
from ftsup.checkpoint.trouble import told
from ftsup.checkpoint.verify import MISSING, glance
from ftsup.errors import Busy, Damaged
from ftsup.ports import Disk, Facts

NFS = ".nfs"


class Standing(Enum):
    """How a checkpoint stands, as far as can be told without reading it."""

    VERIFIED = "verified"
    """Sealed, and its bytes were read back since."""
    SEALED = "sealed"
    """And not read back since: nobody knows what the disk has made of it."""
    WHOLE = "unsealed"
    """Whole by its kind's own rule."""
    UNSURE = "unsure"
    """Not sealed, and nothing says that it is whole."""
    INCOMPLETE = "incomplete"
    CHANGED = "changed"
    """Somebody wrote to it after the seal."""
    DAMAGED = "damaged"
    NEWER = "newer"
    """Sealed by a newer ftsup, whose manifest this one cannot read."""
    UNREADABLE = "unreadable"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint. `why`: for all but the sealed ones."""

    name: str
    path: str
    standing: Standing
    why: str = ""
    kind: str = ""
    step: int | None = None
    epoch: str = ""
    size_bytes: int = 0
    files: int = 0
    pinned: bool = False
    writer: str = ""
    """The run that wrote it, where its seal says so."""
    sealed: str = ""
    """When."""
    verified: str = ""
    """When it was last read back."""


class Aside(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint in quarantine."""

    name: str
    path: str
    why: str
    size_bytes: int = 0


class Litter(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is no checkpoint, and takes room or wants to be known."""

    path: str
    what: str
    size_bytes: int = 0


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """What ftsup wrote down about the directory."""

    complete: str
    sealed: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()
    backs: dict[str, ReadBack] = {}


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """All of it; the checkpoints newest first."""

    schema: int = 1
    dir: str
    owner: Owner | None = None
    checkpoints: tuple[Row, ...] = ()
    quarantined: tuple[Aside, ...] = ()
    litter: tuple[Litter, ...] = ()
    notes: tuple[str, ...] = ()


def survey(disk: Disk, home: Home, *, pattern: str, complete: str = "") -> Survey:
    """Look at all of it. OSError only when the directory itself cannot be read."""
    there = entries(disk, home, pattern=pattern)
    notes: list[str] = []
    owner, known = None, _Known(complete=complete)
    try:
        owner = read_owner(disk, home)
    except (Busy, OSError) as error:
        notes.append(error.message if isinstance(error, Busy) else told(error, worked_before=False))
    try:
        known = _Known(complete=complete, sealed=sealed_names(disk, home), pinned=pins(disk, home), backs=read_backs(disk, home))
    except OSError as error:
        notes.append(told(error, worked_before=False))
    return Survey(
        dir=sayable(str(home.folder)),
        owner=owner,
        checkpoints=tuple(_row(disk, home, entry, known) for entry in there),
        quarantined=tuple(_aside(disk, home, box) for box in _names(disk, home.quarantine)),
        litter=tuple(_litter(disk, home, (known.sealed | known.pinned) - {entry.name for entry in there})),
        notes=tuple(notes),
    )


def _row(disk: Disk, home: Home, entry: Entry, known: _Known) -> Row:
    path = sayable(str(home.checkpoint(entry.name)))
    row = Row(name=entry.name, path=path, standing=Standing.UNREADABLE, step=entry.step, pinned=entry.name in known.pinned)
    try:
        now = files_below(disk, home.checkpoint(entry.name))
        row = msgspec.structs.replace(row, size_bytes=sum(facts.size_bytes for facts in now.values()), files=len(now))
        manifest = manifest_of(disk, home, entry.name) if entry.name in known.sealed else None
        if manifest is None:
            return _unsealed(disk, home, row, known.complete)
        return _sealed(disk, home, _labelled(row, manifest), manifest=manifest, now=now, known=known)
    except Newer as error:
        return msgspec.structs.replace(row, standing=Standing.NEWER, why=error.message)
    except Damaged as error:
        return msgspec.structs.replace(row, standing=Standing.DAMAGED, why=error.message)
    except OSError as error:
        return msgspec.structs.replace(row, why=told(error, worked_before=False))


def _labelled(row: Row, manifest: Manifest) -> Row:
    """With what its seal says of it."""
    step = row.step if manifest.step is None else manifest.step
    epoch = str(manifest.epoch or "")
    return msgspec.structs.replace(row, kind=manifest.kind, step=step, epoch=epoch, writer=manifest.writer, sealed=manifest.wall)


def _sealed(disk: Disk, home: Home, row: Row, *, manifest: Manifest, now: Mapping[str, Facts], known: _Known) -> Row:
    changed = rewritten(manifest, now)
    if not changed:
        back = known.backs.get(row.name)
        if back is None or back.seal != seal_of(manifest):
            return msgspec.structs.replace(row, standing=Standing.SEALED)
        standing = Standing.DAMAGED if back.damage else Standing.VERIFIED
        return msgspec.structs.replace(row, standing=standing, why=back.damage, verified=back.wall)
    damages = glance(disk, home.checkpoint(row.name), manifest)
    again = len(changed) == len(manifest.files) and not any(damage.what == MISSING for damage in damages)
    if damages and not (again and table.complete(disk, home.checkpoint(row.name)).whole is not Whole.NO):
        return msgspec.structs.replace(row, standing=Standing.DAMAGED, why=str(damages[0]))
    why = f"{changed[0] or 'the file'}{f' and {len(changed) - 1} more' if changed[1:] else ''} was written after the seal"
    return msgspec.structs.replace(row, standing=Standing.CHANGED, why=why)


def _unsealed(disk: Disk, home: Home, row: Row, complete: str) -> Row:
    path = home.checkpoint(row.name)
    said = table.complete(disk, path, marker=complete)
    standing = {Whole.YES: Standing.WHOLE, Whole.NO: Standing.INCOMPLETE, Whole.UNKNOWN: Standing.UNSURE}[said.whole]
    return msgspec.structs.replace(row, kind=table.recognise(disk, path).kind.value, standing=standing, why=said.why)


def _aside(disk: Disk, home: Home, box: str) -> Aside:
    folder = home.quarantine / box
    try:
        told_then = (read_small(disk, folder / "why.txt") or b"").decode("utf-8", "replace").partition("\n")[2]
        size = sum(facts.size_bytes for facts in files_below(disk, folder).values())
    except OSError as error:
        return Aside(name=of_numbered(box), path=str(folder), why=told(error, worked_before=False))
    return Aside(name=of_numbered(box), path=str(folder), why=told_then.strip(), size_bytes=size)


def _litter(disk: Disk, home: Home, lost: frozenset[str]) -> Iterator[Litter]:
    """What lies about. `lost`: names that have a manifest or a pin, and match no checkpoint."""
    for name in _names(disk, home.folder):
        path = home.folder / name
        if name.startswith(NFS):
            yield _thing(disk, home, f"{name}", "removed while a process had it open; it goes when that ends")
        elif is_temporary(name) and not name.startswith("."):
            yield _thing(disk, home, name, "a temporary name: a save that was broken off, or is under way")
        elif sayable(name) != name:
            yield Litter(path=sayable(str(path)), what="its name is not UTF-8: it is passed over")
    for name in _names(disk, home.trash):
        yield _thing(disk, home, f".ftsup/trash/{name}", "being removed: prune finishes that")
    for name in _names(disk, home.sealed):
        if name.startswith("."):
            yield _thing(disk, home, f".ftsup/sealed/{name}", "left by a seal that was broken off")
    for name in sorted(lost):
        if disk.look(home.checkpoint(name)) is None:
            yield Litter(path=name, what="sealed or pinned, and not there any more")


def _thing(disk: Disk, home: Home, name: str, what: str) -> Litter:
    try:
        size = sum(facts.size_bytes for facts in files_below(disk, home.folder / name).values())
    except OSError as error:
        size, what = 0, f"{what} ({told(error, worked_before=False)})"
    return Litter(path=sayable(name), what=what, size_bytes=size)


def _names(disk: Disk, folder: Path) -> list[str]:
    try:
        return list(disk.names(folder))
    except OSError:
        return []
