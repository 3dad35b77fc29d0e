"""Which pattern the checkpoints of a directory follow, from those that lie there already. Looks at names and a few first bytes."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from ftsup.checkpoint.entries import is_temporary
from ftsup.checkpoint.formats import table
from ftsup.checkpoint.formats.kind import Kind
from ftsup.errors import Missing
from ftsup.ports import Disk, What

MARKERS = ("trainer_state.json",)
"""Files that a library writes last into a checkpoint."""


class Pattern(msgspec.Struct, frozen=True, kw_only=True):
    """How checkpoints are called, and what they are."""

    glob: str
    kind: Kind
    number: int
    complete: str = ""

    @property
    def sure(self) -> tuple[bool, bool, int]:
        """Known kinds before others, numbered names before single ones, many before few."""
        return self.kind not in {Kind.FILE, Kind.DIRECTORY} or bool(self.complete), "*" in self.glob, self.number


def look(disk: Disk, folder: Path) -> Pattern | None:
    """The likeliest; None: there is nothing, or nothing that looks like checkpoints."""
    try:
        names = disk.names(folder)
    except OSError:
        return None
    groups: dict[str, list[str]] = {}
    for name, what in names.items():
        if what is not What.OTHER and not is_temporary(name):
            groups.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    found = [each for glob, members in groups.items() if (each := _pattern(disk, folder, glob, members))]
    best = max(found, key=lambda each: each.sure, default=None)
    return best if best and (best.sure[0] or best.sure[1]) else None


def _pattern(disk: Disk, folder: Path, glob: str, members: list[str]) -> Pattern | None:
    try:
        kind = table.recognise(disk, folder / members[-1]).kind
        complete = next((name for name in MARKERS if disk.look(folder / members[-1] / name)), "")
    except (OSError, Missing):
        return None
    return Pattern(glob=glob, kind=kind, number=len(members), complete=complete)
