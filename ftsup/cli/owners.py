"""Whether a directory of checkpoints is another run's that lives: asked before a job waits in the queue for hours to hear it. Wiring."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.owner import Life, Owner, alive, objection, read_owner
from ftsup.cli import cluster
from ftsup.cli.ports import Ports
from ftsup.config import Config
from ftsup.errors import Busy, RunError, SlurmError
from ftsup.report import runs
from ftsup.rundir import RunDir


def life_of(owner: Owner, *, ports: Ports) -> Life:
    """Whether the run that owns the directory is over: by Slurm's word; where Slurm is silent, by the run's own."""
    run = RunDir(Path(owner.folder))
    try:
        life = alive(owner, cluster.acting(run, ports=ports))
    except SlurmError:
        life = Life.UNKNOWN
    if life is Life.UNKNOWN:
        with suppress(RunError, OSError):
            return Life.OVER if runs.read(run).story.stage.over else life
    return life


def refuse_taken(config: Config, *, ports: Ports) -> None:
    """Busy when a run that is alive owns `checkpoint.dir`. What cannot be known here, the run itself finds out when it begins."""
    if not config.checkpoint.dir or config.checkpoint.force:
        return
    home = Home(ports.cwd / config.workdir / config.checkpoint.dir)
    try:
        owner = read_owner(RealDisk(), home)
    except (Busy, OSError):
        return
    if owner is None or life_of(owner, ports=ports) is not Life.ALIVE:
        return
    refused = objection(owner, Owner(run=""), life=Life.ALIVE)
    raise Busy(f"{home.folder}: {refused}", hint="give this run a checkpoint.dir of its own; --force takes the directory all the same")
