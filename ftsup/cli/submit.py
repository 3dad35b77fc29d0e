"""`ftsup submit` and `ftsup render`. Wiring; what a run directory holds is in `newrun`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click
from click.core import ParameterSource
from msgspec.structs import replace

from ftsup.cli import cluster, complete
from ftsup.cli.cluster import Cluster, Kind
from ftsup.cli.group import Choice, examples
from ftsup.cli.newrun import check_script, new_runs, placed, run_dir, script_of, submit_runs
from ftsup.cli.options import file_argument, runs_dir_option, set_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.cli.warn import warnings
from ftsup.config import Config, load, short_warning
from ftsup.config.array import of_task, tasks
from ftsup.errors import SlurmError
from ftsup.rundir import RunDir


class _DryRun(click.Command):
    """`--dry-run` may have a value, and must not take the file after it for one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["--dry-run=script" if arg == "--dry-run" else arg for arg in args])


cluster_option = click.option(
    "--cluster",
    "kind",
    type=Choice([kind.value for kind in Kind]),
    default=Kind.AUTO.value,
    help="slurm; mock: this machine plays the cluster; auto: slurm where sbatch is on PATH, else mock.",
)


@click.command(
    cls=_DryRun,
    epilog=examples(
        "ftsup submit config.yaml",
        "ftsup submit config.yaml --dry-run  # only show the script",
        "ftsup submit config.yaml --dry-run=mock  # two steps on this machine",
        "ftsup submit config.yaml --set slurm.nodes=8 --set slurm.time=2h",
        "ftsup submit --continue demo  # a run that was stopped or paused",
    ),
)
@click.argument("file", type=click.Path(path_type=Path), required=False, shell_complete=complete.yaml_files)
@set_option
@cluster_option
@click.option(
    "--dry-run",
    type=Choice(["script", "mock"]),
    metavar="[=mock]",
    help="Show the script and what there is to say about it; submit nothing. =mock: also run two steps of it on this machine.",
)
@click.option("--force", is_flag=True, help="Take the directory of checkpoints even from another run that is alive.")
@click.option(
    "--continue",
    "continued",
    metavar="RUN",
    shell_complete=complete.runs,
    help="Go on with RUN, which has ended, in a new job: same history, same checkpoints.",
)
@runs_dir_option
@with_ports
def submit(
    ports: Ports,
    file: Path | None,
    sets: tuple[str, ...],
    *,
    kind: str,
    dry_run: str | None,
    force: bool,
    continued: str | None,
    runs_dir: Path,
) -> None:
    """Check FILE, write the batch script, submit it.

    With --continue RUN: go on after a bug was fixed, a limit reached or a pause. FILE may be left out: then it is the one that RUN was
    submitted with, as it is by now. What changed is shown first.
    """
    if continued is not None:
        if dry_run or force or kind != Kind.AUTO.value:
            raise click.UsageError("--continue goes on where RUN was, as its owner: without --dry-run, --force and --cluster")
        from ftsup.cli.goon import go_on  # noqa: PLC0415 - it reads logs

        run, job = go_on(ports, continued, runs_dir=runs_dir, file=file, sets=sets)
        _submitted([run], [job], ports.cwd)
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE'. `ftsup init` writes one.")
    if click.get_current_context().get_parameter_source("runs_dir") is ParameterSource.COMMANDLINE:
        sets = (*sets, f"runs_dir={json.dumps(str(runs_dir))}")
    config = placed(load(file, sets=(*sets, "checkpoint.force=true") if force else sets).config, cwd=ports.cwd)
    if dry_run:
        _dry_run(ports, config, Kind(kind))
        if dry_run == "mock":
            from ftsup.cli.rehearse import rehearse  # noqa: PLC0415 - brings the mock along

            rehearse(ports, config, file)
        return
    chosen, sentence = cluster.choose(Kind(kind), environ=ports.environ, nodes=config.slurm.nodes)
    if sentence:
        click.echo(sentence, err=True)
    from ftsup.cli.owners import refuse_taken  # noqa: PLC0415 - it reads logs

    for one in [of_task(config, task) for task in tasks(config.slurm.array)] or [config]:
        refuse_taken(one, ports=ports)
    settings = _settings(ports, chosen)
    if not chosen.state:
        chosen = replace(chosen, name=settings.get("ClusterName", ""))
    with new_runs(ports, config, file, sets=sets) as runs:
        for warning in (
            *warnings(config, python=ports.python, one_machine=bool(chosen.state), environ=ports.environ),
            *_late_warning(config, settings),
        ):
            click.echo(f"warning: {warning}", err=True)
        jobs = submit_runs(ports, runs, chosen)
    _submitted(runs, jobs, ports.cwd)


def _submitted(runs: list[RunDir], jobs: list[str], cwd: Path) -> None:
    for run, job in zip(runs, jobs, strict=True):
        click.echo(f"job {job}: {run.id}")
    name = runs[0].named_from(cwd)
    for command, what in (("status", "how it is doing"), ("logs -f", "what it prints"), ("cancel", "ends it for good")):
        click.echo(f"  ftsup {command} {name}  # {what}", err=True)


@click.command(epilog=examples("ftsup render config.yaml > job.sbatch"))
@file_argument
@set_option
@with_ports
def render(ports: Ports, file: Path, sets: tuple[str, ...]) -> None:
    """Write the batch script of FILE to standard output."""
    config = placed(load(file, sets=sets).config, cwd=ports.cwd)
    click.echo(script_of(ports, config, run_dir(ports, config)), nl=False)


def _dry_run(ports: Ports, config: Config, kind: Kind) -> None:
    """Print the script, then what was checked. Slurm is asked only where it was named: a controller may be away for long."""
    script = script_of(ports, config, run_dir(ports, config))
    click.echo(script, nl=False)
    with tempfile.TemporaryDirectory(prefix="ftsup-") as folder:
        path = Path(folder) / "job.sbatch"
        path.write_bytes(script.encode("utf-8", "surrogateescape"))
        check_script(path)
        said, chosen = ["nothing was submitted; the script above is good bash"], Cluster()
        if kind is not Kind.AUTO:
            chosen, _ = cluster.choose(kind, environ=ports.environ, nodes=config.slurm.nodes)
            environ = chosen.environ(ports.environ)
            said.append(ports.slurm(environ).submit(path, env=environ, test_only=True))
    said += [
        f"warning: {warning}" for warning in warnings(config, python=ports.python, one_machine=bool(chosen.state), environ=ports.environ)
    ]
    for line in said:
        click.echo(line, err=True)


def _settings(ports: Ports, chosen: Cluster) -> dict[str, str]:
    """The cluster's; none where it does not answer: nothing is said of them then, the submission will tell."""
    try:
        return ports.slurm(chosen.environ(ports.environ)).config()
    except SlurmError:
        return {}


def _late_warning(config: Config, settings: Mapping[str, str]) -> list[str]:
    """Whether this cluster's KillWait leaves the warning any use."""
    words = settings.get("KillWait", "").split()
    found = short_warning(config, kill_wait_s=float(words[0])) if words and words[0].isdigit() else ""
    return [f"slurm.signal is {config.slurm.signal}: {found}"] if found else []
