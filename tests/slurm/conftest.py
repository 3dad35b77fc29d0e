"""A batch script, and a job of it in the fake Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftsup.ports import JobState
from ftsup.slurm.fake import FakeSlurm


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A batch script of two nodes."""
    path = tmp_path / "job.sbatch"
    path.write_text("#!/bin/bash\n#SBATCH --nodes=2\n")
    return path


def running(slurm: FakeSlurm, script: Path, *args: str) -> str:
    """A job of it that has begun."""
    job = slurm.submit(script, args=args)
    slurm.advance(1)
    assert slurm.show(job).state is JobState.RUNNING
    return job
