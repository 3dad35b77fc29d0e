"""Bad days of a real cluster: daemons that are away or hang, commands that hang, supervisors that are killed, nodes that are ill.

After each: nothing lost, nothing doubled (tests/e2e/sound.py), and one clear line in `ftsup explain`. What a story breaks is a cluster of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from ftsup import events as ev
from ftsup.ports import JobState
from tests.e2e.harness import Run, until
from tests.e2e.sound import sound
from tests.realslurm.cluster import Cluster, Plan

pytestmark = [pytest.mark.e2e, pytest.mark.realslurm, pytest.mark.timeout(300)]

TWO = Plan(nodes=("n1", "n2"), partitions=("main Nodes=n1,n2 Default=YES MaxTime=INFINITE DefaultTime=10",), users=True)
AWAY = r"Slurm does not answer: .*\("
HELD = "touch begun; while [ -e held ]; do sleep 0.1; done"
"""`setup`: the batch script waits, before there is a leader."""


@contextlib.contextmanager
def away(cluster: Cluster, name: str, *, frozen: bool = False) -> Iterator[None]:
    """A daemon does not answer. It is stopped as an administrator stops it: a controller that is killed forgets its last seconds."""
    if frozen:
        cluster.freeze(name)
    else:
        cluster.daemon(name).terminate()
        until(lambda: not cluster.alive(name))
    try:
        yield
    finally:
        cluster.thaw(name) if frozen else cluster.start(name)


def failed(run: Run, op: str) -> int:
    """How often Slurm did not answer this."""
    return len([event for event in run.events(ev.SlurmFailed) if event.op == op and event.kind != "Refused"])


def hold(run: Run) -> None:
    (run.work / "held").touch()


def go_on(run: Run) -> None:
    (run.work / "held").unlink()


def test_the_controller_is_away_in_each_phase(own_site) -> None:
    """Before the step of the supervisors, while training breaks and restarts, when a requeue is asked for, while the job is pending."""
    site = own_site(TWO)
    cluster = site.cluster
    (site.folder / "a").mkdir()
    (site.folder / "a" / "held").touch()
    run = site.submit(slurm={"nodes": 2}, workers_per_node=1, setup=HELD, waits={"ask": "5s"})
    run.until((run.work / "begun").exists)
    with away(cluster, "slurmctld"):
        go_on(run)
        run.until(lambda: [event for event in run.events(ev.StepEnded) if event.unanswered])
        run.until(lambda: failed(run, "show"))
    run.until_trains(more=12)
    assert run.incidents() == []

    with away(cluster, "slurmctld", frozen=True):
        run.once(1, "hang")
        assert run.until_judged(1).root.rank == 1
        run.until_trains(epoch=ev.Epoch(1, 2), more=12)

    with away(cluster, "slurmctld"):
        site.ftsup("requeue", str(run.place.root), cwd=run.work)
        run.until(lambda: failed(run, "requeue") >= 2)
    run.until(lambda: run.show().state is JobState.PENDING)
    hold(run)
    with away(cluster, "slurmctld"):
        pass
    go_on(run)
    run.until_trains(epoch=ev.Epoch(2, 1))
    run.finish()
    assert run.until_over().exit_code == 0
    assert run.launches() == [ev.Epoch(1, 1), ev.Epoch(1, 2), ev.Epoch(2, 1)]
    sound(run, told=[AWAY])
