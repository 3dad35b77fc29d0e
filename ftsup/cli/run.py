"""`ftsup run`: a run inside an allocation that somebody has already: salloc's shell, or a batch script of the user's own. Wiring.

It makes a run directory as `submit` does, and becomes the leader (through bash, for `setup`). It submits nothing, and never requeues.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from msgspec.structs import replace

from ftsup.cli import cluster
from ftsup.cli.cluster import Cluster, Kind
from ftsup.cli.group import examples
from ftsup.cli.lead import grant_of
from ftsup.cli.newrun import new_run, placed, read_typed
from ftsup.cli.options import file_argument, set_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.cli.warn import warnings
from ftsup.config import Config, Requeue, load
from ftsup.config.array import of_task, tasks
from ftsup.errors import RunError
from ftsup.report import runs
from ftsup.report.words import count
from ftsup.rundir import RunDir
from ftsup.sbatch import shell_word
from ftsup.supervisor.papers import Grant

NO_STEPS = {"", "4294967290", "4294967291"}
"""SLURM_STEP_ID of a batch script, and of the shell that salloc starts on a node."""


@click.command(
    epilog=examples(
        "salloc -N2 --time=1h  # then, in its shell:",
        "ftsup run config.yaml",
        "ftsup run config.yaml --set hang.step=30s",
    )
)
@file_argument
@set_option
@click.option("--force", is_flag=True, help="Take the directory of checkpoints even from another run that is alive.")
@with_ports
def run(ports: Ports, file: Path, sets: tuple[str, ...], *, force: bool) -> int:
    """Train inside the allocation that this shell has, in the foreground.

    For salloc, and for batch scripts of your own. All nodes of the allocation take part. Faults are answered by restarts here; nothing is
    requeued. Ctrl-C saves where the script can, and ends the run; a second one ends it at once. Exit code: the run's, 0 or 1.
    """
    grant = grant_of(ports.environ, foreground=True)
    if ports.environ.get("SLURM_STEP_ID", "") not in NO_STEPS:
        raise RunError(
            f"this shell is itself a step of job {grant.job}: the steps that ftsup starts would wait for it",
            hint="type it in the shell of salloc, or in a batch script, without srun",
        )
    config = placed(load(file, sets=(*sets, "checkpoint.force=true") if force else sets).config, cwd=ports.cwd)
    config = _of_this_task(config, ports.environ.get("SLURM_ARRAY_TASK_ID", ""))
    for line in _said(config, grant):
        click.echo(line, err=True)
    config = replace(config, slurm=replace(config.slurm, nodes=len(grant.nodes), requeue=Requeue.OFF))
    chosen, _ = cluster.choose(Kind.SLURM, environ=ports.environ, nodes=len(grant.nodes))
    before = _begun_before(ports, config, file, grant)
    if before is not None:
        click.echo(f"{before.id} goes on: it began in this job before Slurm requeued it", err=True)
        return _become(ports, before, config)
    if not chosen.state:
        chosen = replace(chosen, name=ports.environ.get("SLURM_CLUSTER_NAME", ""))
    with _made(ports, config, file, sets=sets, chosen=chosen) as made:
        for warning in warnings(config, python=ports.python, one_machine=bool(chosen.state), environ=ports.environ):
            click.echo(f"warning: {warning}", err=True)
        _write_job(made, grant.job)
    click.echo(f"job {grant.job}: {made.id}")
    name = made.named_from(ports.cwd)
    for command, what in (("status", "how it is doing"), ("logs -f", "what the ranks print"), ("stop", "as Ctrl-C here")):
        click.echo(f"  ftsup {command} {name}  # {what}", err=True)
    return _become(ports, made, config)


def _of_this_task(config: Config, here: str) -> Config:
    """What is trained is one task of `slurm.array`: the one that this job is, or the only one."""
    if not config.slurm.array:
        return config
    wanted = tasks(config.slurm.array)
    found = [task for task in wanted if str(task) == here] or ([*wanted] if len(wanted) == 1 else [])
    if not found:
        raise RunError(
            f"slurm.array is {config.slurm.array}, and `ftsup run` trains one task: this job is none of them",
            hint=f"--set slurm.array={wanted[0]} names one; ftsup submit starts them all",
        )
    return of_task(config, found[0])


def _said(config: Config, grant: Grant) -> Iterator[str]:
    if len(grant.nodes) != config.slurm.nodes:
        yield f"slurm.nodes is {config.slurm.nodes}, and this allocation has {count(len(grant.nodes), 'node')}: all of those take part"
    yield "nothing is requeued from here: what needs new nodes or more time ends the run, and `ftsup submit --continue` goes on"


def _begun_before(ports: Ports, config: Config, file: Path, grant: Grant) -> RunDir | None:
    """The run of an earlier grant of this very job: Slurm has requeued the batch script that types us, and it types the same again."""
    if not grant.restarts:
        return None
    for place in runs.all_runs(Path(config.runs_dir)):
        if (
            place.root.parent.name == config.name
            and grant.job in runs.jobs(place)
            and (given := read_typed(place))
            and given.file == str(ports.cwd / file)
        ):
            return place
    return None


@contextmanager
def _made(ports: Ports, config: Config, file: Path, *, sets: tuple[str, ...], chosen: Cluster) -> Iterator[RunDir]:
    from ftsup.cli.owners import refuse_taken  # noqa: PLC0415 - it reads logs

    refuse_taken(config, ports=ports)
    with new_run(ports, config, file, sets=sets) as made:
        cluster.remember(made, chosen)
        yield made


def _write_job(made: RunDir, job: str) -> None:
    with made.jobs.open("a", encoding="utf-8") as lines:
        lines.write(f"{job}\n")
    made.jobs.chmod(0o640)


def _become(ports: Ports, made: RunDir, config: Config) -> int:
    """Set up as the batch script would, and become the leader, with our pid: signals of the terminal reach it, its exit code is ours."""
    lines = [
        f"cd {shell_word(config.workdir)} || exit 1",
        config.setup.replace("\r\n", "\n").replace("\r", "\n").strip("\n"),
        "set +eu",
        f"cd {shell_word(str(made.root))} || exit 1 # not in workdir: modules there could hide ours",
        f"exec {shell_word(ports.python)} -m ftsup lead --foreground {shell_word(str(made.root))}",
    ]
    return ports.become(["bash", "-c", "\n".join(lines)], dict(ports.environ))
