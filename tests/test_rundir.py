"""Names below /tmp and /dev/shm can be guessed by everybody: what we find there is ours, or another name is used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ftsup.errors import RunError
from ftsup.rundir import LocalDir, RunDir, see_that_it_is_ours


def local(base: Path) -> LocalDir:
    return LocalDir(base, "demo/1", "7", "n1")


def in_memory(name: str) -> Path:
    return Path("/dev/shm") / name  # noqa: S108 - where it is on every Linux


def somebody_else(path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make a folder of somebody else")
    path.mkdir()
    os.chown(path, 12345, -1)


def link(path: Path) -> None:
    (path.parent / "theirs").mkdir()
    path.symlink_to(path.parent / "theirs")


def linked_file(path: Path) -> None:
    (path.parent / "ours").touch()
    path.hardlink_to(path.parent / "ours")


def open_for_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


PLANTS = {
    "somebody's folder": somebody_else,
    "a link": link,
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a pipe": os.mkfifo,
    "a file": Path.touch,
    "a file of ours": linked_file,
    "a folder into which anybody can lay something": open_for_all,
}


def test_the_top_is_ours_alone_also_when_it_could_be_read_by_others(tmp_path: Path) -> None:
    for mode in (0o700, 0o755):
        place = local(tmp_path / "disk").claim()
        assert stat.S_IMODE(place.top.stat().st_mode) == 0o700
        place.top.chmod(mode)
    place = local(tmp_path / "disk").claim()
    assert stat.S_IMODE(place.top.stat().st_mode) == 0o700
    assert place.strange == ()
    assert place.root == local(tmp_path / "disk").root
    assert place.beats("1.1") == local(tmp_path / "disk").beats("1.1")
    assert place.beats("1.1").is_relative_to(in_memory(place.top.name))


@pytest.mark.parametrize("plant", PLANTS)
def test_what_somebody_laid_under_our_name_is_told_and_another_name_is_used(tmp_path: Path, plant: str) -> None:
    PLANTS[plant](local(tmp_path).top)
    planted = local(tmp_path).top.lstat()
    place = local(tmp_path).claim()
    assert place.top != local(tmp_path).top
    assert place.top.parent == tmp_path
    assert stat.S_IMODE(place.top.lstat().st_mode) == 0o700
    (said,) = place.strange
    assert str(tmp_path) in said
    assert place.top.name in said
    assert local(tmp_path).top.lstat() == planted


def test_a_successor_finds_the_other_name_and_others_have_names_of_their_own(tmp_path: Path) -> None:
    local(tmp_path).top.touch()
    place = local(tmp_path).claim()
    assert local(tmp_path).claim().root == place.root
    other = LocalDir(tmp_path, "demo/1", "7", "n2").claim()
    assert other.top != place.top
    local(tmp_path).top.unlink()  # the usual one is free again, and our predecessor may live
    assert local(tmp_path).claim().root == place.root
    assert LocalDir(tmp_path, "demo/1", "8", "n1").claim().top == local(tmp_path).top


def test_an_other_name_that_is_not_ours_is_passed_over(tmp_path: Path) -> None:
    local(tmp_path).top.touch()
    first = local(tmp_path).claim()
    forged = first.top.with_name(first.top.name[:-4] + "0000")
    forged.symlink_to(tmp_path)
    assert local(tmp_path).claim().root == first.root


def test_a_leader_makes_nothing_in_node_local_memory(tmp_path: Path) -> None:
    place = LocalDir(tmp_path, f"{tmp_path.name}/1", "7", "leader").claim(memory=False)
    assert (place.disk, place.memory) == (place.top, None)


def test_a_disk_where_others_can_take_our_files_away_is_told(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    disk.chmod(0o777)
    (said,) = local(disk).claim().strange
    assert "mode 0777 and no sticky bit" in said
    disk.chmod(0o1777)
    assert local(disk).claim().strange == ()


def test_a_disk_that_is_made_can_be_written_by_us_alone_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        place = local(tmp_path / "some" / "where").claim()
    finally:
        os.umask(old)
    assert place.strange == ()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "some", tmp_path / "some" / "where")] == [0o755, 0o755]


def test_a_disk_that_cannot_be_used_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=f"{tmp_path}/file/disk cannot be used"):
        local(tmp_path / "file" / "disk").claim()


def test_a_run_directory_that_others_may_write_to_is_not_believed(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    see_that_it_is_ours(RunDir(tmp_path))
    for mode in (0o770, 0o702):
        tmp_path.chmod(mode)
        with pytest.raises(RunError, match=f"others may write to {tmp_path} .mode {mode:04o}"):
            see_that_it_is_ours(RunDir(tmp_path))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder of somebody else")
def test_a_run_directory_of_somebody_else_is_not_believed(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, -1)
    see_that_it_is_ours(RunDir(tmp_path))
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(RunError, match=f"{tmp_path} belongs to user 12345"):
        see_that_it_is_ours(RunDir(tmp_path))
