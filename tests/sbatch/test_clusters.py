"""The rendered script, unmodified, on the mock and on a real Slurm: odd paths and option values arrive, and decisions are obeyed."""

from __future__ import annotations

import os
import time

import pytest

from ftsup import sbatch
from ftsup.config import Config, SlurmOptions
from ftsup.mockslurm import control as mockslurm
from ftsup.ports import JobState
from ftsup.rundir import RunDir
from ftsup.slurm.commands import Commands
from tests.realslurm.fixtures import real_cluster

__all__ = ["real_cluster"]

pytestmark = [pytest.mark.e2e]
LEADER = """#!/bin/bash
echo "leader of $4"
mkdir -p "$FTSUP_LOCAL"
echo '{"verdict":"stop","code":3,"done":true,"reason":"as told"}' >"$FTSUP_LOCAL/decision.${SLURM_RESTART_COUNT:-0}.json"
"""
ACTIVE = {JobState.PENDING, JobState.RUNNING, JobState.UNKNOWN}


@pytest.fixture(scope="module")
def mock_cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mock")
    yield mockslurm.create(folder, nodes=2)
    assert mockslurm.stop(folder)


@pytest.mark.parametrize("cluster", ["mock_cluster", pytest.param("real_cluster", marks=pytest.mark.realslurm)])
def test_the_script_runs_from_an_odd_place_with_odd_values(cluster, request, tmp_path):
    found = request.getfixturevalue(cluster)
    environ = {**os.environ, **getattr(found, "env", found)}
    run = RunDir(tmp_path / 'ru\'n 50%j "q" #x $HOME;é' / "odd" / "1-a")
    run.root.mkdir(parents=True)
    python = tmp_path / "py 'thon"
    python.write_text(LEADER)
    python.chmod(0o755)
    comment = "a b'c\"d\\e #f $HOME %j"
    config = Config(
        name="odd",
        command=("x",),
        workdir=str(tmp_path),
        local_dir=str(tmp_path / "lo cal"),
        slurm=SlurmOptions(nodes=2, time_s=120, extra={"comment": comment}),
    )
    run.script.write_text(sbatch.fill(sbatch.default_template(), sbatch.values(config, run=run, python=str(python))))
    slurm = Commands(environ=environ)
    job_id = slurm.submit(run.script, env=environ)
    until = time.monotonic() + 45
    while (job := slurm.show(job_id)).state in ACTIVE or job.completing:
        assert time.monotonic() < until, job
        time.sleep(0.2)
    assert (job.state, job.exit_code, job.name, job.num_nodes) == (JobState.FAILED, 3, "odd", 2)
    assert (run.root / f"slurm-{job_id}.out").read_text().strip() == f"leader of {run.root}"
