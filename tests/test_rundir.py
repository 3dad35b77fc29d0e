"""Names below /tmp and /dev/shm can be guessed by everybody: what we find there is ours, or nothing is begun."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ftsup.errors import RunError
from ftsup.rundir import LocalDir


def local(base: Path) -> LocalDir:
    return LocalDir(base, "demo/1", "7", "n1")


def test_the_top_is_ours_alone_also_when_an_umask_made_it_otherwise(tmp_path: Path) -> None:
    place = local(tmp_path / "disk")
    for mode in (0o700, 0o755):
        place.claim()
        assert stat.S_IMODE(place.top.stat().st_mode) == 0o700
        place.top.chmod(mode)
    place.claim()
    assert stat.S_IMODE(place.top.stat().st_mode) == 0o700
    assert place.root.is_relative_to(place.top)
    assert place.beats("1.1").parts[:4] == ("/", "dev", "shm", place.top.name)


def test_what_somebody_else_laid_there_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    local(tmp_path).top.symlink_to(tmp_path / "theirs")
    with pytest.raises(RunError, match="somebody else"):
        local(tmp_path).claim()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder of somebody else")
def test_folder_of_somebody_else_is_not_taken(tmp_path: Path) -> None:
    top = local(tmp_path).top
    top.mkdir()
    os.chown(top, 12345, -1)
    with pytest.raises(RunError, match="somebody else"):
        local(tmp_path).claim()
