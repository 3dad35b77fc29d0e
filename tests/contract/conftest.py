"""Which worlds the contract suite runs against: `rig` is each of them, `live` those that run real processes."""

from __future__ import annotations

import pytest

from tests.contract.rigs import SIGNALLED, FakeRig, LiveRig
from tests.realslurm.fixtures import real_cgroup_cluster, real_cluster

__all__ = ["real_cgroup_cluster", "real_cluster"]

LAST = "test_limits.py"
REAL = pytest.param("real", marks=[pytest.mark.realslurm, pytest.mark.e2e])
REAL_CGROUP = pytest.param("real-cgroup", marks=[pytest.mark.realslurm, pytest.mark.e2e])
CLUSTERS = {"real": ("real_cluster", "linuxproc"), "real-cgroup": ("real_cgroup_cluster", "cgroup")}


def pytest_collection_modifyitems(items):
    """Time limits last a minute and more: their jobs begin with the first test, and their tests come last."""
    items.sort(key=lambda item: item.path.name == LAST)


class Limits:
    """The jobs that run into their time limit, one warned in its steps and one in its batch shell, started once a world."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, tuple[LiveRig, str]]] = {}

    def begin(self, rig: LiveRig, kind: str) -> None:
        if kind not in self.jobs:
            self.jobs[kind] = {
                who: (rig, rig.submit("-N2", "--requeue", f"--time={rig.limit}", f"--signal={option}", text=SIGNALLED))
                for who, option in (("steps", f"USR1@{rig.lead_s}"), ("batch", f"B:USR1@{rig.lead_s}"))
            }

    def close(self) -> None:
        for jobs in self.jobs.values():
            for rig, _ in jobs.values():
                rig.close()


@pytest.fixture(scope="session")
def limits():
    """One for all tests."""
    made = Limits()
    yield made
    made.close()


def open_rig(kind: str, request: pytest.FixtureRequest, folder):
    """The rig of this name."""
    if kind == "fake":
        return FakeRig(folder)
    cluster, proctrack = CLUSTERS[kind]
    env = request.getfixturevalue(cluster)
    if any(item.path.name == LAST for item in request.session.items):
        begun = request.getfixturevalue("tmp_path_factory").mktemp(f"limits-{kind}")
        request.getfixturevalue("limits").begin(LiveRig(begun, env, proctrack=proctrack), kind)
    return LiveRig(folder, env, proctrack=proctrack)


@pytest.fixture(params=["fake", REAL])
def rig(request, tmp_path):
    """Every world that has the port."""
    made = open_rig(request.param, request, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=[REAL])
def live(request, tmp_path):
    """Every world that runs processes."""
    made = open_rig(request.param, request, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=[REAL, REAL_CGROUP])
def tracked(request, tmp_path):
    """Every world that runs processes, under both process trackings."""
    made = open_rig(request.param, request, tmp_path)
    yield made
    made.close()
