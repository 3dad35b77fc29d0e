from __future__ import annotations

import os
import resource

import pytest

from ftsup import eventlog
from ftsup.events import LeaderStarted, Line, Noted
from ftsup.supervisor.mirror import LaterGrant, Mirror


def lines(first, last, text="x"):
    return [Line(n=n, event=Noted(text=f"{text}{n}")) for n in range(first, last + 1)]


@pytest.fixture
def source(tmp_path):
    return tmp_path / "local" / "events.jsonl"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "run" / "events.jsonl"


def texts(path):
    found, notes = eventlog.read(path)
    assert notes == []
    return [line.event.text for line in found]


def test_new_lines_are_appended_and_the_last_number_told(source, target):
    log, mirror = eventlog.Log(source), Mirror()
    assert mirror.bring(source, target) == 0
    log.append(lines(1, 2))
    assert mirror.bring(source, target) == 2
    assert mirror.bring(source, target) == 2
    log.append(lines(3, 3))
    assert mirror.bring(source, target) == 3
    assert target.read_bytes() == source.read_bytes()


def test_a_line_that_is_not_whole_yet_waits(source, target):
    eventlog.Log(source).append(lines(1, 1))
    with source.open("ab") as file:
        file.write(b'{"n":2')
    assert Mirror().bring(source, target) == 1
    assert texts(target) == ["x1"]


def test_another_clerk_goes_on_where_the_mirror_ends(source, target):
    log = eventlog.Log(source)
    log.append(lines(1, 2))
    Mirror().bring(source, target)
    log.append(lines(3, 4))
    assert Mirror().bring(source, target) == 4
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_mirror_is_mended(source, target, cut):
    eventlog.Log(source).append(lines(1, 5))
    Mirror().bring(source, target)
    os.truncate(target, target.stat().st_size - cut)
    assert Mirror().bring(source, target) == 5
    assert target.read_bytes() == source.read_bytes()


def test_a_mirror_that_somebody_touched_meanwhile_is_compared_again(source, target):
    log, mirror = eventlog.Log(source), Mirror()
    log.append(lines(1, 3))
    mirror.bring(source, target)
    os.truncate(target, 0)
    log.append(lines(4, 4))
    assert mirror.bring(source, target) == 4
    assert target.read_bytes() == source.read_bytes()


def test_a_leader_on_another_host_goes_on_behind_lines_that_it_does_not_have(source, target, tmp_path):
    eventlog.Log(source).append(lines(1, 3))
    Mirror().bring(source, target)
    elsewhere = tmp_path / "other" / "events.jsonl"
    log = eventlog.Log(elsewhere, next_n=4)
    assert Mirror().bring(elsewhere, target) == 3
    log.append(lines(4, 5, "y"))
    assert Mirror().bring(elsewhere, target) == 5
    assert texts(target) == ["x1", "x2", "x3", "y4", "y5"]


def test_what_a_dead_leaders_disk_delivered_late_is_kept_aside(source, target, tmp_path):
    elsewhere = tmp_path / "other" / "events.jsonl"
    eventlog.Log(source).append(lines(1, 5))
    Mirror().bring(source, target)  # lines 4 and 5 came after the new leader had read 1 to 3
    eventlog.Log(elsewhere, next_n=4).append(lines(4, 6, "y"))
    assert Mirror().bring(elsewhere, target) == 6
    assert texts(target) == ["x1", "x2", "x3", "y4", "y5", "y6"]
    assert b"x4" in target.with_name("events.cut.jsonl").read_bytes()


def test_a_full_disk_leaves_the_mirror_whole(source, target):
    log, mirror = eventlog.Log(source), Mirror()
    log.append(lines(1, 1))
    mirror.bring(source, target)
    log.append(lines(2, 3))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (target.stat().st_size + 10, hard))
    try:
        with pytest.raises(OSError, match="large"):
            mirror.bring(source, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert texts(target) == ["x1"]
    assert mirror.bring(source, target) == 3
    assert texts(target) == ["x1", "x2", "x3"]


def test_the_mirror_is_as_readable_as_its_folder(source, target):
    eventlog.Log(source).append(lines(1, 1))
    target.parent.mkdir(mode=0o700)
    Mirror().bring(source, target)
    assert target.stat().st_mode & 0o777 == 0o600
    target.unlink()
    target.parent.chmod(0o750)
    Mirror().bring(source, target)
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_link_is_never_written_through(source, target, tmp_path):
    eventlog.Log(source).append(lines(1, 1))
    target.parent.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("")
    target.symlink_to(victim)
    with pytest.raises(OSError, match="links"):
        Mirror().bring(source, target)
    assert victim.read_text() == ""


def begun(n, restarts, job="7"):
    return Line(n=n, event=LeaderStarted(job=job, restarts=restarts, host="n1", pid=n, nodes=("n1",)))


@pytest.mark.parametrize("later", [begun(4, 1), begun(4, 0, job="12")])
def test_what_a_later_grant_has_written_is_never_cut(tmp_path, source, target, later):
    """Slurm gave our grant up and could not tell us: the other leader began from the mirror, and goes on there."""
    mine, theirs = eventlog.Log(source), eventlog.Log(tmp_path / "other" / "events.jsonl")
    mine.append([begun(1, 0), *lines(2, 3)])
    mirror = Mirror()
    mirror.bring(source, target)
    theirs.append([begun(1, 0), *lines(2, 3), later, *lines(5, 6, "theirs")])
    Mirror().bring(tmp_path / "other" / "events.jsonl", target)
    mine.append(lines(4, 6, "mine"))
    before = target.read_bytes()
    for asked in (mirror, Mirror()):
        with pytest.raises(LaterGrant, match="leads the run since Slurm began it again"):
            asked.bring(source, target)
        assert target.read_bytes() == before


def test_what_an_earlier_grant_delivers_late_is_cut_as_before(source, target):
    eventlog.Log(source).append([begun(1, 0), begun(2, 1), *lines(3, 4)])
    eventlog.Log(target).append([begun(1, 0), *lines(2, 3, "late")])
    assert Mirror().bring(source, target) == 4
    assert target.read_bytes() == source.read_bytes()
