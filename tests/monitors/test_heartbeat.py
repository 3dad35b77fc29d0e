"""Ranks as seen from outside: their last word, and the state of their process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftsup.monitors import heartbeat
from ftsup.monitors.procs import State
from ftsup.worker import beatfile, counters
from ftsup.worker.beatfile import Phase
from ftsup.worker.counters import Writer


def rank_file(beats: Path, rank: int, *, pid: int | None = None, started: int = 500) -> Writer:
    path = beats / f"beat.{rank}"
    beatfile.create(path)
    writer = Writer()
    if pid is not None:
        writer.attach(path, pid=pid, started=started)
    return writer


def process(proc: Path, pid: int, letter: str, *, started: int = 500, threads: int = 1) -> None:
    (proc / str(pid)).mkdir(parents=True)
    middle = " ".join(["0"] * 13)
    (proc / str(pid) / "stat").write_text(f"{pid} (py (x) ) {letter} 1 {middle} 20 0 {threads} 0 {started} 0 0\n")


def test_what_a_rank_said(tmp_path: Path):
    writer = rank_file(tmp_path, 12, pid=7)
    writer.longs[counters.LIFE], writer.longs[counters.STEP], writer.longs[counters.SAVED_STEP] = 10, 120, 100
    writer.words[counters.BEATS], writer.halves[counters.PHASE] = 20, Phase.STEP
    sight = heartbeat.sights(tmp_path, proc=tmp_path)[12]
    assert (sight.rank, sight.pid, sight.activity, sight.beats, sight.step, sight.saved_step) == (12, 7, 30, 20, 120, 100)
    assert (sight.phase, sight.code) == (Phase.STEP, None)


def test_what_is_not_known_is_none(tmp_path: Path):
    rank_file(tmp_path, 0)
    sight = heartbeat.sights(tmp_path)[0]
    assert (sight.process, sight.step, sight.saved_step, sight.code) == (State.UNKNOWN, None, None, None)


@pytest.mark.parametrize(
    "letter,threads,state",
    [
        *(("R", 1, State.RUNNING), ("S", 1, State.RUNNING), ("T", 4, State.STOPPED), ("t", 1, State.RUNNING)),
        *(("D", 1, State.DISK), ("Z", 1, State.GONE), ("X", 1, State.GONE), ("Z", 3, State.RUNNING)),
    ],
)
def test_states_of_a_process(tmp_path: Path, letter: str, threads: int, state: State):
    rank_file(tmp_path, 0, pid=7)
    process(tmp_path / "proc", 7, letter, threads=threads)
    assert heartbeat.sights(tmp_path, proc=tmp_path / "proc")[0].process is state


def test_a_process_that_is_not_there_is_gone(tmp_path: Path):
    rank_file(tmp_path, 0, pid=7)
    assert heartbeat.sights(tmp_path, proc=tmp_path / "proc")[0].process is State.GONE


def test_another_process_with_the_ranks_pid_is_not_the_rank(tmp_path: Path):
    rank_file(tmp_path, 0, pid=7, started=500)
    process(tmp_path / "proc", 7, "R", started=501)
    assert heartbeat.sights(tmp_path, proc=tmp_path / "proc")[0].process is State.GONE


def test_ranks_come_in_order_and_strangers_do_not_come(tmp_path: Path):
    for rank in (10, 2, 0):
        rank_file(tmp_path, rank)
    (tmp_path / "beat.x").write_text("")
    (tmp_path / "beat.7").write_text("torn")
    (tmp_path / "beat.3.old").write_text("")
    assert list(heartbeat.sights(tmp_path)) == [0, 2, 10]


def test_no_directory_is_no_ranks(tmp_path: Path):
    assert heartbeat.sights(tmp_path / "nowhere") == {}


def test_a_living_process_is_running(tmp_path: Path):
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    rank_file(tmp_path, 0, pid=os.getpid(), started=started)
    assert heartbeat.sights(tmp_path)[0].process is State.RUNNING
