"""Requeues on a real Slurm: once, to the right place, believed when seen; and where there are none, exactly one job that follows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ftsup import events as ev
from ftsup.ports import JobState
from tests.e2e.harness import Run, Site, stopped, until
from tests.e2e.plainly import submit, until_runs
from tests.realslurm.cluster import Plan

pytestmark = [pytest.mark.e2e, pytest.mark.realslurm, pytest.mark.timeout(300)]

OWN = Plan(nodes=("n1", "n2", "n3"), partitions=("main Nodes=n1,n2,n3 Default=YES MaxTime=INFINITE DefaultTime=10",), users=True)


def asked(run: Run, *words: str) -> None:
    """`ftsup requeue`, typed where the configuration lies."""
    run.site.ftsup("requeue", run.place.id, *words, cwd=run.work)


def nodes(run: Run) -> list[tuple[str, ...]]:
    """Of each grant."""
    return list({(event.job, event.restarts): event.nodes for event in run.events(ev.LeaderStarted)}.values())


def of_script(site: Site, script: Path) -> list[str]:
    """All jobs of it that Slurm remembers."""
    listed = [line.split() for line in site.run("squeue", "--states=all", "--noheader", "--format=%A %o").splitlines()]
    return sorted((words[0] for words in listed if words[1] == str(script)), key=int)


def follow(run: Run, *, before: int = 1) -> Run:
    """The run as its successor leads it. `before`: jobs of its script that were there before."""
    found = run.until(lambda: len(found := of_script(run.site, run.place.script)) > before and found)
    assert len(found) == before + 1
    later = Run(run.site, run.work, run.place, job=found[-1])
    run.site.runs.append(later)
    return later


def test_a_node_is_left_beside_the_users_own_and_given_again_it_is_left_again(real) -> None:
    """Set in the COMPLETING window; taken from the list by somebody, the next leader finds itself on the node, and leaves it."""
    (run,) = submit(real, nodes=2, exclude=["n4"])
    until_runs(run)
    bad = nodes(run)[0][0]
    asked(run, "--avoid", bad)
    waits = run.until(lambda: (job := run.show()).state is JobState.PENDING and job)
    real.run("scontrol", "update", f"JobId={run.job}", "ExcNodeList=n4")  # at once: it does not wait for long
    assert set(waits.excluded) == {bad, "n4"}
    assert not run.place.requeue.exists()
    run.until(lambda: run.grants() == 2)
    assert bad in nodes(run)[1], "the first in Slurm's order"
    until_runs(run, epoch=ev.Epoch(3, 1))
    assert bad not in nodes(run)[2]
    assert set(run.show().excluded) == {bad, "n4"}
    assert [order.verdict.rule for order in run.orders(ev.Decide)] == ["requeue asked", "kept out"]
    assert run.launches() == [ev.Epoch(1, 1), ev.Epoch(3, 1)]
    run.finish()
    assert run.until_over().restarts == 2


@pytest.mark.drill
def test_too_few_nodes_would_remain(real) -> None:
    (run,) = submit(real, nodes=3, exclude=["n4"])
    until_runs(run)
    run.site.run("scontrol", "show", "job", run.job)
    (run.place.requests / "r.json").write_text('{"request":"requeue","who":"ada","avoid":["n1"]}')
    run.site.give(run.place.requests / "r.json")
    until_runs(run, epoch=ev.Epoch(2, 1))
    assert "n1 may be used again: without them too few nodes remain for this job" in run.output()
    assert run.show().excluded == ("n4",)
    run.finish()
    assert run.until_over().restarts == 1


def test_spooled_while_the_controller_is_away_and_carried_out_without_a_leader(own_site) -> None:
    """The leader dies while nobody answers it: the batch script requeues, and is the second chance to keep a node out."""
    site = own_site(OWN)
    (run,) = submit(site, nodes=2)
    until_runs(run)
    bad = nodes(run)[0][0]
    site.cluster.freeze("slurmctld")
    try:
        asked(run, "--avoid", bad)
        run.until(lambda: run.place.requeue.exists() and run.orders(ev.Requeue))
        leader = run.leader()
        leader.kill()
    finally:
        site.cluster.thaw("slurmctld")
    until_runs(run, epoch=ev.Epoch(2, 1))
    assert run.show().restarts == 1
    assert run.show().excluded == (bad,)
    assert bad not in nodes(run)[1]
    assert not run.place.requeue.exists()
    assert run.events(ev.AvoidSet) == [], "the leader did not live to it"
    run.finish()
    assert run.until_over().restarts == 1


def test_refused_it_is_followed_by_exactly_one_job_although_its_leader_dies(real) -> None:
    (run,) = submit(real, nodes=2, exclude=["n4"])
    until_runs(run)
    real.run("scontrol", "update", f"JobId={run.job}", "Requeue=0")  # what a site's submit plugin makes of --requeue
    asked(run)
    run.until(lambda: any(order.chain for order in run.orders(ev.Requeue)))
    run.leader().kill()
    after = follow(run)
    until_runs(after, epoch=ev.Epoch(2, 1))
    assert run.show().state is JobState.COMPLETED
    assert len(of_script(real, run.place.script)) == 2
    assert after.show().excluded == ("n4",)
    assert not run.place.requeue.exists()
    after.finish()
    assert after.until_over().restarts == 0
    assert len(of_script(real, run.place.script)) == 2


def test_cancelled_after_its_successor_was_submitted_the_run_does_not_come_back(real) -> None:
    (run,) = submit(real, nodes=1, requeue="chain")
    until_runs(run)
    asked(run)
    with stopped(run.bash()):  # or the job would have ended by itself
        after = follow(run)
        real.run("scancel", run.job)
        until(lambda: run.show().completing or run.show().state is JobState.CANCELLED)
    end = after.until_ended()
    assert (run.show().state, end.state) == (JobState.CANCELLED, JobState.FAILED)
    assert f"cancelled by scancel of job {run.job}" in run.output()
    assert len(of_script(real, run.place.script)) == 2
    assert len(run.launches()) == 1


def test_tasks_of_a_throttled_array_requeue_only_themselves(real) -> None:
    """Two at once of three, each with its run directory; one leaves a node, one is cancelled, and the others do not notice."""
    first, second, third = submit(real, array="1-3%2")
    until_runs(first)
    until_runs(second)
    assert third.show().state is JobState.PENDING
    asked(first)
    until_runs(third)  # in the place that the first has left
    assert (first.show().restarts, second.show().restarts, third.show().restarts) == (1, 0, 0)
    real.ftsup("cancel", second.job, cwd=second.work)
    second.until_ended()
    until_runs(first, epoch=ev.Epoch(2, 1))
    assert [event.job for event in first.events(ev.LeaderStarted)] == [first.job] * 2
    first.finish()
    for task, restarts in ((first, 1), (third, 0)):
        assert task.until_over().restarts == restarts
    assert [len(task.launches()) for task in (first, second, third)] == [2, 1, 1]


def test_a_task_that_cannot_be_requeued_is_followed_by_one_job(real) -> None:
    first, second = submit(real, requeue="chain", array="7,9")
    until_runs(first)
    until_runs(second)
    asked(first)
    after = follow(first, before=0)
    until_runs(after, epoch=ev.Epoch(2, 1))
    assert (first.show().state, second.show().state) == (JobState.COMPLETED, JobState.RUNNING)
    assert len(of_script(real, first.place.script)) == 1
    assert of_script(real, second.place.script) == []
    first.finish()
    after.until_over()
    second.until_over()


@pytest.mark.drill
@pytest.mark.parametrize(
    "wish, unsure",
    [({"constraint": "a100"}, ""), ({"gres": "fast:2"}, ""), ({"constraint": "[a100|v100]"}, "--constraint=[a100|v100]")],
    ids=["feature", "gres", "brackets"],
)
def test_enough_nodes_that_can_run_it_remain(own_site, wish: dict[str, str], unsure: str) -> None:
    """Two of four nodes have what the job asks for, and it needs both: neither can be kept out. One that needs one is rid of the other."""
    each = {"n1": "Feature=a100 Gres=fast:2", "n2": "Feature=a100 Gres=fast:2", "n3": "Gres=fast:1", "n4": "Feature=other"}
    gres = "NodeName=n[1-2] Name=fast Count=2\nNodeName=n3 Name=fast Count=1\n"
    plan = Plan(settings={"GresTypes": "fast"}, each=each, files={"gres.conf": gres}, users=True)
    if "v100" in str(wish):
        plan = replace(plan, each={**each, "n3": "Feature=v100 Gres=fast:1"})
    site = own_site(plan)
    (run,) = submit(site, nodes=2, extra=wish)
    until_runs(run)
    assert nodes(run) == [("n1", "n2")]
    asked(run, "--avoid", "n1")
    until_runs(run, epoch=ev.Epoch(2, 1))
    assert "n1 may be used again: without them too few nodes remain for this job" in run.output()
    assert (f"is not clear from {unsure}" in run.output()) == bool(unsure)
    assert run.show().excluded == ()
    run.finish()
    assert run.until_over().restarts == 1
