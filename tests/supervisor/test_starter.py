"""The srun command of the node supervisors, and what its tasks hear while they start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftsup.supervisor import lead, starter
from tests.e2e.harness import until


def test_one_task_on_each_node_with_all_cpus_of_the_job() -> None:
    narrows = {"SLURM_CPUS_PER_TASK": "8", "SRUN_CPUS_PER_TASK": "8", "SLURM_TRES_PER_TASK": "cpu=8", "SLURM_EXACT": "1"}
    environ = {**narrows, "SLURM_JOB_ID": "7"}
    argv = starter.argv(["n1", "n2"], chdir=Path("/runs/a"), overlap=True, environ=environ)
    assert argv[0] == "srun"
    assert {"--nodes=2", "--ntasks=2", "--nodelist=n1,n2", "--chdir=/runs/a", "--overlap"} <= set(argv)
    assert argv[-6:] == ["env", "SLURM_CPUS_PER_TASK=8", sys.executable, "-m", "ftsup", "node"]
    assert not any("cpus-per-task" in word for word in argv)
    assert starter.environment(environ) == {"SLURM_JOB_ID": "7", "SLURM_OOM_KILL_STEP": "0"}


@pytest.mark.e2e
def test_the_warning_does_not_end_a_supervisor_that_is_just_starting() -> None:
    argv = starter.argv(["n1"], chdir=Path("/"), overlap=False, environ={})
    task = argv[argv.index("sh") : -3]  # as slurmstepd executes it, with another program of Python's
    code = "import os, signal; os.kill(os.getpid(), signal.SIGUSR1); os.kill(os.getpid(), signal.SIGUSR2); print('lives')"
    done = subprocess.run([*task, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "lives\n")


@pytest.mark.e2e
def test_a_full_disk_below_the_batch_output_does_not_end_the_leader() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        code = f"from {lead.__name__} import say; say('hello'); say('again')"
        done = subprocess.run([sys.executable, "-c", code], stderr=full, timeout=60, check=False)
    finally:
        os.close(full)
    assert done.returncode == 0


@pytest.mark.e2e
def test_two_sruns_at_most_wait_for_a_controller_that_hangs(tmp_path: Path) -> None:
    """Whoever is told that a node is silent starts a supervisor there, again and again; only what has ended makes room."""
    (tmp_path / "srun").write_text('#!/bin/sh\necho "$@" >>asked\nwhile [ ! -e over ]; do sleep 0.05; done\n')
    (tmp_path / "srun").chmod(0o755)
    step = starter.Step(tmp_path, tmp_path, {"PATH": f"{tmp_path}:/usr/bin:/bin"})

    def asked() -> int:
        return len((tmp_path / "asked").read_text().splitlines()) if (tmp_path / "asked").exists() else 0

    for _ in range(5):
        assert step.start_one("n2", ("n1", "n2"), addresses=("tcp://a:1",)) == ""
    assert step.start_one("n1", ("n1", "n2"), addresses=("tcp://a:1",)) == ""
    until(lambda: asked() == 3)
    (tmp_path / "over").touch()
    until(step.ended)
    step.start_one("n2", ("n1", "n2"), addresses=("tcp://a:1",))
    until(lambda: asked() == 4 and step.ended())
