"""`ftsup cancel`: what people ask of a run. The wish is written down before Slurm is asked, so that nothing brings the run back."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import click
import msgspec

from ftsup.cli import cluster
from ftsup.cli.options import run_argument, runs_dir_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.errors import RunError, Unavailable
from ftsup.report import runs
from ftsup.rundir import RunDir


@click.command()
@run_argument
@runs_dir_option
@with_ports
def cancel(ports: Ports, run: str | None, runs_dir: Path) -> None:
    """End RUN for good: it is not requeued, and a requeue under way is taken back."""
    found = runs.find(run, runs_dir=ports.cwd / runs_dir)
    view = runs.read(found)
    story = view.story
    if story.stage.over:
        said = story.verdict.reason if story.verdict else ""
        click.echo(f"{view.id} is over already: {story.stage.value}{f' ({said})' if said else ''}")
        return
    if found.root.stat().st_uid != os.getuid():
        raise RunError(f"{view.id} belongs to somebody else: only its owner can cancel it")
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


def _write_wish(run: RunDir, ports: Ports) -> None:
    """The marker first: bash looks at it before it requeues. Then the request, which the leader takes."""
    fd = os.open(run.cancelled, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(f"{ports.now().isoformat(timespec='seconds')} {ports.user}\n")
    run.requests.mkdir(mode=0o700, exist_ok=True)
    name = run.requests / f"{uuid.uuid4()}.json"
    part = name.with_suffix(".part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode({"request": "cancel", "who": ports.user}))
    part.replace(name)
