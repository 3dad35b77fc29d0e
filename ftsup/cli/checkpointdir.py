"""Which directory of checkpoints a person means, which of its checkpoints, and whether this person may change it now. Wiring."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection
from pathlib import Path

import click
import msgspec

from ftsup.checkpoint.entries import Entry, entries
from ftsup.checkpoint.formats import dcp
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.owner import Owner, objection, read_owner
from ftsup.cli.owners import life_of
from ftsup.cli.ports import Ports
from ftsup.config import load
from ftsup.errors import Busy, CheckpointError, ConfigError, Missing, RunError
from ftsup.nearest import did_you_mean
from ftsup.ports import Disk, What
from ftsup.report import runs
from ftsup.report.words import one_line
from ftsup.rundir import RunDir

_NEAR = 3


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """The words and options that every command takes."""

    words: tuple[str, ...]
    config: Path | None
    pattern: str | None
    complete: str | None


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """A directory of checkpoints, and how they are known."""

    shown: str
    """As the person wrote it."""
    home: Home
    names: tuple[str, ...] = ()
    pattern: str = "*"
    complete: str = ""
    keep: int = 3


def where(given: Given, *, ports: Ports, disk: Disk) -> Where:
    """The directory that is meant; it is there and can hold checkpoints."""
    if given.config is not None:
        found = _of_config(given, given.config, ports=ports)
    elif given.words:
        found = Where(shown=given.words[0], home=Home(ports.cwd / given.words[0]), names=given.words[1:])
    else:
        raise click.UsageError("which directory? Give DIR, or --config FILE with checkpoint.dir")
    pattern = found.pattern if given.pattern is None else given.pattern
    complete = found.complete if given.complete is None else given.complete
    _check(disk, found)
    return msgspec.structs.replace(found, pattern=pattern, complete=complete)


def _of_config(given: Given, file: Path, *, ports: Ports) -> Where:
    config = load(file).config
    if not config.checkpoint.dir:
        raise ConfigError(f"{file}: checkpoint.dir is not set", hint="set it, or give the directory instead of --config")
    folder = ports.cwd / config.workdir / config.checkpoint.dir
    return Where(
        shown=str(folder),
        home=Home(folder),
        names=given.words,
        pattern=config.checkpoint.pattern,
        complete=config.checkpoint.complete,
        keep=config.checkpoint.keep,
    )


def _check(disk: Disk, found: Where) -> None:
    folder = found.home.folder
    facts = disk.look(folder)
    if facts is None:
        raise Missing(f"there is no directory {found.shown}")
    if facts.what is not What.FOLDER:
        parent, name = os.path.split(found.shown.rstrip("/"))
        hint = f"the directory comes first, then the name: ftsup checkpoints verify {parent or '.'} {name}"
        raise CheckpointError(f"{found.shown} is no directory", hint=hint)
    if dcp.FORMAT.recognise(disk, folder):
        parent, name = os.path.split(str(folder).rstrip("/"))
        hint = f"the directory comes first, then the name: ftsup checkpoints verify {parent} {name}"
        raise CheckpointError(f"{found.shown} is a checkpoint itself (torch.distributed.checkpoint), and no directory of them", hint=hint)


def chosen(disk: Disk, found: Where, *, ports: Ports) -> list[Entry]:
    """The checkpoints that were named, or all, the newest first."""
    there = entries(disk, found.home, pattern=found.pattern)
    if not found.names:
        return there
    by_name = {entry.name: entry for entry in there}
    wanted = dict.fromkeys(_meant(word, found, by_name, ports=ports) for word in found.names)
    return [by_name[name] if name in by_name else _unknown(disk, found, name, by_name) for name in wanted]


def _meant(word: str, found: Where, known: Collection[str], *, ports: Ports) -> str:
    """A name, or a path that a shell completed."""
    name = word.rstrip("/")
    if name in known:
        return name
    path = Path(os.path.normpath(ports.cwd / name))
    folder = Path(os.path.normpath(found.home.folder))
    return str(path.relative_to(folder)) if path != folder and path.is_relative_to(folder) else name


def _unknown(disk: Disk, found: Where, name: str, known: Collection[str]) -> Entry:
    said = one_line(name, width=200)
    if disk.look(found.home.folder / name) is not None:
        why = f"{said} is in {found.shown}, but does not match the pattern {found.pattern}, or its name is a temporary one"
        raise Missing(why, hint="--pattern GLOB says which entries are checkpoints")
    hint = did_you_mean(name, known, most=_NEAR) or f"ftsup checkpoints list {found.shown} shows the names"
    raise Missing(f"{found.shown} has no checkpoint {said}", hint=hint)


def stranger(folder: Path, *, uid: int) -> str:
    """Whose directory it is, if what we wrote into it would be in its owner's way; empty: it is ours, or shared with us."""
    own = Home(folder).own
    there = own if own.exists() else folder
    owner = there.stat().st_uid
    if owner == uid or (uid != 0 and os.access(there, os.W_OK)):
        return ""
    try:
        return pwd.getpwuid(owner).pw_name
    except KeyError:
        return f"the user with id {owner}"


def may_change(found: Where, *, uid: int) -> None:
    """CheckpointError when the directory is somebody else's."""
    other = stranger(found.home.folder, uid=uid)
    if other:
        raise CheckpointError(
            f"{found.shown} belongs to {other}: what ftsup wrote there as another user would be in the way of {other}'s runs",
            hint=f"list, verify and pick only look; for the rest be {other}",
        )


def owned(disk: Disk, found: Where, *, ports: Ports) -> str:
    """The run whose directory it is while that lives, or may live: in words; empty: nobody's. Busy when the owner file cannot be read."""
    owner = read_owner(disk, found.home)
    return objection(owner, Owner(run=""), life=life_of(owner, ports=ports)) if owner else ""


def free(disk: Disk, found: Where, *, ports: Ports, force: bool) -> None:
    """Busy unless the directory is nobody's, or force is used."""
    if force:
        return
    refused = owned(disk, found, ports=ports)
    if refused:
        raise Busy(f"{found.shown}: {refused}", hint="a run seals and keeps its checkpoints itself; --force goes on although it may live")


def resumed_from(owner: Owner | None, found: Where) -> frozenset[str]:
    """The checkpoints that the owner's attempts rest on."""
    if owner is None:
        return frozenset()
    try:
        path = runs.read(RunDir(Path(owner.folder))).story.resumed_path
    except (RunError, OSError):
        return frozenset()
    below = path is not None and Path(path).is_relative_to(found.home.folder)
    return frozenset([str(Path(path).relative_to(found.home.folder))]) if path and below else frozenset()
