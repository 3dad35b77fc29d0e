"""A site of its own for each story."""

from __future__ import annotations

import pytest

from tests.e2e.harness import mock_site
from tests.realslurm.fixtures import real_cgroup_cluster, real_cluster

__all__ = ["real_cgroup_cluster", "real_cluster"]


@pytest.fixture
def site(tmp_path):
    """The mock, with two nodes."""
    with mock_site(tmp_path) as made:
        yield made


@pytest.fixture
def wide_site(tmp_path):
    """The mock, with ten nodes."""
    with mock_site(tmp_path, nodes=10) as made:
        yield made
