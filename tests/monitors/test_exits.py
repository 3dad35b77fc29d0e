"""Exit records and torchrun's words become values; garbage becomes a value too. The texts are torch 2.13's own (tests/data/torchrun)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftsup.monitors import exits
from ftsup.monitors.exits import Ended, ExitRecord, RankExit, Unreadable

DATA = Path(__file__).parent.parent / "data" / "torchrun"
GOOD = {"version": 1, "rank": 0, "pid": 7, "how": "exception", "code": 1, "type": "ValueError", "message": "lr\nis -1", "later": [1]}


def torchrun(name: str) -> str:
    return (DATA / f"torch-2.13-{name}.txt").read_text()


def exit_of(rank: int, code: int, pid: int, **more: bool) -> RankExit:
    return RankExit(rank=rank, local_rank=rank, code=code, pid=pid, **more)


@pytest.mark.parametrize(
    "name,expected",
    [
        ("kill", [exit_of(1, -9, 16631, first=True), exit_of(0, -15, 16630, closed=True)]),
        ("segv", [exit_of(1, -11, 16722, first=True), exit_of(0, -15, 16721, closed=True)]),
        ("exit3", [exit_of(1, 3, 16877, first=True), exit_of(0, -15, 16876, closed=True)]),
        ("raise", [exit_of(1, 1, 16995, first=True), exit_of(0, -15, 16994, closed=True)]),
        ("record", [exit_of(1, 1, 17059, first=True), exit_of(0, -15, 17058, closed=True)]),
        ("rtsignal", [exit_of(0, -37, 17042, first=True), exit_of(1, -15, 17043, closed=True)]),
        ("two", [exit_of(1, 41, 32477, first=True), exit_of(2, 42, 32478), exit_of(0, -9, 32476, closed=True)]),
        ("port", []),
    ],
)
def test_torchrun_tells_who_ended_how(name: str, expected: list[RankExit]):
    assert exits.rank_exits(torchrun(name)) == expected


def test_before_its_table_torchrun_names_the_first_one_by_local_rank():
    text = torchrun("kill").partition("Traceback")[0]
    assert exits.rank_exits(text) == [RankExit(local_rank=1, code=-9, pid=16631, first=True)]


def test_text_that_is_still_being_written_never_says_something_else_in_the_end():
    text = torchrun("two")
    final = {one.pid: one.code for one in exits.rank_exits(text)}
    for cut in range(len(text)):
        assert {one.pid: one.code for one in exits.rank_exits(text[:cut])}.items() <= final.items()


@pytest.mark.parametrize(
    "text", ["", "exitcode: 0 is what you want\n", "step 12 failed (exitcode: 3), rank 1 retries\n", "  rank : 3\n  exitcode : 1\n"]
)
def test_other_text_is_no_exit(text: str):
    assert exits.rank_exits(text) == []


@pytest.mark.parametrize("code,name", [(-9, "SIGKILL"), (-37, "SIGRTMIN+3"), (-34, "SIGRTMIN"), (-99, "signal 99"), (3, ""), (0, "")])
def test_signals_have_names(code: int, name: str):
    assert exit_of(0, code, 1).signal == name


def test_torchrun_says_which_ranks_it_ends_itself():
    assert exits.closed(torchrun("kill")) == {16630}
    assert exits.closed("") == set()


def test_a_taken_port_is_seen():
    assert exits.port_taken(torchrun("port"))
    older = "RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to "
    assert exits.port_taken(
        older + "[::]:29500 (errno: 98 - Address already in use). The server socket has failed to bind to 0.0.0.0:29500"
    )


@pytest.mark.parametrize(
    "text",
    [
        torchrun("kill"),
        "OSError: [Errno 98] Address already in use",
        "tensorboard: EADDRINUSE, using port 6007",
        "The server socket has failed to listen on any local network address. port: 80, useIpv6: false, code: -13, name: EACCES",
    ],
    ids=["another failure", "the script's own socket", "a word in a log", "another reason"],
)
def test_a_taken_port_is_not_imagined(text: str):
    assert not exits.port_taken(text)


def write(directory: Path, name: str, data: object) -> None:
    (directory / name).write_text(json.dumps(data))


def test_a_record_is_read(tmp_path: Path):
    write(tmp_path, "exit.0.json", GOOD)
    record = exits.records(tmp_path)[0]
    assert isinstance(record, ExitRecord)
    assert (record.how, record.code, record.finished, record.error) == (Ended.EXCEPTION, 1, False, "ValueError: lr")


@pytest.mark.parametrize(
    "how,code,finished",
    [("returned", 0, True), ("exit", 0, True), ("exit", 3, False), ("interrupted", None, False), ("exception", 1, False)],
)
def test_finished_is_what_ended_with_0(tmp_path: Path, how: str, code: int | None, finished: bool):  # noqa: FBT001
    write(tmp_path, "exit.0.json", {**GOOD, "how": how, "code": code})
    record = exits.read_record(tmp_path / "exit.0.json", rank=0)
    assert isinstance(record, ExitRecord)
    assert record.finished is finished


@pytest.mark.parametrize(
    "change,word",
    [({"how": "tired"}, "tired"), ({"pid": "7"}, "int"), ({"version": 2}, "version 2"), ({"rank": 4}, "rank 4"), ({"code": True}, "int")],
    ids=str,
)
def test_a_record_that_makes_no_sense_says_what(tmp_path: Path, change: dict, word: str):
    write(tmp_path, "exit.0.json", {**GOOD, **change})
    record = exits.records(tmp_path)[0]
    assert isinstance(record, Unreadable)
    assert word in record.why


def test_other_files_are_no_records(tmp_path: Path):
    for name in ("exit.0.json.tmp", "exit.x.json", "exit.json", "beat.0", "exit.1"):
        write(tmp_path, name, GOOD)
    assert exits.records(tmp_path) == {}
    assert exits.records(tmp_path / "nowhere") == {}


def test_a_record_is_a_folder(tmp_path: Path):
    (tmp_path / "exit.0.json").mkdir()
    assert isinstance(exits.records(tmp_path)[0], Unreadable)


def test_garbage_never_raises(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("exits") / "exit.0.json"
    good = json.dumps(GOOD).encode()

    @given(st.one_of(st.binary(), st.builds(lambda cut, noise: good[:cut] + noise, st.integers(0, len(good)), st.binary(max_size=9))))
    def read(data: bytes) -> None:
        path.write_bytes(data)
        record = exits.read_record(path, rank=0)
        assert isinstance(record, Unreadable) or record.pid == 7

    read()
    path.write_text('{"x":' + "[" * 100_000)
    assert isinstance(exits.read_record(path, rank=0), Unreadable)
