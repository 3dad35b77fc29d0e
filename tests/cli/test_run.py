"""`ftsup run` as a whole command: what it refuses, what it makes, and what it becomes."""

from __future__ import annotations

import itertools
import os
from datetime import datetime, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner

from ftsup.cli.lead import grant_of
from ftsup.cli.ports import Ports
from ftsup.cli.run import run
from ftsup.config import Requeue, from_json
from ftsup.errors import RunError
from ftsup.rundir import RunDir
from ftsup.slurm.fake import FakeSlurm

HERE = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[3-4]"}


class World:
    """A shell in an allocation."""

    def __init__(self, home: Path, **environ: str) -> None:
        self.home, self.became = home, []
        tokens = itertools.count(1 + len([*home.glob("ftsup-runs/demo/*")]))
        self.ports = Ports(
            environ={"PATH": os.environ["PATH"], "HOME": str(home), **environ},
            slurm=lambda _: FakeSlurm(),
            now=lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
            sleep=lambda _: None,
            token=lambda: f"{next(tokens):04x}",
            python="/opt/py/bin/python",
            cwd=home,
            user="me",
            become=lambda argv, environ: self.became.append((argv, environ)) or 0,
        )
        (home / "c.yaml").write_text("name: demo\ncommand: train.py\nsetup: module load x\nslurm: {nodes: 4, time: 1h}\n")

    def type(self, *words: str):
        done = CliRunner().invoke(run, ["c.yaml", *words], obj=self.ports)
        if done.exception and not isinstance(done.exception, (SystemExit, RunError)):
            raise done.exception
        return done

    def runs(self) -> list[RunDir]:
        return [RunDir(path) for path in sorted(self.home.glob("ftsup-runs/demo/*"))]


@pytest.fixture(autouse=True)
def _stand_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "environ, why, hint",
    [
        ({}, "there is no allocation here: SLURM_JOB_ID is not set", "salloc -N2"),
        (HERE | {"SLURM_HET_SIZE": "2"}, "job 12 is heterogeneous (2 components, SLURM_HET_SIZE)", "one component"),
        (HERE | {"SLURM_STEP_ID": "0"}, "this shell is itself a step of job 12", "without srun"),
    ],
)
def test_where_it_cannot_lead_it_says_so_in_one_sentence_and_makes_nothing(tmp_path, environ, why, hint):
    world = World(tmp_path, **environ)
    error = world.type().exception
    assert isinstance(error, RunError)
    assert why in error.message
    assert "\n" not in error.message
    assert hint in error.hint
    assert world.runs() == world.became == []


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": "4294967290"}])
def test_it_becomes_the_leader_of_a_new_run_on_all_nodes_of_the_allocation(tmp_path, step):
    world = World(tmp_path, **HERE, **step)
    done = world.type("--set", "hang.step=30s")
    (made,) = world.runs()
    config = from_json(made.config_json.read_bytes())
    assert (config.slurm.nodes, config.slurm.requeue, config.hang.step_s) == (2, Requeue.OFF, 30.0)
    assert made.jobs.read_text() == "12\n"
    ((argv, environ),) = world.became
    assert argv[:2] == ["bash", "-c"]
    assert "\nmodule load x\n" in argv[2]
    assert argv[2].endswith(f"exec /opt/py/bin/python -m ftsup lead --foreground {made.root}")
    assert environ["SLURM_JOB_ID"] == "12"
    assert done.stderr.count("nothing is requeued from here") == 1
    assert "slurm.nodes is 4, and this allocation has 2 nodes" in done.stderr
    assert done.stdout == f"job 12: {made.id}\n"


def test_a_batch_script_that_slurm_requeued_goes_on_in_its_run_and_a_person_who_types_again_begins_a_new_one(tmp_path):
    first = World(tmp_path, **HERE)
    first.type()
    first.type()
    old, newer = first.runs()
    again = World(tmp_path, **HERE, SLURM_RESTART_COUNT="1")
    assert f"{newer.id} goes on" in again.type().stderr
    assert again.runs() == [old, newer]
    assert again.became[0][0][2].endswith(str(newer.root))
    other = World(tmp_path, **(HERE | {"SLURM_JOB_ID": "13"}), SLURM_RESTART_COUNT="1")
    other.type()
    assert len(other.runs()) == 3


def test_what_the_allocation_was_meant_for_does_not_shape_our_steps():
    shaped = {"SLURM_CPUS_PER_TASK": "2", "SLURM_NTASKS": "16", "SLURM_NTASKS_PER_NODE": "8", "SLURM_CPU_BIND": "cores", "HOME": "/h"}
    assert grant_of(HERE | shaped, foreground=True).environ == {**HERE, "HOME": "/h"}
    kept = grant_of(HERE | shaped, foreground=False)
    assert kept.environ == HERE | shaped
    assert (kept.job, kept.nodes, kept.restarts) == ("12", ("n3", "n4"), 0)


@pytest.mark.parametrize("here, given, task", [({"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}, "1-4", "3"), ({}, "2", "2")])
def test_of_an_array_it_trains_the_task_that_this_job_is_or_the_only_one(tmp_path, here, given, task):
    world = World(tmp_path, **HERE, **here)
    world.type("--set", f"slurm.array={given}", "--set", "checkpoint.dir=ckpt-{task}")
    config = from_json(world.runs()[0].config_json.read_bytes())
    assert (config.checkpoint.dir, config.slurm.array) == (f"ckpt-{task}", "")


def test_a_whole_array_is_not_one_run(tmp_path):
    error = World(tmp_path, **HERE).type("--set", "slurm.array=1-4", "--set", "checkpoint.dir=ckpt-{task}").exception
    assert isinstance(error, RunError)
    assert "`ftsup run` trains one task: this job is none of them" in error.message
    assert error.hint.startswith("--set slurm.array=1 names one")
