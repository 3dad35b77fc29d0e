"""A site of its own for each story, on a real Slurm."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import real, real_cgroup
from tests.e2e.harness import real_site
from tests.realslurm import cluster
from tests.realslurm.fixtures import site_cgroup_cluster, site_cluster

__all__ = ["real", "real_cgroup", "site_cgroup_cluster", "site_cluster"]


@pytest.fixture
def own_site(request):
    """Makes a site on a cluster of the test's own, which it may break: `own_site(Plan(settings={"JobRequeue": "0"}, users=True))`."""
    with contextlib.ExitStack() as stack:

        def make(plan: cluster.Plan):
            if why := cluster.why_not(plan.proctrack, accounting=plan.accounting):
                pytest.skip(f"real Slurm: {why}")
            made = stack.enter_context(cluster.own(plan))
            return stack.enter_context(real_site(made, request.node.name))

        yield make


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Where Slurm, as whoever it runs, finds a script; and `ill`, as long as it is there."""
    with tempfile.TemporaryDirectory(prefix="ftsup-bad-") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "ill").touch()
        yield Path(folder)
