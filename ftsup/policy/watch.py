"""Beats over time: who moved, who stands still for too long, how long a step takes. One node's ranks.

Pure. It never compares two clocks: it remembers when *this* watcher last saw a counter move. When the watcher itself was away
(its look came late: stopped, suspended), all marks start again at now, so that a late look never makes a hang.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from statistics import median

import msgspec
from msgspec.structs import replace

from ftsup.events import Fault, How, WatchedBy
from ftsup.policy.rules import Rules
from ftsup.worker.beatfile import Beat, Flag, Phase

SAMPLES = 31
"""Steps whose times make the median: enough to be robust against a checkpoint or two in between."""
FEW = 5
"""Fewer make no median: the second step may compile again, and the one after wait for the data."""


class Process(Enum):
    """State of a rank's process, as /proc tells it."""

    RUNNING = "running"
    STOPPED = "stopped"
    DISK = "disk"
    GONE = "gone"
    UNKNOWN = "unknown"


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at a rank shows."""

    beat: Beat
    process: Process = Process.UNKNOWN
    output: int | None = None
    """Bytes that it has printed; None: not known."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What the watcher remembers of a rank."""

    beat: Beat
    moved_t: float
    """When it was last seen to move."""
    beats_t: float
    """When its beats were last seen to grow."""
    output: int | None = None
    stopped_t: float | None = None
    """Since when its process is seen stopped."""
    stalled: bool = False


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """All that is remembered of one attempt's ranks on one node."""

    marks: dict[int, Mark] = {}
    looked_t: float | None = None
    step_s: tuple[float, ...] = ()
    """The newest step times."""
    median_s: float = 0.0
    learned_t: float | None = None
    """When the median was last told."""
    restart_s: float = 0.0
    base_step: int | None = 0
    busy: Phase | None = None
    """What was told of those for whom others may be waiting."""
    saving_s: float = 0.0
    """Time in which some rank was seen saving, since that was told."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a look found; lists, to be decided about at the end."""

    stalled: tuple[Fault, ...] = ()
    """Everybody who stands still now, if anybody joined them since the last look."""
    moving: bool = False
    """Somebody stood still, and now nobody does any more."""
    saved: int | None = None
    """A step that was reported saved, newly."""
    learned: bool = False
    """The median step moved by more than a quarter."""
    busy: bool = False
    """`Watch.busy` is another than before."""


def silent(beat: Beat) -> bool:
    """It runs, and neither torch nor the script says anything through it: what it prints is its only sign of life."""
    return beat.pid != 0 and beat.phase is Phase.START and beat.activity == 0


def printing_counts(beat: Beat) -> bool:
    """Whether what it prints is a sign of life. From a rank that trains it proves nothing: a thread prints, and training hangs.

    Before that it may be all there is: torch without an optimizer and without batches (a data set that is prepared for hours, a script
    that only generates, one that has started other processes and waits for them).
    """
    return silent(beat) or (beat.pid != 0 and beat.phase is Phase.INIT and beat.beats == 0)


def watched_by(mark: Mark) -> WatchedBy | None:
    """What shows that a rank lives; None while it starts up."""
    beat = mark.beat
    if Flag.COUNTS in beat.flags:
        return WatchedBy.BEAT
    if beat.beats:
        return WatchedBy.STEPS
    if Flag.UNSURE in beat.flags:
        return WatchedBy.BATCHES
    if beat.phase is Phase.START and beat.activity:
        return WatchedBy.BEAT
    return WatchedBy.OUTPUT if silent(beat) and mark.output else None


def step_of(beat: Beat, base_step: int | None) -> int | None:
    """The script's step, if it says so; else the checkpoint's plus the beats since; None: unknown."""
    if silent(beat) or Flag.UNSURE in beat.flags:
        return None
    if beat.step >= 0:
        return beat.step
    return None if base_step is None else base_step + beat.beats


def away(watch: Watch, t: float) -> Watch:
    """We were away: everything starts again at now."""
    marks = {
        rank: replace(mark, moved_t=t, beats_t=t, stopped_t=None if mark.stopped_t is None else t) for rank, mark in watch.marks.items()
    }
    return replace(watch, marks=marks, looked_t=t)


def look(watch: Watch, t: float, sights: Mapping[int, Sight], rules: Rules, *, node: str = "") -> tuple[Watch, Seen]:
    """Look at all ranks of the node once; what is remembered now, and what was found."""
    if watch.looked_t is not None and t - watch.looked_t > rules.late_s:
        watch = away(watch, t)
    before = watch
    printed = any(printing_counts(sight.beat) and _printed(watch.marks.get(rank), sight) for rank, sight in sights.items())
    marks = {rank: _mark(watch.marks.get(rank), t, sight, printed=printed) for rank, sight in sights.items()}
    times = _step_times(before, marks)
    saving_s = watch.saving_s + _saving_s(before, t)
    watch = replace(watch, marks=marks, looked_t=t, step_s=(watch.step_s + times)[-SAMPLES:], saving_s=saving_s)
    faults = {rank: fault for rank in marks if (fault := _fault(watch, rank, sights[rank], rules, node))}
    watch = replace(watch, marks={rank: replace(mark, stalled=rank in faults) for rank, mark in marks.items()})
    middle = median(watch.step_s) if len(watch.step_s) >= FEW else 0.0
    due = watch.learned_t is None or t - watch.learned_t >= rules.beats_s  # two kinds of steps in turn: not a line each time
    learned = due and middle > 0 and abs(middle - watch.median_s) > 0.25 * watch.median_s
    if learned:
        watch = replace(watch, learned_t=t)
        watch = replace(watch, median_s=middle)
    watch = replace(watch, busy=_busy(watch, rules))
    stood = {rank for rank, mark in before.marks.items() if mark.stalled}
    return watch, Seen(
        stalled=tuple(faults.values()) if set(faults) - stood else (),
        moving=bool(stood) and not faults,
        saved=_newly_saved(before, watch),
        learned=learned,
        busy=watch.busy is not before.busy,
    )


def slowest_phase(watch: Watch) -> Phase | None:
    """The phase that the last rank is in, by the order of an attempt's life."""
    phases = [mark.beat.phase for mark in watch.marks.values()]
    return min(phases) if phases else None


def slowest_by(watch: Watch) -> WatchedBy | None:
    """What the last rank is watched by."""
    marks = watch.marks.values()
    return watched_by(min(marks, key=lambda mark: mark.beat.phase)) if marks else None


def steps(watch: Watch) -> tuple[int | None, int]:
    """(step of the slowest rank or None, its beats)."""
    if not watch.marks:
        return None, 0
    beat = min((mark.beat for mark in watch.marks.values()), key=lambda beat: beat.beats)
    return step_of(beat, watch.base_step), beat.beats


def step_now_s(watch: Watch) -> float:
    """What a step takes these days; 0: not known."""
    return median(watch.step_s[-5:]) if watch.step_s else watch.median_s


def _printed(mark: Mark | None, sight: Sight) -> bool:
    return mark is not None and sight.output != mark.output


def _mark(mark: Mark | None, t: float, sight: Sight, *, printed: bool) -> Mark:
    """`printed`: a rank of this node. Where only one of them ever prints, the others are as well as it is."""
    stopped_t = None
    if sight.process is Process.STOPPED:
        known = mark is not None and mark.stopped_t is not None and mark.beat == sight.beat  # what moves was stopped anew
        stopped_t = mark.stopped_t if mark and known else t
    if mark is None:
        return Mark(beat=sight.beat, output=sight.output, moved_t=t, beats_t=t, stopped_t=stopped_t)
    alike = printed and (sight.beat.phase is Phase.INIT or not sight.output)
    moved = sight.beat != mark.beat or (printing_counts(sight.beat) and (alike or _printed(mark, sight)))
    return replace(
        mark,
        beat=sight.beat,
        output=sight.output,
        moved_t=t if moved else mark.moved_t,
        beats_t=mark.beats_t if sight.beat.beats == mark.beat.beats else t,
        stopped_t=stopped_t,
    )


def _step_times(before: Watch, marks: Mapping[int, Mark]) -> tuple[float, ...]:
    """Seconds a step, from the rank with the most beats: one sample a look at most, so that no node counts more by its size."""
    moved = [
        (mark.beats_t - old.beats_t) / (mark.beat.beats - old.beat.beats)
        for rank, mark in marks.items()
        if (old := before.marks.get(rank)) and mark.beat.beats > old.beat.beats > 0 and mark.beats_t > old.beats_t
    ]
    return (median(moved),) if moved else ()


def _saving_s(before: Watch, t: float) -> float:
    """From the last look to this one, if somebody saved then. Short saves are missed or count as a whole look: right on average."""
    saves = any(mark.beat.phase is Phase.CHECKPOINT for mark in before.marks.values())
    return t - before.looked_t if saves and before.looked_t is not None else 0.0


def _fault(watch: Watch, rank: int, sight: Sight, rules: Rules, node: str) -> Fault | None:
    mark, t, error = watch.marks[rank], watch.looked_t or 0.0, ""
    limit_s = _limit_s(watch, mark.beat, rules)
    if mark.stopped_t is not None and t - mark.stopped_t >= rules.hang.stopped_s:
        how, quiet_s, limit_s = How.STOPPED, t - mark.stopped_t, rules.hang.stopped_s
    elif not rules.watched and not mark.output:  # it prints to a file of its own, perhaps
        return None
    elif sight.process is not Process.GONE and t - mark.moved_t >= limit_s:
        how, quiet_s = How.STORAGE if sight.process is Process.DISK else How.QUIET, t - mark.moved_t
        error = _no_line(quiet_s) if silent(mark.beat) else ""
    else:
        return None
    return Fault(
        how=how,
        node=node,
        rank=rank if rules.watched else None,  # launch: command has no ranks: what we see is the command
        step=step_of(mark.beat, watch.base_step),
        phase="" if silent(mark.beat) else mark.beat.phase.name.lower(),
        error=error,
        quiet_s=round(quiet_s, 1),
        limit_s=round(limit_s, 1),
    )


def _limit_s(watch: Watch, beat: Beat, rules: Rules) -> float:
    """How long a rank may be quiet now. While it writes a save in the background, whatever waits for that waits as long as a save may."""
    if silent(beat):
        return rules.hang.output_s
    if beat.phase is Phase.START and beat.activity:  # no torch, and beat() without a step: it trains
        return max(rules.hang.start_s, rules.hang.limit_s(Phase.STEP, restart_s=watch.restart_s))
    limit_s = rules.hang.limit_s(beat.phase, median_s=watch.median_s, restart_s=watch.restart_s)
    return max(limit_s, rules.hang.checkpoint_s) if beat.writing else limit_s


def _no_line(quiet_s: float) -> str:
    minutes = quiet_s >= 120  # noqa: PLR2004 - below two minutes, seconds matter
    return f"no line of output for {quiet_s / 60:.0f} min" if minutes else f"no line of output for {quiet_s:.0f} s"


def _busy(watch: Watch, rules: Rules) -> Phase | None:
    """What a rank of ours does since so long, instead of stepping, that those who wait for it may soon be over a step's limit.

    Activity without steps is evaluation, whether or not it is called so.
    """
    t = watch.looked_t or 0.0

    def limit_s(phase: Phase) -> float:
        return rules.hang.limit_s(phase, median_s=watch.median_s, restart_s=watch.restart_s)

    step_s = limit_s(Phase.STEP)
    late = [mark for mark in watch.marks.values() if not mark.stalled and t - mark.beats_t >= step_s / 2]
    phases = {Phase.CHECKPOINT if mark.beat.writing else mark.beat.phase for mark in late} & {Phase.EVALUATION, Phase.CHECKPOINT}
    if any(mark.beat.phase is Phase.STEP and mark.moved_t - mark.beats_t >= step_s / 2 for mark in late):
        phases.add(Phase.EVALUATION)
    longest = max(phases, key=limit_s, default=Phase.STEP)
    return longest if limit_s(longest) > step_s else None


def _newly_saved(before: Watch, after: Watch) -> int | None:
    def newest(watch: Watch) -> int:
        return max((mark.beat.saved_step for mark in watch.marks.values()), default=-1)

    return newest(after) if newest(after) > newest(before) else None
