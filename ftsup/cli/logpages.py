"""How `ftsup logs` prints: which logs and lines are wanted, what stands before a line, and what of an incident's evidence is shown."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from ftsup.errors import RunError
from ftsup.events import Epoch, Fault
from ftsup.plain import decode_plain, read_plain
from ftsup.report import tails
from ftsup.report.tails import Source, Tail
from ftsup.report.words import one_line
from ftsup.rundir import RunDir

EVIDENCE_LINES = 50
_RANK = re.compile(rb"\[rank \d+\] ")
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]|\x1b(?!\[[\d;]*m)")
"""What a terminal would obey, but for tabs and colours."""
_EVIDENCE = re.compile(r"(?:log|nccl)\.(\d{1,9})\.txt")


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which logs are shown. Names come from the command line, so they are compared and never become paths."""

    node: str | None = None
    only: Epoch | None = None
    every: bool = False
    first: Epoch | None = None
    """Nothing from before this attempt."""

    def since(self, run: RunDir) -> Choice:
        """The same, and all that follows what is the newest now."""
        return msgspec.structs.replace(self, every=True, first=min(self.of(run), default=None))

    def of(self, run: RunDir) -> list[Epoch]:
        """The attempts, in their order."""
        known = tails.epochs(run)
        if self.only is not None:
            return [self.only] if self.only in known else []
        known = [epoch for epoch in known if self.first is None or epoch >= self.first]
        return known if self.every else known[-1:]

    def on(self, run: RunDir, epoch: Epoch) -> list[Source]:
        """The logs of an attempt."""
        return [source for source in tails.sources(run, epoch) if self.node in {None, source.node}]


class Page:
    """Where lines go: standard output as they are, or so that a terminal obeys none of them."""

    def __init__(self, *, rank: int | None) -> None:
        self.rank = rank
        self.names = False
        """Whether the node's name stands before each line."""
        self.lines = 0
        self.speakers = False
        """Whether a line told its rank."""
        self.narrow(rank)
        self._epoch: Epoch | None = None
        self._out = sys.stdout.buffer
        self._tame = sys.stdout.isatty()

    def narrow(self, rank: int | None) -> None:
        """Only this rank's lines."""
        self._mine = None if rank is None else b"[rank %d] " % rank

    def wanted(self, line: bytes) -> bool:
        """Whether a line is shown."""
        if self._mine is None:
            return True
        self.speakers = self.speakers or _RANK.match(line) is not None
        return line.startswith((self._mine, tails.OURS))

    def put(self, source: Source, lines: Iterable[bytes], *, told: bool = False) -> None:
        """Print the lines that are wanted. `told`: with the attempt, where it is another than before."""
        prefix = f"{source.node}: ".encode() if self.names else b""
        for line in lines:
            if self.wanted(line):
                if told and source.epoch != self._epoch:
                    self._head(source.epoch)
                self._line(prefix + line)

    def evidence(self, prefix: str, lines: Iterable[bytes]) -> None:
        """Print lines as they were printed, before they got their speaker."""
        for line in lines:
            self._line(prefix.encode() + line)

    def flush(self) -> None:
        """Let the reader have it."""
        self._out.flush()

    def _head(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self.flush()
        click.echo(f"attempt {epoch}", err=True)

    def _line(self, line: bytes) -> None:
        self.lines += 1
        self._out.write((tame(line.decode(errors="replace")).encode() if self._tame else line) + b"\n")


def tame(line: str) -> str:
    """What a terminal may see: its colours end with the line."""
    shown = _OBEYED.sub("\N{REPLACEMENT CHARACTER}", line)
    return f"{shown}\x1b[0m" if "\x1b" in shown else shown


# An incident's evidence ---------------------------------------------------------------------------------------------------


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What `incident.json` says, as far as it can be read."""

    epoch: str = ""
    root: Fault | None = None
    sentence: str = ""


def incident(run: RunDir, number: int, page: Page, *, node: str | None, lines: int | None) -> None:
    """Print the last lines before an incident: of the rank with which it began, or of those that are wanted."""
    folder = run.incident(number)
    if not folder.is_dir():
        known = sorted(int(name) for name in tails.names(run.root / "incidents") if name.isdecimal())
        raise RunError(f"{run.id} has no incident {number}", hint=f"there are {', '.join(map(str, known))}" if known else "there is none")
    told, rank = _told(folder), page.rank
    if told.root is not None and rank is None and node is None:
        node, rank = told.root.node, told.root.rank
    shown = [(path, name) for path in sorted(folder.iterdir()) if node in {None, path.name} for name in _kept(path, rank)]
    click.echo(
        f"incident {number}{f', attempt {told.epoch}' if told.epoch else ''}: {one_line(told.sentence, width=300)}".rstrip(": "), err=True
    )
    for path, name in shown:
        page.evidence(
            _speaker(path.name, name, several=len({where for where, _ in shown}) > 1), _last(path / name, lines or EVIDENCE_LINES)
        )
    if not shown:
        _from_log(run, number, told, page, node=node, rank=rank, lines=lines or EVIDENCE_LINES)
    page.flush()
    if not page.lines:
        whose = ", ".join([*([f"rank {rank}"] if rank is not None else []), *([node] if node else [])])
        click.echo(f"{f'{whose}: ' if whose else ''}nothing was printed in this attempt; all that was kept is in {folder}", err=True)
        return
    more = "" if page.rank is not None else "; --node and --rank show others'"
    click.echo(f"the last {lines or EVIDENCE_LINES} lines of each{more}; all that was kept is in {folder}", err=True)


def _told(folder: Path) -> Told:
    try:
        return decode_plain(read_plain(folder / "incident.json"), Told)
    except (OSError, ValueError):
        return Told()


def _kept(folder: Path, rank: int | None) -> list[str]:
    """The files with a node's last lines, by rank; torchrun's own where no rank is asked for."""
    found = [(int(match[1]), name) for name in tails.names(folder) if (match := _EVIDENCE.fullmatch(name))]
    own = [name for name in ("torchrun.out.txt", "torchrun.err.txt") if rank is None and (folder / name).is_file()]
    return [name for number, name in sorted(found) if rank in {None, number}] + own


def _speaker(node: str, name: str, *, several: bool) -> str:
    match = _EVIDENCE.fullmatch(name)
    return f"{f'{node}: ' if several else ''}[{f'rank {match[1]}' if match else 'torchrun'}] "


def _last(path: Path, number: int) -> list[bytes]:
    try:
        return read_plain(path).removesuffix(b"\n").split(b"\n")[-number:]
    except OSError as error:
        return [f"{path.name} cannot be read: {error.strerror}".encode()]


def _from_log(run: RunDir, number: int, told: Told, page: Page, *, node: str | None, rank: int | None, lines: int) -> None:
    """Nothing was kept: the end of the attempt's own log is the next best."""
    epoch = tails.epoch_of(told.epoch)
    page.narrow(rank)
    here = [] if epoch is None else [source for source in tails.sources(run, epoch) if node in {None, source.node}]
    if not here:
        raise RunError(f"no lines were kept of incident {number}")
    page.names = len(here) > 1
    for source in here:
        page.put(source, Tail().last(source, lines, page.wanted, end=True))
