"""Which checkpoint an attempt resumes from: the newest that verifies. What is damaged is quarantined, what was never whole is passed over.

The old attempt is proven dead when this is asked, so nobody writes (`attempts.py` has what that says of what it left). Nothing is moved
before a good one is found: where all are damaged, the next look finds what this one found. Knows no clock: whoever wants a slow NFS to
be waited for passes `again`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from enum import Enum
from pathlib import Path

import msgspec

from ftsup.checkpoint.attempts import Began, condemned, ending
from ftsup.checkpoint.digests import Each, nothing
from ftsup.checkpoint.disk import MEDIA
from ftsup.checkpoint.entries import Entry, entries, manifest_of, step_in
from ftsup.checkpoint.formats import table
from ftsup.checkpoint.formats.kind import Report, Whole
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.manifest import Manifest, Newer
from ftsup.checkpoint.moves import quarantine, sweep
from ftsup.checkpoint.readback import ReadBack, remember, seal_of
from ftsup.checkpoint.seal import Label, Outcome, Sign, seal, sealed_names
from ftsup.checkpoint.trouble import told
from ftsup.checkpoint.verify import MISSING, Damage, verify
from ftsup.errors import Damaged
from ftsup.events import Epoch
from ftsup.ports import Disk

_TELL = 3


class State(Enum):
    """What one candidate turned out to be."""

    VERIFIED = "verified"
    """Sealed, read back, and equal."""
    SOUND = "sound"
    """Not sealed before: whole and sound by its kind, and sealed now if the disk allows it."""
    INCOMPLETE = "incomplete"
    """Never whole: no damage."""
    SUSPECT = "suspect"
    """The caller wants it passed over."""
    LEFT = "left behind"
    """So it does: a person went back to an earlier one."""
    DAMAGED = "damaged"
    """Was sealed, or whole by its kind, and is broken now."""
    UNREADABLE = "unreadable"
    """The disk does not give its bytes back."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate, and what was found."""

    name: str
    state: State
    why: str
    damages: tuple[Damage, ...] = ()
    moved_to: str = ""
    """Where it lies in quarantine."""
    seal: str = ""
    """Of the manifest that its bytes matched."""

    @property
    def good(self) -> bool:
        """May be resumed from."""
        return self.state in {State.VERIFIED, State.SOUND}


class Picked(msgspec.Struct, frozen=True, kw_only=True):
    """What to resume from; None: the beginning. `why` says it, and what was passed over; `seen` has all that was looked at."""

    path: str | None
    name: str = ""
    step: int | None = None
    why: str
    seen: tuple[Seen, ...] = ()


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller knows and wants."""

    pattern: str = "*"
    complete: str = ""
    avoid: Collection[str] = ()
    """Suspects: whole, but the script could not load them."""
    left: Collection[str] = ()
    """Left behind by a restart from an earlier step."""
    sealed: Collection[str] = ()
    """Those that the caller knows to have been sealed: without a manifest they are damaged."""
    label: Label = Label()
    """For what is sealed now."""
    epoch: Epoch | None = None
    """Of the attempt that is about to begin; None: a person asks."""
    ended: bool = False
    """The last attempt ended by itself with success."""
    act: bool = True
    """Seal and quarantine; else only look."""
    stay_cached: bool = True
    """What was read is read again soon, by whoever resumes."""


def never() -> bool:
    """Nobody waits."""
    return False


def nobody(_began: Began) -> None:
    """Wants to know."""


def pick(
    disk: Disk,
    folder: Path,
    ask: Ask,
    *,
    again: Callable[[], bool] = never,
    each: Each = nothing,
    noted: Callable[[Began], None] = nobody,
) -> Picked:
    """The newest that can be trusted. Damaged when there were good ones and all are broken; OSError when the disk says no.

    `again`: asked when files that were sealed are not to be seen; it waits a little and says whether to look once more. `noted`: hears
    what there is, for the sealing beside the attempt that begins.
    """
    home = Home(folder)
    notes = _tidy(disk, home) if ask.act else []
    candidates = _listed(disk, home, ask, again=again)
    signs, began = ending(disk, home, candidates, epoch=ask.epoch, ended=ask.ended, act=ask.act)
    noted(began)
    seen: list[Seen] = []
    for entry in candidates:
        seen.append(look(disk, home, entry, ask, sign=signs[entry.name], again=again, each=each))
        if seen[-1].good:
            if ask.act:
                seen = _set_aside(disk, home, seen)
                _remember(disk, home, seen[-1], ask.label.wall)
            return _taken(home, entry, seen, [*notes, *_gone(disk, home, entry, candidates)])
    if ask.act:
        noted(condemned(disk, home, began, [each.name for each in seen if each.state is State.DAMAGED]))
    return _nothing(home, ask, seen, notes)


def look(
    disk: Disk, home: Home, entry: Entry, ask: Ask, *, sign: Sign = Sign.NONE, again: Callable[[], bool] = never, each: Each = nothing
) -> Seen:
    """What one candidate is, all of it read. `sign`: what says that it is whole if its kind cannot."""
    if entry.name in ask.left:
        return Seen(name=entry.name, state=State.LEFT, why="left behind by a restart from an earlier step")
    if entry.name in ask.avoid:
        return Seen(name=entry.name, state=State.SUSPECT, why="passed over: attempts that resumed from it died before their first step")
    try:
        try:
            manifest = manifest_of(disk, home, entry.name)
        except Newer:
            manifest = None
        except Damaged as error:
            return _damaged(entry, [Damage(file=home.manifest(entry.name).name, what=error.message)])
        if manifest is not None:
            return _look_sealed(disk, home, entry, manifest, ask, sign=sign, again=again, each=each)
        if entry.name in ask.sealed:
            return _damaged(entry, [Damage(file=home.manifest(entry.name).name, what="it was sealed, and its manifest is gone")])
        return _look_unsealed(disk, home, entry, ask, sign=sign, each=each)
    except OSError as error:
        if error.errno not in MEDIA:
            raise
        return Seen(name=entry.name, state=State.UNREADABLE, why=told(error, worked_before=True))


def _look_sealed(
    disk: Disk, home: Home, entry: Entry, manifest: Manifest, ask: Ask, *, sign: Sign, again: Callable[[], bool], each: Each
) -> Seen:
    path = home.checkpoint(entry.name)
    found = verify(disk, path, manifest, each=each, stay_cached=ask.stay_cached)
    while any(damage.absent for damage in found.damages) and again():
        found = verify(disk, path, manifest, each=each, stay_cached=ask.stay_cached)
    if not found.damages:
        extra = f", beside {len(found.extra)} files that came after the seal ({found.extra[0]})" if found.extra else ""
        return Seen(name=entry.name, state=State.VERIFIED, why=f"verified against its manifest{extra}", seal=seal_of(manifest))
    damages = found.damages
    if len(found.rewritten) == len(manifest.files) and not any(damage.what == MISSING for damage in damages):
        anew = _look_anew(disk, home, entry, ask, sign=sign, each=each)
        if anew is not None and (anew.good or entry.rolling):
            return anew
        damages += anew.damages if anew else ()
    if all(damage.unreadable for damage in damages):
        return Seen(name=entry.name, state=State.UNREADABLE, why=str(damages[0]), damages=damages)
    lost = {damage.file for damage in damages if damage.what == MISSING}
    return _damaged(entry, damages, changed=not lost.issuperset(found.rewritten))


def _look_anew(disk: Disk, home: Home, entry: Entry, ask: Ask, *, sign: Sign, each: Each) -> Seen | None:
    """A new save in the place of the sealed one? Its kind has to vouch for every byte, unless its name is one that is written again with
    each save. None: it cannot be told from damage.
    """
    path = home.checkpoint(entry.name)
    report = table.recognise(disk, path).check(disk, path)
    if report.blind and not entry.rolling:
        return None
    seen = _look_unsealed(disk, home, entry, ask, sign=sign, each=each, anew=report)
    return msgspec.structs.replace(seen, why=f"written again after its seal; {seen.why}")


def _look_unsealed(disk: Disk, home: Home, entry: Entry, ask: Ask, *, sign: Sign, each: Each, anew: Report | None = None) -> Seen:
    """`anew`: the deep check of what took a sealed one's place."""
    path = home.checkpoint(entry.name)
    said = table.complete(disk, path, marker=ask.complete)
    if said.whole is Whole.NO or (said.whole is Whole.UNKNOWN and sign is Sign.NONE):
        return Seen(name=entry.name, state=State.INCOMPLETE, why=said.why)
    report = anew or table.recognise(disk, path).check(disk, path)
    if report.problems:
        return _damaged(
            entry, [Damage(file=found.file, offset=found.offset, what=found.what, tensor=found.tensor) for found in report.problems]
        )
    why = said.why if said.whole is Whole.YES else sign.value
    blind = f" ({report.blind})" if report.blind else ""
    sealed = _seal(disk, home, entry, ask, sign=sign, each=each, anew=anew is not None) if ask.act else ", not sealed"
    return Seen(name=entry.name, state=State.SOUND, why=f"{why}{blind}{sealed}")


def _seal(disk: Disk, home: Home, entry: Entry, ask: Ask, *, sign: Sign, each: Each, anew: bool) -> str:
    """Seal what is about to be taken; a disk that does not take the manifest keeps nobody from resuming."""
    try:
        sealing = seal(disk, home, entry, label=ask.label, marker=ask.complete, sign=sign, each=each, stay_cached=True, anew=anew)
    except OSError as error:
        return f", not sealed: {told(error, worked_before=False)}"
    return ", sealed now" if sealing.outcome is Outcome.SEALED else f", not sealed: {sealing.why}"


def _damaged(entry: Entry, damages: Collection[Damage], *, changed: bool = False) -> Seen:
    first, *more = damages
    late = "; somebody wrote to it after the seal" if changed else ""
    why = f"damaged: {first}" + (f" (and {len(more)} more)" if more else "") + late
    return Seen(name=entry.name, state=State.DAMAGED, why=why, damages=tuple(damages))


def _set_aside(disk: Disk, home: Home, seen: list[Seen]) -> list[Seen]:
    """Quarantine what is damaged; a disk that does not let us is said."""
    moved = []
    for each in seen:
        if each.state is State.DAMAGED:
            try:
                there = quarantine(disk, home, each.name, why="\n".join(map(str, each.damages)))
                moved.append(msgspec.structs.replace(each, moved_to=str(there)))
            except OSError as error:
                moved.append(msgspec.structs.replace(each, why=f"{each.why}; it stays where it is: {told(error, worked_before=False)}"))
        else:
            moved.append(each)
    return moved


def _remember(disk: Disk, home: Home, taken: Seen, wall: str) -> None:
    with contextlib.suppress(OSError):  # for people who look: it keeps nobody from resuming
        if taken.seal:
            remember(disk, home, {taken.name: ReadBack(wall=wall, seal=taken.seal)})


def _tidy(disk: Disk, home: Home) -> list[str]:
    try:
        sweep(disk, home)
    except OSError as error:
        return [f"old trash stays: {told(error, worked_before=False)}"]
    return []


def _listed(disk: Disk, home: Home, ask: Ask, *, again: Callable[[], bool]) -> list[Entry]:
    """What is there. A slow NFS may show the name of a new one late: whoever knows that it was sealed waits for it."""
    while True:
        found = entries(disk, home, pattern=ask.pattern)
        newest = max((entry.step for entry in found if entry.step is not None), default=-1)
        unseen = [name for name in ask.sealed if (step_in(name, pattern=ask.pattern) or -1) > newest]
        if not unseen or not again():
            return found


def _gone(disk: Disk, home: Home, taken: Entry, candidates: list[Entry]) -> list[str]:
    """Newer ones that were sealed and are not there any more."""
    there = {entry.name for entry in candidates}
    lost = [name for name in sorted(sealed_names(disk, home) - there) if _newer(disk, home, name, taken)]
    return [f"{', '.join(lost[:_TELL])}: sealed, and not there any more"] if lost else []


def _newer(disk: Disk, home: Home, name: str, taken: Entry) -> bool:
    try:
        manifest = manifest_of(disk, home, name)
    except (Damaged, Newer):
        return True
    return manifest is not None and taken.step is not None and (manifest.step or 0) > taken.step


def _taken(home: Home, entry: Entry, seen: list[Seen], notes: list[str]) -> Picked:
    step = f"step {entry.step}" if entry.step is not None else "the newest by its time"
    why = f"{entry.name}: {step}, {seen[-1].why}{_told(seen[:-1], notes)}"
    return Picked(path=str(home.checkpoint(entry.name)), name=entry.name, step=entry.step, why=why, seen=tuple(seen))


def _nothing(home: Home, ask: Ask, seen: list[Seen], notes: list[str]) -> Picked:
    """Nothing to resume from: because there never was (the beginning), or because it is broken (stop)."""
    unreadable = next((each for each in seen if each.state is State.UNREADABLE), None)
    if unreadable:
        raise OSError(f"no checkpoint in {home.folder} can be read{_told(seen, notes)}")
    broken = sum(each.state is State.DAMAGED for each in seen)
    if broken:
        raise Damaged(
            f"{broken} of the {len(seen)} checkpoints in {home.folder} were whole once and are damaged, and no other is whole"
            f"{_told(seen, notes)}",
            hint="nothing was moved or deleted; move them away to start from the beginning",
        )
    if ask.sealed and not seen:
        raise Damaged(
            f"{home.folder}: this run has sealed {len(ask.sealed)} checkpoints there, {[*ask.sealed][-1]} the last, and none is to be seen",
            hint="bring them back; a new run (ftsup submit) starts from the beginning",
        )
    where = f"{home.folder} has no checkpoint that matches {ask.pattern}" if not seen else f"no checkpoint in {home.folder} can be used"
    return Picked(path=None, why=f"{where}: from the beginning{_told(seen, notes)}", seen=tuple(seen))


def _told(passed: list[Seen], notes: list[str]) -> str:
    texts = [f"{each.name}: {each.why}" + (f", moved to {each.moved_to}" if each.moved_to else "") for each in passed]
    more = f"; and {len(texts) - _TELL} more" if len(texts) > _TELL else ""
    over = f"; passed over: {'; '.join(texts[:_TELL])}{more}" if texts else ""
    return over + "".join(f"; {note}" for note in notes)
