"""`ftsup status` and `list`: what the run directory tells. Slurm is asked once at most, about a job that says nothing yet."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from ftsup.cli import cluster
from ftsup.cli.group import examples
from ftsup.cli.options import run_argument, runs_dir_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.errors import SlurmError
from ftsup.ports import Job, JobState
from ftsup.report import runs
from ftsup.report.page import page, text
from ftsup.report.runs import View
from ftsup.report.story import Stage
from ftsup.report.words import short_time
from ftsup.rundir import RunDir


@click.command(epilog=examples("ftsup status", "ftsup status train", "ftsup status 4711 --json  # by the id of its job"))
@run_argument
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@with_ports
def status(ports: Ports, run: str | None, runs_dir: Path, *, as_json: bool) -> None:
    """Show how RUN is doing.

    RUN: a path, a name, the beginning of one, or a job id. Default: the newest run.
    """
    found = runs.find(run, runs_dir=ports.cwd / runs_dir)
    view = runs.read(found)
    facts = page(view, now=ports.now(), queue=_queue(ports, found, view))
    click.echo(msgspec.json.format(msgspec.json.encode(facts), indent=1).decode() if as_json else text(facts))


def _queue(ports: Ports, run: RunDir, view: View) -> str:
    if view.story.stage is not Stage.WAITING or view.cancelled or not view.job:
        return ""
    try:
        return _queue_sentence(ports.slurm(cluster.of_run(run).environ(ports.environ)).show(view.job))
    except SlurmError as error:
        return f"Slurm was asked about job {view.job}: {error.message}"


def _queue_sentence(job: Job) -> str:
    if job.state is JobState.PENDING:
        starts = f", starts in about {short_time(job.starts_in_s)}" if job.starts_in_s else ""
        return f"job {job.job_id} is pending{f' ({job.reason})' if job.reason else ''}{starts}"
    if job.state in {JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN}:
        return f"job {job.job_id} is {job.state.value.lower()}; its leader has written nothing yet"
    said = "is not known to Slurm any more" if job.state is JobState.GONE else f"ended ({job.state.value})"
    return f"job {job.job_id} {said}, and no leader wrote anything: see slurm-{job.job_id}.out in the run directory"


@click.command("list", epilog=examples("ftsup list", "ftsup list -n 100 --runs-dir /scratch/me/ftsup-runs"))
@runs_dir_option
@click.option("-n", "--number", type=click.IntRange(min=1), default=20, show_default=True, help="So many, the newest first.")
@with_ports
def list_runs(ports: Ports, runs_dir: Path, number: int) -> None:
    """List the runs, the newest first."""
    found = runs.all_runs(ports.cwd / runs_dir)
    if not found:
        click.echo(f"no runs in {runs_dir}", err=True)
        return
    click.echo(f"{'RUN':<40} {'STATE':<11} {'STEP':>9} {'JOB':>10}")
    for run in found[:number]:
        facts = page(runs.read(run), now=ports.now())
        step = "-" if facts.step is None else str(facts.step)
        name = facts.run if len(facts.run) <= 40 else f"{facts.run[:15]}..{facts.run[-23:]}"  # noqa: PLR2004 - the column
        click.echo(f"{name:<40} {facts.stage.value:<11} {step:>9} {facts.job or '-':>10}")
    if len(found) > number:
        click.echo(f"{len(found) - number} older ones: -n {len(found)}", err=True)
