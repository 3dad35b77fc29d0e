"""The controller's rules, told the time: no process and no file."""

from __future__ import annotations

import pytest

from ftsup.mockslurm import rules
from ftsup.mockslurm.model import BATCH, JobRec, NodeRec, Signal, StepRec, StepState, World
from ftsup.ports import JobState


@pytest.fixture
def world():
    return World(nodes={name: NodeRec(name=name) for name in ("n1", "n2", "n3", "n4")})


def add(world, *, nodes=1, now=0.0, **more):
    job = JobRec(job=world.next_job, name="job", num_nodes=nodes, submit_at=now, eligible_at=now, **more)
    world.next_job += 1
    world.jobs[job.job] = job
    return job


def started(world, **more):
    job = add(world, **more)
    assert job.job in rules.schedule(world, 0.0)
    return job


def test_nodes_go_to_the_first_and_to_whom_the_rest_is_enough(world):
    first, large, small = add(world, nodes=3), add(world, nodes=2), add(world, nodes=1)
    assert rules.schedule(world, 0.0) == [first.job, small.job]
    assert (first.nodes, small.nodes) == (["n1", "n2", "n3"], ["n4"])
    assert (large.state, large.reason) == (JobState.PENDING, "Resources")


def test_excluded_down_and_draining_nodes_are_left_out(world):
    world.nodes["n1"].drain = True
    world.nodes["n2"].down = True
    assert started(world, excluded=["n3"]).nodes == ["n4"]


def test_wanted_nodes_are_taken(world):
    assert started(world, nodes=2, required=["n4"]).nodes == ["n1", "n4"]


@pytest.mark.parametrize(
    "more, reason",
    [
        ({"held": True}, "JobHeldUser"),
        ({"now": 5.0}, "BeginTime"),
        ({"nodes": 5}, "PartitionConfig"),
        ({"after": [("afterany", "1")]}, "Dependency"),
    ],
)
def test_why_a_job_waits(world, more, reason):
    started(world)
    job = add(world, **more)
    assert rules.schedule(world, 0.0) == []
    assert job.reason == reason


def test_dependent_jobs_start_when_the_other_is_over_as_they_wished(world):
    first = started(world)
    waiting = {kind: add(world, after=[(kind, str(first.job))]) for kind in ("after", "afterany", "afterok", "afternotok")}
    assert rules.schedule(world, 0.0) == [waiting["after"].job]
    rules.script_ended(first, 3 << 8, 1.0)
    assert rules.schedule(world, 1.0) == []
    rules.completed(world, first, 2.0)
    assert rules.schedule(world, 2.0) == [waiting["afterany"].job, waiting["afternotok"].job]
    assert waiting["afterok"].reason == "DependencyNeverSatisfied"


def test_a_requeue_counts_at_once_and_waits_after_the_last_process(world):
    job = started(world)
    rules.requeue(world, job, now=10.0)
    assert (job.state, job.completing, job.restarts, job.nodes) == (JobState.PENDING, True, 1, ["n1"])
    rules.completed(world, job, 12.0)
    assert (job.completing, job.nodes, job.eligible_at) == (False, [], 12.0 + world.settings.begin_wait_s)


@pytest.mark.parametrize("over", [JobState.COMPLETED, JobState.CANCELLED, JobState.TIMEOUT])
def test_a_plain_requeue_brings_back_what_is_over_and_incomplete_does_not(world, over):
    job = started(world)
    rules.end_job(job, over, now=1.0, note="")
    rules.completed(world, job, 1.0)
    rules.requeue(world, job, now=2.0, incomplete=True)
    assert (job.state, job.restarts) == (over, 0)
    rules.requeue(world, job, now=2.0)
    assert (job.state, job.restarts) == (JobState.PENDING, 1)


def test_a_plain_requeue_brings_back_a_cancelled_job_that_is_still_ending(world):
    """Seen on the real one."""
    job = started(world)
    rules.cancel(job, 1.0)
    rules.requeue(world, job, now=2.0)
    assert (job.state, job.completing, job.restarts) == (JobState.PENDING, True, 1)


def test_requeues_are_refused_as_ordered(world):
    world.faults.refuse_requeues = 1
    job = started(world)
    with pytest.raises(rules.Refusal, match="Requested operation is presently disabled"):
        rules.requeue(world, job, now=1.0, incomplete=True)
    rules.requeue(world, job, now=1.0, incomplete=True)
    assert job.restarts == 1


def test_no_requeue_where_it_is_forbidden(world):
    job = started(world, requeue=False)
    with pytest.raises(rules.Refusal, match="presently disabled"):
        rules.requeue(world, job, now=1.0)


def test_a_cancel_beats_a_requeue_on_its_way(world):
    job = started(world)
    rules.requeue(world, job, now=1.0)
    rules.cancel(job, 2.0)
    rules.completed(world, job, 3.0)
    assert (job.state, job.over) == (JobState.CANCELLED, True)


def test_the_end_of_the_script_does_not_change_a_verdict(world):
    job = started(world)
    rules.cancel(job, 1.0)
    rules.script_ended(job, 0, 2.0)
    assert job.state is JobState.CANCELLED


@pytest.mark.parametrize(
    "status, state, reason",
    [
        (0, JobState.COMPLETED, "None"),
        (75 << 8, JobState.FAILED, "NonZeroExitCode"),
        (9, JobState.FAILED, "JobLaunchFailure"),
    ],
)
def test_what_the_script_returned(world, status, state, reason):
    job = started(world)
    rules.script_ended(job, status, 1.0)
    assert (job.state, job.reason, job.exit_status) == (state, reason, status)


def test_the_warning_comes_once_and_early_and_the_limit_ends_the_job(world):
    job = started(world, limit_s=600.0, warn_signal=10, warn_s=120.0)
    early = 600.0 - 120.0 - world.settings.signal_early_s
    assert rules.due(world, 0.0) == [600.0, early]
    rules.watch_time(world, job, early - 0.1)
    assert job.signals == []
    rules.watch_time(world, job, early)
    rules.watch_time(world, job, early + 1)
    assert job.signals == [Signal(number=10)]
    rules.watch_time(world, job, 600.0)
    assert (job.state, job.reason, job.completing) == (JobState.TIMEOUT, "TimeLimit", True)


def test_a_warning_for_the_batch_shell_is_for_nobody_else(world):
    job = started(world, limit_s=60.0, warn_signal=10, warn_s=60.0, warn_batch=True)
    rules.watch_time(world, job, 1.0)
    assert job.signals == [Signal(number=10, batch=True, steps=False)]


def test_a_lost_node_requeues_the_job_or_ends_it(world):
    stays, goes = started(world, requeue=False), started(world)
    for job in (stays, goes):
        rules.node_down(world, world.nodes[job.nodes[0]], reason="gone", now=1.0)
    assert (stays.state, stays.completing) == (JobState.NODE_FAIL, True)
    assert (goes.state, goes.completing, goes.restarts) == (JobState.PENDING, True, 1)


def test_with_no_kill_a_job_goes_on_without_the_node(world):
    job = started(world, nodes=3, no_kill=True)
    rules.node_down(world, world.nodes["n2"], reason="gone", now=1.0)
    assert (job.state, job.completing, job.nodes) == (JobState.RUNNING, False, ["n1", "n3"])


def test_steps_share_nodes_only_when_they_say_so(world):
    job = started(world, nodes=2)
    job.steps = [StepRec(step=BATCH, nodes=["n1"], state=StepState.RUNNING), StepRec(step=0, nodes=["n1", "n2"], state=StepState.RUNNING)]
    assert not rules.step_may_start(job, StepRec(step=1, nodes=["n2"]))
    assert rules.step_may_start(job, StepRec(step=1, nodes=["n2"], overlap=True))


def test_finished_jobs_are_forgotten_after_their_age(world):
    job = started(world)
    rules.script_ended(job, 0, 1.0)
    rules.completed(world, job, 1.0)
    assert rules.forget(world, 1.0 + world.settings.min_job_age_s) == []
    assert rules.forget(world, 2.0 + world.settings.min_job_age_s) == [job.job]
    with pytest.raises(rules.Refusal, match="Invalid job id"):
        rules.find(world, job.job)


def test_a_job_that_no_cluster_could_run_is_refused(world):
    with pytest.raises(rules.Refusal, match="not available"):
        rules.possible(world, add(world, nodes=2, excluded=["n1", "n2", "n3"]))
    rules.possible(world, add(world, nodes=9))
