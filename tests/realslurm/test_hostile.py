"""Another user of the machine, on a real Slurm: his victim has processes, a run directory and names in node-local memory of his own."""

from __future__ import annotations

import os

import pytest

from tests.e2e import hostile
from tests.e2e.harness import real_site
from tests.realslurm.plainuser import BOB

pytestmark = [pytest.mark.e2e, pytest.mark.realslurm, pytest.mark.timeout(300)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users, one of them hostile")
def test_another_user_who_knocks_floods_plants_and_looks(site_cluster, request) -> None:
    """Bob's jobs are this test's alone, so his name in node-local memory can be taken as well; linuxproc, where it is everybody's."""
    if not site_cluster.users:
        pytest.skip("this machine does not let root make users of the cluster's own")
    with real_site(site_cluster, request.node.name, user=BOB) as site:
        hostile.story(site, memory=True)
