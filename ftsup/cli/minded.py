"""A run directory as `ftsup watch` reads it: what is needed to judge it, and nothing else. Asks nobody, and changes nothing.

What cannot be judged is an error: where it is not certain that a run is not over, nothing may be done about it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ftsup import eventlog
from ftsup.cli import cluster
from ftsup.cli.cluster import Cluster
from ftsup.config import Config, Requeue, from_json
from ftsup.plain import decode_plain, read_plain, told
from ftsup.policy.spool import Spool
from ftsup.policy.told import Unexplained
from ftsup.ports import is_newer, job_number
from ftsup.report import runs
from ftsup.report.deeds import read_deeds
from ftsup.report.minding import Seen
from ftsup.report.story import tell
from ftsup.rundir import RunDir

T = TypeVar("T")
AT_END = frozenset({"close", "requeue"})
"""Words of status.json for a leader that gives its job back."""


class BrokenError(Exception):
    """A run directory that cannot be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Minded:
    """A run, as it was read."""

    place: RunDir
    seen: Seen
    cluster: Cluster


def minded(place: RunDir, *, cwd: Path, quiet_s: float) -> Minded:
    """What its directory says. OSError, BrokenError: it cannot be judged."""
    if not runs.is_run(place.root):
        raise BrokenError("there is no config.json to read")
    view = runs.view(place, tell(eventlog.gist(place.events)), ())
    story = view.story
    listed = is_newer(job_number(view.job), job_number(story.job))  # the list may lack one that has led
    job = view.job if listed else story.job
    seen = Seen(
        name=place.named_from(cwd),
        job=job,
        over=story.stage.over,
        unwanted="cancelled" if view.cancelled else "paused" if view.paused else "",
        begun=story.grants > 0 and story.job == job,
        comes_back=_config(place).slurm.requeue is not Requeue.OFF,
        spool=_there(place.requeue, Spool),
        told=_there(place.unexplained, Unexplained),
        quiet_s=quiet_s,
        deeds=read_deeds(place),
    )
    return Minded(place=place, seen=seen, cluster=cluster.of_run(place))


def _config(place: RunDir) -> Config:
    try:
        return from_json(read_plain(place.config_json))
    except ValueError as error:
        raise BrokenError(f"{place.config_json.name} cannot be read: {told(error)}") from None


def signed(place: RunDir) -> str:
    """Changes when the leader, or the next one, writes anything. BrokenError: it is somebody else's."""
    if place.root.stat().st_uid != os.getuid():
        raise BrokenError("it belongs to somebody else, and is left to them")
    return "/".join(part for path in (place.status, place.events, place.jobs) for part in _facts(path))


def giving(place: RunDir) -> bool:
    """Its leader gives the job back, or did so last."""
    now, _ = runs.now_of(place)
    return now is not None and now.stage in AT_END


def _facts(path: Path) -> Iterator[str]:
    try:
        facts = path.stat()
    except FileNotFoundError:
        yield "-"
    else:
        yield f"{facts.st_ino}.{facts.st_mtime_ns}.{facts.st_size}"


def _there(path: Path, kind: type[T]) -> T | None:
    try:
        return decode_plain(read_plain(path), kind)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise BrokenError(f"{path.name} cannot be read: {told(error)}") from None
