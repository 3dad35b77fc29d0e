"""Checkpoints that a restart from an earlier step has left behind: which those are, and whether one was written anew since.

They stay where they are. Only the files tell whether one is still the old one: a seal may come late, and a new save may have the old size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import xxhash

from ftsup.checkpoint.attempts import files_of_one
from ftsup.checkpoint.disk import read_small
from ftsup.checkpoint.entries import Entry
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.moves import forget
from ftsup.events import Left
from ftsup.ports import Disk


def left_after(disk: Disk, home: Home, there: Sequence[Entry], *, step: int) -> tuple[Left, ...]:
    """All but those of this step at most, the oldest first. One whose step nobody knows is left as well."""
    beyond = [entry.name for entry in reversed(there) if entry.step is None or entry.step > step]
    return tuple(Left(name=name, stamp=files_of_one(disk, home, name), seal=_seal(disk, home, name)) for name in beyond)


def still_left(disk: Disk, home: Home, left: Sequence[Left]) -> frozenset[str]:
    """Those of which no file has changed. The others have come into their places: seals of the old ones would call them damaged."""
    still = frozenset(one.name for one in left if files_of_one(disk, home, one.name) == one.stamp)
    for one in left:
        if one.name not in still and one.seal and _seal(disk, home, one.name) == one.seal:
            with contextlib.suppress(OSError):  # a disk that takes no change keeps nobody from resuming
                forget(disk, home, one.name)
    return still


def _seal(disk: Disk, home: Home, name: str) -> str:
    """Of its manifest, whatever that holds; empty: it has none."""
    data = read_small(disk, home.manifest(name))
    return "" if data is None else xxhash.xxh3_128_hexdigest(data)
