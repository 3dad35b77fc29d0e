"""`ftsup stop`, `restart`, `requeue`, `pause` and `cancel`: what people ask of a run, from wherever its directory is seen.

The leader does what is asked, and says at once whether it will. Slurm is asked only about a run that says nothing itself. `cancel` is for
good: the wish is written down before Slurm is asked, so that nothing brings the run back.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import click
import msgspec

from ftsup.cli import asking, cluster, complete, steercheck
from ftsup.cli.group import Whole, examples
from ftsup.cli.options import run_argument, runs_dir_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.errors import Exit, RunError, SlurmError, Unavailable
from ftsup.events import Request
from ftsup.plain import told
from ftsup.ports import Job, JobState, Slurm
from ftsup.report import runs
from ftsup.report.page import silent, since_s
from ftsup.report.runs import View
from ftsup.report.story import Stage
from ftsup.report.words import ended, short_time
from ftsup.rundir import RunDir
from ftsup.supervisor.requests import Wanted

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is to be steered, as far as it can be seen."""

    run: RunDir
    view: View
    job: Job | None = None
    """What Slurm says of one that says nothing itself."""
    silent: bool = False
    trouble: str = ""
    """Why Slurm said nothing."""

    @property
    def pending(self) -> bool:
        """It waits in the queue."""
        return self.job is not None and self.job.state is JobState.PENDING and not self.job.completing


@click.command(epilog=examples("ftsup stop", "ftsup stop demo"))
@run_argument
@runs_dir_option
@with_ports
def stop(ports: Ports, run: str | None, runs_dir: Path) -> int:
    """Save where the script can, then end RUN with success: it is not requeued."""
    view = _read(ports, run, runs_dir)
    if _over(view):
        return Exit.OK
    target = _target(ports, view, "stop")
    if target.pending:
        hint = f"ftsup cancel {view.id} ends it for good, ftsup pause {view.id} until it is continued"
        raise RunError(f"{view.id} has nothing to save: its job {view.job} is pending", hint=hint)
    _lives(target, "stop")
    return _ask(ports, target, Wanted(request=Request.STOP))


@click.command(epilog=examples("ftsup restart", "ftsup restart demo --from-step 12000  # its loss diverged after that"))
@run_argument
@click.option("--from-step", type=Whole(min=0), metavar="N", help="Go back: to the newest checkpoint of step N at most.")
@runs_dir_option
@with_ports
def restart(ports: Ports, run: str | None, runs_dir: Path, from_step: int | None) -> int:
    """Start RUN's training again, on the same nodes, from the newest checkpoint.

    The ranks save first, where the script can.

    With --from-step nothing is saved, and newer checkpoints are left behind: they stay where they are, and RUN does not resume from one of
    them any more until it is written anew. A script that removes old checkpoints itself, by their steps, may take the new ones for old:
    move the newer ones away then.
    """
    view = _read(ports, run, runs_dir)
    target = _target(ports, view, "restart")
    found = "" if from_step is None else steercheck.earlier(target.run, ports.disk(lambda _size: None), from_step)
    if target.pending and from_step is None:
        raise RunError(f"{view.id} has nothing to restart: its job {view.job} is pending, and begins from the newest checkpoint")
    _lives(target, "restart")
    wanted = Wanted(request=Request.RESTART, from_step=from_step)
    if target.pending:
        asking.leave(target.run, _signed(ports, wanted))
        click.echo(f"{view.id}: its job {view.job} is pending; when it begins, it goes back to a checkpoint of step {from_step} at most")
    else:
        code = _ask(ports, target, wanted)
        if code:
            return code
    if found:
        click.echo(found, err=True)
    return Exit.OK


@click.command(epilog=examples("ftsup requeue", "ftsup requeue demo --avoid n12 --avoid n13"))
@run_argument
@click.option(
    "--avoid", multiple=True, metavar="NODE", shell_complete=complete.nodes, help="Keep this node out from now on. May be repeated."
)
@runs_dir_option
@with_ports
def requeue(ports: Ports, run: str | None, runs_dir: Path, avoid: tuple[str, ...]) -> int:
    """Save where the script can, then give RUN's job back to the queue.

    It goes on from there, maybe on other nodes.
    """
    view = _read(ports, run, runs_dir)
    target = _target(ports, view, "requeue")
    _lives(target, "requeue")
    steercheck.nodes_left(target.run, view.story.nodes, avoid, nodes=lambda: _slurm(ports, target.run).nodes())
    if target.pending:
        if avoid:
            _slurm(ports, target.run).avoid(view.job, avoid)
        without = f"; it is kept off {', '.join(avoid)}" if avoid else ""
        click.echo(f"{view.id}: nothing to requeue: its job {view.job} is pending already{without}")
        return Exit.OK
    return _ask(ports, target, Wanted(request=Request.REQUEUE, avoid=avoid))


@click.command(epilog=examples("ftsup pause", "ftsup pause demo && ftsup submit --continue demo"))
@run_argument
@runs_dir_option
@with_ports
def pause(ports: Ports, run: str | None, runs_dir: Path) -> int:
    """Save where the script can, then release RUN's job.

    Nothing follows until `ftsup submit --continue RUN`.
    """
    view = _read(ports, run, runs_dir)
    if view.paused or view.story.stage is Stage.PAUSED:
        click.echo(f"{view.id} is paused already: ftsup submit --continue {view.id} goes on")
        return Exit.OK
    target = _target(ports, view, "pause")
    _lives(target, "pause")
    if not target.pending:
        return _ask(ports, target, Wanted(request=Request.PAUSE))
    _mark(target.run.paused, ports)
    try:
        _slurm(ports, target.run).cancel(view.job)
    except Unavailable as error:
        hint = f"its leader pauses it if it begins; if Slurm answers again: scancel {view.job}"
        raise Unavailable(f"{view.id} is marked as paused, but Slurm was not told: {error.message}", hint=hint) from error
    click.echo(
        f"{view.id} is paused: its job {view.job} was pending, and was taken out of the queue; ftsup submit --continue {view.id} goes on"
    )
    return Exit.OK


@click.command(epilog=examples("ftsup cancel", "ftsup cancel demo"))
@run_argument
@runs_dir_option
@with_ports
def cancel(ports: Ports, run: str | None, runs_dir: Path) -> None:
    """End RUN for good: it is not requeued, and a requeue under way is taken back.

    Of an array that is named as a whole, every task ends.
    """
    every = runs.find_all(run, runs_dir=ports.cwd / runs_dir)
    for one in every:
        _cancel(ports, msgspec.structs.replace(runs.read(one), id=one.named_from(ports.cwd)))


def _cancel(ports: Ports, view: View) -> None:
    if view.story.stage is not Stage.PAUSED and _over(view):
        return
    found = RunDir(Path(view.path))
    _only_ours(view, "cancel")
    _mark(found.cancelled, ports)  # first: bash looks at it before it requeues
    with suppress(OSError):  # the mark is enough
        asking.leave(found, _signed(ports, Wanted(request=Request.CANCEL)))
    if not view.job:
        click.echo(f"{view.id} was never submitted; it is marked as cancelled")
        return
    try:
        _slurm(ports, found).cancel(view.job)
    except Unavailable as error:
        raise Unavailable(
            f"{view.id} is marked as cancelled, but Slurm was not told: {error.message}",
            hint=f"its leader ends it if it runs; if not: scancel {view.job}, or this command again",
        ) from error
    click.echo(f"{view.id} is cancelled: job {view.job} was told to end and will not come back")


# What can be seen of it ---------------------------------------------------------------------------------------------------


def _read(ports: Ports, run: str | None, runs_dir: Path) -> View:
    """What can be read of it; `id` is what a person types for it from here, since hints name it."""
    found = runs.find(run, runs_dir=ports.cwd / runs_dir)
    return msgspec.structs.replace(runs.read(found), id=found.named_from(ports.cwd))


def _over(view: View) -> bool:
    """Whether the run has ended; if so, that is said."""
    story = view.story
    if story.stage.over:
        click.echo(f"{view.id} is over already: {ended(story.stage.value, story.verdict.reason if story.verdict else '')}")
    return story.stage.over


def _only_ours(view: View, what: str) -> None:
    if Path(view.path).stat().st_uid != os.getuid():
        raise RunError(f"{view.id} belongs to somebody else: only its owner can {what} it")


def _target(ports: Ports, view: View, what: str) -> Target:
    """What is to be steered. RunError: nothing ever will be."""
    story, run = view.story, RunDir(Path(view.path))
    _only_ours(view, what)
    if not view.job:
        raise RunError(f"{view.id} was never submitted: there is nothing to {what}")
    if view.cancelled:
        raise RunError(f"{view.id} is cancelled: it ends without a save, and does not come back")
    if story.stage.over or view.paused:
        stage = Stage.PAUSED if view.paused else story.stage
        said = ended(stage.value, story.verdict.reason if story.verdict else "")
        raise RunError(f"{view.id} has nothing to {what}: it is {said}", hint=f"ftsup submit --continue {view.id} goes on")
    if not silent(view, now=ports.now()):
        return Target(run=run, view=view)
    try:
        return Target(run=run, view=view, silent=True, job=_slurm(ports, run).show(view.job))
    except SlurmError as error:
        return Target(run=run, view=view, silent=True, trouble=error.message)


def _lives(target: Target, what: str) -> None:
    """RunError: its job has ended, and no leader will ever read what is asked."""
    view, job = target.view, target.job
    if job is not None and not job.lives:
        gone = "is not known to Slurm any more" if job.state is JobState.GONE else f"is not running ({job.state.value})"
        raise RunError(f"{view.id} has nothing to {what}: its job {view.job} {gone}", hint=f"ftsup submit --continue {view.id} goes on")


def _slurm(ports: Ports, run: RunDir) -> Slurm:
    return cluster.acting(run, ports=ports)


# Asking -------------------------------------------------------------------------------------------------------------------


def _mark(path: Path, ports: Ports) -> None:
    """A mark of the run: it asks whoever leads it, as long as it is there; on a full disk it is empty, and counts."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with suppress(OSError), os.fdopen(fd, "w") as file:
        file.write(f"{ports.now().isoformat(timespec='seconds')} {ports.user}\n")


def _signed(ports: Ports, wanted: Wanted) -> Wanted:
    return msgspec.structs.replace(wanted, who=ports.user, wall=ports.now().isoformat(timespec="milliseconds"))


def _ask(ports: Ports, target: Target, wanted: Wanted) -> int:
    """Leave the request, and show what the leader says to it."""
    view = target.view
    try:
        answer = asking.ask(ports, target.run, _signed(ports, wanted))
    except KeyboardInterrupt:
        click.echo(f"the {wanted.request.value} was asked for and is not taken back: ftsup status {view.id} shows what follows", err=True)
        raise
    except OSError as error:
        hint = (
            f"make room there; ftsup cancel {view.id} needs next to none" if error.errno in FULL else f"ftsup status {view.id} tells more"
        )
        raise RunError(f"{view.id}: nothing was asked: {target.run.requests} cannot be written: {told(error)}", hint=hint) from None
    if answer is None:
        waits = f"the {wanted.request.value} lies in its directory, and the next leader that looks takes it"
        click.echo(f"{view.id}: {_silence(ports, target)}; {waits}")
        return Exit.AGAIN
    if answer.refused:
        raise RunError(f"{view.id}: {answer.text}")
    click.echo(f"{view.id}: {answer.text}")
    click.echo(f"ftsup status {view.id} shows how far it is", err=True)
    return Exit.OK


def _silence(ports: Ports, target: Target) -> str:
    view, job = target.view, target.job
    walls = [view.now.wall if view.now else "", view.story.last.wall if view.story.last else ""]
    quiet_s = min((since for wall in walls if (since := since_s(wall, ports.now())) is not None), default=None)
    said = "its leader has said nothing yet" if quiet_s is None else f"its leader has said nothing for {short_time(quiet_s)}"
    if target.trouble:
        return f"{said}, and Slurm was asked in vain ({target.trouble})"
    return f"{said} (job {view.job} is {job.state.value.lower()})" if job is not None else said
