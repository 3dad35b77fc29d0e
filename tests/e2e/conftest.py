"""A site of its own for each story."""

from __future__ import annotations

import pytest

from tests.e2e.harness import mock_site, real_site
from tests.realslurm.fixtures import site_cgroup_cluster, site_cluster

__all__ = ["site_cgroup_cluster", "site_cluster"]


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
def real(site_cluster, request):
    """A real Slurm with proctrack/linuxproc, and a plain user."""
    with real_site(site_cluster, request.node.name) as made:
        yield made


@pytest.fixture
def real_cgroup(site_cgroup_cluster, request):
    """A real Slurm with proctrack/cgroup, and a plain user."""
    with real_site(site_cgroup_cluster, request.node.name) as made:
        yield made
