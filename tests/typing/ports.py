"""What stands behind a port has the port's shape. None of them inherits it, so only this file and its users say so."""

from __future__ import annotations

import os

from ftsup.ports import Clock, Slurm
from ftsup.slurm.commands import Commands
from ftsup.slurm.fake import FakeSlurm
from ftsup.supervisor.clock import BootClock

behind_slurm: tuple[Slurm, ...] = (Commands(environ=os.environ), FakeSlurm())
behind_clock: tuple[Clock, ...] = (BootClock(),)
