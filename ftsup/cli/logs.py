"""`ftsup logs`: what the ranks of a run print, from the run directory alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from ftsup import eventlog
from ftsup.cli.group import examples
from ftsup.cli.options import run_argument, runs_dir_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.errors import RunError
from ftsup.report import runs
from ftsup.report.story import Story, fold
from ftsup.report.words import one_line
from ftsup.rundir import RunDir

FOLLOW_S = 0.5
_EPOCH = re.compile(r"(\d+)\.(\d+)")


@click.command(epilog=examples("ftsup logs -f", "ftsup logs train --epoch 2.1 --node gpu007"))
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
