"""Who wrote what: the attempt that trains, or one that is dead. It matters for checkpoints whose kind cannot say whether they are whole.

A training that saves one after the other has finished a checkpoint once it begins the next; but what a later attempt writes proves
nothing about what a dead one left. So every pick notes what lies there then and what speaks for it (`.ftsup/attempt.json`): what is new
or changed since was written by the attempt that followed. Knows no clock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence

import msgspec
import xxhash

from ftsup.checkpoint.disk import files_below, make_folders, publish, read_small
from ftsup.checkpoint.entries import Entry, entries
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.seal import Sign, sealed_names
from ftsup.events import Epoch
from ftsup.ports import Disk

_NONE, _FIRST, _SECOND = Epoch(0, 0), Epoch(1, 1), Epoch(1, 2)


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """One that was there without a seal: its files then, and what said that it was whole."""

    files: str
    sign: Sign


class Began(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt found when it began."""

    epoch: Epoch = _NONE
    left: dict[str, Left] = {}
    sealed: tuple[str, ...] = ()
    damaged: dict[str, str] = {}
    """Those that were read and are damaged, without a seal, where no good one was found: by name their files then. Nobody seals them."""
    sure: bool = True
    """Not sure: what is new since may be of several attempts."""


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """One that may want a seal. `files`: as they are now."""

    entry: Entry
    sign: Sign
    files: str


def signs(there: Sequence[Entry], files: Mapping[str, str], began: Began, *, ended: bool) -> dict[str, Sign]:
    """What says of each, newest first, that it is whole if its kind cannot. `files`: of those without a seal; `ended`: the attempt ended by
    itself with success. A name that holds no step may be written again at any time: only the end of its attempt speaks for it.
    """
    found, later = {}, False
    for entry in there:
        left = began.left.get(entry.name)
        if left is not None and left.files == files.get(entry.name):
            found[entry.name] = left.sign
            continue
        sign = Sign.ENDED if ended else Sign.NEWER if later and not entry.rolling else Sign.NONE
        found[entry.name] = sign if began.sure else Sign.NONE
        later = later or entry.name in files or not (left or entry.name in began.sealed)
    return found


def files_now(disk: Disk, home: Home, there: Sequence[Entry]) -> dict[str, str]:
    """Of each that has no seal, its files as they are now: equal twice, and nobody wrote in between."""
    sealed = sealed_names(disk, home)
    return {entry.name: files_of_one(disk, home, entry.name) for entry in there if entry.name not in sealed}


def ending(disk: Disk, home: Home, there: Sequence[Entry], *, epoch: Epoch | None, ended: bool, act: bool) -> tuple[dict[str, Sign], Began]:
    """An attempt is dead and another one is about to begin: what speaks for each, and what there is, noted if we may `act`.

    `epoch`: of the one that begins; None: a person asks. A disk that takes no note keeps nobody from resuming: the note that stays is an
    old one then, and is known for it.
    """
    files = files_now(disk, home, there)
    found = signs(there, files, _before(_read(disk, home), epoch), ended=ended)
    began = _began(epoch or _NONE, there, files, found)
    if act and there:
        with contextlib.suppress(OSError):
            _write(disk, home, began)
    return found, began


def pending(
    disk: Disk,
    home: Home,
    *,
    pattern: str,
    epoch: Epoch | None = None,
    began: Began | None = None,
    ended: bool = False,
    look_again: int = 3,
) -> list[Pending]:
    """What may want a seal, newest first: what has none, and of those that have one the newest few, which may have been written again.

    `epoch`: of the attempt that trains; None: a person asks. `began`: what it found, as far as the caller remembers.
    """
    there = entries(disk, home, pattern=pattern)
    noted = _read(disk, home)
    files = files_now(disk, home, there)
    since = next((one for one in (noted, began) if one is not None and epoch in {None, one.epoch}), None)
    if since is None:
        since = msgspec.structs.replace(noted or Began(epoch=epoch or _NONE), sure=noted is None and epoch in {None, _FIRST})
    found = signs(there, files, since, ended=ended)
    if there and epoch is not None and since is not noted:
        with contextlib.suppress(OSError):  # where nobody is sure: what is there by now stays doubtful, what comes from here on does not
            _write(disk, home, since if since.sure else _began(epoch, there, files, found))
    sealed = [entry.name for entry in there if entry.name not in files][:look_again]
    damaged = {name: then for one in (began, noted) if one is not None for name, then in one.damaged.items()}
    files = {name: now for name, now in files.items() if damaged.get(name) != now}
    return [
        Pending(entry=entry, sign=found[entry.name], files=files.get(entry.name) or files_of_one(disk, home, entry.name))
        for entry in there
        if entry.name in files or entry.name in sealed
    ]


def condemned(disk: Disk, home: Home, began: Began, names: Collection[str]) -> Began:
    """Note that these are damaged, and stay where they are."""
    damaged = {name: began.left[name].files for name in names if name in began.left}
    began = msgspec.structs.replace(began, damaged=damaged)
    if damaged:
        with contextlib.suppress(OSError):
            _write(disk, home, began)
    return began


def _before(noted: Began | None, epoch: Epoch | None) -> Began:
    """What the attempt found that was the last before this one. It is not sure where the note is not of that one, and where there is none
    although one should be: it was taken only by a directory with something in it.
    """
    if noted is None:
        return Began(sure=epoch in {None, _FIRST, _SECOND})
    last = epoch is None or epoch.attempt <= 1 or noted.epoch in {epoch, Epoch(epoch.grant, epoch.attempt - 1)}
    return noted if last else msgspec.structs.replace(noted, sure=False)


def _read(disk: Disk, home: Home) -> Began | None:
    """The note; of one that cannot be read nothing is sure."""
    try:
        data = read_small(disk, home.attempt)
        return None if data is None else msgspec.json.decode(data, type=Began)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return Began(sure=False)


def _began(epoch: Epoch, there: Sequence[Entry], files: Mapping[str, str], found: Mapping[str, Sign]) -> Began:
    left = {name: Left(files=now, sign=found[name]) for name, now in files.items()}
    return Began(epoch=epoch, left=left, sealed=tuple(entry.name for entry in there if entry.name not in files))


def _write(disk: Disk, home: Home, began: Began) -> None:
    make_folders(disk, home.own, below=home.folder)
    publish(disk, home.attempt, msgspec.json.encode(began))


def files_of_one(disk: Disk, home: Home, name: str) -> str:
    """Its files as they are now: equal twice, and nobody wrote in between."""
    files = files_below(disk, home.checkpoint(name))
    return xxhash.xxh3_128_hexdigest(
        msgspec.json.encode({name: (facts.size_bytes, facts.mtime_ns, facts.inode) for name, facts in sorted(files.items())})
    )
