"""Told to end on the mock: preempted in four ways, suspended, signalled by hand."""

from __future__ import annotations

import pytest

from ftsup import events as ev
from ftsup.events import VerdictKind
from tests.e2e import stops
from tests.e2e.harness import BEGIN_WAIT_S, for_s, mock_site

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(300)]

GRACE_S = 30.0
LESSER = {
    "low": {"preempt": "REQUEUE"},
    "lowgrace": {"preempt": "REQUEUE", "grace_s": GRACE_S},
    "lowcancel": {"preempt": "CANCEL"},
    "lowcancelgrace": {"preempt": "CANCEL", "grace_s": GRACE_S},
}
PARTITIONS = {**LESSER, "high": {"tier": 10}}


@pytest.fixture
def preempting(tmp_path):
    """A mock with lesser partitions, and a better one; with Slurm's own KillWait, in which it has to be asked."""
    with mock_site(tmp_path, nodes=1, partitions=PARTITIONS, kill_wait_s=30) as made:
        yield made


@pytest.mark.parametrize("partition", ["low", "lowgrace", "lowcancel", pytest.param("lowcancelgrace", marks=pytest.mark.drill)])
def test_preempted(partition: str, preempting) -> None:
    run = stops.submit(preempting, "a", partition=partition)
    run.until_trains(more=3)
    stops.preempt(run, partition="high", node=run.show().nodes[0], seconds=2)
    if partition == "lowgrace":
        stops.script_told_in_vain(run)
    stops.until_back(run)
    found = stops.verdicts(run)[-1]
    rule = "elsewhere" if LESSER[partition]["preempt"] == "REQUEUE" else "preempted"
    assert (found.kind, found.rule, run.incidents()) == (VerdictKind.REQUEUE, rule, [])
    if "grace_s" in LESSER[partition]:
        stops.resumed_at_what_was_saved(run)
    assert not run.place.unexplained.exists()
    stops.told(run, found.reason.partition(":")[0])


def test_suspended_and_signalled_by_hand(site) -> None:
    run = stops.submit(site, "a")
    first = run.until_trains()
    site.run("scontrol", "suspend", run.job)
    with for_s(12):  # longer than a hang takes to be found, and four times as long as a stopped rank
        pass
    site.run("scontrol", "resume", run.job)
    stops.undisturbed(run, first)
    run.leader().terminate()
    run.until(lambda: run.events(ev.Signalled))
    run.until(lambda: run.events(ev.SlurmSaid)[-1].t - run.events(ev.Signalled)[-1].t > 10)
    stops.undisturbed(run, first)
    run.until(lambda: not run.place.unexplained.exists())
    site.run("scancel", "--full", "--signal=TERM", run.job)
    run.until_ended()
    assert stops.verdicts(run)[-1].kind is VerdictKind.CANCELLED
    stops.told(run, "SIGTERM was sent to the batch script by hand")


def test_an_array_and_a_task_of_it_are_cancelled_for_good(wide_site) -> None:
    stops.array_cancelled(wide_site, requeue_wait_s=BEGIN_WAIT_S)
