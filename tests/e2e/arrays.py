"""The tasks of an array, submitted as a user would: each a run of its own, with a directory of checkpoints of its own."""

from __future__ import annotations

from pathlib import Path

import yaml

from ftsup.rundir import RunDir
from tests.e2e.harness import CONFIG, TRAIN, Run, Site, merged


def submitted(site: Site, spec: str, **config: object) -> list[Run]:
    """One run a task. They share `control`: `finish` ends them all."""
    work: Path = site.folder / "array"
    (work / "control").mkdir(parents=True)
    settings = merged(CONFIG, {"local_dir": str(site.folder / "local"), "slurm": {"array": spec}, "workers_per_node": 1, **config})
    settings["checkpoint"] = {**settings["checkpoint"], "dir": "ckpt-{task}"}
    settings["command"] = [str(TRAIN), "--dir", "ckpt-{task}"]
    (work / "c.yaml").write_text(yaml.safe_dump(settings))
    site.give(work)
    said = site.ftsup("submit", "c.yaml", "--cluster", "slurm", cwd=work).splitlines()
    runs = [Run(site, work, RunDir(work / "ftsup-runs" / line.split()[2]), job=line.split()[1].rstrip(":")) for line in said]
    site.runs += runs
    return runs
