"""One attempt as it is seen: ends told once, a rank that vanished, what torchrun still owes. Its ranks are real processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftsup import events as ev
from ftsup.events import Ask, Epoch, How
from ftsup.monitors import procs
from ftsup.monitors.faults import VANISH_S
from ftsup.supervisor import launch
from ftsup.supervisor.attempt import Attempt
from ftsup.worker import beatfile, counters, places

ORDER = ev.Launch(node="n1", epoch=Epoch(1, 1), node_rank=0, nodes=1, address="127.0.0.1", port=29400, base_step=100)


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempt]:
    beats, out = tmp_path / "beats", tmp_path / "out"
    launch.make_places(beats, out, (0, 1))
    made = Attempt(ORDER, node="n1", ranks=(0, 1), beats=beats, out=out)
    yield made
    made.close()


@pytest.fixture
def rank(attempt: Attempt) -> Iterator[subprocess.Popen[bytes]]:
    """Rank 0: it does nothing until it is ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        begin(attempt, 0, process)
        yield process
        process.kill()


def begin(attempt: Attempt, number: int, process: subprocess.Popen[bytes]) -> counters.Writer:
    seen = procs.look(process.pid)
    assert seen is not None
    writer = counters.Writer()
    writer.attach(places.beat_path(attempt.beats, number), pid=process.pid, started=seen.started)
    return writer


def end(process: subprocess.Popen[bytes], *, by: signal.Signals = signal.SIGKILL) -> None:
    process.send_signal(by)
    process.wait()


def test_a_rank_that_dies_wakes_the_loop_and_only_once(attempt: Attempt, rank: subprocess.Popen[bytes]) -> None:
    assert attempt.look(0.0).ended == ()
    (handle,) = attempt.fds()
    assert not attempt.died()
    end(rank)
    assert select.select([handle], [], [], 30)[0]
    assert attempt.died()
    assert attempt.look(1.0).silent
    assert (attempt.fds(), attempt.died()) == ([], False)


def test_who_left_without_a_word_is_told_once_after_torchrun_had_time(attempt: Attempt, rank: subprocess.Popen[bytes]) -> None:
    """torchrun runs, and does not say that it failed: it ended with 0."""
    attempt.torchrun = os.getpid()  # runs: it looks
    end(rank)
    assert (attempt.look(1.0).ended, [*attempt.vanished]) == ((), [0])
    assert attempt.look(VANISH_S - 0.1).ended == ()
    (fault,) = attempt.look(0.1).ended
    assert (fault.how, fault.rank, fault.code) == (How.RETURNED, 0, 0)
    assert attempt.look(VANISH_S).ended == ()


def test_who_left_while_torchrun_cannot_speak_was_ended(attempt: Attempt, rank: subprocess.Popen[bytes]) -> None:
    end(rank)
    assert attempt.look(1.0).ended == ()
    (fault,) = attempt.look(VANISH_S).ended
    assert (fault.how, fault.rank, fault.signal) == (How.SIGNAL, 0, "")


def test_who_is_gone_when_torchrun_ends_the_others_was_the_first(attempt: Attempt, rank: subprocess.Popen[bytes]) -> None:
    attempt.torchrun = os.getpid()
    (attempt.out / "torchrun.err").write_text("W1 api.py:1] Sending process 999999 closing signal SIGTERM\n")
    end(rank)
    (fault,) = attempt.look(0.0).ended
    assert (fault.how, fault.rank) == (How.SIGNAL, 0)


def test_torchrun_owes_a_word_of_who_vanished(attempt: Attempt, rank: subprocess.Popen[bytes]) -> None:
    assert not attempt.owes()
    end(rank)
    assert attempt.owes()
    (attempt.out / "torchrun.err").write_text(f"W1 api.py:1] Sending process {rank.pid} closing signal SIGTERM\n")
    assert not attempt.owes()


def test_the_step_that_all_have_reached(attempt: Attempt, rank: subprocess.Popen[bytes]) -> None:
    assert attempt.reached() is None  # nothing is known of a step before the first one
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        for number, (process, beats) in enumerate(((rank, 7), (other, 9))):
            writer = begin(attempt, number, process)
            writer.words[counters.BEATS] = beats
            writer.halves[counters.PHASE] = counters.IN_STEP
        assert attempt.reached() == 107
        assert [(one.rank, one.beats) for one in sorted(attempt.counters(), key=lambda one: one.rank)] == [(0, 7), (1, 9)]
        other.kill()


def test_a_word_reaches_those_that_have_a_file(attempt: Attempt) -> None:
    (attempt.beats / "beat.1").unlink()
    attempt.ask(ev.AskRanks(node="n1", epoch=ORDER.epoch, save=1, ask=Ask.COMMIT, beats=12, handlers=True))
    word = int.from_bytes(places.beat_path(attempt.beats, 0).read_bytes()[counters.ASK_AT :], sys.byteorder)
    assert counters.asked(word) == (12, beatfile.Word.COMMIT, True)


def test_a_port_that_was_taken_is_no_rank_s_fault(attempt: Attempt) -> None:
    (attempt.out / "torchrun.err").write_text((Path(__file__).parent.parent / "data" / "torchrun" / "torch-2.13-port.txt").read_text())
    assert [fault.how for fault in attempt.ended(1)] == [How.PORT]
    assert attempt.ended(0) == ()
    assert (attempt.killed(1), attempt.killed(-signal.SIGTERM)) == ("", "")
