"""What became of the demo's faults, read from the run's event log and never from the plan; and what did not hold, a sentence each.

Pure. Every kind of fault has one function here, which says what ftsup made of it and what should have been otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeVar

import msgspec

from ftsup import events as ev
from ftsup.checkpoint.manifest import BLOCK_BYTES
from ftsup.cli.demo_faults import Kind, Strike, Struck, passed_s
from ftsup.events import How, Line, VerdictKind
from ftsup.report.story import Incident, Story

E = TypeVar("E", bound=ev.Event)
OPENS = frozenset({Kind.SLEEP, Kind.KILL, Kind.WARNING})
"""They end an attempt; the others should not."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one fault. `found` and `back` are instants of the wall clock."""

    struck: Struck
    found: str | None = None
    back: str | None = None
    """Training goes on; or the new leader leads."""
    replayed: str = "?"
    made: str = "not seen as what it was"
    """What ftsup made of it."""
    problems: tuple[str, ...] = ()
    incident: Incident | None = None


def outcomes(lines: Sequence[Line], story: Story, struck: Sequence[Struck]) -> tuple[Outcome, ...]:
    """Of all that struck, in their order."""
    return tuple(_OF[one.strike.kind](lines, story, one) for one in struck)


def recovered(story: Story, found: Sequence[Outcome]) -> bool:
    """Whether the run is back from all that struck, whatever it was taken for."""
    opened = sum(one.struck.strike.kind in OPENS for one in found)
    led = all(one.back for one in found if one.struck.strike.kind is Kind.LEADER)
    return len(story.incidents) >= opened and not story.open and (led or len(story.incidents) > opened)


def missing(story: Story, plan: Sequence[Strike], found: Sequence[Outcome]) -> list[str]:
    """What does not hold of "every fault struck, was seen as what it was, and was survived"; nothing when all of it does."""
    hit = {one.struck.strike for one in found}
    said = [f"did not strike: {strike.text}" for strike in plan if strike not in hit]
    said += [problem for one in found for problem in one.problems]
    about = [one.incident for one in found if one.incident is not None]
    return said + [f"nobody struck, and yet: {incident.fault}" for incident in story.incidents if incident not in about]


# A rank -------------------------------------------------------------------------------------------------------------------


def _rank(_lines: Sequence[Line], story: Story, one: Struck) -> Outcome:
    incident = next((incident for incident in story.incidents if _is_about(incident, one.strike)), None)
    if incident is None:
        return _unseen(one)
    return _incident(one, incident, expected=VerdictKind.RESTART)


def _is_about(incident: Incident, strike: Strike) -> bool:
    root = incident.root
    if root is None or root.rank != strike.rank:
        return False
    if strike.kind is Kind.SLEEP:
        return root.how is How.QUIET and root.step == strike.step
    return root.how is How.SIGNAL and root.signal == "SIGKILL"


def _unseen(one: Struck) -> Outcome:
    return Outcome(struck=one, problems=(f"was not seen as what it was: {one.text}",))


def _incident(one: Struck, incident: Incident, *, expected: VerdictKind) -> Outcome:
    problems = []
    reason = incident.verdict.reason if incident.verdict else "nothing"
    if incident.verdict is None or incident.verdict.kind is not expected:
        problems.append(f"{expected.value} should have been decided after {one.text}; decided: {reason}")
    if incident.back is None:
        problems.append(f"training did not come back after {one.text}")
    return Outcome(
        struck=one,
        found=incident.found.wall,
        back=incident.back.wall if incident.back else None,
        replayed="?" if incident.replayed is None else str(incident.replayed),
        made=reason,
        problems=tuple(problems),
        incident=incident,
    )


# A checkpoint -------------------------------------------------------------------------------------------------------------


def _bit(lines: Sequence[Line], story: Story, one: Struck) -> Outcome:
    """It belongs to the incident of the kill before it, whose resume it spoils."""
    aside = next(_since(lines, one, ev.Quarantined, where=lambda event: event.name == one.name), None)
    picks = [event for _, event in _since(lines, one, ev.CheckpointPicked)]
    picked = picks[0] if picks else None
    incident = next((incident for incident in story.incidents if one.epoch == incident.epoch), None)
    problems = []
    if picked is None:
        problems.append(f"no checkpoint was chosen after {one.text}")
    elif one.name in {event.name for event in picks}:
        problems.append(f"training was resumed from {one.name}, which is damaged")
    elif picked.name != one.older:
        problems.append(f"{one.older} should have been taken instead of {one.name}; taken: {picked.name or 'none'}")
    block = one.offset // BLOCK_BYTES
    if aside is None:
        problems.append(f"{one.name} is damaged, and was not quarantined")
    elif f"the file, block {block} (" not in aside[1].why:
        problems.append(f"the bit was flipped in block {block} of {one.name}; it was quarantined with these words: {aside[1].why}")
    more = _step(lines, one.name) - (picked.step or 0 if picked else 0)
    replayed = incident.replayed if incident else None
    if picked and not problems and (replayed is None or replayed < more):
        problems.append(f"{more} steps were lost with {one.name}; counted as replayed: {replayed or 0}")
    return Outcome(
        struck=one,
        found=aside[0] if aside else None,
        back=incident.back.wall if incident and incident.back else None,
        replayed=f"{more} of these" if picked else "?",
        made=f"{aside[1].why}; quarantined, and {picked.name} was taken" if aside and picked else "not seen as what it was",
        problems=tuple(problems),
    )


def _step(lines: Sequence[Line], name: str) -> int:
    """The step of a checkpoint that was sealed."""
    return next((line.event.step or 0 for line in lines if isinstance(line.event, ev.Sealed) and line.event.name == name), 0)


# The leader ---------------------------------------------------------------------------------------------------------------


def _leader(lines: Sequence[Line], _story: Story, one: Struck) -> Outcome:
    """Training must not notice: the attempt is the same, and makes steps."""
    new = next(_since(lines, one, ev.LeaderStarted), None)
    if new is None:
        return Outcome(struck=one, made="nobody led any more", problems=(f"no new leader was started after {one.text}",))
    back = {event.node: wall for wall, event in _since(lines, one, ev.NodeUp, where=lambda event: event.running == one.epoch)}
    lost = [node for node in new[1].nodes if node not in back]
    seen = [event.step or 0 for _, event in _since(lines, one, ev.Progressed, where=lambda event: event.epoch == one.epoch)]
    further = max(seen, default=0)
    problems = []
    if lost:
        problems.append(f"the new leader did not find attempt {one.epoch} at work on {', '.join(lost)}")
    if further <= one.step:
        problems.append(f"attempt {one.epoch} did not train on after {one.text}")
    made = f"the batch script started a new leader; attempt {one.epoch} trained on meanwhile"
    return Outcome(
        struck=one,
        found=new[0],
        back=None if problems else max(back.values()),
        replayed="?" if problems else "0",
        made="its end did not leave training alone" if problems else made,
        problems=tuple(problems),
    )


# The time limit -----------------------------------------------------------------------------------------------------------


def _warning(lines: Sequence[Line], story: Story, one: Struck) -> Outcome:
    """Saved by all ranks at one step, requeued by ftsup, resumed there."""
    incident = next((incident for incident in story.incidents if incident.epoch == one.epoch and _is_limit(incident)), None)
    if incident is None:
        return _unseen(one)
    out = _incident(one, incident, expected=VerdictKind.REQUEUE)
    warned = next(_since(lines, one, ev.Warned), None)
    problems = list(out.problems)
    if warned is None:
        problems.append("Slurm's warning did not reach ftsup")
    saves = [event for _, event in _since(lines, one, ev.SaveOver, where=lambda event: event.epoch == one.epoch)]
    picked = next(_since(lines, one, ev.CheckpointPicked), None)
    problems += _not_by_all(saves, nodes=_nodes(lines, one), whole=_whole(lines))
    saved = min((event.step or 0 for event in saves), default=0)
    resumed = picked[1].step or 0 if picked else 0
    if saves and picked and resumed < saved:
        problems.append(f"the save at step {saved} was not resumed from, but step {resumed} (steps replayed: {saved - resumed})")
    where = "there" if resumed == saved else f"at step {resumed}, which the script saved later still"
    made = out.made if problems else f"{out.made}; resumed {where}: only what was done after that is replayed"
    return msgspec.structs.replace(out, found=warned[0] if warned else None, made=made, problems=tuple(problems))


def _nodes(lines: Sequence[Line], one: Struck) -> tuple[str, ...]:
    """Those that the job had then."""
    before = (line.event.nodes for line in reversed(lines) if isinstance(line.event, ev.LeaderStarted) and passed_s(one.at, line.wall) < 0)
    return next(before, ())


def _is_limit(incident: Incident) -> bool:
    verdict = incident.verdict
    return incident.root is None and verdict is not None and verdict.kind is VerdictKind.REQUEUE and verdict.rule == "time limit"


def _whole(lines: Sequence[Line]) -> frozenset[int]:
    """Steps of checkpoints that were found whole: all ranks have part in each."""
    return frozenset(line.event.step for line in lines if isinstance(line.event, ev.Sealed | ev.CheckpointPicked) and line.event.step)


def _not_by_all(saves: Sequence[ev.SaveOver], *, nodes: Sequence[str], whole: AbstractSet[int]) -> list[str]:
    """A node that looked late tells the script's own next save instead, which is one of all ranks, too."""
    if not saves:
        return ["nothing was saved because of Slurm's warning"]
    said = []
    absent = [node for node in nodes if node not in {event.node for event in saves}]
    missed = sorted(rank for event in saves for rank in event.missed)
    steps = sorted({event.step for event in saves}, key=str)
    if absent:
        said.append(f"the save because of Slurm's warning was not on all ranks: none on {', '.join(absent)}")
    if missed:
        said.append(f"the save because of Slurm's warning was not on all ranks: without rank {', '.join(map(str, missed))}")
    if (len(steps) > 1 and not set(steps) <= whole) or None in steps:
        said.append(f"the ranks saved at different steps because of Slurm's warning: {', '.join(map(str, steps))}")
    return said


# The log ------------------------------------------------------------------------------------------------------------------


def _since(
    lines: Sequence[Line], one: Struck, kind: type[E], *, where: Callable[[E], bool] = lambda _event: True
) -> Iterator[tuple[str, E]]:
    """Events of a kind after a strike, each with its instant."""
    for line in lines:
        if isinstance(line.event, kind) and where(line.event) and passed_s(one.at, line.wall) >= 0:
            yield line.wall, line.event


_OF: dict[Kind, Callable[[Sequence[Line], Story, Struck], Outcome]] = {
    Kind.SLEEP: _rank,
    Kind.KILL: _rank,
    Kind.FLIP: _bit,
    Kind.LEADER: _leader,
    Kind.WARNING: _warning,
}
