"""Finds run directories, and reads one for the reports. Read only, and only the run directory; what it cannot read it says.

A run directory is known by its `config.json`. Everything in it may be torn, missing or of another version: that becomes a note.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ftsup import eventlog
from ftsup.errors import RunError
from ftsup.nearest import did_you_mean
from ftsup.plain import decode_plain, read_plain, told
from ftsup.policy.outlook import Outlook
from ftsup.report.deeds import read_deeds
from ftsup.report.minding import Deed
from ftsup.report.story import Stage, Story, tell
from ftsup.report.words import one_line
from ftsup.rundir import RunDir

STAMP = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}(_\d+)?")
"""The name of a run directory: of an array's task, with its number."""
_NEAR = 3
_JOBS_BYTES = 1 << 20


class RankNow(msgspec.Struct, frozen=True, kw_only=True):
    """A rank as the leader saw it a few seconds ago."""

    step: int | None = None
    phase: str | int = ""
    node: str = ""


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """`status.json`: the leader's view of now."""

    wall: str = ""
    stage: str = ""
    """The machine's own word for where it stands."""
    epoch: str = ""
    ahead: Outlook = Outlook()
    """As of `wall`."""
    ranks: dict[str, RankNow] = msgspec.field(default_factory=dict)


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a run directory tells."""

    id: str
    path: str
    jobs: tuple[str, ...] = ()
    story: Story = Story()
    now: Now | None = None
    cancelled: bool = False
    paused: bool = False
    """While its job waited in the queue."""
    watched: tuple[Deed, ...] = ()
    """What `ftsup watch` said and did."""
    notes: tuple[str, ...] = ()
    """What could not be read."""

    @property
    def job(self) -> str:
        """The newest job id; empty: never submitted."""
        return self.jobs[-1] if self.jobs else ""


def is_run(path: Path) -> bool:
    """Whether this is a run directory, and one that we may look into."""
    try:
        return (path / "config.json").is_file()
    except OSError:
        return False


def places(runs_dir: Path) -> list[RunDir]:
    """What is named like a run below runs_dir, readable or not, the newest first (their names begin with the time)."""
    found = [path for path in runs_dir.glob("*/*") if STAMP.fullmatch(path.name)]
    return [RunDir(path) for path in sorted(found, key=_age, reverse=True)]


def _age(path: Path) -> tuple[str, str, int]:
    """An array's tasks beside each other, the first of them last: it is the newest there."""
    stem, _, task = path.name.partition("_")
    return stem, path.parent.name, -int(task or 0)


def all_runs(runs_dir: Path) -> list[RunDir]:
    """Every run below runs_dir, the newest first."""
    return [place for place in places(runs_dir) if is_run(place.root)]


def find(text: str | None, *, runs_dir: Path) -> RunDir:
    """The run that a person means: a path, a name, `name/time-hex`, the beginning of either, a job id; nothing: the newest."""
    if text and is_run(Path(text)):
        return RunDir(Path(text).absolute())
    runs = all_runs(runs_dir)
    if not runs:
        raise RunError(f"no runs in {runs_dir}", hint="--runs-dir names another folder; `ftsup submit` makes runs")
    found = _meant(text, runs)
    if len(found) > 1:
        first, last = found[0].id, found[-1].root.name.rpartition("_")[2]
        raise RunError(f"{text or first} is an array of {len(found)} tasks", hint=f"name one: {first} to _{last}; ftsup list shows them")
    if found:
        return found[0]
    assert text is not None
    if Path(text).is_dir():
        raise RunError(f"{text} is not a run directory: it has no config.json")
    hint = did_you_mean(text, [run.root.parent.name for run in runs], most=_NEAR) or "`ftsup list` shows them"
    raise RunError(f"no run is called {text} in {runs_dir}, and no run has that job id", hint=hint)


def find_all(text: str | None, *, runs_dir: Path) -> list[RunDir]:
    """As `find`; of an array that is named as a whole (by its job id, or by what its tasks' names begin with) every task."""
    found = [] if text and is_run(Path(text)) else _meant(text, all_runs(runs_dir))
    return found or [find(text, runs_dir=runs_dir)]


def _meant(text: str | None, runs: Sequence[RunDir]) -> list[RunDir]:
    """The run that is meant, or the tasks of the array."""
    if text is None:
        return _array_of(runs[0], runs) if runs else []
    for same in (_has_job, _is_named, _begins):
        if matching := [run for run in runs if same(run, text.rstrip("/"))]:
            names = sorted({run.root.parent.name for run in matching})
            if len(names) > 1 and same is _begins:
                raise RunError(f"{text} begins the names of several runs: {', '.join(names[:5])}", hint="type more of it")
            exact = [run for run in matching if text.rstrip("/") in {run.id, run.root.name, *jobs(run)}]
            return exact[:1] or _array_of(matching[0], matching)
    return []


def _array_of(first: RunDir, runs: Sequence[RunDir]) -> list[RunDir]:
    """It, and those of `runs` that are tasks of the same array."""
    stem = first.root.name.partition("_")[0]
    same = [run for run in runs if run.root.parent == first.root.parent and run.root.name.partition("_")[0] == stem]
    return same if first.task is not None else [first]


def _has_job(run: RunDir, text: str) -> bool:
    return any(text in {job, job.partition("_")[0]} for job in jobs(run))


def _is_named(run: RunDir, text: str) -> bool:
    return text in {run.id, run.root.parent.name, run.root.name}


def _begins(run: RunDir, text: str) -> bool:
    return run.id.startswith(text) or run.root.name.startswith(text)


def jobs(run: RunDir) -> tuple[str, ...]:
    """The job ids of a run, the newest last."""
    try:
        words = read_plain(run.jobs, cap_bytes=_JOBS_BYTES).decode("utf-8", "replace").split()
    except OSError:
        return ()
    return tuple(word for word in words if word.isprintable())


def read(run: RunDir) -> View:
    """Everything that a report needs. Only a directory that is no run raises (RunError)."""
    if not is_run(run.root):
        raise RunError(f"{run.root} is not a run directory: it has no config.json")
    notes: list[str] = []
    story = Story()
    try:
        story = tell(eventlog.stream(run.events, notes))
    except OSError as error:
        notes.append(f"the event log cannot be read: {error.strerror}")
    return view(run, story, notes)


def view(run: RunDir, story: Story, notes: Sequence[str], *, known: Now | None = None) -> View:
    """A run whose log was read already (and `known`: its status.json), with what else lies in its directory."""
    now, more = now_of(run) if known is None else (known, [])
    if continuation(run) > story.continued:  # its leader has not begun yet
        story, now = msgspec.structs.replace(story, stage=Stage.WAITING, verdict=None, job=""), None
    return View(
        id=run.id,
        path=str(run.root),
        jobs=jobs(run),
        story=story,
        now=now,
        cancelled=run.cancelled.exists(),
        paused=run.paused.exists(),
        watched=_watched(run),
        notes=tuple(one_line(note, width=300) for note in [*notes, *more]),
    )


def _watched(run: RunDir) -> tuple[Deed, ...]:
    try:
        return read_deeds(run)
    except OSError:
        return ()


def continuation(run: RunDir) -> int:
    """How often the run was continued; the newest may have no leader yet."""
    try:
        n = decode_plain(read_plain(run.continued), dict[str, Any])["n"]
    except (OSError, ValueError, KeyError):
        return 0
    return n if isinstance(n, int) else 0


def now_of(run: RunDir) -> tuple[Now | None, list[str]]:
    """The leader's view of now, and what there is to say about it."""
    try:
        data: Any = decode_plain(read_plain(run.status), object)
        return msgspec.convert(data, Now, strict=False), []
    except FileNotFoundError:
        return None, []
    except (OSError, ValueError) as error:
        return None, [f"status.json cannot be read: {told(error)}"]
