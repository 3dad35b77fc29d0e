"""Runs for stories about a job's way through Slurm alone: a command that only waits, so that a launch costs no torchrun."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ftsup import events as ev
from ftsup.rundir import RunDir
from tests.e2e.harness import CONFIG, Run, Site, merged

WAITS = ["sh", "-c", "mkdir -p seen; : >seen/$FTSUP_NODE_RANK; until [ -e control/finish ]; do sleep 0.2; done"]
PLAIN: dict[str, Any] = {
    **CONFIG,
    "launch": "command",
    "command": WAITS,
    "resume_args": [],
    "workers_per_node": 1,
    "checkpoint": {"dir": ""},
}


def submit(site: Site, *, setup: str = "", more: Mapping[str, object] | None = None, **slurm: object) -> list[Run]:
    """Submit it, as a user would: one run, or one for each task of `array`, which share `control`. `more`: of the configuration."""
    work: Path = site.folder / "a"
    (work / "control").mkdir(parents=True)
    settings = merged(PLAIN, {"local_dir": str(site.folder / "local"), "setup": setup, "slurm": slurm, **(more or {})})
    (work / "c.yaml").write_text(yaml.safe_dump(settings))
    site.give(work)
    said = site.ftsup("submit", "c.yaml", "--cluster", "slurm", cwd=work).splitlines()
    runs = [Run(site, work, RunDir(work / "ftsup-runs" / line.split()[2]), job=line.split()[1].rstrip(":")) for line in said]
    site.runs += runs
    return runs


def until_runs(run: Run, *, epoch: ev.Epoch | None = None) -> ev.Epoch:
    """Every node of an attempt (of this one, or a later one) has begun it."""
    least = epoch or ev.Epoch(1, 1)

    def begun() -> ev.Epoch | None:
        newest = max((event.epoch for event in run.events(ev.Launched) if event.epoch >= least), default=None)
        there = {event.node for event in run.events(ev.Launched) if event.epoch == newest}
        return newest if newest and there >= set(run.events(ev.LeaderStarted)[-1].nodes) else None

    found: ev.Epoch = run.until(begun)
    return found
