"""Requeues, by an outsider and before the time limit: the run goes on from its newest checkpoint."""

from __future__ import annotations

import pytest

from ftsup import events as ev
from ftsup.mockslurm import control as mockslurm
from ftsup.ports import JobState
from tests.e2e.harness import Run
from tests.e2e.plainly import submit, until_runs

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(300)]


def steps_picked(run) -> list[int | None]:
    return [event.step for event in run.events(ev.CheckpointPicked)]


def test_requeue_by_an_outsider_then_by_the_time_limit_refused_once(site) -> None:
    run = site.submit(slurm={"signal": "SIGUSR1@25"}, waits={"end_margin": "10s"})
    run.until_trains(more=12)
    site.run("scontrol", "requeue", run.job)
    second = run.until_trains(epoch=ev.Epoch(2, 1))
    assert run.orders(ev.Requeue) == []

    mockslurm.refuse_requeues(site.folder / "mock", count=1)
    limit_s = int(run.show().run_s) + 30
    site.run("scontrol", "update", f"JobId={run.job}", f"TimeLimit=0:{limit_s // 60}:{limit_s % 60}")
    run.until(lambda: run.grants() == 3)
    assert run.events(ev.Warned)
    assert [event.kind for event in run.events(ev.SlurmFailed) if event.op == "requeue"] == ["Refused"]
    assert len(run.orders(ev.Requeue)) > 1
    site.run("scontrol", "update", f"JobId={run.job}", "TimeLimit=1:0:0")
    run.until_trains(epoch=ev.Epoch(3, 1))
    run.finish()
    job = run.until_over()
    assert (job.exit_code, job.restarts, run.grants()) == (0, 2, 3)
    assert run.incidents() == []
    assert run.launches() == [ev.Epoch(1, 1), second, ev.Epoch(3, 1)]
    first, *later = steps_picked(run)
    assert first is None
    assert later == sorted(later)
    assert later[0] >= 5


def test_refused_for_good_another_job_follows(site) -> None:
    """Exactly one, of the same script and run directory; its predecessor ends with success, and nothing is requeued."""
    (run,) = submit(site)
    until_runs(run)
    mockslurm.refuse_requeues(site.folder / "mock", count=99)
    site.run("scontrol", "update", f"JobId={run.job}", "Requeue=0")
    site.ftsup("requeue", str(run.place.root), cwd=run.work)
    after = run.until(lambda: (jobs := run.place.jobs.read_text().split())[1:] and jobs[1])
    later = Run(site, run.work, run.place, job=after)
    site.runs.append(later)
    until_runs(later, epoch=ev.Epoch(2, 1))
    assert run.show().state is JobState.COMPLETED
    assert not run.place.requeue.exists()
    twice = site.run("sbatch", "--parsable", str(run.place.script), run.job).strip()  # by somebody who had looked before
    run.until(lambda: site.slurm.show(twice).state is JobState.COMPLETED)
    assert run.output().count(f"job {after} leads this run already: this one, {twice}, is one too many, and ends") == 1
    later.finish()
    assert later.until_over().restarts == 0
    assert run.place.jobs.read_text().split() == [run.job, after]


def test_tasks_of_a_throttled_array_requeue_only_themselves(site) -> None:
    """Two at once of three, each with its run directory; one is requeued, one cancelled, and the others do not notice."""
    first, second, third = tasks = submit(site, array="1-3%2")
    assert [task.job.partition("_")[2] for task in tasks] == ["1", "2", "3"]
    until_runs(first)
    until_runs(second)
    assert third.show().state is JobState.PENDING
    site.ftsup("requeue", first.place.id, cwd=first.work)
    until_runs(third)  # the place that the first has left
    assert (second.show().restarts, third.show().restarts, first.show().restarts) == (0, 0, 1)
    site.ftsup("cancel", second.job, cwd=second.work)
    assert second.until_ended().state in {JobState.CANCELLED, JobState.FAILED}
    until_runs(first, epoch=ev.Epoch(2, 1))
    first.finish()
    for task, restarts in ((first, 1), (third, 0)):
        assert task.until_over().restarts == restarts
    assert len(first.launches()) == 2
    assert len(second.launches()) == len(third.launches()) == 1
