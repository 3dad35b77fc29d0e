"""What `ftsup explain` prints: the tale as text of 80 columns, and as Markdown for an issue. Pure text.

The first lines are for the night: where the run is, how much of its time was training, what took most, and what to do now.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from ftsup.events import VerdictKind
from ftsup.incident.stacks import Frame
from ftsup.report.costs import Cause, Cost
from ftsup.report.evidence import stack
from ftsup.report.explain import SILENT_S, Lost, Tale, Told
from ftsup.report.minding import Deed
from ftsup.report.story import Stage
from ftsup.report.troubles import Trouble
from ftsup.report.words import count, names, one_line, short_time

WIDTH = 80
_SHOWN = 12
"""Incidents told in full; a run of weeks has hundreds."""
_LABEL = 10
_PATH = re.compile(r"\(?/")
_UNIT = re.compile(r"(?<=\d) (?=(?:d|h|min|s|%)(?![a-z]))")


def text(tale: Tale, *, alone: bool = False) -> str:
    """The page. `alone`: the tale has one incident, and all that is known of it is wanted."""
    if alone:
        return "\n".join(line for told in tale.incidents for line in (*_incident(told), *_more(told)))
    blocks = [list(_head(tale)), *_stories(tale), *_rest(tale)]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def markdown(tale: Tale) -> str:
    """The page for an issue: headings, tables, and text that Markdown leaves alone."""
    first, *rest = (line.strip() for line in head(tale))
    parts = [f"### {_plain(first)}", *(f"- {_plain(line)}" for line in rest), ""]
    if tale.time:
        parts += ["| where the time went | | share | |", "|---|---:|---:|---|", *(_cells(row) for row in tale.time), ""]
    for told in tale.incidents:
        parts += [f"**{_title(told)}**", "", *(f"- {label}: {_plain(said)}" for label, said in facts(told)), ""]
    if tale.advice:
        parts += ["**What to change**", "", *(f"- {_plain(_advised(one.text, one.key, one.value))}" for one in tale.advice), ""]
    parts += [f"- {_plain(line)}" for line in (*asked(tale), *tale.damaged, *(f"note: {note}" for note in tale.notes))]
    return "\n".join(parts).rstrip()


def _plain(said: str) -> str:
    """One line, nothing of which is markup."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#" else char for char in one_line(said, width=4000))


def _cells(row: Lost) -> str:
    return f"| {row.cause.value} | {short_time(row.spent_s)} | {_share(row.share)} | {_times(row)} |"


# The first lines ----------------------------------------------------------------------------------------------------------


def head(tale: Tale) -> Iterator[str]:
    """Where it is, how it did, what cost most, what to do."""
    yield f"{tale.run}: {tale.stage.value}{' when its leader last spoke' if _silent(tale) else ''}{_why(tale)}"
    if not tale.grants:
        yield f"no leader has written anything yet{f'; its job is {tale.job}' if tale.job else '; it was never submitted'}"
    else:
        at = f", at step {tale.step}" if tale.step is not None else ""
        idle = f" (and {short_time(tale.idle_s)} over or paused)" if tale.idle_s else ""
        yield (
            f"job {tale.job}: {count(tale.attempts, 'attempt')} in {count(tale.grants, 'grant')}, {_broke(tale.incidents)}{at}, "
            f"in {short_time(tale.whole_s)}{idle}"
        )
        yield f"{_share(tale.training.share)} of that time was training; {_dearest(tale)}"
    yield f"now: {now(tale)}"


def _why(tale: Tale) -> str:
    """What brought it there, where that is news."""
    if tale.stage is Stage.RECOVERING and tale.incidents:
        return f": {tale.incidents[-1].fault}"
    if tale.reason.startswith(f"{tale.stage.value} "):  # stopped by ada
        return tale.reason.removeprefix(tale.stage.value)
    return f": {tale.reason}" if tale.reason and tale.stage is not Stage.FINISHED else ""


def _head(tale: Tale) -> Iterator[str]:
    first, *rest = head(tale)
    yield from _wrapped(first, indent="")
    for line in rest:
        yield from _wrapped(line, indent="  ")


def _broke(incidents: Sequence[Told]) -> str:
    numbered = sum(told.number > 0 for told in incidents)
    return count(numbered, "incident")


def _dearest(tale: Tale) -> str:
    others = [row for row in tale.time if row.cause is not Cause.TRAINING]
    if not others:
        return "nothing else took any"
    said = [f"{row.cause.value} took {short_time(row.spent_s)} ({_share(row.share)})" for row in others[:2]]
    return "most of the rest: " + ", ".join(said)


def now(tale: Tale) -> str:
    """What a person should do now."""
    go_on = f"ftsup submit --continue {tale.name}"
    if tale.stage is Stage.STOPPED:
        return _mend(tale, go_on)
    if tale.stage in {Stage.FINISHED, Stage.CANCELLED}:
        return "nothing is left to do"
    if tale.stage is Stage.WAITING:
        return f"ftsup status {tale.name} asks Slurm about its job" if tale.job else f"nothing runs: Slurm has no job of it ({tale.path})"
    if tale.stage is Stage.REQUEUED:
        since = f" for {short_time(tale.quiet_s)}" if tale.quiet_s is not None else ""
        return f"nothing: it has been in the queue{since}, and goes on when Slurm gives it nodes (squeue -j {tale.job})"
    if tale.stage.over:
        return f"{go_on} goes on from the newest checkpoint"
    if tale.unexplained:
        gone = f"squeue -j {tale.job}; if that job is gone, {go_on}"
        return f"it was told to end (SIGTERM), and Slurm has not said why: nothing is requeued; {gone}"
    if _silent(tale):
        return f"its leader has said nothing for {short_time(tale.quiet_s)}: squeue -j {tale.job}; if that job is gone, {go_on}"
    return "nothing: it trains" if tale.stage is Stage.TRAINING else "nothing: it is on its way back to training"


def _mend(tale: Tale, go_on: str) -> str:
    last = tale.incidents[-1] if tale.incidents else None
    if tale.rule == "stop asked":
        return f"nothing; {go_on} goes on from the newest checkpoint"
    if last is None or last.verdict is not VerdictKind.STOP:
        return f"mend what it says, then {go_on}"
    return f"look at {last.where or f'incident {last.number}'}, then {go_on}"


def _silent(tale: Tale) -> bool:
    led = tale.stage in {Stage.STARTING, Stage.TRAINING, Stage.RECOVERING}
    return led and tale.quiet_s is not None and tale.quiet_s > SILENT_S


# Incidents ----------------------------------------------------------------------------------------------------------------


def _stories(tale: Tale) -> Iterator[list[str]]:
    hidden = len(tale.incidents) - _SHOWN
    if hidden > 0:
        dear = sorted(tale.incidents[:hidden], key=lambda told: -told.total_s)[:1]
        worst = f"{_title(dear[0])} ({short_time(dear[0].total_s)})"
        said = f"{hidden} older ones are not shown, the dearest of them {worst}; --incident N shows one, --json all"
        yield _wrapped(said, indent="")
    for told in tale.incidents[-_SHOWN:]:
        yield list(_incident(told))


def _title(told: Told) -> str:
    return f"{told.name}, {told.wall[:19].replace('T', ' ')}, attempt {told.epoch}"


def _incident(told: Told) -> Iterator[str]:
    yield _title(told)
    for label, said in facts(told):
        yield from _wrapped(said, indent=f"  {label:<{_LABEL}}", further=" " * (_LABEL + 2))


def facts(told: Told) -> Iterator[tuple[str, str]]:
    """An incident as labelled sentences."""
    yield "what", told.fault
    if told.line and told.line not in told.fault:
        yield "told by", told.line
    if told.others:
        yield "also", "; ".join(told.others[:3]) + (f"; and {len(told.others) - 3} more" if len(told.others) > 3 else "")  # noqa: PLR2004
    if told.waited:
        yield "waited", f"{_ranks(told.waited)} only waited for others"
    if told.followed:
        yield "followed", f"{_ranks(told.followed)} ended because another one did"
    if told.evidence:
        stacks = f", {count(len(told.evidence.stacks), 'stack')}" if told.evidence.stacks else ""
        yield "evidence", f"{told.evidence.path} ({count(told.evidence.files, 'file')}{stacks})"
    yield "done", _done(told)
    yield "cost", _cost(told)


def _done(told: Told) -> str:
    if told.verdict is None:
        return "nothing was decided" if told.number else "nothing: nobody was there to decide"
    said = told.reason if told.verdict is VerdictKind.RESTART else f"{told.verdict.value}: {told.reason}"
    why = f" (rule: {told.rule}{', ' + told.rule_why if told.rule_why else ''})" if told.rule else ""
    return said + why


def _cost(told: Told) -> str:
    cost, parts = told.cost, list(_parts(told.cost))
    if told.back:
        again = "an unknown number of steps made again" if told.replayed is None else f"{count(told.replayed, 'step')} made again"
        parts.append(again + (f" ({short_time(cost.replayed_s)})" if cost.replayed_s else ""))
    else:
        parts.append("training has not come back")
    return f"{short_time(told.total_s)}: {', '.join(parts)}"


def _parts(cost: Cost) -> Iterator[str]:
    for spent_s, said in (
        (cost.quiet_s, "until it was found"),
        (cost.stop_s, "evidence and stop"),
        (cost.restart_s, "restart"),
        (cost.unknown_s, "until the next grant, of which nothing is known"),
        (cost.queue_s, "requeue and queue"),
        (cost.startup_s, "start-up"),
    ):
        if spent_s:
            yield f"{short_time(spent_s)} {said}"


def _ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-2, 7`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    said = names(["-".join(map(str, run)) for run in runs], most=12)
    return f"rank{'' if len(ranks) == 1 else 's'} {said}"


def _more(told: Told) -> Iterator[str]:
    """What only one incident alone has room for: the stack of the rank, and what evidence there is not."""
    if told.evidence is None:
        return
    if told.rank is not None:
        path, frames = stack(told.evidence, node=told.node, rank=told.rank)
        if frames:
            yield ""
            yield from _wrapped(f"stack of rank {told.rank} ({path}):", indent="  ")
            yield from (f"    {_frame(frame)}" for frame in frames)
    for note in told.evidence.missing:
        yield from _wrapped(f"not there: {note}", indent="  ")


def _frame(frame: Frame) -> str:
    """Where a path is too long its beginning goes: the line is what matters."""
    said = one_line(f"{frame.file}:{frame.line} in {frame.function}", width=1000)
    room = WIDTH - 4
    return said if len(said) <= room else f"...{said[3 - room :]}"


# The rest -----------------------------------------------------------------------------------------------------------------


def _rest(tale: Tale) -> Iterator[list[str]]:
    yield [line for said in (*asked(tale), *tale.damaged) for line in _wrapped(said, indent="")]
    if tale.whole_s:
        yield ["where the time went", *map(_row, tale.time), _total(tale)]
    if tale.advice:
        said = [_wrapped(f"- {_advised(one.text, one.key, one.value)}", indent="  ") for one in tale.advice]
        yield ["what to change", *(line for lines in said for line in lines)]
    yield [line for note in tale.notes for line in _wrapped(f"note: {note}", indent="")]


def asked(tale: Tale) -> Iterator[str]:
    """What people asked for, what stood for a while, and leaders that died."""
    for wish in tale.asked:
        yield f"{wish.wall[:19].replace('T', ' ')} {wish.answer or f'{wish.who} asked for {wish.request}'}"
    yield from map(_watched, tale.watched[-_SHOWN:])
    yield from map(_trouble, tale.troubles)
    if tale.leaders:
        often = "once" if tale.leaders == 1 else f"{tale.leaders} times"
        yield f"the leader died {often} and was started again, while training went on"


def _watched(deed: Deed) -> str:
    failed = f"; that failed: {deed.failed}" if deed.failed else ""
    return f"{deed.wall[:19].replace('T', ' ')} ftsup watch: {deed.text}{failed}"


def _trouble(one: Trouble) -> str:
    often = [f"{one.times} times"] if one.times > 1 else []
    ended = one.times > 1 or not one.stands
    more = [f"{one.others} more of the run's supervisors say so"] if one.others else []
    so_long = [f"{short_time(one.whole_s)}{' in all' if often else ''}"] if ended else []
    return (
        f"{one.wall[:19].replace('T', ' ')} {one.text} ({', '.join([*often, *so_long, *(['not over yet'] if one.stands else []), *more])})"
    )


def _row(row: Lost) -> str:
    return f"  {row.cause.value:<20}{short_time(row.spent_s):>14}{_share(row.share):>9}   {_times(row)}".rstrip()


def _total(tale: Tale) -> str:
    return f"  {'in all':<20}{short_time(tale.whole_s):>14}{'100 %':>9}"


def _times(row: Lost) -> str:
    return "" if row.times is None else "once" if row.times == 1 else f"{row.times} times" if row.times else ""


def _share(share: float) -> str:
    return f"{share * 100:.1f} %" if share < 0.0995 else f"{share * 100:.0f} %"  # noqa: PLR2004 - two digits either way


def _advised(said: str, key: str, value: str) -> str:
    return f"{said}: `{key}: {value}`" if key and value else said


def _wrapped(line: str, *, indent: str, further: str | None = None) -> list[str]:
    """At most 80 columns; a number stays with its unit, and a path that is longer stays whole: it is there to be copied."""
    bound = _UNIT.sub("\N{NO-BREAK SPACE}", one_line(line, width=2000))
    further = indent + "  " if further is None else further
    room = WIDTH - len(further)
    words = " ".join(part for word in bound.split(" ") for part in ([word] if _PATH.match(word) else _chopped(word, room)))
    lines = textwrap.wrap(words, WIDTH, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False, break_long_words=False)
    return [said.replace("\N{NO-BREAK SPACE}", " ") for said in lines]


def _chopped(word: str, room: int) -> list[str]:
    return [word[at : at + room] for at in range(0, len(word), room)] or [word]
