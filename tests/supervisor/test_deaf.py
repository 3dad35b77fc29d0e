"""What a supervisor starts does not die of the warning that the supervisor hears, and may still have a handler of its own for it."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

import pytest

from ftsup import proc
from ftsup.supervisor import child as children

TO_ITSELF = "kill -USR1 $$; echo lives"
OWN = "import os, signal; signal.signal(signal.SIGUSR1, lambda *_: print('heard')); os.kill(os.getpid(), signal.SIGUSR1)"


@pytest.fixture
def heard():
    found: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: found.append(number))
    try:
        yield found
    finally:
        signal.signal(signal.SIGUSR1, before)


def until(there: Callable[[], bool], *, within_s: float) -> None:
    end = time.monotonic() + within_s
    while not there():
        assert time.monotonic() < end
        select.select([], [], [], 0.01)


def test_helpers_live_and_the_supervisor_goes_on_hearing(heard, tmp_path):
    assert proc.run(["sh", "-c", TO_ITSELF], deadline_s=20).out == "lives\n"
    assert proc.run([sys.executable, "-c", OWN], deadline_s=20).out == "heard\n"
    detached = proc.detach(["sh", "-c", TO_ITSELF], env=os.environ, cwd=tmp_path, output=tmp_path / "out")
    until(detached.ended, within_s=20)
    assert (tmp_path / "out").read_text() == "lives\n"
    os.kill(os.getpid(), signal.SIGUSR1)
    assert heard == [signal.SIGUSR1]


def test_programs_of_ours_live_from_their_first_instruction(heard):
    program = children.Program("timeit", "-n", "1", "-r", "1", kind=socket.SOCK_STREAM)
    os.kill(program.process.pid, signal.SIGUSR1)  # while the interpreter starts
    program.reap(limit_s=20)
    assert program.process.returncode != -signal.SIGUSR1
    program.close()
    assert heard == []


def test_where_nobody_hears_it_nothing_is_changed():
    before = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)]
    with proc.deaf():
        assert [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)] == before
