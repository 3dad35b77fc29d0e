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

from ftsup.events import Fault, How
from ftsup.policy.rules import Rules
from ftsup.worker.beatfile import Beat, Phase

SAMPLES = 31
"""Steps whose times make the median: enough to be robust against a checkpoint or two in between."""


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


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What the watcher remembers of a rank."""

    beat: Beat
    moved_t: float
    """When it was last seen to move."""
    beats_t: float
    """When its beats were last seen to grow."""
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


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What a look found; lists, to be decided about at the end."""

    stalled: tuple[Fault, ...] = ()
    """Everybody who stands still now, if anybody joined them since the last look."""
    moving: bool = False
    """Somebody stood still, and now nobody does any more."""
    phase: Phase | None = None
    """The phase of the slowest rank, if it changed."""
    saved: int | None = None
    """A step that was reported saved, newly."""
    learned: bool = False
    """The median step moved by more than a quarter."""


def step_of(beat: Beat, base_step: int | None) -> int | None:
    """The script's step, if it says so; else the checkpoint's plus the beats since; None: unknown."""
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
    marks = {rank: _mark(watch.marks.get(rank), t, sight) for rank, sight in sights.items()}
    times = _step_times(before, marks)
    watch = replace(watch, marks=marks, looked_t=t, step_s=(watch.step_s + times)[-SAMPLES:])
    faults = {rank: fault for rank in marks if (fault := _fault(watch, rank, sights[rank], rules, node))}
    watch = replace(watch, marks={rank: replace(mark, stalled=rank in faults) for rank, mark in marks.items()})
    middle = median(watch.step_s) if watch.step_s else 0.0
    due = watch.learned_t is None or t - watch.learned_t >= rules.beats_s  # two kinds of steps in turn: not a line each time
    learned = due and middle > 0 and abs(middle - watch.median_s) > 0.25 * watch.median_s
    if learned:
        watch = replace(watch, learned_t=t)
        watch = replace(watch, median_s=middle)
    stood = {rank for rank, mark in before.marks.items() if mark.stalled}
    return watch, Seen(
        stalled=tuple(faults.values()) if set(faults) - stood else (),
        moving=bool(stood) and not faults,
        phase=slowest if (slowest := slowest_phase(watch)) != slowest_phase(before) else None,
        saved=_newly_saved(before, watch),
        learned=learned,
    )


def slowest_phase(watch: Watch) -> Phase | None:
    """The phase that the last rank is in, by the order of an attempt's life."""
    phases = [mark.beat.phase for mark in watch.marks.values()]
    return min(phases) if phases else None


def steps(watch: Watch) -> tuple[int | None, int]:
    """(step of the slowest rank or None, its beats)."""
    if not watch.marks:
        return None, 0
    beat = min((mark.beat for mark in watch.marks.values()), key=lambda beat: beat.beats)
    return step_of(beat, watch.base_step), beat.beats


def step_now_s(watch: Watch) -> float:
    """What a step takes these days; 0: not known."""
    return median(watch.step_s[-5:]) if watch.step_s else watch.median_s


def _mark(mark: Mark | None, t: float, sight: Sight) -> Mark:
    stopped_t = None
    if sight.process is Process.STOPPED:
        stopped_t = mark.stopped_t if mark and mark.stopped_t is not None else t
    if mark is None:
        return Mark(beat=sight.beat, moved_t=t, beats_t=t, stopped_t=stopped_t)
    return replace(
        mark,
        beat=sight.beat,
        moved_t=mark.moved_t if sight.beat == mark.beat else t,
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


def _fault(watch: Watch, rank: int, sight: Sight, rules: Rules, node: str) -> Fault | None:
    mark, t = watch.marks[rank], watch.looked_t or 0.0
    phase = mark.beat.phase
    limit_s = rules.hang.limit_s(phase, median_s=watch.median_s, restart_s=watch.restart_s)
    if mark.stopped_t is not None and t - mark.stopped_t >= rules.hang.stopped_s:
        how, quiet_s, limit_s = How.STOPPED, t - mark.stopped_t, rules.hang.stopped_s
    elif sight.process is not Process.GONE and t - mark.moved_t >= limit_s:
        how, quiet_s = How.STORAGE if sight.process is Process.DISK else How.QUIET, t - mark.moved_t
    else:
        return None
    return Fault(
        how=how,
        node=node,
        rank=rank,
        step=step_of(mark.beat, watch.base_step),
        phase=phase.name.lower(),
        quiet_s=round(quiet_s, 1),
        limit_s=round(limit_s, 1),
    )


def _newly_saved(before: Watch, after: Watch) -> int | None:
    def newest(watch: Watch) -> int:
        return max((mark.beat.saved_step for mark in watch.marks.values()), default=-1)

    return newest(after) if newest(after) > newest(before) else None
