"""The keys of a run, and a leader with nodes around one poll."""

from __future__ import annotations

import pytest

from ftsup.supervisor.keys import make_keys
from tests.supervisor.linktable import Table


@pytest.fixture
def keys(tmp_path):
    return make_keys(tmp_path / "keys")


@pytest.fixture
def table(keys):
    table = Table(keys)
    yield table
    for link in list(table.open):
        table.close(link)
