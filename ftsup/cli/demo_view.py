"""What the demo shows: news as they happen, a live picture where there is a terminal, and the table at the end.

Owns the words and the layout; decides nothing. Without a terminal, or with NO_COLOR, the same news come as plain lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType

import msgspec
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ftsup import events as ev
from ftsup.cli.demo_faults import passed_s
from ftsup.cli.demo_hands import Seat
from ftsup.cli.demo_proof import Outcome
from ftsup.events import How, Line
from ftsup.policy.judge import HANGS
from ftsup.report.story import Incident, Story
from ftsup.report.words import one_line, short_time
from ftsup.worker.beatfile import Phase

_STYLES = (
    ("struck", "bold red"),
    ("found", "yellow"),
    ("set aside", "yellow"),
    ("Slurm's warning", "yellow"),
    ("decided", "magenta"),
    ("saved as asked", "green"),
    ("a new leader", "green"),
    ("training again", "green"),
)
PLAIN_S = 5.0
"""Between two lines of progress where there is no live picture."""


def news(before: Story, after: Story, lines: Sequence[Line] = ()) -> list[str]:
    """What is new in a story, a sentence each; `lines`: those that made it new."""
    said = [text for line in lines for text in _event(line.event, before)]
    if after.grants > before.grants:
        again = f", for the {_ordinal(after.grants)} time" if after.grants > 1 else ""
        said.append(f"job {after.job} got {', '.join(after.nodes)}{again}")
    old = {(incident.number, incident.epoch): incident for incident in before.incidents}
    for incident in after.incidents:
        known = old.get((incident.number, incident.epoch))
        if incident.root is not None and (known is None or known.root is None):
            said.append(f"found: {_first_sight(incident)}")
        if incident.verdict is not None and (known is None or known.verdict is None):
            said.append(f"decided: {incident.verdict.reason}")
        if incident.back is not None and (known is None or known.back is None):
            said.append(f"training again, from step {incident.resumed_step}")
    if after.attempts > before.attempts:
        begin = f"from step {after.base_step}" if after.base_step else "from the beginning"
        said.append(f"attempt {after.epoch} starts {begin}")
    if after.stage is not before.stage and after.stage.over and after.verdict is not None:
        said.append(f"{after.stage.value}: {after.verdict.reason}")
    return said


def _event(event: ev.LeaderEvent, before: Story) -> list[str]:
    """What an event says by itself."""
    match event:
        case ev.Quarantined(name=name, why=why):
            return [f"set aside: {name}: {why}"]
        case ev.LeaderStarted(job=job, restarts=restarts) if before.grants and (job, restarts) == (before.job, before.restarts):
            return [f"a new leader, while attempt {before.epoch} trains on"]
        case ev.Warned(node=node):
            return [f"Slurm's warning came to {node}"]
        case ev.SaveOver(node=node, step=step, missed=()):
            return [f"saved as asked: all ranks of {node}, at step {step}"]
        case _:
            return []


def _first_sight(incident: Incident) -> str:
    """What is sure at once: that there is a fault. Who began it is known when the evidence is there."""
    if incident.root is None:
        return incident.fault
    what = {How.PEER: "ranks lost a peer"} | dict.fromkeys(HANGS, "no rank moves any more")
    at = "" if incident.at_step is None else f", at step {incident.at_step}"
    return what[incident.root.how] + at if incident.root.how in what else incident.fault


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to see now."""

    act: str
    """What is going on, in a few words."""
    step: int
    steps: int
    story: Story = Story()
    seats: Mapping[int, Seat] = {}


class View:
    """Tells the demo's story while it happens. Use it in a `with` block."""

    def __init__(self, console: Console, *, title: str) -> None:
        self._console = console
        self._title = title
        self._said: list[Text] = []
        self._plain_s, self._plain_step = 0.0, 0
        live = console.is_terminal and not console.no_color
        self._live = Live(console=console, auto_refresh=False, transient=True) if live else None

    def __enter__(self) -> None:
        if self._live:
            self._live.start()
        else:
            self._console.print(self._title, highlight=False)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._live.stop()
            self._console.print(self._title, style="bold", highlight=False)
            for line in self._said:
                self._console.print(Text("\n").join(_hanging(line, self._console)))

    def say(self, text: str, *, at_s: float, style: str = "") -> None:
        """Something happened."""
        line = Text.assemble((f"{_clock(at_s)}  ", "dim"), (one_line(text, width=400), style or _style(text)))
        self._said.append(line)
        if self._live is None:
            self._console.print(line.plain, soft_wrap=True, highlight=False, markup=False)

    def tell(self, before: Story, after: Story, lines: Sequence[Line], *, at_s: float) -> None:
        """Say what is new."""
        for text in news(before, after, lines):
            self.say(text, at_s=at_s)

    def draw(self, scene: Scene, *, at_s: float) -> None:
        """Show how it stands."""
        if self._live:
            self._live.update(self.picture(scene, at_s=at_s), refresh=True)
        elif scene.step != self._plain_step and at_s - self._plain_s >= PLAIN_S:
            self._plain_s, self._plain_step = at_s, scene.step
            self._console.print(f"{_clock(at_s)}    {scene.act}: step {scene.step} of {scene.steps}", highlight=False, markup=False)

    def picture(self, scene: Scene, *, at_s: float) -> RenderableType:
        """The live picture: never higher than the terminal."""
        width = self._console.width
        head = Table.grid(expand=True)
        head.add_column(ratio=1)
        head.add_column(justify="right")
        head.add_row(Text(self._title, style="bold", no_wrap=True, overflow="ellipsis"), Text(_clock(at_s)))
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            f"step {scene.step:4d} of {scene.steps}",
            ProgressBar(total=scene.steps, completed=scene.step, width=max(20, width - 44)),
            Text(f"attempt {scene.story.epoch}" if scene.story.epoch else "", style="dim"),
        )
        seats = [*_rank_lines(scene)]
        room = max(3, self._console.height - len(seats) - 7)
        tail = [wrapped for line in self._said[-room:] for wrapped in _hanging(line, self._console)][-room:]
        return Group(head, Text(one_line(scene.act, width=width), style="cyan"), bar, *seats, Text(""), *tail)


def _hanging(line: Text, console: Console) -> list[Text]:
    """The line wrapped to the terminal, its text below itself."""
    first, *rest = line.wrap(console, console.width)
    if not rest:
        return [first]
    indent = len(line.plain) - len(line.plain.lstrip("0123456789: "))
    clock, text = line.divide([indent])
    wrapped = text.wrap(console, console.width - indent)
    return [clock + wrapped[0], *(Text(" " * indent) + more for more in wrapped[1:])]


def _rank_lines(scene: Scene) -> list[Text]:
    nodes: dict[str, list[str]] = {}
    for rank, seat in scene.seats.items():
        sight = seat.sight
        doing = f"step {sight.step}" if sight.phase is Phase.STEP else sight.phase.name.lower().replace("_", " ")
        nodes.setdefault(seat.node, []).append(f"rank {rank}  {doing:<12}")
    lines = [Text(f"  {node:<8}{'   '.join(ranks)}", no_wrap=True, overflow="ellipsis") for node, ranks in nodes.items()]
    return lines + [Text("")] * (2 - len(lines))


def _style(text: str) -> str:
    for word, style in _STYLES:
        if text.startswith(word):
            return style
    return ""


def _clock(at_s: float) -> str:
    minutes, seconds = divmod(int(at_s), 60)
    return f"{minutes}:{seconds:02d}"


def table(found: Sequence[Outcome]) -> Table:
    """The faults and what became of them. Times are measured from the strike itself, on this machine's wall clock."""
    rows = Table(box=box.HORIZONTALS, show_lines=True)
    rows.add_column("fault", width=17)
    for name, width in (("detected after", 8), ("back at work after", 10), ("steps replayed", 8)):
        rows.add_column(name, justify="right", width=width)
    rows.add_column("what ftsup made of it", overflow="fold")
    for one in found:
        times = (short_time(None if wall is None else passed_s(one.struck.at, wall)) for wall in (one.found, one.back))
        rows.add_row(one.struck.text, *times, one.replayed, one.made)
    return rows
