"""What became of jobs whose runner was killed: said by the next command, whichever it is.

Owns the spawning of runners and the last means of finding a lost job's processes, the mark in their environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ftsup
from ftsup.mockslurm import processes, rules
from ftsup.mockslurm.model import BATCH, JobRec, World
from ftsup.mockslurm.store import Store

STATE = "FTSUP_MOCK_STATE"
"""In the environment of everything that belongs to a mock: its state directory."""
SWEEP_S = 5.0


def python_command(code: str, *arguments: str) -> list[str]:
    """Run code of ours with this interpreter and this ftsup, whatever the user's PYTHON* variables say."""
    home = str(Path(ftsup.__file__).parents[1])
    return [sys.executable, "-I", "-c", f"import sys; sys.path.append({home!r}); {code}", *arguments]


def spawn(store: Store, job: JobRec) -> int:
    """Start the job's runner, detached, with none of our environment."""
    path = os.environ.get("PATH", os.defpath)
    with (store.job_dir(job.job) / "runner.err").open("ab") as errors:
        runner = subprocess.Popen(  # noqa: S603 - our own program
            python_command("from ftsup.mockslurm.runner import main; main(*sys.argv[1:])", str(store.root), str(job.job)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={"PATH": path},
            cwd="/",
            start_new_session=True,
        )
    job.runner = processes.identify(runner.pid)
    runner.returncode = 0  # it outlives us: no warning that nobody waited
    return runner.pid


def enclosing_job(store: Store, world: World) -> JobRec | None:
    """The job that this process is a part of."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if os.environ.get(STATE) != str(store.root) or not job.isdigit():
        return None
    inside = world.jobs.get(int(job))
    return inside if inside and inside.active else None


def sweep(store: Store, job: int, *, node: str = "", step: int | None = None) -> bool:
    """End whatever carries the job's mark (on that node, of that step)."""
    marks = [f"{STATE}={store.root}", f"SLURM_JOB_ID={job}"]
    marks += [f"SLURMD_NODENAME={node}"] if node else []
    marks += [f"SLURM_STEP_ID={step}"] if step is not None and step != BATCH else []
    return processes.end(lambda: processes.marked(marks), patience_s=SWEEP_S)


def sweep_nodes(store: Store, world: World, job: JobRec) -> None:
    """End what is left of the job on its nodes. salloc's command is on none, and lives on."""
    if not job.interactive:
        sweep(store, job.job)
        return
    for node in world.nodes:
        sweep(store, job.job, node=node)


def revive(store: Store, world: World, now: float) -> set[int]:
    """Give every unfinished job a live runner, first saying what the death of the old one did; the pids of the new ones."""
    born = set()
    for job in world.jobs.values():
        if job.over or processes.alive(job.runner):
            continue
        if job.active and job.runner:
            _runner_lost(store, world, job, now)
        if not job.over:
            born.add(spawn(store, job))
    return born


def _runner_lost(store: Store, world: World, job: JobRec, now: float) -> None:
    """The batch host's daemons are gone, and everything below them: a node failure, unless the job was ending anyway."""
    processes.end_trees((who for step in job.steps for who in step.stepds.values()), patience_s=SWEEP_S)
    sweep_nodes(store, world, job)
    if not job.completing:
        rules.node_failed(job, now)
    rules.completed(world, job, now)
