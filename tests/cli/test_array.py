"""`slurm.array`: each task is a run of its own, by its own name, for submit, list, status, cancel and submit --continue."""

from __future__ import annotations

import json

import pytest

from ftsup.cli.show import list_runs, status
from ftsup.cli.steer import cancel, stop
from ftsup.cli.submit import render, submit
from ftsup.config import from_json
from ftsup.errors import ConfigError, RunError, Unanswered
from ftsup.ports import JobState
from ftsup.rundir import RunDir
from tests.cli.test_submit import World

CONFIG = """
name: demo
command: [train.py, --seed, "{task}"]
slurm: {nodes: 1, time: 1h, array: 1-3%2}
checkpoint: {dir: "ckpt/{task}"}
env: {SEED: "s{task}"}
"""
STEM = "demo/20260102-030405-0001"


@pytest.fixture
def world(tmp_path, monkeypatch) -> World:
    monkeypatch.chdir(tmp_path)
    made = World(tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG)
    return made


@pytest.fixture
def runs(world) -> list[RunDir]:
    said = world.submit().stdout.split("\n")
    assert said[:3] == [f"job 1_{task}: {STEM}_{task}" for task in (1, 2, 3)]
    return [RunDir(world.home / "ftsup-runs" / f"{STEM}_{task}") for task in (1, 2, 3)]


def test_each_task_has_its_run_directory_its_job_and_its_own_configuration(world, runs) -> None:
    assert sorted((world.home / "ftsup-runs" / "demo").iterdir()) == [run.root for run in runs]
    for task, run in enumerate(runs, 1):
        config = from_json(run.config_json.read_bytes())
        assert run.task == task
        assert run.jobs.read_text() == f"1_{task}\n"
        assert config.command == ("train.py", "--seed", str(task))
        assert config.checkpoint.dir == f"ckpt/{task}"
        assert config.slurm.array == ""
        assert json.loads(run.env_json.read_bytes()) == {"SEED": f"s{task}"}
        assert "--array" not in run.script.read_text(), "its successor is one job"
        assert f"run={run.root}\n" in run.script.read_text()
    text = runs[0].array_script.read_text()
    assert "#SBATCH --array=1-3%2\n" in text
    assert f'run={world.home}/ftsup-runs/{STEM}_"$SLURM_ARRAY_TASK_ID"\n' in text
    assert list(world.slurm.jobs) == ["1_1", "1_2", "1_3"]
    assert {record.script for record in world.slurm.jobs.values()} == {str(runs[0].array_script)}


def test_list_status_and_the_rest_speak_of_tasks(world, runs) -> None:
    assert [row["run"] for row in json.loads(world.type(list_runs, "--json").stdout)] == [run.id for run in runs]
    for whole in ([], ["demo"], [STEM], ["1"]):
        assert [row["job"] for row in json.loads(world.type(status, *whole, "--json").stdout)] == ["1_1", "1_2", "1_3"]
    for one in ("1_2", f"{STEM}_2", runs[1].root.name, str(runs[1].root)):
        assert json.loads(world.type(status, one, "--json").stdout)["job"] == "1_2"
    error = world.type(stop, "demo", fails=True)
    assert isinstance(error, RunError)
    assert error.message == "demo is an array of 3 tasks"
    assert error.hint == f"name one: {STEM}_1 to _3; ftsup list shows them"


def test_cancel_ends_one_task_or_all(world, runs) -> None:
    world.type(cancel, "1_2")
    assert [run.cancelled.exists() for run in runs] == [False, True, False]
    assert [world.slurm.show(job).state is JobState.CANCELLED for job in world.slurm.jobs] == [False, True, False]
    world.type(cancel, "demo")
    assert all(run.cancelled.exists() for run in runs)
    assert {world.slurm.show(job).state for job in world.slurm.jobs} == {JobState.CANCELLED}


def test_a_task_goes_on_alone(world, runs) -> None:
    world.type(cancel, "1_2")
    world.slurm.forget("1_2")
    (world.home / "c.yaml").write_text(CONFIG.replace("time: 1h", "time: 2h"))
    said = world.type(submit, "--continue", f"{STEM}_2")
    assert said.stdout == f"job 2: {STEM}_2\n"
    assert "slurm.time: 1h -> 2h" in said.stderr
    assert "array" not in said.stderr
    config = from_json(runs[1].config_json.read_bytes())
    assert (config.command[-1], config.checkpoint.dir, config.slurm.array) == ("2", "ckpt/2", "")
    assert runs[1].jobs.read_text() == "1_2\n2\n"
    assert list(world.slurm.jobs) == ["1_1", "1_3", "2"]


def test_nothing_is_left_where_slurm_says_no_and_all_where_its_answer_is_lost(world) -> None:
    world.slurm.away = True
    world.type(submit, "c.yaml", "--cluster=slurm", fails=True)
    assert not (world.home / "ftsup-runs").exists()

    class Lossy(type(world.slurm)):
        def submit(self, *args, **more):
            raise Unanswered("sbatch: Socket timed out")

    world.slurm = Lossy()
    world.type(submit, "c.yaml", "--cluster=slurm", fails=True)
    left = sorted((world.home / "ftsup-runs" / "demo").iterdir())
    assert len(left) == 3
    assert all(RunDir(path).submitting.exists() for path in left)


@pytest.mark.parametrize(
    "old,new,said",
    [
        ("ckpt/{task}", "ckpt", "checkpoint.dir: ckpt: the tasks of slurm.array would share one directory"),
        ("array: 1-3%2", "array: ''", "checkpoint.dir: ckpt/{task}: {task} stands for a task's number, and slurm.array is empty"),
        ("array: 1-3%2", "array: 3-1", "slurm.array: 3-1: there is no task in it"),
        ("array: 1-3%2", "array: all", "slurm.array: all: allowed is sbatch's way to write tasks"),
        ("array: 1-3%2", "extra: {array: 1-3}", "slurm.extra.array: not as an extra option; instead: slurm.array"),
    ],
)
def test_what_cannot_be_is_said(world, old: str, new: str, said: str) -> None:
    (world.home / "c.yaml").write_text(CONFIG.replace(old, new))
    error = world.type(render, "c.yaml", fails=True)
    assert isinstance(error, ConfigError)
    assert said in str(error)
