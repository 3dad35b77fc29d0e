"""Any process of the mock is killed at any moment: the next command reads a state that is true, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time

import pytest

from ftsup.mockslurm import control as mockslurm
from ftsup.mockslurm import processes
from ftsup.mockslurm.model import BATCH
from ftsup.ports import JobState

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
BUSY = """
for turn in 1 2 3 4 5 6 7 8; do
    srun -N2 -n2 bash -c 'sleep 300 & sleep 0.3; kill %1'
    scontrol show job $SLURM_JOB_ID > /dev/null
done
"""


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def lives(pid: int) -> bool:
    seen = processes.look(pid)
    return seen is not None and not seen.zombie


def test_a_killed_runner_is_a_lost_node_and_the_job_is_requeued(mock):
    job = mock.submit("srun -N2 -n2 bash -c 'touch there-$SLURM_PROCID; exec sleep 300'", "-N2")
    mock.until(lambda: all((mock.folder / f"there-{rank}").exists() for rank in (0, 1)))
    kill(mock.job(job).runner.pid)
    assert mock.word(job) in {"PENDING", "RUNNING"}
    assert mock.job(job).restarts == 1
    mock.until(lambda: mock.job(job).grant == 2)


def test_a_killed_runner_ends_a_job_that_may_not_be_requeued(mock):
    job = mock.submit("env -i sleep 300 & srun -n1 sleep 300", "--no-requeue")
    mock.until(lambda: len(mock.job(job).steps) == 2)
    runner = mock.job(job).runner
    hanging = processes.below([runner.pid])
    kill(runner.pid)
    assert mock.word(job) == "NODE_FAIL"
    assert "State=IDLE " in mock.run("scontrol", "show", "node", "mock1")
    mock.until(lambda: not any(map(lives, hanging)))


def test_a_cancelled_job_stays_cancelled_although_its_runner_is_killed(make):
    mock = make(kill_wait_s=60)  # until then its runner waits for the job's end
    job = mock.submit("trap '' TERM; touch there; sleep 300; sleep 300")
    mock.until((mock.folder / "there").exists)
    mock.run("scancel", str(job))
    kill(mock.job(job).runner.pid)
    assert mock.word(job) == "CANCELLED"
    assert mock.left(job) == set()


def test_a_waiting_job_gets_another_runner(mock):
    job = mock.submit("true", "--hold")
    kill(mock.job(job).runner.pid)
    mock.run("scontrol", "release", str(job))
    mock.until_word(job, "COMPLETED")
    assert mock.job(job).restarts == 0


def test_a_killed_daemon_of_the_batch_script_is_a_lost_node(mock):
    job = mock.submit("touch there; sleep 300", "--no-requeue")
    mock.until((mock.folder / "there").exists)
    batch = next(step for step in mock.job(job).steps if step.step == BATCH)
    kill(batch.stepds["mock1"].pid)
    mock.until_word(job, "NODE_FAIL")
    assert mock.left(job) == set()


def test_a_killed_daemon_of_a_step_takes_its_tasks_and_srun_says_137(mock):
    job = mock.submit(
        "srun -N2 -n2 bash -c 'touch there-$SLURM_PROCID; [ $SLURM_PROCID = 0 ] || exec sleep 300' 2> said; echo $? > code", "-N2"
    )
    mock.until(lambda: all((mock.folder / f"there-{rank}").exists() for rank in (0, 1)))
    kill(mock.job(job).steps[1].stepds["mock2"].pid)
    mock.until_word(job, "COMPLETED")
    assert mock.read("code") == "137\n"
    assert "mock2: task 1: Killed" in mock.read("said")
    assert mock.left(job) == set()


@pytest.mark.parametrize("seed", range(4))
def test_anything_of_the_mock_is_killed_at_any_moment(mock, seed):
    """A job that always starts steps, three kills at random moments of whatever of it and of its commands is alive."""
    dice = random.Random(seed)
    job = mock.submit(BUSY, "-N2")
    for _ in range(3):
        time.sleep(dice.uniform(0.1, 0.8))
        command = mock.start(*dice.choice([["squeue"], ["scontrol", "show", "job", str(job)], ["scontrol", "requeue", str(job)]]))
        time.sleep(dice.uniform(0.0, 0.2))
        runner = mock.job(job).runner.pid
        mine = {runner, command.pid, *processes.below([runner])}
        victim = dice.choice(sorted(pid for pid in mine if processes.look(pid)))
        with contextlib.suppress(ProcessLookupError):  # it ended by itself since that look
            kill(victim)
        command.communicate(timeout=30)
        holds = mock.job(job)
        assert mock.word(job) in {"PENDING", "RUNNING", "COMPLETING", "COMPLETED", "FAILED"}
        told = mock.run("scontrol", "-o", "show", "job", str(job))
        assert int(told.split("Restarts=")[1].split()[0]) >= holds.restarts
    mock.run("scancel", str(job))
    mock.until(lambda: mock.job(job).over)
    mock.until(lambda: mock.left(job) == set())
    assert {node["raw"] for node in nodes(mock)} == {"IDLE"}
    assert mock.job(job).state in {JobState.CANCELLED, JobState.COMPLETED, JobState.FAILED}
    assert "fault" not in mockslurm.status(mock.state)
    again = mock.submit("true", "-N4")
    mock.until_word(again, "COMPLETED")


def nodes(mock) -> list[dict[str, str]]:
    """What scontrol says about each node."""
    lines = mock.run("scontrol", "-o", "show", "node").splitlines()
    return [{"raw": line.split("State=")[1].split()[0]} for line in lines]
