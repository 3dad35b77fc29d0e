"""Which worlds the contract suite runs against: `rig` is each of them, `live` those that run real processes."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from ftsup.config.keys import Client
from ftsup.mockslurm import control as mockslurm
from ftsup.slurm import pyslurm
from tests.contract import proven
from tests.contract.rigs import KILL_WAIT_S, SIGNALLED, FakeRig, LiveRig, MockRig
from tests.realslurm import cluster
from tests.realslurm.fixtures import real_cgroup_cluster, real_cluster

__all__ = ["real_cgroup_cluster", "real_cluster"]

LAST = "test_limits.py"
WAITS_S = 150
"""For a whole test, which waits for several things, each with a limit of its own; on a crowded machine a command takes seconds."""
REAL = pytest.param("real", marks=[pytest.mark.realslurm, pytest.mark.e2e])
REAL_CGROUP = pytest.param("real-cgroup", marks=[pytest.mark.realslurm, pytest.mark.e2e])
PYSLURM = pytest.param("pyslurm", marks=[pytest.mark.realslurm, pytest.mark.e2e])
MOCK = pytest.param("mock", marks=[pytest.mark.e2e])
MOCK_CGROUP = pytest.param("mock-cgroup", marks=[pytest.mark.e2e])
CLUSTERS = {
    "real": (LiveRig, "real_cluster", "linuxproc"),
    "real-cgroup": (LiveRig, "real_cgroup_cluster", "cgroup"),
    "mock": (MockRig, "mock_cluster", "linuxproc"),
    "mock-cgroup": (MockRig, "mock_cgroup_cluster", "cgroup"),
}


def pytest_addoption(parser):
    parser.addoption("--proven", metavar="PAGE", help="write what this run proved where, as a page")
    parser.addoption("--proven-note", metavar="SENTENCE", default="", help="what a reader of that page has to know of this run")


def pytest_configure(config):
    page = config.getoption("proven", default=None)
    if page and not hasattr(config, "workerinput"):  # reports of all workers arrive here
        config.pluginmanager.register(proven.Recorder(Path(page), version=_version(), note=config.getoption("proven_note")))


def _version() -> str:
    """Of the Slurm that is installed here."""
    try:
        daemon = cluster.program("slurmctld") or "slurmctld"  # scontrol says it only where there is a configuration
        return subprocess.run([daemon, "-V"], capture_output=True, text=True, check=False).stdout.split()[-1]
    except (OSError, IndexError):
        return "not installed"


def _mock(folder, proctrack: str):
    """A mock with short waits and short minutes."""
    yield mockslurm.create(
        folder,
        nodes=4,
        prefix="n",
        proctrack=proctrack,
        kill_wait_s=KILL_WAIT_S,
        begin_wait_s=9,
        limit_unit_s=1,
        signal_early_s=0,
        away_delay_s=1,
        min_job_age_s=3600,  # some jobs are begun first and looked at last
    )
    assert mockslurm.stop(folder)


@pytest.fixture(scope="session")
def mock_cluster(tmp_path_factory):
    """What to add to the environment for the mock under linuxproc."""
    yield from _mock(tmp_path_factory.mktemp("mock"), "linuxproc")


@pytest.fixture(scope="session")
def mock_cgroup_cluster(tmp_path_factory):
    """The same under cgroup."""
    yield from _mock(tmp_path_factory.mktemp("mock-cgroup"), "cgroup")


@pytest.fixture(scope="session")
def mock_limits_cluster(tmp_path_factory):
    """The mock gives a node to one job only: those that run into their limit stay apart."""
    yield from _mock(tmp_path_factory.mktemp("mock-limits"), "linuxproc")


@pytest.fixture(scope="session")
def mock_cgroup_limits_cluster(tmp_path_factory):
    """The same under cgroup."""
    yield from _mock(tmp_path_factory.mktemp("mock-cgroup-limits"), "cgroup")


def pytest_collection_modifyitems(items):
    """Time limits last a minute and more: their jobs begin with the first test, and their tests come last."""
    items.sort(key=lambda item: item.path.name == LAST)
    for item in items:
        if item.path.parent == Path(__file__).parent and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(WAITS_S))


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


@pytest.fixture(scope="session")
def limits():
    """One for all tests. Their worlds end them."""
    return Limits()


def open_rig(kind: str, request: pytest.FixtureRequest, folder):
    """The rig of this name."""
    if kind == "fake":
        return FakeRig(folder)
    if kind == "pyslurm":
        return _pyslurm(request, folder)
    made, name, proctrack = CLUSTERS[kind]
    env = request.getfixturevalue(name)
    place = request.getfixturevalue("tmp_path_factory").mktemp
    if isinstance(env, cluster.Cluster):  # its people are plain users, and cannot look into our folders
        place, env, folder = env.work, env.commands(), env.work(folder.name)
    if any(item.path.name == LAST for item in request.session.items):
        begun = place(f"limits-{kind}")
        apart = request.getfixturevalue(name.replace("_cluster", "_limits_cluster")) if made is MockRig else env
        request.getfixturevalue("limits").begin(made(begun, apart, proctrack=proctrack), kind)
    return made(folder, env, proctrack=proctrack)


def _pyslurm(request: pytest.FixtureRequest, folder) -> LiveRig:
    """The real one through pyslurm, where it imports; the library finds its cluster in this process's environment."""
    if importlib.util.find_spec("pyslurm") is None:
        pytest.skip("pyslurm is not installed here; a site builds the one of its Slurm's version")
    env = request.getfixturevalue("real_cluster").env
    rig = LiveRig(folder, env, proctrack="linuxproc")
    if why := pyslurm.unfit(environ=rig.env):
        pytest.skip(why)
    for name, value in env.items():
        request.getfixturevalue("monkeypatch").setenv(name, value)
    rig.slurm = pyslurm.connect(Client.PYSLURM, environ=rig.env)
    return rig


@pytest.fixture(params=["fake", MOCK, REAL, PYSLURM])
def rig(request, tmp_path):
    """Every world that has the port."""
    made = open_rig(request.param, request, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=[MOCK_CGROUP, REAL])
def live(request, tmp_path):
    """Every world that runs processes."""
    made = open_rig(request.param, request, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=[MOCK, MOCK_CGROUP, REAL, REAL_CGROUP])
def tracked(request, tmp_path):
    """Every world that runs processes, under both process trackings."""
    made = open_rig(request.param, request, tmp_path)
    yield made
    made.close()
