"""Which runs are old enough to be cleaned up, what of them would go, and how much that is. Reads only; `cli/clean` removes.

Careful by rule: whatever is not certainly over, ours and readable is left alone, and why is said. Links are never followed.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from enum import Enum
from pathlib import Path

import msgspec

from ftsup import eventlog
from ftsup.config import Config, from_json
from ftsup.events import VerdictKind
from ftsup.plain import read_plain
from ftsup.report import runs
from ftsup.report.story import tell
from ftsup.report.words import parsed
from ftsup.rundir import RunDir

PARTS = ("logs", "incidents")
"""What goes of an old run: the event log, the configuration and the decisions stay, so that it can still be explained."""
ASIDE = ".removed"
"""Ends the name of a whole run that is being removed: what an interrupted clean left of it goes with the next one."""
OURS = (
    *("config.yaml", "config.json", "config.*.yaml", "config.*.json", "env.json", "typed.json", "cluster.json", "jobs", "job.sbatch"),
    *("keys", "worker", "git", "events.jsonl", "status.json", "requests", "decisions", "logs", "incidents", "slurm-*.out"),
    *("cancelled", "paused", "continued.json", "submitting", "bash-requeues"),
    *("requeue.json", "unexplained.json", "watch.jsonl", "watch.claims", "array.sbatch", "leader.json", "taken-back"),
)
"""What a run directory holds. With anything else in it, a run is not removed as a whole."""
_ENDED = {VerdictKind.FINISHED, VerdictKind.STOP, VerdictKind.CANCELLED}
"""A paused run waits to be continued."""


class Left(Enum):
    """Why a run is left alone."""

    FOREIGN = "of somebody else"
    LINK = "behind a link"
    UNREADABLE = "not readable without doubt"
    ALIVE = "not over"
    CHECKPOINTS = "with checkpoints inside"
    LATE = "not looked at: the disk is slow"
    KEPT = "kept"
    """Too young, or among the newest."""


class Old(msgspec.Struct, frozen=True, kw_only=True):
    """A run of which something can go."""

    run: RunDir
    last: datetime
    whole: bool
    """All of it goes."""
    paths: tuple[Path, ...]
    strange: tuple[str, ...] = ()
    """Names in it that are none of ours, for which it stays."""
    stamp: tuple[int, ...] = ()
    """Of the files that tell whether it is over: another one means that it has changed since."""


def choose(
    runs_dir: Path, *, now: datetime, older_s: float, keep: int, whole: bool, uid: int, late: Callable[[], bool]
) -> tuple[list[Old], Counter[Left]]:
    """The runs of which something can go, oldest first, and how many are left alone for what."""
    found: list[Old] = []
    left: Counter[Left] = Counter()
    seen: Counter[str] = Counter()
    for place in runs.places(runs_dir):
        seen[place.root.parent.name] += 1
        if seen[place.root.parent.name] <= keep:
            left[Left.KEPT] += 1
        elif late():
            left[Left.LATE] += 1
        elif isinstance(answer := _judge(place, now=now, older_s=older_s, whole=whole, uid=uid), Left):
            left[answer] += 1
        elif answer.paths:
            found.append(answer)
    return found[::-1], left


def _judge(run: RunDir, *, now: datetime, older_s: float, whole: bool, uid: int) -> Old | Left:
    """Cheap questions first: most runs are too young or gone already."""
    try:
        facts = run.root.lstat()
        if stat.S_ISLNK(facts.st_mode) or run.root.parent.is_symlink():
            return Left.LINK
        if facts.st_uid != uid:
            return Left.FOREIGN
        stamp, newest = fingerprint(run), _touched(run)
        if not runs.is_run(run.root):
            return Left.UNREADABLE
        if (now - newest).total_seconds() < older_s:
            return Left.KEPT
        return _over(run, now=now, older_s=older_s, whole=whole, stamp=stamp)
    except OSError:
        return Left.UNREADABLE


def _over(run: RunDir, *, now: datetime, older_s: float, whole: bool, stamp: tuple[int, ...]) -> Old | Left:
    notes: list[str] = []
    story = runs.view(run, tell(eventlog.stream(run.events, notes)), notes).story
    try:
        config = from_json(read_plain(run.config_json))
    except ValueError:
        return Left.UNREADABLE
    last = parsed(story.last.wall) if story.last else None
    ended = story.stage.over and story.verdict is not None and story.verdict.kind in _ENDED
    if not ended or runs.jobs(run)[-1:] not in {(), (story.job,)} or (run.root / "submitting").exists():
        return Left.ALIVE
    if notes or last is None:
        return Left.UNREADABLE
    if (now - last).total_seconds() < older_s:
        return Left.KEPT
    strange = _strange(run) if whole else ()
    paths = (run.root,) if whole and not strange else tuple(path for path in map(run.root.joinpath, PARTS) if _folder(path))
    if any(_holds(path, config, run) for path in paths):
        return Left.CHECKPOINTS
    return Old(run=run, last=last, whole=whole and not strange, paths=paths, strange=strange, stamp=stamp)


def _strange(run: RunDir) -> tuple[str, ...]:
    """What lies there and is none of ours."""
    names = sorted(path.name for path in run.root.iterdir())
    return tuple(name for name in names if not any(fnmatch.fnmatch(name, ours) for ours in OURS))


def fingerprint(run: RunDir) -> tuple[int, ...]:
    """Of the files that tell whether a run is over."""
    return tuple(value for path in (run.events, run.jobs, run.root / "submitting") for value in _times(path))


def _times(path: Path) -> tuple[int, int]:
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return (0, 0)
    return (facts.st_mtime_ns, facts.st_size)


def _touched(run: RunDir) -> datetime:
    """When it was last heard of, by the disk's own clock. Its folder says nothing: an interrupted clean changes that."""
    times = [_times(path)[0] for path in (run.events, run.jobs, run.status, run.continued)]
    return datetime.fromtimestamp(max(times) / 1e9).astimezone()


def _folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _holds(path: Path, config: Config, run: RunDir) -> bool:
    """Whether the run's checkpoints lie in what would go."""
    if not config.checkpoint.dir:
        return False
    home = Path(os.path.realpath(Path(config.workdir or run.root, config.checkpoint.dir)))
    return home.is_relative_to(os.path.realpath(path))


def unfinished(runs_dir: Path, *, uid: int) -> list[Path]:
    """Whole runs that an interrupted clean has begun to remove."""
    found = [path for path in runs_dir.glob(f"*/*{ASIDE}") if runs.STAMP.fullmatch(path.name.removesuffix(ASIDE))]
    return sorted(path for path in found if _folder(path) and not path.parent.is_symlink() and path.lstat().st_uid == uid)


def size(paths: Sequence[Path], *, late: Callable[[], bool]) -> tuple[int, bool]:
    """Bytes of all plain files below, and whether all were seen. Links count for nothing."""
    total = 0
    for entry in _below(list(paths)):
        if late():
            return total, False
        total += entry.stat(follow_symlinks=False).st_size
    return total, True


def _below(folders: list[Path]) -> Iterator[os.DirEntry[str]]:
    while folders:
        try:
            with os.scandir(folders.pop()) as found:
                for entry in found:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
                    elif entry.is_file(follow_symlinks=False):
                        yield entry
        except OSError:
            continue
