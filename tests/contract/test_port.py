"""The contract of the Slurm port: what the fake, the mock and a real Slurm all do. Where they differ, the real one is right."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ftsup.errors import Refused
from ftsup.ports import JobState, NodeState
from ftsup.slurm import jobs
from tests.contract.rigs import SLOW, completing, over, pending, running


def test_a_job_runs_and_ends_with_zero(rig):
    job = rig.start("-N2", "--job-name=two words", "--time=10")
    now = rig.slurm.show(job)
    assert (now.state, now.name, now.num_nodes, len(now.nodes), now.restarts) == (JobState.RUNNING, "two words", 2, 2, 0)
    assert now.batch_host == now.nodes[0]
    assert now.limit_s == 600
    assert 0 <= now.run_s < 60
    rig.finish(job)
    end = rig.until(job, over)
    assert (end.state, end.exit_code, end.exit_signal) == (JobState.COMPLETED, 0, None)
    assert end.nodes == now.nodes


def test_an_exit_code_is_kept(rig):
    job = rig.start()
    rig.finish(job, exit_code=75)
    end = rig.until(job, over)
    assert (end.state, end.exit_code) == (JobState.FAILED, 75)


def test_an_unknown_job_is_gone(rig):
    assert rig.slurm.show("4000000").state is JobState.GONE


def test_the_queue_shows_every_job_of_the_user_as_it_is(rig):
    """One question for all: what waits, what runs, what was requeued, and what ended a moment ago."""
    waits, runs, ended = rig.submit("--hold"), rig.start("-N2", "--job-name=a | b", "--time=10"), rig.start()
    rig.finish(ended, exit_code=3)
    rig.until(ended, over)
    again = rig.requeued()  # the last: its wait is short
    rows = {row.job_id: row for row in rig.slurm.queue()}
    assert (rows[waits].held, rows[waits].nodes, rows[waits].batch_host) == (True, (), "")
    now = rows[runs]
    assert (now.state, now.name, now.num_nodes, len(now.nodes), now.restarts) == (JobState.RUNNING, "a | b", 2, 2, 0)
    assert (now.batch_host, now.limit_s, now.run_s < 60) == (now.nodes[0], 600, True)
    assert (pending(rows[again]), rows[again].restarts) == (True, 1)
    assert rows[ended].state is JobState.FAILED


def test_the_queue_shows_what_completes(rig):
    job = rig.start(SLOW)
    rig.slurm.requeue(job)
    rig.until(job, completing)
    (row,) = [row for row in rig.slurm.queue() if row.job_id == job]
    assert (row.completing, row.restarts) == (True, 1)


def test_requests_about_an_unknown_job_are_refused(rig):
    for request in (
        lambda: rig.slurm.requeue("4000000"),
        lambda: rig.slurm.avoid("4000000", ["n1"]),
        lambda: rig.slurm.release("4000000"),
        lambda: rig.slurm.start_now("4000000"),
    ):
        with pytest.raises(Refused):
            request()


def test_cancel_of_an_unknown_job_is_silent(rig):
    rig.slurm.cancel("4000000")


def test_a_job_is_cancelled_while_it_waits(rig):
    job = rig.submit("--hold")
    rig.slurm.cancel(job)
    assert rig.until(job, over).state is JobState.CANCELLED


def test_a_job_is_cancelled_while_it_runs(rig):
    job = rig.start(SLOW)
    rig.slurm.cancel(job)
    now = rig.until(job, completing)
    assert (now.state, now.restarts) == (JobState.UNKNOWN, 0)
    rig.let(job)
    assert rig.until(job, over).state is JobState.CANCELLED


def test_a_job_is_cancelled_while_it_completes_for_a_requeue(rig):
    job = rig.start(SLOW)
    rig.slurm.requeue(job)
    rig.until(job, completing)
    rig.slurm.cancel(job)
    rig.let(job)
    assert rig.until(job, over).state is JobState.CANCELLED


def test_a_job_is_cancelled_while_it_waits_for_its_begin_time(rig):
    job = rig.requeued()
    rig.slurm.cancel(job)
    assert rig.until(job, over).state is JobState.CANCELLED


def test_cancel_of_a_finished_job_changes_nothing(rig):
    job = rig.start()
    rig.finish(job, exit_code=3)
    rig.until(job, over)
    rig.slurm.cancel(job)
    now = rig.slurm.show(job)
    assert (now.state, now.exit_code) == (JobState.FAILED, 3)


def test_a_requeue_counts_at_once_and_waits_for_its_begin_time(rig):
    job = rig.start(SLOW)
    rig.slurm.requeue(job)
    now = rig.until(job, completing)
    assert (now.state, now.restarts) == (JobState.UNKNOWN, 1)
    rig.let(job)
    now = rig.until(job, lambda one: pending(one) and one.reason == "BeginTime")
    assert (now.restarts, now.nodes, now.batch_host) == (1, (), "")
    assert now.starts_in_s is not None
    assert 0 < now.starts_in_s <= 10
    now = rig.until(job, running)
    assert (now.restarts, now.reason) == (1, "")


def test_start_now_ends_the_wait(rig):
    job = rig.start()
    began = time.monotonic()
    rig.slurm.requeue(job)
    now = rig.until(job, pending)
    assert now.starts_in_s + time.monotonic() - began > 5  # however late the look
    rig.slurm.start_now(job)
    now = rig.slurm.show(job)
    assert running(now) or now.starts_in_s <= 3  # a look may come late
    rig.until(job, running)


def test_start_now_is_in_time_on_the_very_node(rig):
    """A node refuses for ever what starts in the second in which the job was ended there."""
    job = rig.start("--nodelist=n2")
    rig.slurm.requeue(job)
    rig.until(job, pending)
    assert rig.again(job).nodes == ("n2",)


def test_start_now_is_refused_unless_it_waits(rig):
    job = rig.start()
    with pytest.raises(Refused):
        rig.slurm.start_now(job)
    rig.finish(job)
    rig.until(job, over)
    with pytest.raises(Refused):
        rig.slurm.start_now(job)


def test_start_now_is_refused_while_the_job_completes(rig):
    job = rig.start(SLOW)
    rig.slurm.requeue(job)
    rig.until(job, completing)
    with pytest.raises(Refused):
        rig.slurm.start_now(job)
    began = time.monotonic()
    rig.let(job)
    assert rig.until(job, pending).starts_in_s + time.monotonic() - began > 4


def test_requeue_of_a_waiting_job_changes_nothing(rig):
    job = rig.requeued()
    rig.slurm.requeue(job)
    now = rig.slurm.show(job)
    assert (pending(now), now.restarts) == (True, 1)


def test_requeue_never_brings_back_a_finished_job(rig):
    job = rig.start()
    rig.finish(job, exit_code=1)
    rig.until(job, over)
    rig.slurm.requeue(job)
    now = rig.slurm.show(job)
    assert (now.state, now.completing, now.restarts) == (JobState.FAILED, False, 0)


def test_requeue_never_brings_back_a_cancelled_job(rig):
    job = rig.start(SLOW)
    rig.slurm.cancel(job)
    rig.until(job, completing)
    rig.slurm.requeue(job)
    assert rig.slurm.show(job).restarts == 0
    rig.let(job)
    rig.until(job, over)
    rig.slurm.requeue(job)
    now = rig.slurm.show(job)
    assert (now.state, now.restarts) == (JobState.CANCELLED, 0)


def test_a_requeue_of_what_has_ended_brings_back_even_what_was_cancelled(rig):
    """Which is why ftsup asks for it only where Slurm has said that it has preempted the job, or that its time was over."""
    job = rig.start(SLOW)
    rig.slurm.cancel(job)
    assert rig.slurm.show(job).completing
    rig.slurm.requeue(job)
    assert rig.slurm.show(job).restarts == 0
    rig.slurm.requeue(job, ended=True)
    assert rig.slurm.show(job).restarts == 1
    rig.let(job)
    assert rig.until(job, pending).reason == "BeginTime"


def test_how_long_a_running_job_has_is_its_end_time(rig):
    job = rig.start("--time=10")
    began = time.monotonic()
    now = rig.slurm.show(job)
    asked_s = time.monotonic() - began  # of two questions: for the job, and for Slurm's time
    assert -asked_s - 2 <= now.ends_in_s - (600 - now.run_s) <= 2
    assert not now.preempted


def test_requeue_of_a_job_that_forbids_it_is_refused(rig):
    job = rig.start("--no-requeue")
    assert not rig.slurm.show(job).requeueable
    with pytest.raises(Refused):
        rig.slurm.requeue(job)
    assert running(rig.slurm.show(job))


def test_a_running_job_cannot_avoid_nodes(rig):
    job = rig.start()
    with pytest.raises(Refused):
        rig.slurm.avoid(job, ["n4"])


def test_a_finished_job_cannot_avoid_nodes(rig):
    job = rig.start()
    rig.finish(job)
    rig.until(job, over)
    with pytest.raises(Refused):
        rig.slurm.avoid(job, ["n4"])


def test_a_cancelled_job_cannot_avoid_nodes_while_it_completes(rig):
    job = rig.start(SLOW)
    rig.slurm.cancel(job)
    rig.until(job, completing)
    with pytest.raises(Refused):
        rig.slurm.avoid(job, ["n4"])


def test_avoid_merges_with_what_the_user_excluded(rig):
    job = rig.submit("--exclude=n4", "--hold")
    rig.slurm.avoid(job, ["n2"])
    rig.slurm.avoid(job, ["n2", "n4"])
    assert set(rig.slurm.show(job).excluded) == {"n2", "n4"}


def test_avoid_lets_nodes_in_again(rig):
    job = rig.submit("--exclude=n4", "--hold")
    rig.slurm.avoid(job, ["n2", "n3"])
    rig.slurm.avoid(job, ["n3"], drop=["n2", "n3"])
    assert set(rig.slurm.show(job).excluded) == {"n3", "n4"}
    rig.slurm.avoid(job, [], drop=["n3", "n4"])
    assert rig.slurm.show(job).excluded == ()


def ids(found) -> list[str]:
    return [one.job_id for one in found]


def test_jobs_are_found_by_their_script_and_when_they_are_over(rig):
    first, other = rig.submit("--hold"), rig.submit("--hold")
    script = rig.folder / "job0.sh"
    assert ids(rig.slurm.find(script)) == [first]
    second = rig.slurm.submit(script, args=[*rig.always, f"--dependency=afterany:{first}"], words=[first])
    rig.mine.append(second)
    assert [one.words for one in rig.slurm.find(script)] == [(), (first,)]
    rig.slurm.cancel(first)
    rig.until(first, over)
    assert ids(rig.slurm.find(script)) == [first, second]
    assert ids(rig.slurm.find(Path("/elsewhere", *script.parts[-3:]))) == [first, second]
    assert rig.slurm.find(rig.folder / "job") == []
    rig.slurm.cancel(other)


def test_a_job_says_its_partition(rig):
    assert rig.slurm.show(rig.submit("--hold")).partition == "main"


def test_avoid_is_taken_while_the_job_completes_and_kept(rig):
    job = rig.start(SLOW, "-N1", "--exclude=n4")
    first = rig.slurm.show(job).nodes[0]
    rig.slurm.requeue(job)
    rig.until(job, completing)
    rig.slurm.avoid(job, [first])
    rig.let(job)
    rig.until(job, pending)
    now = rig.again(job)
    assert set(now.excluded) == {first, "n4"}
    assert first not in now.nodes


def test_avoid_of_an_unknown_node_is_refused(rig):
    job = rig.submit("--hold")
    with pytest.raises(Refused):
        rig.slurm.avoid(job, ["elsewhere"])


def test_a_held_job_waits_for_its_release(rig):
    job = rig.submit("--hold")
    now = rig.slurm.show(job)
    assert (now.held, now.starts_in_s) == (True, None)
    rig.slurm.release(job)
    rig.until(job, running)
    rig.slurm.release(job)
    assert running(rig.slurm.show(job))


def test_release_of_a_finished_job_is_refused(rig):
    job = rig.start()
    rig.finish(job)
    rig.until(job, over)
    with pytest.raises(Refused):
        rig.slurm.release(job)


def test_a_job_that_was_held_after_its_requeue_stays(rig):
    job = rig.requeued()
    rig.hold(job)
    assert rig.slurm.show(job).held
    rig.slurm.start_now(job)
    rig.pass_s(5)
    now = rig.slurm.show(job)
    assert (now.state, now.held) == (JobState.PENDING, True)
    rig.slurm.release(job)
    rig.again(job)


def test_nodes_are_listed_by_name_and_all(rig):
    everything = rig.slurm.nodes()
    assert [node.name for node in everything] == ["n1", "n2", "n3", "n4"]
    assert {node.state for node in everything} == {NodeState.UP}
    assert [node.name for node in rig.slurm.nodes(["n3", "n4"])] == ["n3", "n4"]
    with pytest.raises(Refused):
        rig.slurm.nodes(["elsewhere"])


def test_partitions_are_listed_with_their_nodes(rig):
    (partition,) = rig.slurm.partitions()
    assert (partition.name, partition.default, partition.up, partition.accounts) == ("main", True, True, ())
    assert partition.nodes == ("n1", "n2", "n3", "n4")
    assert partition.limit_s is None
    assert {(node.gpus, node.cpus > 0) for node in rig.slurm.nodes()} == {(0, True)}


def test_the_settings_that_ftsup_needs_are_there(rig):
    settings = rig.slurm.config()
    assert jobs.config_s(settings["KillWait"]) is not None
    assert jobs.config_s(settings["UnkillableStepTimeout"]) is not None
    assert settings["ProctrackType"].startswith("proctrack/")


def test_a_script_that_is_none_is_refused(rig):
    with pytest.raises(Refused):
        rig.slurm.submit(rig.folder / "missing.sh")
    with pytest.raises(Refused):
        rig.submit(text="echo no first line\n")


def test_wrong_requests_are_refused_at_once(rig):
    for wrong in (["--partition=elsewhere"], ["--exclude=elsewhere"]):
        with pytest.raises(Refused):
            rig.submit(*wrong)


def test_test_only_answers_and_submits_nothing(rig):
    script = rig.folder / "job.sh"
    script.write_text("#!/bin/bash\n")
    said = rig.slurm.submit(script, args=["-N2"], test_only=True)
    assert "to start at" in said
    with pytest.raises(Refused):
        rig.slurm.submit(script, args=["-N9"], test_only=True)


def test_more_nodes_than_there_are_wait_for_ever_or_are_refused_at_once(rig):
    """22.05 lets them wait, 24.11 refuses them: such a job never runs, and is never lost in silence."""
    assert fate(rig, "-N9") in {(JobState.PENDING, 9), "sbatch: Batch job submission failed: Requested node configuration is not available"}


def fate(rig, *args: str) -> tuple[JobState, int] | str:
    """What becomes of a submission."""
    try:
        now = rig.slurm.show(rig.submit(*args))
    except Refused as error:
        return error.message
    return now.state, now.num_nodes
