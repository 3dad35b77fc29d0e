"""`ftsup lead` and `ftsup node`: not for people; the batch script and srun start them. All that the environment says is read here."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from ftsup.config import Config, from_json
from ftsup.errors import RunError
from ftsup.rundir import LocalDir, RunDir
from ftsup.slurm.hostlist import expand
from ftsup.supervisor import rankenv, starter
from ftsup.supervisor.clock import BootClock
from ftsup.supervisor.lead import Grant, Lead
from ftsup.supervisor.lock import NodeLock
from ftsup.supervisor.node import NodeSupervisor, Place

_PR_SET_PDEATHSIG = 1


def _config(run: RunDir) -> Config:
    try:
        return from_json(run.config_json.read_bytes())
    except OSError as error:
        raise RunError(f"{run.root} is not a run directory of ftsup: {run.config_json.name}: {error.strerror}") from error
    except ValueError as error:
        raise RunError(f"{run.config_json} cannot be read: {error}", hint="was it written by another version of ftsup?") from error


def _job(environ: dict[str, str]) -> str:
    """As scontrol takes it: an array task by its own name, since its bare id may mean the whole array."""
    array = environ.get("SLURM_ARRAY_JOB_ID")
    job = f"{array}_{environ['SLURM_ARRAY_TASK_ID']}" if array else environ.get("SLURM_JOB_ID", "")
    if not job:
        raise RunError("this runs inside a Slurm job only: SLURM_JOB_ID is not set", hint="ftsup submit CONFIG starts a run")
    return job


def read_env(run: RunDir) -> dict[str, str]:
    """The `env` of the configuration, which lies apart."""
    try:
        return msgspec.json.decode(run.env_json.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError) as error:
        raise RunError(f"{run.env_json} cannot be read: {error}") from error


def die_with_bash() -> None:
    """TERM when the batch script dies: Slurm ends the job then, but where it knows processes by their parents we would live on."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


@click.command(hidden=True)
@click.argument("run", type=click.Path(path_type=Path))
def lead(run: Path) -> int:
    """Lead a run: started by its batch script."""
    die_with_bash()
    environ = dict(os.environ)
    place = RunDir(run.resolve())
    grant = Grant(
        job=_job(environ),
        restarts=int(environ.get("SLURM_RESTART_COUNT", "0")),
        host=environ.get("SLURMD_NODENAME") or socket.gethostname(),
        nodes=expand(environ.get("SLURM_JOB_NODELIST", "")),
        environ=environ,
    )
    config = _config(place)
    local = LocalDir(config.local_base(environ), place.id, grant.job, "leader").claim()
    return Lead(place, config, grant, BootClock(), local).run()


@click.command(hidden=True)
def node() -> int:
    """Supervise one node: started by srun, with what the leader put into its environment."""
    environ = dict(os.environ)
    missing = [name for name in (starter.RUN, starter.NODES, starter.ADDRESSES) if not environ.get(name)]
    if missing:
        raise RunError(f"this is started by the leader only: {', '.join(missing)} not set", hint="ftsup submit CONFIG starts a run")
    run = RunDir(Path(environ[starter.RUN]))
    config = _config(run)
    name = environ.get("SLURMD_NODENAME") or socket.gethostname()
    clock = BootClock()
    local = LocalDir(config.local_base(environ), run.id, _job(environ), name).claim()
    place = Place(
        node=name,
        nodes=tuple(environ[starter.NODES].split(",")),
        job=local.job,
        addresses=tuple(environ[starter.ADDRESSES].split(",")),
        environ=rankenv.of_user(environ, cache=local.cache),
        env=read_env(run),
    )
    lock = NodeLock(local.lock)
    return NodeSupervisor(run, config, replace(place, held=lock.take(clock)), clock, lock, local).run()
