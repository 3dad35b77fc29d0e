"""Limits of a real cluster: memory, the time that a kill may take, what srun says of an end; and what ranks get, seen from inside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
from pathlib import Path

import psutil
import pytest

from ftsup import events as ev
from ftsup.events import Epoch, How, Kind, VerdictKind
from tests.e2e.harness import RealSite, Run, living, words
from tests.e2e.limited import LOGIN, PATIENT, RAISED, check_inside, check_srun_that_lies, login_shell, wrapped
from tests.realslurm.cluster import KILL_WAIT_S, Plan
from tests.supervisor import freezer

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.realslurm, pytest.mark.timeout(300)]

MEMORY = re.compile(
    r"rank 1 on (n\d) was ended by SIGKILL at step \d+: out of memory on host: the kernel killed 1 process of the job here "
    r"\(memory\.oom_control: oom_kill 0 -> 1\); limit 900MiB \(slurm\.mem\), peak 900MiB"
)


# srun, and what ranks get -------------------------------------------------------------------------------------------------


def test_an_srun_that_always_fails_changes_nothing(real) -> None:
    check_srun_that_lies(real)


def test_ranks_get_all_that_the_job_has_and_nothing_of_the_shell_that_submitted(own_site) -> None:
    """One CPU a task, and a node of their own: the job has every CPU of it, and so have the ranks."""
    cpus = sorted(os.sched_getaffinity(0))
    one = ("main Nodes=n1 Default=YES MaxTime=INFINITE DefaultTime=10",)
    settings = {"TaskPlugin": "task/cgroup,task/affinity"}
    site = own_site(Plan(nodes=("n1",), cpus=len(cpus), proctrack="cgroup", cores=True, settings=settings, partitions=one, users=True))
    daemon = site.cluster.daemon("n1")
    kinds = [getattr(resource, f"RLIMIT_{name}") for name in RAISED]
    limits = {kind: resource.prlimit(daemon.pid, kind) for kind in (*kinds, *LOGIN)}
    with login_shell(site):
        run = site.submit(slurm={"cpus_per_task": 1, "mem": "900MiB", "extra": {"exclusive": True}}, hang=PATIENT)
    run.until_trains()
    check_inside(run, limits=limits, cpus=cpus)
    run.finish()
    assert run.until_over().exit_code == 0


# Memory -------------------------------------------------------------------------------------------------------------------


def scores(run: Run) -> dict[str, set[int]]:
    """How willing the kernel is to end each kind of process of the job."""
    found: dict[str, set[int]] = {}
    for process in run.own():
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            line = " ".join(words(process))
            ranks = "ftsup_worker" in line and "torch.distributed.run" not in line
            kind = "rank" if ranks else "torchrun" if "torch.distributed.run" in line else "ours"
            found.setdefault(kind, set()).add(int(Path(f"/proc/{process.pid}/oom_score_adj").read_text()))
    return found


def test_a_rank_without_memory_is_taken_and_no_supervisor_and_training_goes_on_here(real_cgroup) -> None:
    setup, said = wrapped(real_cgroup, "honest", code="$real")
    run = real_cgroup.submit(slurm={"nodes": 2, "mem": "900MiB"}, setup=setup, hang=PATIENT)
    run.until_trains(more=12)
    found = scores(run)
    assert max(found["ours"]) < min(found["torchrun"]) <= max(found["torchrun"]) < min(found["rank"]), found
    before = [run.leader(), *map(run.supervisor, run.events(ev.LeaderStarted)[-1].nodes)]
    run.once(1, "eat")
    first = run.until_judged(1)
    assert (first.root.how, first.root.kind, first.verdict.kind) == (How.SIGNAL, Kind.HOST_MEMORY, VerdictKind.RESTART)
    assert MEMORY.match(first.verdict.reason), first.verdict.reason
    assert all(fault.signal == "SIGTERM" for fault in first.faults if fault.rank != 1), "the others were ended by torchrun and us"
    run.until_trains(epoch=Epoch(1, 2), more=6)
    run.once(0, "eat of the GPU")
    second = run.until_judged(2)
    assert (second.root.how, second.root.kind, second.root.rank) == (How.EXCEPTION, Kind.GPU_MEMORY, 0)
    assert re.match(
        r"rank 0 on n\d failed at step \d+: torch\.OutOfMemoryError: CUDA out of memory\. Tried to allocate 2\.00 GiB",
        second.verdict.reason,
    )
    run.until_trains(epoch=Epoch(1, 3))
    assert all(process.is_running() for process in before)
    run.finish()
    assert run.until_over().exit_code == 0
    assert "ExitCode=0:0" in real_cgroup.run("scontrol", "show", "job", run.job)
    assert said.read_text() == "1\n", "what srun makes of it"
    assert run.decision()["verdict"] == "finished"
    assert [event.step > 0 for event in run.events(ev.CheckpointPicked)[1:]] == [True, True]
    node = MEMORY.match(first.verdict.reason)[1]
    evidence = json.loads((run.place.incident(1) / node / "node.json").read_text())["facts"]
    assert any(path.endswith("memory.oom_control") and "oom_kill 1" in text for path, text in evidence.items()), evidence
    told = real_cgroup.ftsup("explain", str(run.place.root), cwd=run.work)
    assert "out of memory on host" in " ".join(told.split())
    assert "slurm.mem" in told


# The time that a kill may take --------------------------------------------------------------------------------------------


def sealed(run: Run) -> int:
    """Step of the newest sealed save, once there is one of this attempt."""
    return max((event.step for event in run.events(ev.Sealed) if event.step is not None), default=0)


def ends(run: Run, grant: int) -> list[ev.AttemptOver]:
    """How the attempts of a grant ended, node by node: a supervisor that Slurm had to kill tells nothing."""
    return [event for event in run.events(ev.AttemptOver) if event.epoch.grant == grant]


def undrained(site: RealSite) -> bool:
    """No node was taken out of service."""
    return "Kill task failed" not in site.run("sinfo", "-R", "-h", "-o", "%E") and "drain" not in site.run("sinfo", "-h", "-o", "%T")


@pytest.mark.parametrize("cluster", ["real", pytest.param("real_cgroup", marks=pytest.mark.drill)])
def test_ranks_that_ignore_term_are_gone_within_kill_wait_and_no_save_is_lost(cluster, request) -> None:
    """`grace` is a minute, KillWait 5 s: Slurm's word counts."""
    site = request.getfixturevalue(cluster)
    run = site.submit(slurm={"mem": "900MiB"}, grace="60s", hang=PATIENT, checkpoint={"poll": "1s"})
    run.until_trains()
    for rank in range(2):
        run.once(rank, "deaf")
    before = sealed(run)
    run.until(lambda: sealed(run) > before)
    kept = sealed(run)
    site.run("scontrol", "requeue", run.job)
    (picked,) = run.until(lambda: [event for event in run.events(ev.CheckpointPicked) if event.epoch.grant == 2])
    over = ends(run, 1)
    assert sorted(event.node for event in over) == sorted(run.events(ev.LeaderStarted)[0].nodes), run.story()
    assert all(0.5 <= event.took_s < KILL_WAIT_S for event in over), over
    assert picked.step >= kept
    assert undrained(site)


@freezer.needed
def test_a_rank_that_nothing_can_kill_costs_no_save_and_drains_no_node(own_site) -> None:
    """In state D when Slurm ends the job; and when we end an attempt, which waits as long as the site's UnkillableStepTimeout."""
    unkillable_s = 8
    two = ("main Nodes=n1,n2 Default=YES MaxTime=INFINITE DefaultTime=10",)
    site = own_site(Plan(nodes=("n1", "n2"), settings={"UnkillableStepTimeout": str(unkillable_s)}, partitions=two, users=True))
    run = site.submit(hang=PATIENT, checkpoint={"poll": "1s"})
    run.until_trains()
    run.until(lambda: sealed(run) > 0)
    kept = sealed(run)
    supervisor = run.supervisor(run.events(ev.LeaderStarted)[-1].nodes[0])
    with freezer.frozen(run.rank(1).pid):
        site.run("scontrol", "requeue", run.job)
        (over,) = run.until(lambda: ends(run, 1))
        assert "in state D" in over.left[0]
        assert over.took_s < KILL_WAIT_S
        run.until(lambda: not living(supervisor))
    run.until_trains(epoch=Epoch(2, 1))
    assert run.events(ev.CheckpointPicked)[-1].step >= kept
    assert undrained(site)
    with freezer.frozen(run.rank(1).pid):
        run.rank(0).kill()
        (over,) = run.until(lambda: ends(run, 2))
        assert "in state D" in over.left[0]
        assert unkillable_s <= over.took_s - 2.0 < unkillable_s + 5.0
        incident = run.until_judged(1)
        assert (incident.verdict.rule, incident.verdict.kind, incident.verdict.avoid) == ("unkillable", VerdictKind.REQUEUE, (over.node,))
    run.until_trains(epoch=Epoch(3, 1))
    assert run.events(ev.LeaderStarted)[-1].nodes != (over.node,)
    assert undrained(site)
    run.finish()
    assert run.until_over().exit_code == 0
