"""`ftsup watch` on a real Slurm: what it sees in the queue, what it does about it, and what that saves."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from ftsup import events as ev
from ftsup.ports import JobState
from tests.e2e.harness import Run, Site, called, stopped, until
from tests.realslurm.cluster import Plan

pytestmark = [pytest.mark.e2e, pytest.mark.realslurm, pytest.mark.timeout(300)]

TWO = ("main Nodes=n1,n2 Default=YES MaxTime=INFINITE DefaultTime=10",)
LIVED_S = 5
"""BatchStartTimeout and MessageTimeout are 3 s: a batch host that returns later without its job has lost it, as Slurm sees it."""
SLURM_WAIT_S = 121
"""How long a requeued job waits where nobody has changed cred_expire."""


def told(run: Run, *words: str) -> list[dict[str, str]]:
    """One look, as cron has it; all that it has to tell."""
    said = run.site.ftsup("watch", "--once", "--json", *words, cwd=run.work)
    return [json.loads(line) for line in said.splitlines()]


def look(run: Run, *words: str) -> list[dict[str, str]]:
    """One look; what is new of it."""
    return [one for one in told(run, *words) if one["new"]]


def minute_later(run: Run) -> None:
    """As if the last look had been a minute ago."""
    path = run.work / "ftsup-runs" / f".watch-{run.work.stat().st_uid}"
    memory = json.loads(path.read_bytes())
    memory["looked_s"] -= 61
    path.write_text(json.dumps(memory))


def deeds(run: Run) -> list[dict[str, str]]:
    """What watch wrote down."""
    return [json.loads(line) for line in (run.place.root / "watch.jsonl").read_text().splitlines()]


@contextlib.contextmanager
def watching(run: Run, *words: str) -> Iterator[Path]:
    """The loop beside it; what it prints."""
    out = run.work.parent / f"{run.work.name}.watch"
    argv = run.site.as_user([sys.executable, "-m", "ftsup", "watch", *words], run.work)
    with out.open("w") as file, subprocess.Popen(argv, cwd=run.work, env=run.site.environ, stdout=file, stderr=file) as process:
        try:
            yield out
        finally:
            process.terminate()


def held(run: Run) -> bool:
    """Nobody but an admin can release it."""
    return "MaxRequeue" in run.show().reason


def loses_its_batch_host(run: Run) -> None:
    """The node is back before Slurm missed it, without the job. Slurm looks when a node registers, and not again."""
    cluster = run.site.cluster
    cluster.node_dies("n1")
    cluster.start("n1")
    with contextlib.suppress(AssertionError):
        until(lambda: run.show().state is JobState.PENDING, within_s=2)
        return
    cluster.kill("n1")
    cluster.start("n1")
    until(lambda: run.show().state is JobState.PENDING, what=run.story)


# What waits for somebody --------------------------------------------------------------------------------------------------


def test_a_launch_that_failed_is_released_and_trains(own_site, tmp_path):
    """A node's prolog fails: Slurm drains the node, requeues the job and holds it for ever."""
    prolog, broken = tmp_path / "prolog", tmp_path / "broken"
    prolog.write_text(f"#!/bin/bash\n[ ! -e {broken} ]\n")
    prolog.chmod(0o755)
    broken.touch()
    site = own_site(Plan(nodes=("n1", "n2"), partitions=TWO, settings={"Prolog": str(prolog)}, users=True))
    run = site.submit()
    until(lambda: run.show().held, what=run.story)
    assert run.show().reason == "launch_failed_requeued_held"
    broken.unlink()
    (said,) = look(run, "--start-now")
    assert (said["do"], said["about"], said["job"]) == ("release", "launch failed", run.job)
    assert look(run) == []  # once, until it shows
    until(lambda: not run.show().held, what=run.story)
    run.until_trains()
    assert (deeds(run)[0]["do"], deeds(run)[0]["about"]) == ("release", "launch failed")


@pytest.mark.drill
def test_a_job_that_slurm_holds_for_good_goes_on_in_another_job(own_site):
    """A batch host that comes back without its job, again and again: MaxBatchRequeue (5 here) holds it, and no user can release it."""
    site = own_site(Plan(nodes=("n1",), partitions=("main Nodes=n1 Default=YES MaxTime=INFINITE DefaultTime=10",),
                         settings={"BatchStartTimeout": "1", "MessageTimeout": "2"}, users=True))  # fmt: skip
    run = site.submit()
    run.until_trains()
    until(lambda: run.show().run_s >= LIVED_S, what=run.story)
    while not held(run):
        loses_its_batch_host(run)
        told(run, "--start-now")
        until(lambda: held(run) or run.show().run_s >= LIVED_S, what=run.story)
    (said,) = told(run)
    assert (said["about"], said["do"], run.show().reason) == ("max requeue", "say", "JobHoldMaxRequeue")
    command = said["hint"].partition(" goes on")[0]
    assert command == f"ftsup submit --continue {run.place.id}"
    refused = site.tried("scontrol", "release", run.job, cwd=run.work)
    assert "denied" in refused.stderr
    new = site.ftsup(*command.split()[1:], cwd=run.work).split()[1].rstrip(":")
    assert run.show().state is JobState.CANCELLED
    old, run.job = run.job, new
    epoch = run.until_trains()
    assert run.lines()[-1].n > 10
    assert epoch.grant > 1
    assert run.place.jobs.read_text().split() == [old, new]
    assert look(run) == []


def of_too_many_nodes(site: Site) -> Run | None:
    """22.05 lets it wait; None: refused at once, as since 24.11, and told."""
    try:
        return site.submit("many", slurm={"nodes": 9})
    except AssertionError as refused:
        assert "sbatch: Batch job submission failed: Requested node configuration is not available" in str(refused)  # noqa: PT017
        return None


def test_what_waits_in_vain_is_told_once_with_what_to_do(real):
    """A dependency that no job will ever meet, more nodes than a partition has, and a person's hold."""
    ended = real.run("sbatch", "--parsable", "--wrap=exit 3").strip()
    until(lambda: real.slurm.show(ended).state is JobState.FAILED)
    depends = real.submit("depends", slurm={"extra": {"dependency": f"afterok:{ended}"}})
    many = of_too_many_nodes(real)
    held = real.submit("held", slurm={"extra": {"hold": True}})
    found = {}
    wait = {depends: "DependencyNeverSatisfied", held: "JobHeldUser"} | ({many: "PartitionNodeLimit"} if many else {})
    for run, reason in wait.items():
        until(lambda run=run, reason=reason: run.show().reason == reason, what=run.story)
        (said,) = look(run)
        found[run] = said
        assert look(run) == []
        assert run.show().state is JobState.PENDING
    assert "depends on a job that did not end as it should have (DependencyNeverSatisfied)" in found[depends]["text"]
    assert not many or "more nodes than its partition allows (PartitionNodeLimit)" in found[many]["text"]
    assert found[held]["hint"] == f"scontrol release {held.job}"


# What nobody else does any more -------------------------------------------------------------------------------------------


def test_a_requeue_that_did_not_get_through_is_carried_out_once(own_site):
    """The controller is away when the leader gives the job back, and when it answers again the leader is not there to ask."""
    site = own_site(Plan(nodes=("n1", "n2"), partitions=TWO, users=True))
    run = site.submit()
    run.until_trains()
    site.cluster.daemon("slurmctld").terminate()
    until(lambda: not site.cluster.alive("slurmctld"))
    site.ftsup("requeue", run.place.id, cwd=run.work)
    run.until(run.place.requeue.exists)
    with stopped(run.leader(), run.bash()):
        away = site.tried(sys.executable, "-m", "ftsup", "watch", "--once", cwd=run.work)
        assert (away.returncode, "Slurm was asked in vain" in away.stdout) == (75, True)
        until(lambda: not any(called(child, "scontrol") for child in run.leader().children(recursive=True)))  # it has asked in vain as well
        site.cluster.start("slurmctld")
        assert look(run) == []
        minute_later(run)
        (said,) = look(run)
        assert (said["do"], said["about"], said["job"], said.get("failed", "")) == ("requeue", "spooled", run.job, "")
        until(lambda: run.show().restarts == 1, what=run.story)
    run.until_trains(epoch=ev.Epoch(2, 1))
    minute_later(run)
    assert look(run) == []
    assert run.show().restarts == 1
    assert [one["do"] for one in deeds(run)] == ["requeue"]
    assert "ftsup watch: its leader decided to requeue" in " ".join(site.ftsup("explain", run.place.id, cwd=run.work).split())


@pytest.mark.drill
def test_a_job_without_its_batch_host_is_given_back(own_site):
    """With --no-kill Slurm leaves it RUNNING without a script; here the supervisor that is left says nothing either."""
    site = own_site(Plan(nodes=("n1", "n2"), partitions=TWO, settings={"SlurmdTimeout": "5"}, users=True))
    run = site.submit(slurm={"nodes": 2, "extra": {"no-kill": True}}, workers_per_node=1)
    run.until_trains()
    with stopped(run.supervisor("n2")):
        site.cluster.node_dies("n1")
        run.until(lambda: run.show().nodes == ("n2",))
        assert (run.show().state, run.show().batch_host) == (JobState.RUNNING, "n1")
        look(run)
        minute_later(run)
        (said,) = look(run)
        assert (said["do"], said["about"]) == ("requeue", "batch host lost")
        until(lambda: run.show().restarts == 1, what=run.story)
    site.cluster.node_back("n1")
    run.until_trains(epoch=ev.Epoch(2, 1))


# Back to training ---------------------------------------------------------------------------------------------------------


def back_s(run: Run, *, grant: int) -> float:
    """From the verdict that gave the job back to the first step of the next grant."""
    decided = [line.wall for line in run.lines() for order in line.orders if isinstance(order, ev.Decide)]
    steps = [line.wall for line in run.lines() if isinstance(line.event, ev.Progressed) and line.event.epoch.grant == grant]
    return (datetime.fromisoformat(steps[0]) - datetime.fromisoformat(decided[grant - 2])).total_seconds()


def requeued_s(run: Run, *, grant: int) -> float:
    """The job is given back and trains again; how long that took."""
    run.site.ftsup("requeue", run.place.id, cwd=run.work)
    run.until(lambda: any(epoch.grant == grant for epoch in run.launches()), within_s=200)
    run.until_trains(epoch=ev.Epoch(grant, 1))
    return back_s(run, grant=grant)


@pytest.mark.drill
@pytest.mark.timeout(600)
def test_from_the_verdict_to_training_again_with_and_without_start_now(own_site, record_property):
    """The credentials' usual life: a requeued job waits 121 s."""
    settings = {"AuthInfo": "socket={folder}/munge.socket"}
    run = own_site(Plan(nodes=("n1", "n2"), partitions=TWO, settings=settings, users=True)).submit()
    run.until_trains()
    plain_s = requeued_s(run, grant=2)
    assert plain_s > SLURM_WAIT_S
    with watching(run, "--start-now") as out:
        quick_s = requeued_s(run, grant=3)
    assert "StartTime=now" in out.read_text()
    print(f"\nrequeue verdict -> training again: {plain_s:.1f} s, with --start-now {quick_s:.1f} s: 1/{plain_s / quick_s:.1f}")
    record_property("plain_s", plain_s)
    record_property("start_now_s", quick_s)
    assert quick_s < plain_s / 2
