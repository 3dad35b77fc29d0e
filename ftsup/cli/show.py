"""`ftsup status` and `list`: what the run directory tells. Slurm is asked once at most, about a job that says nothing itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import msgspec

from ftsup.cli import cluster
from ftsup.cli.group import Whole, examples
from ftsup.cli.options import run_argument, runs_dir_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.errors import SlurmError
from ftsup.ports import Job
from ftsup.report import runs
from ftsup.report.follow import Follower
from ftsup.report.page import Page, page, silent
from ftsup.report.pagetext import in_short, text
from ftsup.report.runs import View
from ftsup.report.table import brief, table
from ftsup.rundir import RunDir

WATCH_S = 5.0
LEAST_S, MOST_S = 0.1, 3600.0
ASK_S = 60.0
"""`--watch` asks Slurm no more often, and only about a job that says nothing itself."""


@click.command(
    epilog=examples(
        "ftsup status", "ftsup status train", "ftsup status 4711 --json  # by the id of its job", "ftsup status train --watch 10"
    )
)
@run_argument
@runs_dir_option
@click.option("--json", "as_json", is_flag=True, help="As JSON; with --watch a line a look.")
@click.option("--watch", is_flag=False, flag_value="", metavar="[SECONDS]", help=f"Look again and again, every {WATCH_S:g} s.")
@with_ports
def status(ports: Ports, run: str | None, runs_dir: Path, *, as_json: bool, watch: str | None) -> None:
    """Show how RUN is doing, and what comes next.

    RUN is a path, a name, the beginning of one, or a job id; left out: the newest run. Of an array that is named as a whole, a line a task.
    """
    run, every_s = _watch(run, watch)
    every = runs.find_all(run, runs_dir=ports.cwd / runs_dir)
    if len(every) > 1 and every_s is None:
        _tasks(ports, every, as_json=as_json)
        return
    found = every[0] if len(every) == 1 else runs.find(run, runs_dir=ports.cwd / runs_dir)
    slurm = _Slurm(ports, found)
    name = found.named_from(ports.cwd)
    if every_s is not None:
        _look_on(ports, found, slurm, name=name, every_s=every_s, as_json=as_json)
        return
    facts = slurm.page(runs.read(found), name=name)
    click.echo(msgspec.json.format(msgspec.json.encode(facts), indent=1).decode() if as_json else text(facts, now=ports.now()))


def _tasks(ports: Ports, every: Sequence[RunDir], *, as_json: bool) -> None:
    """Of an array: a line each."""
    read = [brief(run, now=ports.now()) for run in every]
    click.echo(msgspec.json.format(msgspec.json.encode(read), indent=1).decode() if as_json else table(read))


def _watch(run: str | None, watch: str | None) -> tuple[str | None, float | None]:
    """The run and the time between two looks; `--watch RUN` is meant as it reads."""
    if not watch:
        return run, None if watch is None else WATCH_S
    try:
        every_s = float(watch.removesuffix("s"))
    except ValueError:
        if run is not None:
            raise click.UsageError(f"--watch takes seconds, not {watch!r}") from None
        return watch, WATCH_S
    if not LEAST_S <= every_s <= MOST_S:
        raise click.UsageError(f"--watch takes {LEAST_S:g} to {MOST_S:g} seconds; a job id goes before it: ftsup status {watch} --watch")
    return run, every_s


class _Slurm:
    """Asks about a job that says nothing itself, at most every ASK_S."""

    def __init__(self, ports: Ports, run: RunDir) -> None:
        self._ports, self._run = ports, run
        self._asked = float("-inf")
        self._job: Job | None = None
        self._trouble = ""

    def page(self, view: View, *, name: str) -> Page:
        """The page, with Slurm's word where it is needed."""
        now = self._ports.now()
        if not silent(view, now=now) or view.cancelled or not view.job:
            return page(view, now=now, name=name)
        if now.timestamp() - self._asked >= ASK_S:
            self._asked = now.timestamp()
            self._ask(view.job)
        return page(view, now=now, job=self._job, trouble=self._trouble, name=name)

    def _ask(self, job: str) -> None:
        self._job, self._trouble = None, ""
        try:
            self._job = cluster.looking(self._run, ports=self._ports).show(job)
        except SlurmError as error:
            self._trouble = f"Slurm was asked about job {job}: {error.message}"


def _look_on(ports: Ports, run: RunDir, slurm: _Slurm, *, name: str, every_s: float, as_json: bool) -> None:
    """Show the page time after time, until the run is over: in place on a terminal, else a line where something changed."""
    follower, show = Follower(run), _shower(ports, as_json=as_json)
    while True:
        facts = slurm.page(follower.look(), name=name)
        show(facts)
        if facts.stage.over:
            return
        ports.sleep(every_s)


def _shower(ports: Ports, *, as_json: bool) -> Callable[[Page], None]:
    if as_json:
        return lambda facts: click.echo(msgspec.json.encode(facts))
    stdout = sys.stdout
    if stdout.isatty() and ports.environ.get("TERM", "dumb") != "dumb":
        from ftsup.cli.redraw import Redraw  # noqa: PLC0415 - mostly it is one page

        redraw = Redraw(stdout)
        return lambda facts: redraw.show(text(facts, now=ports.now()))
    said = [""]

    def line(facts: Page) -> None:
        short = in_short(facts)
        if short != said[0]:
            said[0] = short
            click.echo(f"{ports.now():%H:%M:%S} {short}")

    return line


@click.command("list", epilog=examples("ftsup list", "ftsup list -n 100 --runs-dir /scratch/me/ftsup-runs", "ftsup list --json"))
@runs_dir_option
@click.option("-n", "--number", type=Whole(min=1), default=20, show_default=True, help="So many, the newest first.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@with_ports
def list_runs(ports: Ports, runs_dir: Path, number: int, *, as_json: bool) -> None:
    """List the runs, the newest first."""
    places = runs.places(ports.cwd / runs_dir)
    now = ports.now()
    read = [brief(place, now=now) for place in places[:number]]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(read), indent=1).decode())
    elif not places:
        click.echo(f"no runs in {runs_dir}", err=True)
    else:
        click.echo(table(read))
    if len(places) > number:
        click.echo(f"{len(places) - number} older ones: -n {len(places)}", err=True)
