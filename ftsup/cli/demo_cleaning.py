"""Leaves nothing of the demo behind but its folder, at whatever moment it ends: no job, no process, no file in memory.

Bounded in time. Knows no fault: what somebody struck a moment ago (a rank, the leader) is gone, and everything else is ended.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ftsup import proc
from ftsup.errors import SlurmError
from ftsup.mockslurm import control as mockslurm
from ftsup.monitors import procs
from ftsup.ports import Job
from ftsup.rundir import LocalDir, RunDir
from ftsup.slurm.commands import Commands

LOOK_S = 0.2
CANCEL_S = 60.0


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where the demo's job runs."""

    mock: Path
    """The mock Slurm's state."""
    local: Path
    """`local_dir` of the nodes."""
    environ: Mapping[str, str]
    """With the mock's commands first."""


def look(run: RunDir, site: Site) -> Job | None:
    """The run's job as Slurm sees it; None: it has none yet. SlurmError: silence, which says nothing about it."""
    jobs = run.jobs.read_text().split() if run.jobs.exists() else []
    return Commands(environ=site.environ).show(jobs[-1]) if jobs else None


def clean(run: RunDir | None, site: Site, *, patience_s: float) -> list[str]:
    """End all of it; what could not be ended. `patience_s`: for a job that is told to end."""
    if run is not None:
        _cancel(run, site, patience_s=patience_s)
    left = []
    if site.mock.exists() and not mockslurm.stop(site.mock):
        left.append(f"some processes of the mock Slurm in {site.mock} could not be ended")
    if run is not None:
        sweep(f"{run.id}/")
        beats = LocalDir(site.local, run.id, "job", "node").beats("epoch")
        shutil.rmtree(beats.parents[2], ignore_errors=True)
    return left


def _cancel(run: RunDir, site: Site, *, patience_s: float) -> None:
    """As a person would, so that the job's own parts tidy up after themselves; the mock's end is final anyway."""
    until_s = time.monotonic() + patience_s
    asked = False
    while time.monotonic() < until_s:
        try:
            job = look(run, site)
        except SlurmError:
            return
        if job is None or not job.lives:
            return
        if not asked:
            asked = proc.run(["scancel", job.job_id], env=site.environ, deadline_s=CANCEL_S).ok
        time.sleep(LOOK_S)


def sweep(mark: str) -> None:
    """End every process with this mark."""
    for _ in range(50):
        if not procs.sweep(mark, root=None):
            return
        time.sleep(0.1)
