"""pytest fixtures that hand out a real Slurm, or skip with the reason. A conftest.py imports the ones it wants.

`real_cluster` and `real_cgroup_cluster` are `Cluster`s with four nodes n1..n4, partition main, KillWait 10 s; a requeued job waits 7 s.
`site_cluster` and `site_cgroup_cluster` have more partitions. All are shared by the xdist workers of a run: nobody breaks them.
"""

from __future__ import annotations

import os

import pytest

from tests.realslurm import cluster
from tests.realslurm.cluster import MAIN, Plan

GRACE_S = 4
PATIENT = {"KillWait": "10"}
"""What the contract asks of a job that is COMPLETING takes time on a slow machine."""
LESSER = {
    "low": ("n5", "REQUEUE", 0),
    "lowgrace": ("n6", "REQUEUE", GRACE_S),
    "lowcancel": ("n7", "CANCEL", 0),
    "lowcancelgrace": ("n8", "CANCEL", GRACE_S),
}
"""Partitions whose jobs are preempted: node, PreemptMode, GraceTime."""
PREEMPTED = tuple(node for node, _, _ in LESSER.values())
LIVED_IN = Plan(
    nodes=(*cluster.NODES, *PREEMPTED),
    settings={"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE"},
    partitions=(
        f"{MAIN} PreemptMode=OFF",
        "short Nodes=n1,n2,n3,n4 MaxTime=1 DefaultTime=1 PreemptMode=OFF",
        *(
            f"{name} Nodes={node} PriorityTier=1 PreemptMode={mode} GraceTime={s} DefaultTime=10"
            for name, (node, mode, s) in LESSER.items()
        ),
        f"high Nodes={','.join(PREEMPTED)} PriorityTier=10 PreemptMode=OFF DefaultTime=10",
        f"higher Nodes={','.join(PREEMPTED)} PriorityTier=20 PreemptMode=OFF DefaultTime=10",
    ),
    users=True,
)
"""Preemption has its own nodes; a test that preempts takes them whole (mark: xdist_group("preemption"))."""
LIVED_IN_CGROUP = Plan(proctrack="cgroup", users=True)


def _home(factory: pytest.TempPathFactory, name: str):
    base = factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return run / f"realslurm-{name}"


def _running(factory: pytest.TempPathFactory, name: str, plan: Plan):
    if why := cluster.why_not(plan.proctrack):
        pytest.skip(f"real Slurm: {why}")
    return cluster.shared(_home(factory, name), plan)


@pytest.fixture(scope="session")
def real_cluster(tmp_path_factory):
    """A real Slurm with proctrack/linuxproc."""
    with _running(tmp_path_factory, "linuxproc", Plan(settings=PATIENT, users=True)) as made:
        yield made


@pytest.fixture(scope="session")
def real_cgroup_cluster(tmp_path_factory):
    """A real Slurm with proctrack/cgroup, where cgroup v1 is mounted and writable."""
    with _running(tmp_path_factory, "cgroup", Plan(proctrack="cgroup", settings=PATIENT, users=True)) as made:
        yield made


@pytest.fixture(scope="session")
def site_cluster(tmp_path_factory):
    """A real Slurm with proctrack/linuxproc, a plain user and preemption."""
    with _running(tmp_path_factory, "site", LIVED_IN) as made:
        yield made


@pytest.fixture(scope="session")
def site_cgroup_cluster(tmp_path_factory):
    """A real Slurm with proctrack/cgroup, memory limits and a plain user."""
    with _running(tmp_path_factory, "site-cgroup", LIVED_IN_CGROUP) as made:
        yield made
