"""What a person does with a directory of checkpoints, without a run: examine one, ask whether one may be sealed, plan what to remove.

The same rules as a run's own, with two differences: a person may vouch for what cannot tell itself that it is whole, and what was not
sealed yet is held against its kind's own deep check first, because nobody saw it being written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum

import msgspec

from ftsup.checkpoint.disk import files_below
from ftsup.checkpoint.entries import Entry, manifest_of
from ftsup.checkpoint.formats import table
from ftsup.checkpoint.formats.kind import Whole
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.keep import Item, removable
from ftsup.checkpoint.manifest import Manifest, Newer, rewritten
from ftsup.checkpoint.pick import Ask, State, look
from ftsup.checkpoint.readback import seal_of
from ftsup.checkpoint.seal import Outcome, Sealing, Sign
from ftsup.checkpoint.survey import Row, Standing
from ftsup.checkpoint.trouble import told
from ftsup.checkpoint.verify import Damage
from ftsup.errors import Damaged
from ftsup.ports import Disk

_SEALED = {
    State.VERIFIED: Standing.VERIFIED,
    State.SOUND: Standing.CHANGED,
    State.INCOMPLETE: Standing.INCOMPLETE,
    State.DAMAGED: Standing.DAMAGED,
    State.UNREADABLE: Standing.UNREADABLE,
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint, after all of it was read. `blind`: what could not be seen."""

    name: str
    standing: Standing
    why: str
    blind: str = ""
    damages: tuple[Damage, ...] = ()
    kind: str = ""
    size_bytes: int = 0
    seal: str = ""
    """Of the manifest that it was held against."""

    @property
    def good(self) -> bool:
        """Nothing speaks against resuming from it."""
        return self.standing not in {Standing.INCOMPLETE, Standing.DAMAGED, Standing.UNREADABLE}

    @property
    def broken(self) -> bool:
        """Was whole, and is not."""
        return self.standing in {Standing.DAMAGED, Standing.UNREADABLE}


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What pruning would do with one, and why."""

    name: str
    goes: bool
    why: str
    size_bytes: int = 0


class Vouched(Enum):
    """Whether a person says that a checkpoint is whole."""

    NO = "no"
    YES = "yes"


def examine(disk: Disk, home: Home, entry: Entry, *, complete: str = "") -> Finding:
    """Read all of it: against its manifest, or by its kind's own check where it has none. A disk that says no makes it unreadable."""
    try:
        size = sum(facts.size_bytes for facts in files_below(disk, home.checkpoint(entry.name)).values())
        kind = table.recognise(disk, home.checkpoint(entry.name)).kind.value
        return msgspec.structs.replace(_examine(disk, home, entry, complete), kind=kind, size_bytes=size)
    except OSError as error:
        return Finding(name=entry.name, standing=Standing.UNREADABLE, why=told(error, worked_before=False))


def _examine(disk: Disk, home: Home, entry: Entry, complete: str) -> Finding:
    try:
        manifest = manifest_of(disk, home, entry.name)
    except Newer as error:
        found = _by_kind(disk, home, entry, complete)
        return msgspec.structs.replace(
            found, standing=Standing.NEWER if found.good else found.standing, why=f"{error.message}; {found.why}"
        )
    except Damaged:
        manifest = None
    else:
        if manifest is None:
            return _by_kind(disk, home, entry, complete)
    seen = look(disk, home, entry, Ask(complete=complete, act=False, stay_cached=False))
    why = seen.why.removeprefix("damaged: ")
    return Finding(name=entry.name, standing=_SEALED[seen.state], why=why, damages=seen.damages, seal=seal_of(manifest) if manifest else "")


def _by_kind(disk: Disk, home: Home, entry: Entry, complete: str) -> Finding:
    """What has no manifest that could be used."""
    path = home.checkpoint(entry.name)
    said = table.complete(disk, path, marker=complete)
    if said.whole is Whole.NO:
        return Finding(name=entry.name, standing=Standing.INCOMPLETE, why=said.why)
    report = table.recognise(disk, path).check(disk, path)
    damages = tuple(Damage(file=found.file, offset=found.offset, what=found.what, tensor=found.tensor) for found in report.problems)
    if damages:
        more = f" (and {len(damages) - 1} more)" if damages[1:] else ""
        return Finding(name=entry.name, standing=Standing.DAMAGED, why=f"{damages[0]}{more}", damages=damages)
    standing = Standing.WHOLE if said.whole is Whole.YES else Standing.UNSURE
    return Finding(name=entry.name, standing=standing, why=said.why, blind=report.blind)


def refusal(disk: Disk, home: Home, entry: Entry, *, vouched: Vouched, complete: str = "") -> Sealing | None:
    """Why this one is not to be sealed now; None: nothing speaks against it. Reads all that its kind has a checksum for.

    No word of a person makes the incomplete whole or the damaged sound, and what is sealed as it is now stays as it was sealed.
    """
    path = home.checkpoint(entry.name)
    try:
        manifest: Manifest | None = manifest_of(disk, home, entry.name)
    except Newer as error:
        return Sealing(name=entry.name, outcome=Outcome.ALREADY, why=f"{error.message}: it stays as it is")
    except Damaged as error:
        if vouched is Vouched.NO:
            return Sealing(name=entry.name, outcome=Outcome.DAMAGED, why=error.message)
        manifest = None
    if manifest is not None and not rewritten(manifest, files_below(disk, path)):
        why = "sealed before, and nobody wrote since"
        return Sealing(name=entry.name, outcome=Outcome.ALREADY, why=why, files=len(manifest.files), size_bytes=manifest.size_bytes)
    found = _by_kind(disk, home, entry, complete)
    outcome = {Standing.INCOMPLETE: Outcome.INCOMPLETE, Standing.DAMAGED: Outcome.DAMAGED}.get(found.standing)
    return Sealing(name=entry.name, outcome=outcome, why=found.why) if outcome else None


def would_seal(disk: Disk, home: Home, entry: Entry, *, sign: Sign, complete: str = "") -> Sealing:
    """What sealing one would come to that nothing was said against."""
    files = files_below(disk, home.checkpoint(entry.name))
    said = table.complete(disk, home.checkpoint(entry.name), marker=complete)
    known = said.whole is Whole.YES or sign is not Sign.NONE
    return Sealing(
        name=entry.name,
        outcome=Outcome.SEALED if known else Outcome.UNKNOWN,
        why=said.why if said.whole is Whole.YES or not known else sign.value,
        files=len(files),
        size_bytes=sum(facts.size_bytes for facts in files.values()),
    )


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """What came of reading the newest ones back."""

    verified: frozenset[str] = frozenset()
    damaged: frozenset[str] = frozenset()


def plan(
    rows: Sequence[Row], readings: Readings, *, keep: int, found_too: bool, needed: Collection[str], before: Collection[str]
) -> list[Fate]:
    """Of each checkpoint, newest first, whether it goes. `needed`: a run resumed from it; `before`: older than the run that owns them."""
    items = [
        Item(
            name=row.name,
            step=row.step,
            sealed=row.standing in {Standing.SEALED, Standing.VERIFIED} and row.name not in readings.damaged,
            verified=row.name in readings.verified,
            pinned=row.pinned,
            ours=(bool(row.writer) or found_too) and row.name not in before,
            size_bytes=row.size_bytes,
        )
        for row in rows
    ]
    going = {item.name for item in removable(items, keep=keep, needed=needed)}
    stays = _Stays(
        keep=keep,
        read=tuple(item.name for item in items if item.sealed and item.verified),
        damaged=readings.damaged,
        needed=frozenset(needed),
        before=frozenset(before),
    )
    why_goes = f"older than the {keep} verified that stay" if keep > 1 else "older than a verified one that stays"
    return [
        Fate(
            name=item.name,
            goes=item.name in going,
            why=why_goes if item.name in going else stays.why(row, item),
            size_bytes=item.size_bytes,
        )
        for row, item in zip(rows, items, strict=True)
    ]


class _Stays(msgspec.Struct, frozen=True, kw_only=True):
    """Why one that stays does."""

    keep: int
    read: tuple[str, ...]
    damaged: frozenset[str]
    needed: frozenset[str]
    before: frozenset[str]

    def why(self, row: Row, item: Item) -> str:
        """The first reason that holds."""
        if item.pinned:
            return "pinned"
        if item.name in self.damaged or row.standing is Standing.DAMAGED:
            return "damaged: pick sets it aside"
        if item.name in self.read[: self.keep]:
            return f"verified, one of the newest {self.keep}" if self.keep > 1 else "verified, the newest"
        if not item.sealed:
            return f"not sealed ({row.standing.value})" if row.standing is not Standing.WHOLE else "not sealed"
        if item.name in self.needed:
            return "a run resumed from it"
        if item.name in self.before:
            return "was there before the run that owns the directory"
        if not item.ours:
            return "found: no run of ftsup wrote it (--found takes these too)"
        assert len(self.read) < self.keep, "an older one that nothing holds goes"
        return f"only {len(self.read)} of {self.keep} are verified"
