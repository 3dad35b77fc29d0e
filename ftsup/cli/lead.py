"""`ftsup lead` and `ftsup node`: not for people; the batch script and srun start them. All that the environment says is read here."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from ftsup.config import Config, from_json
from ftsup.errors import RunError
from ftsup.events import VerdictKind
from ftsup.rundir import LocalDir, RunDir, see_that_it_is_ours
from ftsup.slurm.hostlist import expand
from ftsup.supervisor import rankenv, starter
from ftsup.supervisor.clock import BootClock
from ftsup.supervisor.files import write_whole
from ftsup.supervisor.lead import Lead
from ftsup.supervisor.lock import NodeLock
from ftsup.supervisor.node import NodeSupervisor, Place
from ftsup.supervisor.papers import Grant

_PR_SET_PDEATHSIG = 1
SHAPES = (
    *("SLURM_CPUS_PER_", "SLURM_TRES_PER_TASK", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_GPUS_PER_TASK", "SLURM_DISTRIBUTION", "SLURM_HINT"),
    *("SLURM_CPU_BIND", "SLURM_GPU_BIND", "SLURM_MEM_BIND", "SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_THREADS_PER_CORE"),
)


def _config(run: RunDir) -> Config:
    try:
        return from_json(run.config_json.read_bytes())
    except OSError as error:
        raise RunError(f"{run.root} is not a run directory of ftsup: {run.config_json.name}: {error.strerror}") from error
    except ValueError as error:
        raise RunError(f"{run.config_json} cannot be read: {error}", hint="was it written by another version of ftsup?") from error


def _job(environ: Mapping[str, str]) -> str:
    """As scontrol takes it: an array task by its own name, since its bare id may mean the whole array."""
    array = environ.get("SLURM_ARRAY_JOB_ID")
    job = f"{array}_{environ['SLURM_ARRAY_TASK_ID']}" if array else environ.get("SLURM_JOB_ID", "")
    if not job:
        raise RunError(
            "there is no allocation here: SLURM_JOB_ID is not set",
            hint="`salloc -N2` gives one, with a shell to type in; ftsup submit CONFIG needs none",
        )
    return job


def grant_of(environ: Mapping[str, str], *, foreground: bool) -> Grant:
    """The allocation that this environment is of. RunError: there is none, or none that can be led."""
    job = _job(environ)
    if size := environ.get("SLURM_HET_SIZE"):
        raise RunError(
            f"job {job} is heterogeneous ({size} components, SLURM_HET_SIZE), and a run needs nodes of one kind in one",
            hint="ask for all nodes in one component: without `:` between sets of options, without `#SBATCH hetjob`",
        )
    return Grant(
        job=job,
        restarts=int(environ.get("SLURM_RESTART_COUNT", "0")),
        host=environ.get("SLURMD_NODENAME") or socket.gethostname(),
        nodes=expand(environ.get("SLURM_JOB_NODELIST", "")),
        environ=dict(environ) if not foreground else _whole_nodes(environ),
        foreground=foreground,
    )


def _whole_nodes(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what srun would take as a wish for its tasks: an allocation of somebody's own may have been meant for many tasks a node."""
    return {name: value for name, value in environ.items() if not name.startswith(SHAPES)}


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
@click.option("--foreground", is_flag=True, help="In an allocation of somebody's own: the terminal's signals are that person's.")
def lead(run: Path, *, foreground: bool) -> int:
    """Lead a run: started by its batch script, or by `ftsup run`."""
    if not foreground:
        die_with_bash()
    place = RunDir(run.resolve())
    config = _config(place)
    try:
        see_that_it_is_ours(place)
        grant = grant_of(os.environ, foreground=foreground)
    except RunError as error:
        if "SLURM_JOB_ID" in os.environ:
            _decide_against(place, config, dict(os.environ), why=error.message)
        raise
    local = LocalDir(config.local_base(grant.environ), place.id, grant.job, "leader").claim(memory=False)
    return Lead(place, config, grant, BootClock(), local).run()


def _decide_against(place: RunDir, config: Config, environ: dict[str, str], *, why: str) -> None:
    """For the batch script: another try would find the same, and so would a requeue."""
    job, restarts = _job(environ), int(environ.get("SLURM_RESTART_COUNT", "0"))
    local = LocalDir(config.local_base(environ), place.id, job, "leader").claim(memory=False)
    local.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = msgspec.json.encode({"verdict": VerdictKind.STOP.value, "code": 1, "done": True, "reason": why}) + b"\n"
    write_whole(local.root / f"decision.{restarts}.json", text)
    place.decision(job, restarts).parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(place.decision(job, restarts), text)


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
    return NodeSupervisor(run, config, replace(place, held=lock.take(clock)), clock, lock, local=local).run()
