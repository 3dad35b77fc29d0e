"""The contract of job arrays, where processes run: each task by its own name, requeued and cancelled alone, throttled."""

from __future__ import annotations

import time

from ftsup.ports import JobState
from tests.contract.rigs import over, pending, running

TASK = """#!/bin/bash
echo "$SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID ${SLURM_RESTART_COUNT-unset}" >> "began-$SLURM_ARRAY_TASK_ID"
until [ -e "end-$SLURM_ARRAY_TASK_ID" ] || [ -e end-all ]; do sleep 0.1; done
"""


def array(live, spec: str, *args: str) -> str:
    return live.submit(f"--array={spec}", "--output=out-%A-%a", *args, text=TASK)


def test_a_task_is_requeued_by_its_own_name_and_alone(live):
    job = array(live, "1,3")
    live.until(f"{job}_1", running)
    live.until(f"{job}_3", running)
    live.slurm.requeue(f"{job}_3")
    now = live.until(f"{job}_3", pending)
    assert (now.job_id, now.restarts) == (f"{job}_3", 1)
    other = live.slurm.show(f"{job}_1")
    assert (other.job_id, other.state, other.restarts) == (f"{job}_1", JobState.RUNNING, 0)
    assert not live.until(f"{job}_3", running).excluded
    live.wait_for(lambda: len(live.read("began-3")) == 2)
    assert live.read("began-3") == [f"{job} 3 unset", f"{job} 3 1"]
    assert live.read("began-1") == [f"{job} 1 unset"]
    assert (live.folder / f"out-{job}-3").exists()


def test_a_task_keeps_nodes_out_for_itself_alone(live):
    job = array(live, "1-2", "--hold")
    live.slurm.avoid(f"{job}_1", ["n4"])
    assert live.slurm.show(f"{job}_1").excluded == ("n4",)
    assert live.slurm.show(f"{job}_2").excluded == ()


def test_a_task_is_cancelled_alone_and_the_bare_number_means_all(live):
    job = array(live, "1-3")
    live.until(f"{job}_1", running)
    live.slurm.cancel(f"{job}_3")
    assert live.until(f"{job}_3", over).state is JobState.CANCELLED
    assert running(live.slurm.show(f"{job}_1"))
    live.slurm.cancel(job)
    assert live.until(f"{job}_1", over).state is JobState.CANCELLED
    assert live.until(f"{job}_2", over).state is JobState.CANCELLED


def test_a_throttled_array_runs_so_many_at_once_and_a_task_that_waits_has_its_name(live):
    job = array(live, "1-4%2")
    live.until(f"{job}_1", running)
    live.until(f"{job}_2", running)
    waits = live.until(f"{job}_4", lambda one: one.reason == "JobArrayTaskLimit")
    assert waits.state is JobState.PENDING
    time.sleep(1.0)  # nothing more is to be seen
    assert pending(live.slurm.show(f"{job}_3"))
    live.slurm.requeue(f"{job}_1")
    live.until(f"{job}_3", running)
    assert live.slurm.show(f"{job}_2").restarts == 0
    (live.folder / "end-all").touch()
    for task in range(1, 5):
        assert live.until(f"{job}_{task}", over).state is JobState.COMPLETED


def test_a_job_follows_one_task(live):
    job = array(live, "1-2")
    live.until(f"{job}_2", running)
    script = live.folder / "after.sh"
    script.write_text("#!/bin/bash\nexit 0\n")
    after = live.slurm.submit(script, args=[*live.always, f"--dependency=afterany:{job}_1"])
    live.mine.append(after)
    assert live.slurm.show(after).reason == "Dependency"
    (live.folder / "end-1").touch()
    live.until(after, over)
    assert running(live.slurm.show(f"{job}_2"))
    assert [one.job_id for one in live.slurm.find(script)] == [after]
