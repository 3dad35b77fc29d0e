"""What the fake does beyond the contract: its switches, its clock, its record of what it was given."""

from __future__ import annotations

import pytest

from ftsup.errors import Refused, Unavailable
from ftsup.ports import JobState, NodeState
from ftsup.slurm.fake import FakeSlurm


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "job.sh"
    path.write_text("#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --time 10\n#SBATCH --exclude=n1\n#SBATCH --comment=x\necho\n")
    return path


def started(slurm: FakeSlurm, script, *args: str) -> str:
    job = slurm.submit(script, args=args)
    slurm.advance(1)
    assert slurm.show(job).state is JobState.RUNNING
    return job


def test_options_come_from_the_script_and_arguments_win(script):
    slurm = FakeSlurm()
    now = slurm.show(started(slurm, script, "-J", "name", "-N1"))
    assert (now.num_nodes, now.limit_s, now.excluded, now.name, now.nodes) == (1, 600.0, ("n1",), "name", ("n2",))


def test_a_controller_that_is_away_answers_nobody(script):
    slurm = FakeSlurm()
    job = started(slurm, script)
    slurm.away = True
    for call in (
        slurm.show,
        slurm.requeue,
        slurm.cancel,
        slurm.release,
        slurm.start_now,
        lambda _: slurm.nodes(),
        lambda _: slurm.config(),
    ):
        with pytest.raises(Unavailable):
            call(job)
    with pytest.raises(Unavailable):
        slurm.submit(script)
    slurm.away = False
    assert slurm.show(job).state is JobState.RUNNING


def test_requeues_are_refused_as_often_as_told(script):
    slurm = FakeSlurm(refuse_requeues=1)
    job = started(slurm, script)
    with pytest.raises(Refused):
        slurm.requeue(job)
    slurm.requeue(job)
    assert slurm.show(job).completing


def test_the_time_limit_in_one_jump(script):
    slurm = FakeSlurm()
    job = started(slurm, script)
    slurm.advance(7 * 24 * 3600)
    now = slurm.show(job)
    assert (now.state, now.restarts, now.run_s) == (JobState.TIMEOUT, 0, 600.0)


def test_a_whole_requeue_in_one_jump(script):
    slurm = FakeSlurm()
    job = started(slurm, script)
    slurm.requeue(job)
    slurm.advance(130)
    now = slurm.show(job)
    assert (now.state, now.restarts) == (JobState.RUNNING, 1)
    assert now.run_s == pytest.approx(130 - 1 - 121)


def test_a_preemption_with_grace_moves_the_end_and_requeues(script):
    slurm = FakeSlurm()
    job = started(slurm, script)
    slurm.preempt(job, grace_s=20)
    now = slurm.show(job)
    assert (now.state, now.preempted, now.ends_in_s) == (JobState.RUNNING, True, 20)
    slurm.advance(20)
    now = slurm.show(job)
    assert (now.completing, now.restarts, now.preempted) == (True, 1, False)
    slurm.advance(130)
    now = slurm.show(job)
    assert (now.state, now.preempted, now.ends_in_s) == (JobState.RUNNING, False, pytest.approx(600 - 8))


def test_a_preemption_that_cancels_is_undone_by_a_requeue_of_what_has_ended(script):
    slurm = FakeSlurm()
    job = started(slurm, script)
    slurm.preempt(job, requeue=False)
    now = slurm.show(job)
    assert (now.completing, now.preempted, now.restarts, now.ends_in_s) == (True, True, 0, None)
    slurm.requeue(job)
    assert slurm.show(job).restarts == 0
    slurm.requeue(job, ended=True)
    assert (slurm.show(job).restarts, slurm.show(job).completing) == (1, True)
    slurm.advance(2)
    assert slurm.show(job).state is JobState.PENDING
    with pytest.raises(Refused):
        slurm.requeue(job, ended=True)
    other = started(slurm, script)
    slurm.preempt(other, requeue=False)
    slurm.advance(2)
    assert slurm.show(other).state is JobState.PREEMPTED
    slurm.requeue(other, ended=True)
    assert slurm.show(other).state is JobState.PENDING


def test_nodes_that_are_not_up_get_no_job(script):
    slurm = FakeSlurm(node_states={"n2": ("DOWN*", "oh"), "n3": ("IDLE+DRAIN", "gpu")})
    job = slurm.submit(script)
    slurm.advance(10)
    assert slurm.show(job).state is JobState.PENDING
    assert [node.state for node in slurm.nodes()] == [NodeState.UP, NodeState.DOWN, NodeState.DRAINED, NodeState.UP]
    slurm.node_states.clear()
    slurm.advance(10)
    assert slurm.show(job).nodes == ("n2", "n3")


def test_a_forgotten_job_is_gone(script):
    slurm = FakeSlurm()
    job = started(slurm, script)
    slurm.finish(job)
    slurm.forget(job)
    assert slurm.show(job).state is JobState.GONE


def test_the_environment_is_kept_scrubbed(script):
    slurm = FakeSlurm()
    job = slurm.submit(script, env={"A": "1", "SLURM_JOB_ID": "5", "SLURM_CONF": "c"})
    assert slurm.jobs[job].env == {"A": "1", "SLURM_CONF": "c"}
