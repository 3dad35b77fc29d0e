"""`ftsup status`, `logs` and `list`: what the run directory tells. Slurm is asked once at most, about a job that says nothing yet."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from ftsup import eventlog
from ftsup.cli import cluster
from ftsup.cli.options import run_argument, runs_dir_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.errors import RunError, SlurmError
from ftsup.ports import Job, JobState
from ftsup.report import runs
from ftsup.report.page import page, text
from ftsup.report.runs import View
from ftsup.report.story import Stage, Story, fold
from ftsup.report.words import one_line, short_time
from ftsup.rundir import RunDir

FOLLOW_S = 0.5
_EPOCH = re.compile(r"(\d+)\.(\d+)")


@click.command()
@run_argument
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@with_ports
def status(ports: Ports, run: str | None, runs_dir: Path, *, as_json: bool) -> None:
    """Show how RUN is doing: a path, a name, the beginning of one, or a job id. Default: the newest run."""
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


@click.command("list")
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


@click.command()
@run_argument
@runs_dir_option
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over.")
@click.option("--epoch", help="The attempt: 2.1 is the first of the second grant. Default: the newest.")
@click.option("--node", help="Only this node's.")
@with_ports
def logs(ports: Ports, run: str | None, runs_dir: Path, *, follow: bool, epoch: str | None, node: str | None) -> None:
    """Show what the ranks of RUN print."""
    found = runs.find(run, runs_dir=ports.cwd / runs_dir)
    if not follow:
        shown = epoch or _newest_epoch(found)
        files = _files(found, shown, node)
        if not files:
            raise RunError(_nothing(found, epoch, node))
        for path in files:
            for line in _Tail(path, prefix=path.stem if len(files) > 1 else "").lines(end=True):
                click.echo(line)
        return
    _follow(ports, found, epoch, node)


def _nothing(run: RunDir, epoch: str | None, node: str | None) -> str:
    nodes = ", ".join(sorted({path.stem for path in run.root.glob("logs/*/*.log")}))
    if not nodes:
        return f"the ranks of {run.id} have printed nothing yet; the batch script's own output is in {run.root}/slurm-*.out"
    epochs = ", ".join(sorted((path.name for path in run.root.glob("logs/*")), key=_epoch_key))
    which = f"of {node or 'any node'} in attempt {epoch or _newest_epoch(run)}"
    return f"no output {which}; there are attempts {epochs} and nodes {nodes}"


def _epoch_key(name: str) -> tuple[int, int]:
    match = _EPOCH.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else (-1, -1)


def _newest_epoch(run: RunDir) -> str:
    return max((path.name for path in run.root.glob("logs/*")), key=_epoch_key, default="")


def _files(run: RunDir, epoch: str, node: str | None) -> list[Path]:
    """The logs of an attempt. Names come from the command line, so they are compared and never become paths."""
    return [path for path in sorted(run.root.glob("logs/*/*.log")) if path.parent.name == epoch and node in {None, path.stem}]


def _follow(ports: Ports, run: RunDir, epoch: str | None, node: str | None) -> None:
    """Print what comes, attempt after attempt, until the log says that the run is over."""
    story, offset = Story(), 0
    tails: dict[Path, _Tail] = {}
    shown = ""
    while True:
        lines, _, offset = eventlog.follow(run.events, offset)
        for line in lines:
            story = fold(story, line)
        over = story.stage.over or (run.root / "cancelled").exists()
        wanted = epoch or _newest_epoch(run)
        if wanted != shown:
            _drain(tails, end=True)
            shown, tails = wanted, {}
            click.echo(f"attempt {shown}", err=True)
        files = _files(run, shown, node)
        for path in files:
            tails.setdefault(path, _Tail(path, prefix=path.stem if len(story.nodes) > 1 and not node else ""))
        _drain(tails, end=over)
        if over:
            click.echo(f"{run.id}: {story.stage.value if story.stage.over else 'cancelled'}", err=True)
            return
        ports.sleep(FOLLOW_S)


def _drain(tails: dict[Path, _Tail], *, end: bool) -> None:
    for tail in tails.values():
        for line in tail.lines(end=end):
            click.echo(line)


class _Tail:
    """A growing file, line by line; one that was cut (its cap was reached) is read from its new end."""

    def __init__(self, path: Path, *, prefix: str) -> None:
        self._path = path
        self._prefix = f"{prefix}: " if prefix else ""
        self._offset = 0

    def lines(self, *, end: bool) -> Iterator[str]:
        """The whole lines that came; at the end also the last one without its newline."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._offset:
                    yield f"{self._prefix}[the log was cut here]"
                    self._offset = file.tell()
                file.seek(self._offset)
                data = file.read()
        except OSError as error:
            yield f"{self._prefix}[{one_line(str(error), width=200)}]"
            return
        whole = len(data) if end else data.rfind(b"\n") + 1
        self._offset += whole
        printed = data[:whole].decode("utf-8", "replace").removesuffix("\n")
        yield from (self._prefix + line for line in printed.split("\n") if whole)
