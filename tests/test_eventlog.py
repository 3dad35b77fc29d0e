from __future__ import annotations

import os
import resource
import stat

import msgspec
import pytest

from ftsup import eventlog
from ftsup.errors import RuleBroken
from ftsup.events import SCHEMA, Epoch, Line, Noted, PickCheckpoint, Tick, Warned


def line(n, text="x", **fields):
    return Line(n=n, event=Noted(text=text), **fields)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "local" / "events.jsonl"


def test_what_was_appended_is_read_back_word_for_word(path):
    lines = [line(1), Line(n=2, wall="w", event=Warned(node="n1", t=3.5), orders=(PickCheckpoint(epoch=Epoch(1, 2)),))]
    log = eventlog.Log(path)
    log.append(lines[:1])
    log.append(lines[1:])
    assert eventlog.read(path) == (lines, [])


def test_only_we_may_read_the_log(path):
    eventlog.Log(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_missing_log_has_no_lines(path):
    assert eventlog.read(path) == ([], [])
    assert eventlog.follow(path) == ([], [], 0)


def test_a_torn_last_line_is_dropped_and_said_and_healed_by_the_next_writer(path):
    eventlog.Log(path).append([line(1), line(2)])
    os.truncate(path, path.stat().st_size - 5)
    lines, notes = eventlog.read(path)
    assert [x.n for x in lines] == [1]
    assert "the last line is torn" in notes[0]
    log = eventlog.Log(path)
    assert log.dropped_bytes > 0
    assert log.next_n == 2
    log.append([line(2, "again")])
    lines, notes = eventlog.read(path)
    assert [x.event.text for x in lines] == ["x", "again"]
    assert notes == []


def test_an_unreadable_line_in_the_middle_is_said_with_its_place(path):
    eventlog.Log(path).append([line(1), line(2), line(3)])
    rows = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(rows[0] + b"\x00\xff garbage\n" + rows[2])
    lines, notes = eventlog.read(path)
    assert [x.n for x in lines] == [1, 3]
    assert len(notes) == 1
    assert "line 2 is unreadable" in notes[0]


def test_numbers_have_no_gap_when_written(path):
    log = eventlog.Log(path)
    log.append([line(1)])
    for wrong in ([line(3)], [line(1)], [line(2), line(4)]):
        with pytest.raises(RuleBroken, match="goes on at 2"):
            log.append(wrong)
    assert [x.n for x in eventlog.read(path)[0]] == [1]


def test_a_gap_and_a_repetition_are_said_when_read(path):
    eventlog.Log(path).append([line(n) for n in range(1, 6)])
    rows = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([rows[0], rows[3], rows[3], rows[4]]))
    lines, notes = eventlog.read(path)
    assert [x.n for x in lines] == [1, 4, 5]
    assert "number 4 where 2 was expected" in notes[0]
    assert "repeats number 4" in notes[1]


def test_words_of_a_newer_ftsup_are_counted_and_said(path):
    newer = {"n": 2, "v": SCHEMA + 1, "event": {"type": "Teleported", "t": 1.0}, "orders": []}
    half = {"n": 3, "v": SCHEMA + 1, "event": {"type": "Tick", "t": 2.0}, "orders": [{"type": "Dance"}], "new_field": 1}
    eventlog.Log(path).append([line(1)])
    with path.open("ab") as file:
        file.write(msgspec.json.encode(newer) + b"\n" + msgspec.json.encode(half) + b"\n")
    lines, notes = eventlog.read(path)
    assert [x.n for x in lines] == [1, 3]
    assert lines[1].event == Tick(t=2.0)
    assert "newer ftsup" in notes[0]
    assert "Teleported" in notes[1]
    assert "1 order(s)" in notes[2]
    assert eventlog.Log(path).next_n == 4


def test_a_new_host_goes_on_where_the_mirror_ended(path):
    log = eventlog.Log(path, next_n=41)
    log.append([line(41)])
    assert eventlog.Log(path, next_n=7).next_n == 42


@pytest.fixture
def mirror(tmp_path):
    return tmp_path / "run" / "events.jsonl"


def test_a_run_begins_with_nothing(path, mirror):
    log, lines, notes = eventlog.resume(path, mirror)
    assert (log.next_n, lines, notes) == (1, [], [])


def test_a_leader_on_the_same_host_goes_on_with_its_log_and_what_the_mirror_did_not_get(path, mirror):
    eventlog.Log(mirror).append([line(1), line(2)])
    eventlog.Log(path).append([line(1), line(2), line(3)])
    log, lines, _ = eventlog.resume(path, mirror)
    assert (log.next_n, [x.n for x in lines]) == (4, [1, 2, 3])


def test_a_leader_on_a_new_host_goes_on_behind_the_mirror_and_knows_all_of_it_later(path, mirror):
    eventlog.Log(mirror).append([line(1), line(2)])
    log, lines, _ = eventlog.resume(path, mirror)
    assert (log.next_n, [x.n for x in lines]) == (3, [1, 2])
    log.append([line(3)])
    log, lines, _ = eventlog.resume(path, mirror)  # the mirror did not get line 3
    assert (log.next_n, [x.n for x in lines]) == (4, [1, 2, 3])


@pytest.mark.parametrize("there", [1, 2, 3, 5])
def test_a_log_of_an_earlier_grant_on_this_host_is_set_aside(path, mirror, there):
    eventlog.Log(mirror).append([line(1), line(2), line(3, "of another host")])
    eventlog.Log(path).append([line(n) for n in range(1, there + 1)])
    log, lines, _ = eventlog.resume(path, mirror)
    assert [x.event.text for x in lines] == ["x", "x", "of another host"]
    assert log.next_n == 4
    assert path.read_bytes() == b""
    assert len(eventlog.read(path.with_name("events.until-3.jsonl"))[0]) == there


def test_follow_gives_each_line_once_and_waits_for_a_torn_one(path):
    log = eventlog.Log(path)
    log.append([line(1), line(2)])
    lines, notes, offset = eventlog.follow(path)
    assert [x.n for x in lines] == [1, 2]
    with path.open("ab") as file:
        file.write(msgspec.json.encode(line(3))[:10])
    assert eventlog.follow(path, offset) == ([], [], offset)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(line(3))[10:] + b"\n")
    lines, notes, offset = eventlog.follow(path, offset)
    assert ([x.n for x in lines], notes) == ([3], [])
    os.truncate(path, 0)
    lines, notes, offset = eventlog.follow(path, offset)
    assert (lines, offset) == ([], 0)
    assert "shorter" in notes[0]


def test_a_full_disk_leaves_no_half_line_and_the_append_may_be_repeated(path):
    log = eventlog.Log(path)
    log.append([line(1)])
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))  # the write is cut short, then refused: as on a full disk
    try:
        with pytest.raises(OSError, match="large"):
            log.append([line(2), line(3)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.stat().st_size == size
    log.append([line(2), line(3)])
    assert [x.n for x in eventlog.read(path)[0]] == [1, 2, 3]


def test_a_log_that_is_damaged_all_over_is_not_listed_line_by_line(path):
    path.parent.mkdir()
    path.write_bytes(b"nothing\n" * 500)
    _, notes = eventlog.read(path)
    assert len(notes) == 21
    assert notes[-1].endswith("and 480 more")


def test_a_mirror_that_cannot_be_read_does_not_matter_within_a_grant(tmp_path):
    log = eventlog.Log(tmp_path / "local.jsonl")
    log.append([Line(n=1, event=Noted(text="one"))])
    log.close()
    mirror = tmp_path / "mirror.jsonl"
    mirror.mkdir()  # EISDIR, as good as EIO
    resumed, lines, notes = eventlog.resume(tmp_path / "local.jsonl", mirror, current=bool)
    assert ([line.n for line in lines], resumed.next_n) == ([1], 2)
    assert "cannot be read" in notes[0]
    resumed.close()
    with pytest.raises(OSError, match="directory"):
        eventlog.resume(tmp_path / "local.jsonl", mirror, current=lambda _: False)


def test_a_stream_gives_a_long_log_line_by_line_and_its_notes_at_the_end(path):
    eventlog.Log(path).append([line(1), line(2), line(3)])
    os.truncate(path, path.stat().st_size - 5)
    notes: list[str] = []
    lines = eventlog.stream(path, notes)
    assert next(lines).n == 1
    assert notes == []
    assert [x.n for x in lines] == [2]
    assert "the last line is torn" in notes[0]
