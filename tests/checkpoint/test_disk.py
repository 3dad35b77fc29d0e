from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from ftsup.checkpoint.digests import digests
from ftsup.checkpoint.disk import Pace, RealDisk, files_below, publish
from ftsup.ports import Disk, What

DISK = RealDisk()


def test_the_real_disk_is_a_disk():
    disk: Disk = RealDisk()
    assert disk.look(Path("/dev/null")).what is What.OTHER


def test_what_is_not_there_is_none_and_what_may_not_be_seen_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    assert DISK.look(tmp_path / "none") is None
    assert DISK.look(tmp_path / "file" / "below") is None
    with pytest.raises(OSError, match="File name too long"):
        DISK.look(tmp_path / ("x" * 300))


def test_trees_are_read_through_links_and_never_round_in_circles(tmp_path):
    (tmp_path / "tree" / "a").mkdir(parents=True)
    (tmp_path / "blob").write_bytes(b"12345")
    (tmp_path / "tree" / "a" / "link").symlink_to(tmp_path / "blob")
    (tmp_path / "tree" / "a" / "up").symlink_to(tmp_path / "tree")
    (tmp_path / "tree" / "dead").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "tree" / "pipe")
    (tmp_path / "tree" / ".nfs01").touch()
    assert {name: facts.size_bytes for name, facts in files_below(DISK, tmp_path / "tree").items()} == {"a/link": 5}
    assert list(files_below(DISK, tmp_path / "blob")) == [""]
    assert files_below(DISK, tmp_path / "none") == {}


def test_a_new_file_never_takes_another_one_s_place(tmp_path):
    DISK.write_new(tmp_path / "a", b"1")
    with pytest.raises(FileExistsError):
        DISK.write_new(tmp_path / "a", b"2")
    assert (tmp_path / "a").read_bytes() == b"1"


@pytest.mark.parametrize("mode,file,folder", [(0o700, 0o600, 0o700), (0o750, 0o640, 0o750)])
def test_modes_follow_the_folder(mode, file, folder, tmp_path):
    tmp_path.chmod(mode)
    DISK.mkdir(tmp_path / "folder")
    publish(DISK, tmp_path / "file", b"1")
    assert ((tmp_path / "file").stat().st_mode & 0o777, (tmp_path / "folder").stat().st_mode & 0o777) == (file, folder)


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (4 << 20) + 1])
def test_pieces_are_the_file(size, tmp_path):
    data = os.urandom(size)
    (tmp_path / "f").write_bytes(data)
    for stay_cached in (True, False):
        assert b"".join(bytes(piece) for piece in DISK.pieces(tmp_path / "f", size_bytes=1 << 20, stay_cached=stay_cached)) == data
    found = digests(DISK, tmp_path / "f", block_bytes=4 << 20, whole=True, stay_cached=True)
    assert (found.size_bytes, len(found.blocks)) == (size, -(-size // (4 << 20)))


def resident(fd, size):
    """The share of a file's pages that the page cache holds; asking reads nothing."""
    held = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    with mmap.mmap(fd, size) as mapped:
        begin = ctypes.c_char.from_buffer(mapped)
        failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(begin)), ctypes.c_size_t(size), held)
        del begin
    assert not failed
    return sum(page & 1 for page in held) / len(held)


def test_what_was_cached_stays_and_what_was_not_goes(tmp_path):
    """A disk may answer while it is asked what is cached (a virtual one on a busy machine does): such pieces stay, so this looks again."""
    size = 32 << 20
    path = tmp_path / "big"
    path.write_bytes(os.urandom(1 << 20) * 32)
    fd = os.open(path, os.O_RDWR)

    def left(*, stay_cached, before):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if before:
            digests(DISK, path, block_bytes=4 << 20, whole=True, stay_cached=True)
        digests(DISK, path, block_bytes=4 << 20, whole=True, stay_cached=stay_cached)
        return resident(fd, size)

    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if resident(fd, size):
            pytest.skip("this file system keeps its pages")
        assert min(left(stay_cached=False, before=False) for _ in range(8)) == 0
        assert left(stay_cached=True, before=False) == 1
        assert max(left(stay_cached=False, before=True) for _ in range(2)) == 1
    finally:
        os.close(fd)


def test_a_pace_holds_the_rate_and_saves_nothing_up():
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(100.0, now=lambda: now[0], sleep=sleep)
    for _ in range(5):
        pace.spend(50)
    assert (now[0], slept) == (2.5, [0.5] * 5)
    now[0] += 0.4  # the reading itself took that long
    pace.spend(50)
    assert slept[-1] == pytest.approx(0.1)
    now[0] += 3600
    for _ in range(3):
        pace.spend(50)
    assert now[0] == pytest.approx(3600 + 3.0 + 0.5)  # an hour of silence is worth a second
