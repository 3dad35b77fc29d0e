"""The ranks of a run as a map of symbols, folded until it fits: a symbol a rank, else a node, else some nodes. Pure.

A symbol of several shows the worst of them; how many there are of each kind is told beside, and who is to blame by name elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from math import ceil

import msgspec
from rich.text import Text

from ftsup.report.runs import View
from ftsup.worker.beatfile import Phase


class Seen(IntEnum):
    """What a rank does, the worst first."""

    FAULT = 0
    SILENT = 1
    STARTING = 2
    SAVING = 3
    EVALUATING = 4
    TRAINING = 5
    ENDED = 6


SAID = {
    Seen.FAULT: "fault",
    Seen.SILENT: "not heard of",
    Seen.STARTING: "starting",
    Seen.SAVING: "saving",
    Seen.EVALUATING: "evaluating",
    Seen.TRAINING: "training",
    Seen.ENDED: "ended",
}
STYLE = {
    Seen.FAULT: "bold red",
    Seen.SILENT: "yellow",
    Seen.STARTING: "blue",
    Seen.SAVING: "cyan",
    Seen.EVALUATING: "magenta",
    Seen.TRAINING: "green",
    Seen.ENDED: "bright_black",
}
_PHASES = {
    Phase.STEP: Seen.TRAINING,
    Phase.EVALUATION: Seen.EVALUATING,
    Phase.CHECKPOINT: Seen.SAVING,
    Phase.SHUTDOWN: Seen.ENDED,
    Phase.EXITED: Seen.ENDED,
}


class Glyphs(msgspec.Struct, frozen=True, kw_only=True):
    """What a terminal can show."""

    ranks: str
    """By `Seen`."""
    bars: str
    """From nothing to the most."""
    rule: str
    arrows: str


UNICODE = Glyphs(ranks="✖?○◆▲■·", bars=" ▁▂▃▄▅▆▇█", rule="─", arrows="↑↓")
ASCII = Glyphs(ranks="X?osE#.", bars=" .:-=+*%#", rule="-", arrows="up/down")


class Seats(msgspec.Struct, frozen=True, kw_only=True):
    """Who sits where: node -> what its ranks do, by rank; nodes by node rank."""

    nodes: dict[str, tuple[Seen, ...]]

    @property
    def ranks(self) -> int:
        """How many ranks are known."""
        return sum(len(ranks) for ranks in self.nodes.values())


def seats(view: View, *, silent: bool = False) -> Seats:
    """What is known of the ranks: as the leader saw them, and the open incident's culprits marked. `silent`: it tells nothing any more."""
    story = view.story
    if story.verdict is not None or not story.grants:
        return Seats(nodes={})
    found: dict[str, dict[int, Seen]] = {node: {} for node in story.nodes}
    now = view.now.ranks if view.now is not None and view.now.epoch == str(story.epoch) else {}
    for name, rank in now.items():
        if name.isdecimal() and rank.node:
            found.setdefault(rank.node, {})[int(name)] = Seen.SILENT if silent else _seen(rank.phase)
    for incident in story.open:
        if incident.root is not None and incident.root.node in found and incident.epoch == story.epoch:
            ranks = found[incident.root.node]
            marked = list(ranks) if incident.root.rank is None else [incident.root.rank]
            ranks.update(dict.fromkeys(marked, Seen.FAULT))
    return Seats(nodes={node: tuple(ranks[rank] for rank in sorted(ranks)) for node, ranks in found.items()})


def _seen(phase: str | int) -> Seen:
    name = phase.upper() if isinstance(phase, str) else ""
    return _PHASES.get(Phase[name], Seen.STARTING) if name in Phase.__members__ else Seen.SILENT


def legend(seated: Seats, glyphs: Glyphs) -> Text:
    """What the symbols mean, and how many ranks there are of each."""
    counts = Counter(rank for ranks in seated.nodes.values() for rank in ranks)
    text = Text()
    for seen, number in sorted(counts.items()):
        text.append("   " if text else "").append(glyphs.ranks[seen], STYLE[seen]).append(f" {number} {SAID[seen]}")
    return text


def draw(seated: Seats, *, width: int, height: int, glyphs: Glyphs) -> tuple[list[Text], str]:
    """The map in at most so many rows, and what a symbol stands for. As little folded as fits."""
    cells = {node: ranks or (Seen.SILENT,) for node, ranks in seated.nodes.items()}
    if not cells:
        return [], ""
    plain = _rows(cells, width=width, glyphs=glyphs)
    if plain is not None and len(plain) <= height:
        return plain, "a symbol a rank"
    size = 1
    while True:
        folded = _folded(list(cells.items()), size, width=width, glyphs=glyphs)
        if len(folded) <= max(height, 1) or size >= len(cells):
            of = "a symbol a node" if size == 1 else f"a symbol for {size} nodes"
            return folded[: max(height, 1)], f"{of}: its worst rank"
        size *= 2


def _rows(cells: Mapping[str, Sequence[Seen]], *, width: int, glyphs: Glyphs) -> list[Text] | None:
    """Every rank a symbol, as many nodes beside each other as fit; None: not one fits."""
    name = max(map(len, cells), default=0)
    cell = name + 1 + max(map(len, cells.values()), default=0)
    columns = (width + 2) // (cell + 2)
    if columns < 1:
        return None
    items = list(cells.items())
    rows = ceil(len(items) / columns)
    out = []
    for row in range(rows):
        text = Text()
        for node, ranks in items[row::rows]:
            text.append("  " if text else "").append(f"{node:<{name}} ").append_text(_symbols(ranks, glyphs, width=cell - name - 1))
        out.append(text)
    return out


def _folded(items: Sequence[tuple[str, Sequence[Seen]]], size: int, *, width: int, glyphs: Glyphs) -> list[Text]:
    """Every `size` nodes a symbol, each row with the name of its first node."""
    name = max(len(node) for node, _ in items)
    groups = [items[at : at + size] for at in range(0, len(items), size)]
    room = max(width - name - 1, 1)
    out = []
    for at in range(0, len(groups), room):
        row = groups[at : at + room]
        worst = [min(min(ranks) for _, ranks in group) for group in row]
        out.append(Text(f"{row[0][0][0]:<{name}} ").append_text(_symbols(worst, glyphs)))
    return out


def _symbols(ranks: Iterable[Seen], glyphs: Glyphs, *, width: int = 0) -> Text:
    """Symbols in their colours, one span for neighbours of a kind."""
    text = Text()
    run: list[Seen] = []
    for seen in [*ranks, None]:
        if run and seen is not run[-1]:
            text.append(glyphs.ranks[run[0]] * len(run), STYLE[run[0]])
            run = []
        if seen is not None:
            run.append(seen)
    text.append(" " * (width - len(text)))
    return text
