"""pytest fixtures that hand out a real Slurm, or skip with the reason. A conftest.py imports the ones it wants.

`real_cluster` is a mapping of environment variables (SLURM_CONF, PATH): merge it into the environment of what you start.
Four nodes n1..n4, partition main, KillWait 5 s, a requeued job waits 7 s. Shared by all xdist workers of a run.
"""

from __future__ import annotations

import os

import pytest

from tests.realslurm import cluster


def _home(factory: pytest.TempPathFactory, proctrack: str):
    base = factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return run / f"realslurm-{proctrack}"


def _running(factory: pytest.TempPathFactory, proctrack: str):
    if why := cluster.why_not(proctrack):
        pytest.skip(f"real Slurm: {why}")
    return cluster.shared(_home(factory, proctrack), proctrack=proctrack)


@pytest.fixture(scope="session")
def real_cluster(tmp_path_factory):
    """A real Slurm with proctrack/linuxproc."""
    with _running(tmp_path_factory, "linuxproc") as env:
        yield env


@pytest.fixture(scope="session")
def real_cgroup_cluster(tmp_path_factory):
    """A real Slurm with proctrack/cgroup, where cgroup v1 is mounted and writable."""
    with _running(tmp_path_factory, "cgroup") as env:
        yield env
