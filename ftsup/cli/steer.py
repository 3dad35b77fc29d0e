"""`ftsup stop` and `ftsup cancel`: what people ask of a run.

`stop` is for its leader alone, which lets the script save first. `cancel` is for good: the wish is written down before Slurm is asked,
so that nothing brings the run back.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import click
import msgspec

from ftsup.cli import cluster
from ftsup.cli.group import examples
from ftsup.cli.options import run_argument, runs_dir_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.errors import RunError, Unavailable
from ftsup.ports import JobState
from ftsup.report import runs
from ftsup.report.runs import View
from ftsup.rundir import RunDir


@click.command(epilog=examples("ftsup stop", "ftsup stop train"))
@run_argument
@runs_dir_option
@with_ports
def stop(ports: Ports, run: str | None, runs_dir: Path) -> None:
    """Save where the script can, then end RUN with success: it is not requeued."""
    found = runs.find(run, runs_dir=ports.cwd / runs_dir)
    view = runs.read(found)
    if _over(view):
        return
    _only_ours(found, view, "stop")
    if not view.job:
        raise RunError(f"{view.id} was never submitted: there is nothing to stop")
    if view.cancelled:
        raise RunError(f"{view.id} is cancelled: it ends without a save")
    unsure = ""
    try:
        state = ports.slurm(cluster.of_run(found).environ(ports.environ)).show(view.job).state
    except Unavailable:
        unsure = ", if its job runs (Slurm does not answer)"
    else:
        if state is not JobState.RUNNING:
            where = "pending" if state is JobState.PENDING else f"not running ({state.value})"
            raise RunError(f"{view.id} has nothing to save: its job {view.job} is {where}", hint=f"ftsup cancel {view.id} ends it for good")
    _ask(found, "stop", ports)
    click.echo(
        f"{view.id} will stop{unsure}: all ranks save at one step, where the script calls asked() or handles the warning signal; "
        "then the run ends with success, and is not requeued"
    )
    click.echo(f"ftsup status {view.id} shows how far it is; ftsup cancel {view.id} does not wait for a save")


@click.command(epilog=examples("ftsup cancel", "ftsup cancel 4711  # by the id of its job"))
@run_argument
@runs_dir_option
@with_ports
def cancel(ports: Ports, run: str | None, runs_dir: Path) -> None:
    """End RUN for good: it is not requeued, and a requeue under way is taken back."""
    found = runs.find(run, runs_dir=ports.cwd / runs_dir)
    view = runs.read(found)
    if _over(view):
        return
    _only_ours(found, view, "cancel")
    _write_wish(found, ports)
    if not view.job:
        click.echo(f"{view.id} was never submitted; it is marked as cancelled")
        return
    try:
        ports.slurm(cluster.of_run(found).environ(ports.environ)).cancel(view.job)
    except Unavailable as error:
        raise Unavailable(
            f"{view.id} is marked as cancelled, but Slurm was not told: {error.message}",
            hint=f"its leader ends it if it runs; if not: scancel {view.job}, or this command again",
        ) from error
    click.echo(f"{view.id} is cancelled: job {view.job} was told to end and will not come back")


def _over(view: View) -> bool:
    """Whether the run has ended; if so, that is said."""
    story = view.story
    if story.stage.over:
        said = story.verdict.reason if story.verdict else ""
        click.echo(f"{view.id} is over already: {story.stage.value}{f' ({said})' if said else ''}")
    return story.stage.over


def _only_ours(run: RunDir, view: View, what: str) -> None:
    if run.root.stat().st_uid != os.getuid():
        raise RunError(f"{view.id} belongs to somebody else: only its owner can {what} it")


def _write_wish(run: RunDir, ports: Ports) -> None:
    """The marker first: bash looks at it before it requeues. Then the request, which the leader takes."""
    fd = os.open(run.cancelled, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(f"{ports.now().isoformat(timespec='seconds')} {ports.user}\n")
    _ask(run, "cancel", ports)


def _ask(run: RunDir, request: str, ports: Ports) -> None:
    """A request that the leader takes, once."""
    run.requests.mkdir(mode=0o700, exist_ok=True)
    name = run.requests / f"{uuid.uuid4()}.json"
    part = name.with_suffix(".part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode({"request": request, "who": ports.user}))
    part.replace(name)
