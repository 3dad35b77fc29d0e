"""Leader, node supervisors, clerks and the batch script are stopped and killed; training hardly notices."""

from __future__ import annotations

import pytest

from ftsup import events as ev
from ftsup.events import How, VerdictKind
from ftsup.ports import JobState
from tests.e2e.harness import for_s, stopped, until

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(300)]


def test_stops_and_deaths_of_supervisors(site) -> None:
    run = site.submit(slurm={"nodes": 2}, workers_per_node=1)
    epoch = run.until_trains(more=12)

    for of in (run.leader(), run.supervisor("mock2")):
        clerk = run.clerk(of)
        clerk.kill()
        run.until(lambda of=of, clerk=clerk: run.clerk(of) != clerk)
    with stopped(run.supervisor("mock2"), run.clerk(run.leader())), for_s(9):  # twice node_grace
        run.until(lambda: run.events(ev.NodeSilent))
    run.until_trains()
    with stopped(run.leader(), run.clerk(run.supervisor("mock1"))), for_s(7):  # lead_grace and more
        pass
    run.until_trains()
    with stopped(*run.own()), for_s(8):
        pass
    run.until_trains()
    run.leader().kill()
    run.until(lambda: len(run.events(ev.LeaderStarted)) == 2)
    run.until(lambda: {up.node for up in run.events(ev.NodeUp) if up.running == epoch} == {"mock1", "mock2"})
    run.until_trains()
    assert run.orders(ev.Incident) == []
    assert run.launches() == [epoch]

    rank = run.rank(1)
    run.supervisor("mock2").kill()
    rank.wait(5)
    died = run.until_judged(1)
    assert (died.root.how, died.root.node, died.verdict.kind) == (How.NODE, "mock2", VerdictKind.RESTART)
    run.until_trains(epoch=ev.Epoch(1, 2))
    run.finish()
    assert run.until_over().exit_code == 0
    assert [line.n for line in run.lines()] == list(range(1, len(run.lines()) + 1))


def test_batch_script_is_killed(site) -> None:
    run = site.submit()
    run.until_trains()
    run.bash().kill()
    job = run.until_ended()
    assert (job.state, job.exit_signal) == (JobState.FAILED, 9)
    until(lambda: not site.processes(), within_s=20)
