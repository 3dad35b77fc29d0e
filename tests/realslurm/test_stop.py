"""Told to end on a real Slurm: preempted in four ways, suspended, drained, signalled by hand, cancelled at drawn moments."""

from __future__ import annotations

import subprocess
import time

import pytest

from ftsup import events as ev
from ftsup.events import VerdictKind
from tests.e2e import stops, warned
from tests.realslurm.cluster import CRED_EXPIRE_S, MAIN, Plan, program

pytestmark = [pytest.mark.e2e, pytest.mark.realslurm, pytest.mark.timeout(600)]

GRACE_S = 30
LESSER = {
    "low": ("n1", "REQUEUE", 0),
    "lowgrace": ("n2", "REQUEUE", GRACE_S),
    "lowcancel": ("n3", "CANCEL", 0),
    "lowcancelgrace": ("n4", "CANCEL", GRACE_S),
}
NODES = ("n1", "n2", "n3", "n4", "n5", "n6")
PARTITIONS = (
    f"{MAIN.replace('n1,n2,n3,n4', 'n5,n6')} PreemptMode=OFF",
    *(f"{name} Nodes={node} PriorityTier=1 PreemptMode={mode} GraceTime={s} DefaultTime=10" for name, (node, mode, s) in LESSER.items()),
    "high Nodes=n1,n2,n3,n4 PriorityTier=10 PreemptMode=OFF DefaultTime=10",
)
SETTINGS = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE", "KillWait": "20"}
"""A question to Slurm, and then a requeue, within KillWait: on a machine that runs the whole suite beside this each may take seconds."""
BACK_S = CRED_EXPIRE_S + 1


def plan(proctrack: str, **more: str) -> Plan:
    return Plan(proctrack=proctrack, nodes=NODES, settings={**SETTINGS, **more}, partitions=PARTITIONS, users=True)


@pytest.mark.parametrize("proctrack", ["cgroup", pytest.param("linuxproc", marks=pytest.mark.drill)])
def test_preempted(proctrack: str, own_site) -> None:
    """With grace, the ranks save where they can be asked: where only the supervisor hears of it."""
    site = own_site(plan(proctrack))
    runs = {name: stops.submit(site, name, partition=name) for name in LESSER}
    for run in runs.values():
        run.until_trains(more=5)
    for name, run in runs.items():
        stops.preempt(run, partition="high", node=LESSER[name][0], seconds=2)
    for run in runs.values():
        stops.until_back(run)
    decided = {name: stops.verdicts(run)[-1] for name, run in runs.items()}
    assert all(verdict.kind is VerdictKind.REQUEUE for verdict in decided.values()), decided
    assert all(run.incidents() == [] for run in runs.values())
    assert decided["low"].rule == "elsewhere"
    assert (decided["lowcancel"].rule, "PreemptMode=CANCEL" in decided["lowcancel"].reason) == ("preempted", True)
    if proctrack == "cgroup":
        assert decided["lowgrace"].reason.startswith("preempted: another job has our nodes, and Slurm has requeued this one")
        assert "PreemptMode=CANCEL" in decided["lowcancelgrace"].reason
        for name in ("lowgrace", "lowcancelgrace"):
            stops.resumed_at_what_was_saved(runs[name])
    else:
        assert {decided["lowgrace"].rule, decided["lowcancelgrace"].rule} == {"preempted"}
    for name, run in runs.items():
        assert not run.place.unexplained.exists()
        stops.told(run, decided[name].reason.partition(":")[0])


def sends_the_warning() -> dict[str, str]:
    """The setting, as the Slurm of this machine names it: 22.05 knows no PreemptParameters, and does not start with them."""
    version = subprocess.run([program("slurmctld") or "", "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]
    if version.startswith("22.05"):
        return {"SlurmctldParameters": "preempt_send_user_signal"}
    return {"PreemptParameters": "send_user_signal"}


@pytest.mark.drill
@pytest.mark.parametrize("proctrack", ["cgroup", "linuxproc"])
def test_a_preemption_may_send_the_warning(proctrack: str, own_site) -> None:
    """Then ranks can save in both process trackings."""
    site = own_site(plan(proctrack, **sends_the_warning()))
    runs = {name: stops.submit(site, name, partition=name) for name in ("lowgrace", "lowcancelgrace")}
    for run in runs.values():
        run.until_trains(more=5)
    for name, run in runs.items():
        stops.preempt(run, partition="high", node=LESSER[name][0], seconds=2)
    for run in runs.values():
        stops.until_back(run)
        assert run.incidents() == []
        assert run.events(ev.Warned)
        stops.resumed_at_what_was_saved(run)


LATE = """#!/bin/bash
real() { %s "$@"; }
[ "$1 $2" = "show job" ] && [ -e %s/late ] || { real "$@"; exit; }
said=$(real "$@")
[[ $said != *JobState=RUNNING* ]] || touch asked
while real "$@" | grep -q JobState=RUNNING; do sleep 0.2; done
sleep 1
echo "$said
"
"""
"""Asked while the job runs, it answers when the job has been told to end; as a controller that has much to do."""


@pytest.mark.drill
def test_an_answer_that_is_older_than_the_end_of_a_grace_is_asked_for_again(own_site) -> None:
    """That there is time was true when Slurm said it: with PreemptMode=CANCEL nobody but the leader brings the run back."""
    site = own_site(plan("cgroup"))
    programs = site.folder / "before"
    programs.mkdir()
    (programs / "scontrol").write_text(LATE % (program("scontrol"), programs))
    (programs / "scontrol").chmod(0o755)
    site.give(programs)
    config = warned.merged(stops.CASE.config(lead_s=60), {"waits": {"ask": "25s"}, "setup": f"PATH={programs}:$PATH"})
    run = site.submit("a", **warned.merged(config, {"slurm": {"time": "30min", "mem": "1500MiB", "partition": "lowcancelgrace"}}))
    run.until_trains(more=5)
    stops.preempt(run, partition="high", node=LESSER["lowcancelgrace"][0], seconds=2)
    run.until(lambda: run.orders(ev.GoOn))
    (programs / "late").touch()
    run.until((run.on("leader").root / "asked").exists)
    assert not run.events(ev.Signalled), run.story()
    stops.until_back(run)
    assert stops.verdicts(run)[-1].rule == "preempted"


@pytest.mark.parametrize("proctrack", ["cgroup", pytest.param("linuxproc", marks=pytest.mark.drill)])
def test_suspended_drained_signalled_by_hand(proctrack: str, own_site) -> None:
    site = own_site(plan(proctrack))
    run = stops.submit(site, "a", partition="main")
    first = run.until_trains()
    node = run.events(ev.LeaderStarted)[-1].nodes[0]

    site.cluster.admin("scontrol", "suspend", run.job)
    run.until(lambda: run.show().state.value == "SUSPENDED")
    time.sleep(12)  # twice as long as a hang takes to be found
    site.cluster.admin("scontrol", "resume", run.job)
    stops.undisturbed(run, first)

    run.leader().terminate()
    run.until(lambda: run.events(ev.Signalled))
    run.until(lambda: run.events(ev.SlurmSaid)[-1].t - run.events(ev.Signalled)[-1].t > 10)
    stops.undisturbed(run, first)
    run.until(lambda: not run.place.unexplained.exists())

    site.cluster.admin("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=disk")
    stops.undisturbed(run, first)
    site.cluster.admin("scontrol", "requeue", run.job)
    stops.until_back(run)
    verdict = stops.verdicts(run)[-1]
    assert (verdict.rule, f"{node} is drained (disk" in verdict.reason) == ("elsewhere", True)
    assert run.events(ev.LeaderStarted)[-1].nodes != (node,)
    stops.told(run, "requeued by Slurm or an administrator")

    again = run.until_trains()
    run.site.run("scancel", "--signal=TERM", run.job)
    run.until_ended()
    assert (stops.verdicts(run)[-1].kind, again) == (VerdictKind.CANCELLED, ev.Epoch(2, 1))
    stops.stays_cancelled([run], requeue_wait_s=BACK_S)
    stops.told(run, "SIGTERM was sent to all of it by hand")


def test_the_time_limit_came_before_a_requeue(own_site) -> None:
    """An administrator made it shorter than any warning."""
    site = own_site(plan("cgroup", OverTimeLimit="0"))
    run = stops.submit(site, "a", partition="main")
    run.until_trains()
    site.cluster.admin("scontrol", "update", f"JobId={run.job}", "EndTime=now+5seconds")
    stops.until_back(run)
    assert stops.verdicts(run)[-1].kind is VerdictKind.REQUEUE


def cancelling(proctrack: str) -> Plan:
    everywhere = f"main Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE DefaultTime=10"
    return Plan(proctrack=proctrack, nodes=NODES, partitions=(everywhere,), users=True)


@pytest.mark.drill
@pytest.mark.parametrize("first", [0, 6, 12])
def test_scancel_at_drawn_moments(first: int, own_site) -> None:
    site = own_site(cancelling("cgroup"))
    cancels = [stops.Cancel(seed) for seed in range(first, first + (8 if first == 12 else 6))]
    runs = [cancel.submit(site) for cancel in cancels]
    for cancel, run in zip(cancels, runs, strict=True):
        cancel.reach(run)
        if cancel.moment != "away":
            cancel.scancel(run)
            continue
        run.once(0, "exit")
        site.cluster.freeze("slurmctld")
        run.until(lambda run=run: run.incidents())
        site.cluster.thaw("slurmctld")
        cancel.scancel(run)
    stops.stays_cancelled(runs, requeue_wait_s=BACK_S)


@pytest.mark.drill
@pytest.mark.parametrize("proctrack", ["cgroup", "linuxproc"])
def test_an_array_and_a_task_of_it_are_cancelled_for_good(proctrack: str, own_site) -> None:
    stops.array_cancelled(own_site(cancelling(proctrack)), requeue_wait_s=BACK_S)
