"""What the tests of commands on a run directory begin with: where a person stands, and a leader whose run has trained for a moment."""

from __future__ import annotations

import pytest

from tests.cli.living import World
from tests.report.leader import Leader


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


@pytest.fixture
def leader() -> Leader:
    one = Leader()
    one.grant()
    one.launch()
    one.after(3).train(100)
    return one
