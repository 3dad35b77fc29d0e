"""The ranks of an attempt as seen from outside: what each said last, and whether its process lives.

One look, no memory, no clock: what has moved, and for how long something has not, is the watch's affair (policy/watch.py).
"""

from __future__ import annotations

from pathlib import Path

from ftsup.monitors import procs
from ftsup.policy.watch import Sight, printing_counts, silent
from ftsup.worker import beatfile, places
from ftsup.worker.beatfile import Beat, Phase


class RankSight(Sight, frozen=True, kw_only=True):
    """One rank at one look, as the watch takes it. `process` is UNKNOWN until the rank has begun."""

    rank: int

    @property
    def pid(self) -> int:
        """0 until the rank has begun."""
        return self.beat.pid

    @property
    def started(self) -> int:
        """With the pid it names the process for ever."""
        return self.beat.started

    @property
    def phase(self) -> Phase:
        """What it is doing."""
        return self.beat.phase

    @property
    def activity(self) -> int:
        """Counts every sign of life."""
        return self.beat.activity

    @property
    def beats(self) -> int:
        """Counts optimizer steps in this attempt."""
        return self.beat.beats

    @property
    def step(self) -> int | None:
        """The script's step; None: unknown."""
        return None if silent(self.beat) else _or_none(self.beat.step)

    @property
    def saved_step(self) -> int | None:
        """The last step that the script has called saved."""
        return _or_none(self.beat.saved_step)

    @property
    def code(self) -> int | None:
        """Exit code, once the script's body has ended (None as well when that was Ctrl-C)."""
        return _or_none(self.beat.code)


def sights(beats: Path, *, out: Path | None = None, proc: Path = procs.PROC) -> dict[int, RankSight]:
    """Every rank with a readable beat file in the attempt's directory, by its number. `out`: where they print to."""
    found = ((rank, beatfile.read(path)) for rank, path in beat_files(beats).items())
    return {
        rank: RankSight(
            rank=rank,
            beat=beat,
            process=procs.state_of(beat.pid, started=beat.started, proc=proc),
            output=_size(places.out_path(out, rank)) if out and printing_counts(beat) else None,
        )
        for rank, beat in found
        if beat is not None
    }


def command(process: procs.Process, *, out: Path) -> RankSight:
    """`launch: command` as the one "rank" of its node: all that is known of it is its process and what it prints."""
    printed = sum(_size(out / name) or 0 for name in ("torchrun.out", "torchrun.err"))
    return RankSight(rank=0, beat=Beat(pid=process.pid, started=process.started), process=process.state, output=printed)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def beat_files(beats: Path) -> dict[int, Path]:
    """The beat files of the directory, by rank; none where there is no directory."""
    named = {path: path.name.partition(".") for path in beats.glob("beat.*")}
    numbers = {int(number): path for path, (_, _, number) in named.items() if number.isdecimal()}
    return dict(sorted(numbers.items()))


def _or_none(number: int) -> int | None:
    return None if number < 0 else number
