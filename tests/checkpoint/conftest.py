from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

from ftsup.checkpoint.disk import RealDisk


@pytest.fixture(scope="session")
def originals(tmp_path_factory):
    """One of each kind; not to be changed."""
    from tests.checkpoint import samples  # noqa: PLC0415 - imports torch, which most tests here do without

    folder = tmp_path_factory.mktemp("samples")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch says of its own
        samples.make(folder)
    return folder


@pytest.fixture
def sample(originals, tmp_path):
    """A copy of the named one."""

    def copy(name: str) -> Path:
        path = originals / name
        return Path(shutil.copytree(path, tmp_path / name) if path.is_dir() else shutil.copy2(path, tmp_path / name))

    return copy


@pytest.fixture
def disk():
    return RealDisk()
