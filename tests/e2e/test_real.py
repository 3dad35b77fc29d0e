"""A run on a real Slurm: a hang and a requeue, as on the mock."""

from __future__ import annotations

import pytest

from ftsup import events as ev
from ftsup.events import How, VerdictKind

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.realslurm, pytest.mark.timeout(300)]


@pytest.mark.parametrize("cluster", ["real", "real_cgroup"])
def test_hang_is_restarted_requeue_is_resumed_and_the_job_completes(cluster, request) -> None:
    site = request.getfixturevalue(cluster)
    run = site.submit(slurm={"nodes": 2, "mem": "2GiB"}, workers_per_node=1)
    run.until_trains(more=12)
    run.once(1, "hang")
    incident = run.until_judged(1)
    assert (incident.root.how, incident.root.rank, incident.verdict.kind) == (How.QUIET, 1, VerdictKind.RESTART)
    assert "stand_still" in incident.root.where
    run.until_trains(epoch=ev.Epoch(1, 2), more=12)
    site.run("scontrol", "requeue", run.job)
    run.until_trains(epoch=ev.Epoch(2, 1))
    run.finish()
    job = run.until_over()
    assert "ExitCode=0:0" in site.run("scontrol", "show", "job", run.job)
    assert (job.exit_code, job.restarts) == (0, 1)
    first, second, third = (event.step for event in run.events(ev.CheckpointPicked))
    assert first is None
    assert 5 <= second <= third
    assert len(run.incidents()) == 1
