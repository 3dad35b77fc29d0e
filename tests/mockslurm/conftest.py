"""A mock Slurm of its own for each test, with short waits, and what a test does with it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ftsup.mockslurm import control as mockslurm
from ftsup.mockslurm import processes
from ftsup.mockslurm.model import JobRec, World
from ftsup.mockslurm.store import Store


class Mock:
    """One state directory and the commands on it."""

    def __init__(self, folder: Path, **settings) -> None:
        self.folder = folder
        self.state = folder / "state"
        quick = {"kill_wait_s": 1, "begin_wait_s": 1, "limit_unit_s": 1, "signal_early_s": 0, "away_delay_s": 0.1}
        self.env = os.environ | mockslurm.create(self.state, **(quick | settings))
        self.store = Store(self.state)

    def start(self, *argv: str, **more) -> subprocess.Popen:
        """A command on its way."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(argv, env=self.env, cwd=self.folder, **(streams | more))

    def run(self, *argv: str, code: int | None = 0) -> str:
        """What a command printed."""
        done = self.start(*argv)
        out, err = done.communicate(timeout=30)
        assert code is None or done.returncode == code, (argv, done.returncode, out, err)
        return out + err

    def submit(self, text: str, *options: str) -> int:
        """A job with these lines of bash."""
        script = self.folder / "job.sh"
        script.write_text(f"#!/bin/bash\n{text}\n")
        return int(self.run("sbatch", "--parsable", *options, str(script)))

    def world(self) -> World:
        return self.store.read()

    def job(self, job: int) -> JobRec:
        return self.world().jobs[job]

    def word(self, job: int) -> str:
        """The state as squeue says it."""
        return self.run("squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T").strip()

    def until(self, there: Callable[[], object], *, within_s: float = 60) -> None:
        """Wait until it is true."""
        deadline = time.monotonic() + within_s
        while not there():
            assert time.monotonic() < deadline, f"not within {within_s} s: {mockslurm.status(self.state)}"
            time.sleep(0.02)

    def until_word(self, job: int, *words: str) -> None:
        self.until(lambda: self.word(job) in words)

    def read(self, name: str) -> str:
        """A file of the job; empty while it is not there."""
        file = self.folder / name
        return file.read_text() if file.exists() else ""

    def left(self, job: int) -> set[int]:
        """The processes that carry this job's mark."""
        return processes.marked([f"FTSUP_MOCK_STATE={self.state}", f"SLURM_JOB_ID={job}"])


@pytest.fixture
def make(tmp_path):
    """Mocks with settings of their own."""
    made = []

    def build(**settings) -> Mock:
        made.append(Mock(tmp_path, **settings))
        return made[-1]

    yield build
    for mock in made:
        assert mockslurm.stop(mock.state)


@pytest.fixture
def mock(make):
    """The usual one."""
    return make()
