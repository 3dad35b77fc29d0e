"""Requeues, by an outsider and before the time limit: the run goes on from its newest checkpoint."""

from __future__ import annotations

import pytest

from ftsup import events as ev
from ftsup.mockslurm import control as mockslurm

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
    assert len(run.orders(ev.Requeue)) == 2
    site.run("scontrol", "update", f"JobId={run.job}", "TimeLimit=1:0:0")
    run.until_trains(epoch=ev.Epoch(3, 1))
    run.finish()
    assert run.until_over().exit_code == 0
    assert run.incidents() == []
    assert run.launches() == [ev.Epoch(1, 1), second, ev.Epoch(3, 1)]
    first, *later = steps_picked(run)
    assert first is None
    assert later == sorted(later)
    assert later[0] >= 5
