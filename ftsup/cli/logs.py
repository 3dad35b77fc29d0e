"""`ftsup logs`: what the ranks of a run print, from the run directory alone; also while it grows, over restarts and requeues."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from ftsup.cli import complete, logpages
from ftsup.cli.group import Whole, examples
from ftsup.cli.logpages import Choice, Page
from ftsup.cli.options import run_argument, runs_dir_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.errors import RunError
from ftsup.events import Epoch
from ftsup.nearest import did_you_mean
from ftsup.report import runs, tails
from ftsup.report.follow import Follower
from ftsup.report.runs import View
from ftsup.report.story import Stage
from ftsup.report.tails import Source, Tail
from ftsup.report.words import ended, one_line, short_time
from ftsup.rundir import RunDir

FOLLOW_S = 0.5
SETTLE_S = 2.0
"""The last lines come a moment after the news that the run is over."""
SILENT_S = 30.0
"""A cancelled run whose leader says no more has ended with its job."""
STRANGE_S = 300.0
"""A run that trains says something each minute."""
OLD_ROUNDS = 10
"""Logs of earlier attempts are looked at that much less often: what comes there comes late."""


@click.command(
    epilog=examples("ftsup logs -f", "ftsup logs train --rank 3 -n 100", "ftsup logs train --incident 2", "ftsup logs --all | grep loss")
)
@run_argument
@runs_dir_option
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over, over restarts and requeues.")
@click.option("-n", "--lines", "number", type=Whole(min=0), help="Only so many last lines of each node; with -f, then what comes.")
@click.option("--rank", type=Whole(min=0), help="Only this rank's lines. torchrun's own carry no rank: they are left out then.")
@click.option("--node", shell_complete=complete.nodes, help="Only this node's.")
@click.option("--epoch", shell_complete=complete.epochs, help="One attempt: 2.1 is the first of the second grant. Default: the newest.")
@click.option("--all", "every", is_flag=True, help="Every attempt, from the first.")
@click.option("--incident", type=Whole(min=1), help="What was kept as evidence of an incident: the last lines before it.")
@with_ports
def logs(
    ports: Ports,
    run: str | None,
    runs_dir: Path,
    *,
    follow: bool,
    number: int | None,
    rank: int | None,
    node: str | None,
    epoch: str | None,
    every: bool,
    incident: int | None,
) -> None:
    """Show what the ranks of RUN print.

    RUN is a path, a name, the beginning of one, or a job id; without it, the newest run.

    Each line begins with its speaker: `[rank 3]`, or `[torchrun]` for what torchrun itself says; with several nodes, the node's name
    stands before that. Of what a node prints in an attempt, the first 16 MiB and the last 24 to 48 MiB are kept.
    """
    if every and epoch is not None:
        raise click.UsageError("--all and --epoch contradict each other")
    if incident is not None and (follow or every or epoch is not None):
        raise click.UsageError("--incident goes with --rank, --node and -n only")
    found = runs.find(run, runs_dir=ports.cwd / runs_dir)
    page = Page(rank=rank)
    if incident is not None:
        logpages.incident(found, incident, page, node=node, lines=number)
        return
    only = None if epoch is None else tails.epoch_of(epoch)
    choice = Choice(node=node, only=only, every=every)
    if epoch is not None and only is None:
        raise RunError(_nothing(found, choice, epoch))
    if follow:
        _Following(ports, found, choice, page, number=number).run()
        return
    _show(found, choice, page, number=number)


def _show(run: RunDir, choice: Choice, page: Page, *, number: int | None) -> None:
    shown = [source for epoch in choice.of(run) for source in choice.on(run, epoch)]
    if not shown:
        raise RunError(_nothing(run, choice))
    page.names = len({source.node for source in shown}) > 1
    for source in shown:
        page.put(source, Tail().lines(source, end=True) if number is None else Tail().last(source, number, page.wanted, end=True))
    page.flush()
    if page.rank is not None and not page.lines:
        hint = "" if page.speakers else "what `launch: command` prints carries no rank: leave --rank out"
        raise RunError(f"no line of rank {page.rank} in attempt {', '.join(sorted({str(source.epoch) for source in shown}))}", hint=hint)


def _nothing(run: RunDir, choice: Choice, typed: str = "") -> str:
    known = tails.epochs(run)
    nodes = sorted({source.node for epoch in known for source in tails.sources(run, epoch)})
    if not nodes:
        return f"the ranks of {run.id} have printed nothing yet; the batch script's own output is in {run.root}/slurm-*.out"
    which = f"of {choice.node or 'any node'} in attempt {typed or choice.only or known[-1]}"
    meant = did_you_mean(choice.node or "", [] if choice.node in nodes else nodes)
    return f"no output {which}; {f'{meant} ' if meant else ''}there are attempts {_few(known)} and nodes {_few(nodes)}"


def _few(names: Iterable[object], *, most: int = 12) -> str:
    words = [str(name) for name in names]
    return ", ".join(words if len(words) <= most else [*words[:3], "...", *words[-3:]])


class _Following:
    """Prints what comes until the run, or the one attempt that is wanted, is over."""

    def __init__(self, ports: Ports, run: RunDir, choice: Choice, page: Page, *, number: int | None) -> None:
        self._ports, self._run, self._page, self._number = ports, run, page, number
        self._choice = choice.since(run)
        self._follower = Follower(run)
        self._tails: dict[tuple[Epoch, str], Tail] = {}
        self._newest: Epoch | None = None
        self._quiet_s = 0.0
        self._rounds = 0
        self._events = 0
        self._stage: Stage | None = None

    def run(self) -> None:
        """Until the end."""
        while True:
            view = self._follower.look()  # before the logs: what they have when it is over is all
            ended = self._ended(view)
            came = self._read(view, last=bool(ended), end=False)
            came = came or view.story.lines != self._events
            self._events = view.story.lines
            self._quiet_s = 0.0 if came else self._quiet_s + FOLLOW_S
            if ended and self._quiet_s >= SETTLE_S:
                self._read(view, last=True, end=True)
                click.echo(ended, err=True)
                return
            self._say(view)
            self._ports.sleep(FOLLOW_S)

    def _read(self, view: View, *, last: bool, end: bool) -> bool:
        """Print what is new; whether there was anything."""
        page, known = self._page, self._choice.of(self._run)
        changed = known[-1:] != [self._newest]
        before = page.lines
        for epoch in known if last or changed or self._rounds % OLD_ROUNDS == 0 else known[-1:]:
            here = self._choice.on(self._run, epoch)
            page.names = page.names or (self._choice.node is None and max(len(view.story.nodes), len(here)) > 1)
            for source in here:
                self._read_one(source, end=end)
        self._newest = known[-1] if known else None
        self._rounds += 1
        page.flush()
        return page.lines > before

    def _read_one(self, source: Source, *, end: bool) -> None:
        tail = self._tails.get((source.epoch, source.node))
        if tail is None:
            tail = self._tails[source.epoch, source.node] = Tail()
            if self._number is not None and self._rounds == 0:
                self._page.put(source, tail.last(source, self._number, self._page.wanted, end=end), told=True)
                return
        self._page.put(source, tail.lines(source, end=end), told=True)

    def _ended(self, view: View) -> str:
        """The sentence with which it ends; empty: it goes on."""
        story, only = view.story, self._choice.only
        if story.stage.over and view.job in {"", story.job}:  # else it was continued, as another job
            why = one_line(story.verdict.reason, width=200) if story.verdict else ""
            return f"{view.id}: {ended(story.stage.value, why)}"
        if view.cancelled and (story.stage in {Stage.WAITING, Stage.REQUEUED} or self._quiet_s >= SILENT_S):
            return f"{view.id}: cancelled"
        if only is not None and story.epoch is not None and story.epoch > only:
            return f"attempt {only} is over; the newest is {story.epoch}"
        return ""

    def _say(self, view: View) -> None:
        """What explains a silence, once."""
        stage = view.story.stage
        if stage is not self._stage and stage in {Stage.WAITING, Stage.REQUEUED}:
            job = f" (job {view.job})" if view.job else ""
            said = "no leader has started yet" if stage is Stage.WAITING else "requeued: it goes on when Slurm starts it again"
            click.echo(f"{view.id}: {said}{job}", err=True)
        self._stage = stage
        if self._quiet_s == STRANGE_S and stage not in {Stage.WAITING, Stage.REQUEUED}:
            click.echo(
                f"{view.id}: nothing new for {short_time(STRANGE_S)}; `ftsup status {view.id}` shows whether its leader lives", err=True
            )
