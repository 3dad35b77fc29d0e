"""A site of its own for each story."""

from __future__ import annotations

import pytest

from tests.e2e.harness import mock_site, real_site
from tests.realslurm.fixtures import real_cgroup_cluster, real_cluster

__all__ = ["real_cgroup_cluster", "real_cluster"]


@pytest.fixture
def site(tmp_path):
    """The mock, with two nodes."""
    with mock_site(tmp_path) as made:
        yield made


@pytest.fixture
def wide_site(tmp_path):
    """The mock, with ten nodes and a short KillWait."""
    with mock_site(tmp_path, nodes=10, kill_wait_s=2) as made:
        yield made


@pytest.fixture
def real(tmp_path, real_cluster):
    """A real Slurm with proctrack/linuxproc."""
    with real_site(tmp_path, real_cluster) as made:
        yield made


@pytest.fixture
def real_cgroup(tmp_path, real_cgroup_cluster):
    """A real Slurm with proctrack/cgroup."""
    with real_site(tmp_path, real_cgroup_cluster) as made:
        yield made
