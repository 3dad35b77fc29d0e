"""Another user of the machine: what he does at the leader's port and to our names is told once, and training goes on."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.e2e import hostile
from tests.e2e.harness import mock_site

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_another_user_who_knocks_floods_plants_and_looks() -> None:
    """Where this test is not run by root, he is us, and only knocks. Node-local memory is the other tests' as well: it is as it was."""
    with tempfile.TemporaryDirectory(prefix="ftsup-hostile-") as folder:
        Path(folder).chmod(0o711)  # pytest's own is closed to him
        with mock_site(Path(folder), nodes=1) as site:
            hostile.story(site, memory=False)
