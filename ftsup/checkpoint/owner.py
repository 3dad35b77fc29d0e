"""One run owns a directory of checkpoints: `.ftsup/owner/owner.json` says which.

The folder is put in its place by one rename, which works only where none is: of two runs that try at once one succeeds. Slurm says
whether an owner is dead (`alive`); the decision is a pure function.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import TypeVar

import msgspec

from ftsup.checkpoint.disk import make_folders, publish, read_small, remove_tree
from ftsup.checkpoint.home import Home
from ftsup.errors import Busy, SlurmError
from ftsup.ports import Disk, JobState, Slurm
from ftsup.rundir import RunDir

T = TypeVar("T")
_FILE = "owner.json"


class Life(Enum):
    """What is known of a run."""

    ALIVE = "alive"
    OVER = "over"
    """Slurm says that its job is over, or the run itself says that it is."""
    UNKNOWN = "unknown"


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who owns the directory. `found`: the checkpoints that were there before, which the run never removes."""

    run: str
    job: str = ""
    host: str = ""
    folder: str = ""
    """The run directory."""
    wall: str = ""
    found: tuple[str, ...] = ()


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The directory is ours; `why` says from whom it was taken, if from anybody."""

    owner: Owner
    why: str = ""


def read_owner(disk: Disk, home: Home) -> Owner | None:
    """Who owns it; None: nobody. Busy when that cannot be read."""
    data = read_small(disk, home.owner / _FILE)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=Owner)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Busy(f"{home.owner / _FILE} cannot be read: {error}", hint="--force takes the directory if no other run uses it") from error


def alive(owner: Owner, slurm: Slurm) -> Life:
    """Whether any job of the owning run is in Slurm's hands: a requeued one comes back. Blocks as long as Slurm does.

    A job that Slurm does not know is over where it was this very cluster's (it forgets only what has ended), or the run itself says so.
    """
    run = RunDir(Path(owner.folder)) if owner.folder else None
    jobs = ({owner.job} | _jobs(run)) - {""}
    life, forgotten = (Life.OVER if jobs else Life.UNKNOWN), False
    try:
        same = _same_cluster(run, slurm)
    except SlurmError:
        return Life.UNKNOWN
    for job in sorted(jobs) if same is not False else ():
        try:
            found = slurm.show(job)
        except SlurmError:
            life = Life.UNKNOWN
            continue
        if found.lives:
            return Life.ALIVE
        forgotten = forgotten or found.state is JobState.GONE
    if same or (same is None and not forgotten) or _says_over(run, sorted(_jobs(run) or jobs, key=_age)):
        return life
    return Life.UNKNOWN


class _Where(msgspec.Struct, frozen=True):
    """Of `cluster.json`, what is asked here."""

    state: str = ""
    name: str = ""


class _Decision(msgspec.Struct, frozen=True):
    verdict: str = ""


_FOR_GOOD = {"finished", "stop", "cancelled"}


def _jobs(run: RunDir | None) -> set[str]:
    try:
        return set(run.jobs.read_text(encoding="utf-8", errors="replace").split()) if run else set()
    except OSError:
        return set()


def _age(job: str) -> list[int]:
    return [int(part) for part in job.split("_") if part.isdecimal()]


def _same_cluster(run: RunDir | None, slurm: Slurm) -> bool | None:
    """Whether the run's jobs are this Slurm's; None: nothing is written down. A mock is its directory, where whoever asks stands."""
    where = _read(run.root / "cluster.json", _Where) if run else None
    if where is None or not (where.name or where.state):
        return None
    return bool(where.state) or slurm.config().get("ClusterName", where.name) == where.name


def _says_over(run: RunDir | None, jobs: Sequence[str]) -> bool:
    """The run's own record: the last word of the leader of its newest job."""
    if run is None or not jobs:
        return False
    job = jobs[-1]
    names = sorted(run.decision(job, 0).parent.glob(f"{job}.*.json"), key=lambda path: int(path.suffixes[-2][1:]))
    last = _read(names[-1], _Decision) if names else None
    return last is not None and last.verdict in _FOR_GOOD


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError):
        return None


def objection(present: Owner, me: Owner, *, life: Life) -> str:
    """Why the directory is not ours to take; empty: it is."""
    if present.run == me.run or life is Life.OVER:
        return ""
    job = f" (job {present.job} on {present.host})" if present.job else ""
    if life is Life.ALIVE:
        return f"the checkpoints belong to run {present.run}{job}, which is alive"
    return f"the checkpoints belong to run {present.run}{job}, and nobody can say now whether it is over"


def claim(disk: Disk, home: Home, me: Owner, *, life: Callable[[Owner], Life], force: bool = False) -> Claim:
    """Take the directory, or Busy. A run that has it already keeps its `found`."""
    try:
        present = read_owner(disk, home)
        unreadable = ""
    except Busy as error:
        if not force:
            raise
        present, unreadable = None, error.message
    if present is not None and present.run == me.run:
        mine = msgspec.structs.replace(me, found=present.found)
        publish(disk, home.owner / _FILE, msgspec.json.encode(mine))
        return Claim(owner=mine)
    why = unreadable
    if present is not None:
        refused = objection(present, me, life=life(present))
        if refused and not force:
            raise Busy(f"{home.folder}: {refused}", hint="give this run a checkpoint.dir of its own, or --force")
        why = f"taken by force: {refused}" if refused else f"taken from run {present.run}, which is over"
    if why:
        _take_down(disk, home, present)
    _put_up(disk, home, me)
    return Claim(owner=me, why=why)


def release(disk: Disk, home: Home, run: str) -> None:
    """The run is over; the directory is anybody's. What it owned is not touched if it is another's by now."""
    present = read_owner(disk, home)
    if present is not None and present.run == run:
        _take_down(disk, home, present)


def _put_up(disk: Disk, home: Home, me: Owner) -> None:
    make_folders(disk, home.trash, below=home.folder)
    aside = home.trash / f"owner-{secrets.token_hex(4)}.1"  # what a crash leaves here is swept with the trash
    disk.mkdir(aside)
    disk.write_new(aside / _FILE, msgspec.json.encode(me))
    disk.sync(aside)
    try:
        disk.rename(aside, home.owner)
    except OSError as error:
        remove_tree(disk, aside)
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
            raise Busy(f"{home.folder}: another run took the checkpoints in this moment") from error
        raise
    disk.sync(home.own)


def _take_down(disk: Disk, home: Home, expected: Owner | None) -> None:
    """Move the old owner away. If somebody else was quicker, what we moved is his: he gets it back, and we give way."""
    aside = home.trash / f"owner-{secrets.token_hex(4)}.1"
    make_folders(disk, home.trash, below=home.folder)
    try:
        disk.rename(home.owner, aside)
    except FileNotFoundError:
        return
    data = read_small(disk, aside / _FILE)
    if expected is not None and data != msgspec.json.encode(expected):
        with contextlib.suppress(OSError):
            disk.rename(aside, home.owner)
        raise Busy(f"{home.folder}: another run took the checkpoints in this moment")
    remove_tree(disk, aside)
