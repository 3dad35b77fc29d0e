"""`ftsup watch`: looks after runs from the login node, in a loop or as one line of cron. Wiring; what it does is in `minder`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import msgspec

from ftsup.cli.group import Whole, examples
from ftsup.cli.minder import Looked, Minder, Said
from ftsup.cli.options import runs_dir_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.cli.watchlock import Lock, Memory, no_lock
from ftsup.errors import Exit
from ftsup.report.minding import Do
from ftsup.report.words import count, one_line

EVERY_S, LEAST_S, HURRY_S = 60, 10, 5.0
HURRIES = 36
"""So many looks in a row are hurried at most."""
AWAY_MOST_S = 600.0


@click.command(
    epilog=examples(
        "ftsup watch",
        "ftsup watch --start-now --runs-dir /scratch/me/ftsup-runs",
        "ftsup watch --once --json  # what it would tell",
        "* * * * * ftsup watch --once --runs-dir /scratch/me/ftsup-runs  # crontab -e",
    )
)
@click.option("--once", is_flag=True, help="Look once, for cron; without it again and again.")
@click.option("--every", type=Whole(min=LEAST_S), default=EVERY_S, show_default=True, metavar="SECONDS", help="Between two looks.")
@click.option("--start-now", is_flag=True, help="End the wait of requeued jobs (2 minutes on most clusters).")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each thing to tell.")
@runs_dir_option
@with_ports
def watch(ports: Ports, runs_dir: Path, *, once: bool, every: int, start_now: bool, as_json: bool) -> int:
    """Look after your runs from a login node: see to what no leader can.

    It asks Slurm once a minute about all runs, and reads their directories. A requeue that nobody carried out is carried out; a job that
    Slurm itself ended with its leader (a lost node, a preemption) is followed by one other; one that Slurm holds after a failed launch is
    released, a few times; a cancel or a pause that did not get through is done. What it cannot know
    for certain it tells: a leader that is silent, a job that waits in vain or is held for good. What was cancelled, stopped, paused or has
    finished never comes back. All of it is in `watch.jsonl` of each run.

    With --start-now it also looks every few seconds while a job is on its way back to the queue.
    """
    folder = ports.cwd / runs_dir
    with _locked(folder) as (memory, keep):
        minder = Minder(ports=ports, runs_dir=folder, memory=memory, start_now=start_now, acts=keep is not None)
        failures = hurries = looks = 0
        while True:
            looked = minder.look()
            if keep is not None:
                keep.keep(memory)
            _tell(looked, as_json=as_json, everything=as_json or (once and ports.terminal), summary=once and ports.terminal)
            if once:
                return Exit.AGAIN if looked.away else Exit.OK
            sys.stdout.flush()
            looks += 1
            if looks == 1 and ports.terminal:
                click.echo(f"{count(looked.minded, 'run')} in {runs_dir}, looked at every {every} s; Ctrl-C ends it", err=True)
            failures = failures + 1 if looked.away else 0
            hurries = hurries + 1 if looked.hurry else 0
            hurried = looked.hurry and hurries <= HURRIES
            _sleep(ports, minder, HURRY_S if hurried else min(every * 2.0 ** min(failures, 10), max(AWAY_MOST_S, every)))


def _sleep(ports: Ports, minder: Minder, pause_s: float) -> None:
    """With --start-now no longer than until a run gives its job back."""
    while pause_s > 0:
        nap_s = min(HURRY_S, pause_s) if minder.start_now else pause_s
        ports.sleep(nap_s)
        pause_s -= nap_s
        if minder.start_now and minder.gives_back():
            return


@contextmanager
def _locked(folder: Path) -> Iterator[tuple[Memory, Lock | None]]:
    """What is remembered, under the lock; without a lock where there can be none, which is said."""
    try:
        lock = Lock(folder)
    except FileNotFoundError:
        click.echo(f"no runs in {folder}", err=True)
        yield Memory(), None
        return
    except OSError as error:
        click.echo(no_lock(folder, error), err=True)
        yield Memory(), None
        return
    try:
        yield lock.remembered(), lock
    finally:
        lock.close()


def _tell(looked: Looked, *, as_json: bool, everything: bool, summary: bool) -> None:
    for one in looked.said:
        if one.new or everything:
            click.echo(msgspec.json.encode(one).decode() if as_json else _line(one))
    if summary:
        done = sum(one.do not in {Do.NOTHING, Do.SAY} and not one.failed for one in looked.said)
        click.echo(f"{count(looked.minded, 'run')} looked at; {count(done, 'thing')} done", err=True)


def _line(one: Said) -> str:
    said = f"{one.wall[11:19]} {one.run}: {one.text}"
    failed = f"; that failed: {one.failed}" if one.failed else ""
    hint = f"\n  hint: {one.hint}" if one.hint else ""
    return one_line(said + failed, width=2000) + hint
