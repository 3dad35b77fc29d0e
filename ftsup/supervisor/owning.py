"""One run owns a directory of checkpoints: whether it is ours to use, and whether another owner still lives, which Slurm says.

Blocks, as disks and Slurm do: for the keeper's process, and for commands.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.entries import entries
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.owner import Life, Owner, alive, claim, read_owner
from ftsup.errors import Busy
from ftsup.slurm.commands import Commands
from ftsup.supervisor.keepwords import Me


def names(disk: RealDisk, home: Home, pattern: str) -> tuple[str, ...]:
    """The checkpoints that are there."""
    return tuple(entry.name for entry in entries(disk, home, pattern=pattern))


def own(disk: RealDisk, home: Home, me: Me, *, found: Sequence[str]) -> tuple[str, Owner | None]:
    """See to it that the directory is ours: why it is not, and who owns it now. An empty or missing one is nobody's: some scripts take
    anything in it for a sign that they have run before.
    """
    present = read_owner(disk, home) if disk.look(home.folder) else None
    if present is not None and (present.run, present.job) == (me.run, me.job):
        return "", present
    if present is None and not names(disk, home, "*"):
        return "", None
    lives: list[Life] = []

    def life(owner: Owner) -> Life:
        lives.append(alive(owner, Commands(environ=dict(os.environ))))
        return lives[-1]

    us = Owner(run=me.run, job=me.job, host=me.host, folder=me.folder, wall=me.wall, found=tuple(found))
    try:
        claimed = claim(disk, home, us, life=life, force=me.force)
    except Busy as error:
        if lives != [Life.ALIVE]:
            raise
        return f"{error.message}; give this run a checkpoint.dir of its own, or set checkpoint.force (ftsup submit --force)", None
    return "", claimed.owner
