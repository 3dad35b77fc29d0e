"""The ranks of an attempt as seen from outside: what each said last, and whether its process lives.

One look, no memory, no clock: what has moved, and for how long something has not, is the watch's affair (policy/watch.py).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ftsup.monitors import procs
from ftsup.worker import beatfile


class RankSight(msgspec.Struct, frozen=True, kw_only=True):
    """One rank at one look. `process` is UNKNOWN until the rank has begun."""

    rank: int
    process: procs.State
    pid: int
    started: int
    phase: beatfile.Phase
    activity: int
    beats: int
    step: int | None
    saved_step: int | None
    code: int | None
    """Exit code, once the script's body has ended (None as well when that was Ctrl-C)."""


def sights(beats: Path, *, proc: Path = procs.PROC) -> dict[int, RankSight]:
    """Every rank with a readable beat file in the attempt's directory, by its number."""
    found = {rank: beatfile.read(path) for rank, path in beat_files(beats).items()}
    return {rank: _sight(rank, beat, proc) for rank, beat in found.items() if beat is not None}


def beat_files(beats: Path) -> dict[int, Path]:
    """The beat files of the directory, by rank; none where there is no directory."""
    named = {path: path.name.partition(".") for path in beats.glob("beat.*")}
    numbers = {int(number): path for path, (_, _, number) in named.items() if number.isdecimal()}
    return dict(sorted(numbers.items()))


def _sight(rank: int, beat: beatfile.Beat, proc: Path) -> RankSight:
    return RankSight(
        rank=rank,
        process=procs.state_of(beat.pid, started=beat.started, proc=proc),
        pid=beat.pid,
        started=beat.started,
        phase=beat.phase,
        activity=beat.activity,
        beats=beat.beats,
        step=_or_none(beat.step),
        saved_step=_or_none(beat.saved_step),
        code=_or_none(beat.code),
    )


def _or_none(number: int) -> int | None:
    return None if number < 0 else number
