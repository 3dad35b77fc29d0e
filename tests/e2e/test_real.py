"""Runs on a real Slurm: what the mock was made after."""

from __future__ import annotations

import pytest

from ftsup import events as ev
from ftsup.events import How, VerdictKind
from ftsup.ports import JobState

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.realslurm, pytest.mark.timeout(300)]


@pytest.mark.parametrize("cluster", ["real", pytest.param("real_cgroup", marks=pytest.mark.drill)])
def test_run_is_broken_requeued_and_completes(cluster, request) -> None:
    site = request.getfixturevalue(cluster)
    run = site.submit(slurm={"nodes": 2, "mem": "2GiB"}, workers_per_node=1)
    run.until_trains(more=12)
    run.once(1, "hang")
    incident = run.until_judged(1)
    assert (incident.root.how, incident.root.rank, incident.verdict.kind) == (How.QUIET, 1, VerdictKind.RESTART)
    assert "stand_still" in incident.root.where
    run.until_trains(epoch=ev.Epoch(1, 2), more=12)
    node = run.events(ev.LeaderStarted)[-1].nodes[1]  # others use the cluster as well: which nodes we got is Slurm's to say
    run.supervisor(node).kill()
    died = run.until_judged(2)
    assert (died.root.how, died.root.node, died.verdict.kind) == (How.NODE, node, VerdictKind.RESTART)
    run.until_trains(epoch=ev.Epoch(1, 3))
    run.leader().kill()
    run.until(lambda: len(run.events(ev.LeaderStarted)) == 2)
    run.until_trains(epoch=ev.Epoch(1, 3))
    site.run("scontrol", "requeue", run.job)
    run.until_trains(epoch=ev.Epoch(2, 1))
    run.finish()
    job = run.until_over()
    assert "ExitCode=0:0" in site.run("scontrol", "show", "job", run.job)
    assert (job.exit_code, job.restarts) == (0, 1)
    assert run.launches() == [ev.Epoch(1, 1), ev.Epoch(1, 2), ev.Epoch(1, 3), ev.Epoch(2, 1)]
    first, *later = (event.step for event in run.events(ev.CheckpointPicked))
    assert first is None
    assert later[0] >= 5
    assert later == sorted(later)
    assert len(run.incidents()) == 2


def test_batch_script_is_killed(real) -> None:
    run = real.submit()
    run.until_trains()
    leader = run.leader()
    run.bash().kill()
    job = run.until_ended()
    run.until(lambda: not leader.is_running())
    assert (job.state, job.exit_signal) == (JobState.FAILED, 9)
