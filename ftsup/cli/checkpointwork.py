"""The steps that several `ftsup checkpoints` commands share: read one back and note it, seal one, find the newest that verify. Wiring."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ftsup.checkpoint import byhand, readback
from ftsup.checkpoint.byhand import Finding, Readings, Vouched
from ftsup.checkpoint.disk import MEDIA
from ftsup.checkpoint.entries import Entry
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.readback import ReadBack
from ftsup.checkpoint.seal import Label, Outcome, Sealing, Sign
from ftsup.checkpoint.seal import seal as seal_one
from ftsup.checkpoint.survey import Standing, Survey
from ftsup.checkpoint.trouble import told
from ftsup.cli import checkpointwords as words
from ftsup.cli.checkpointdir import Where, owned, stranger
from ftsup.cli.meter import Meter
from ftsup.cli.ports import Ports
from ftsup.ports import Disk

_ITS_OWN = MEDIA | {errno.EACCES, errno.ENOENT}
"""Errors that say nothing about the checkpoint after this one."""


def examined(disk: Disk, found: Where, entry: Entry, meter: Meter, *, backs: dict[str, ReadBack | None], ports: Ports) -> Finding:
    """Read one, and note when, and whether it matched its manifest."""
    meter.begin("verifying", entry.name, words.size_of(disk, found.home.checkpoint(entry.name)))
    result = byhand.examine(disk, found.home, entry, complete=found.complete)
    if result.standing in {Standing.VERIFIED, Standing.DAMAGED}:
        damage = str(result.damages[0]) if result.damages else ""
        backs[entry.name] = ReadBack(wall=wall(ports), seal=result.seal, damage=damage) if result.seal else None
    elif result.broken:
        backs[entry.name] = None
    return result


@contextmanager
def remembering(disk: Disk, home: Home) -> Iterator[dict[str, ReadBack | None]]:
    """Collects what was read back, and writes it down at the end, also of an interrupted one; where we may not, nobody minds."""
    backs: dict[str, ReadBack | None] = {}
    try:
        yield backs
    finally:
        if not stranger(home.folder, uid=os.geteuid()):
            with suppress(OSError):
                readback.remember(disk, home, backs)


def sealed(disk: Disk, found: Where, entry: Entry, meter: Meter, *, sign: Sign, vouched: Vouched, dry_run: bool, ports: Ports) -> Sealing:
    """Seal one, if nothing speaks against it. What cannot be read keeps nobody from the next one.

    `sign`: what says that it is whole if its kind cannot.
    """
    try:
        return _sealed(disk, found, entry, meter, sign=sign, vouched=vouched, dry_run=dry_run, ports=ports)
    except OSError as error:
        if error.errno not in _ITS_OWN:
            raise
        return Sealing(name=entry.name, outcome=Outcome.DAMAGED, why=told(error, worked_before=False))


def _sealed(disk: Disk, found: Where, entry: Entry, meter: Meter, *, sign: Sign, vouched: Vouched, dry_run: bool, ports: Ports) -> Sealing:
    size = words.size_of(disk, found.home.checkpoint(entry.name))
    meter.begin("checking", entry.name, size)
    refused = byhand.refusal(disk, found.home, entry, vouched=vouched, complete=found.complete)
    if refused:
        return refused
    meter.begin("sealing", entry.name, size)
    if dry_run:
        return byhand.would_seal(disk, found.home, entry, sign=sign, complete=found.complete)
    return seal_one(disk, found.home, entry, label=label(ports), marker=found.complete, sign=sign, anew=vouched is Vouched.YES)


def newest_verified(disk: Disk, found: Where, held: Survey, *, number: int, meter: Meter, ports: Ports) -> Readings:
    """Read back so many, from the newest."""
    verified: set[str] = set()
    damaged: set[str] = set()
    with remembering(disk, found.home) as backs:
        for row in held.checkpoints:
            if len(verified) == number:
                break
            if row.standing in {Standing.SEALED, Standing.VERIFIED}:
                result = examined(disk, found, Entry(name=row.name, step=row.step), meter, backs=backs, ports=ports)
                if result.standing is Standing.VERIFIED:
                    verified.add(row.name)
                else:
                    damaged.add(row.name)
                    meter.say(words.finding(result), err=True)
    return Readings(verified=frozenset(verified), damaged=frozenset(damaged))


def only_look(disk: Disk, found: Where, ports: Ports) -> str:
    """Why nothing may be changed; empty: it may."""
    other = stranger(found.home.folder, uid=os.geteuid())
    return f"{found.shown} belongs to {other}" if other else owned(disk, found, ports=ports)


def label(ports: Ports) -> Label:
    """For what is sealed by hand: nobody knows who wrote it."""
    return Label(wall=wall(ports))


def wall(ports: Ports) -> str:
    """Now, for people."""
    return ports.now().isoformat(timespec="seconds")
