"""What is left when the demo is ended at any moment: nothing but its folder. A real mock Slurm; the batch script stands in for ftsup's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftsup.cli.demo_cleaning import Site, clean, look
from ftsup.cli.demo_hands import limit
from ftsup.mockslurm import control as mockslurm
from ftsup.monitors import procs
from ftsup.ports import JobState
from ftsup.rundir import LocalDir, RunDir
from tests.e2e.harness import carrying, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

PATIENCE_S = 5.0


class World:
    """A mock Slurm, and a run directory with a job in it."""

    def __init__(self, folder: Path) -> None:
        add = mockslurm.create(folder / "slurm", nodes=2, kill_wait_s=2, begin_wait_s=600)
        self.site = Site(mock=folder / "slurm", local=folder / "local", environ={**os.environ, **add})
        self.run = RunDir(folder / "runs" / "demo" / f"{folder.parent.name}-{folder.name}")
        self.run.root.mkdir(parents=True)
        self.rank: subprocess.Popen | None = None

    def slurm(self, *argv: str) -> str:
        done = subprocess.run(argv, env=self.site.environ, cwd=self.run.root, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.strip()

    def submit(self, body: str) -> None:
        """A job that runs, and a process of it that has left Slurm's tree, as a rank's child may; with beats in memory."""
        script = self.run.root / "job.sbatch"
        script.write_text(f"#!/bin/bash\n#SBATCH --nodes=2 --requeue --signal=B:USR1@30\n{body}\n")
        self.run.jobs.write_text(self.slurm("sbatch", "--parsable", str(script)) + "\n")
        until(lambda: (self.run.root / "begun").exists() or self.job.state not in {JobState.PENDING, JobState.RUNNING})
        environ = {**os.environ, "FTSUP_MARK": f"{self.run.id}/1/mock1/1.1"}
        self.rank = subprocess.Popen([sys.executable, "-c", "input()"], env=environ, stdin=subprocess.PIPE, start_new_session=True)
        self.beats.mkdir(parents=True)

    @property
    def beats(self) -> Path:
        return LocalDir(self.site.local, self.run.id, "1", "mock1").beats("1.1")

    @property
    def job(self):
        return look(self.run, self.site)

    def left(self) -> list[object]:
        """Everything that should not be there."""
        if self.rank is not None:
            self.rank.wait(5)
        found: list[object] = [*carrying(f"FTSUP_MOCK_STATE={self.site.mock}"), *procs.marked(f"{self.run.id}/")]
        return found + ([self.beats] if self.beats.parents[2].exists() else [])


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    mockslurm.stop(made.site.mock)
    if made.rank is not None:
        made.rank.kill()
        made.rank.communicate()
    shutil.rmtree(made.beats.parents[2], ignore_errors=True)


TRAINS = "touch begun; sleep 1000 & wait"
NO_LEADER = "sleep 1000 & kill -9 $!; wait; touch begun; sleep 1000 & wait"
DEAF = "trap '' TERM; touch begun; while :; do sleep 0.1; done"


@pytest.mark.parametrize(
    "body, then, state",
    [
        (NO_LEADER, (), JobState.RUNNING),
        (DEAF, ("scontrol", "requeue"), JobState.UNKNOWN),
        (TRAINS, ("scontrol", "requeue"), JobState.PENDING),
        ("exit 3", (), JobState.FAILED),
    ],
    ids=["without a leader", "while the job ends", "before it begins again", "when it is over"],
)
def test_nothing_is_left(world, body, then, state):
    if body == DEAF:
        mockslurm.configure(world.site.mock, kill_wait_s=30)  # its end is not over before it was looked at
    world.submit(body)
    if then:
        world.slurm(*then, world.job.job_id)
    if body != DEAF:
        until(lambda: not world.job.completing)
    assert world.job.state is state
    assert world.job.completing is (body == DEAF)
    assert clean(world.run, world.site, patience_s=PATIENCE_S) == []
    assert world.left() == []


def test_before_anything_was_submitted_there_is_nothing_to_end(world, tmp_path):
    nowhere = Site(mock=tmp_path / "none", local=tmp_path / "local", environ=dict(os.environ))
    assert clean(None, nowhere, patience_s=PATIENCE_S) == []
    assert clean(None, world.site, patience_s=PATIENCE_S) == []
    assert clean(world.run, world.site, patience_s=PATIENCE_S) == []
    assert world.left() == []


def test_slurm_warns_as_soon_as_the_limit_is_that_near(world):
    """What the demo's last fault rests on; and the limit goes far away again."""
    world.submit("trap 'touch warned' USR1; touch begun; while :; do sleep 0.1; done")
    job = world.job.job_id
    assert limit(job, left_s=30.0, environ=world.site.environ)
    until((world.run.root / "warned").exists)
    assert limit(job, left_s=None, environ=world.site.environ)
    assert world.job.limit_s == 86400
    assert not limit("4711", left_s=30.0, environ=world.site.environ)
    clean(world.run, world.site, patience_s=PATIENCE_S)
    assert world.left() == []
