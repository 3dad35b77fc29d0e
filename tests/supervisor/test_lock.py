"""The lock of the node supervisors: who may take it from whom. Predecessors are real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from ftsup.supervisor import lock as locks
from ftsup.supervisor.clock import BootClock
from ftsup.supervisor.lock import NodeLock

pytestmark = [pytest.mark.e2e]

HOLDER = """
import sys
from pathlib import Path
from ftsup.supervisor.clock import BootClock
from ftsup.supervisor.lock import NodeLock
lock = NodeLock(Path(sys.argv[1]))
assert lock.take(BootClock()) == 0
print("mine", flush=True)
for line in sys.stdin:
    lock.show_life()
"""


class Late:
    """Its first look is at 0; each later one finds the patience at its end."""

    def __init__(self) -> None:
        self.t = 0.0

    def now(self) -> float:
        self.t, now = locks.PATIENCE_S + 1.0, self.t
        return now


class Suspended:
    """An hour passes in its third look, for it and for the holder, who hears the leader as soon as both go on."""

    def __init__(self, holder) -> None:
        self.holder, self.looks = holder, 0

    def now(self) -> float:
        self.looks += 1
        if self.looks == 3:
            self.holder.stdin.write("\n")
            self.holder.stdin.flush()
        return self.looks / 100 + (3600.0 if self.looks >= 3 else 0.0)


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "node.lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "mine\n"
    yield process
    process.kill()
    process.communicate(timeout=20)


def test_a_lock_that_nobody_holds_is_ours(tmp_path) -> None:
    path = tmp_path / "node.lock"
    assert NodeLock(path).take(BootClock()) == 0
    assert int(path.read_text().split()[0]) == os.getpid()


def test_a_dead_predecessor_has_let_go(tmp_path, holder) -> None:
    holder.kill()
    holder.wait(timeout=20)
    assert NodeLock(tmp_path / "node.lock").take(BootClock()) == 0


def test_a_stopped_predecessor_is_left_alone(tmp_path, holder) -> None:
    holder.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
    assert NodeLock(tmp_path / "node.lock").take(Late()) == holder.pid
    assert holder.poll() is None


def test_a_predecessor_that_hears_its_leader_is_left_alone(tmp_path, holder) -> None:
    lock, answers = NodeLock(tmp_path / "node.lock"), []
    successor = threading.Thread(target=lambda: answers.append(lock.take(BootClock())))
    successor.start()
    while successor.is_alive():
        holder.stdin.write("\n")
        holder.stdin.flush()
        successor.join(0.05)
    assert answers == [holder.pid]
    assert holder.poll() is None


def test_a_predecessor_that_was_suspended_as_we_were_has_its_time_afterwards(tmp_path, holder) -> None:
    assert NodeLock(tmp_path / "node.lock").take(Suspended(holder)) == holder.pid
    assert holder.poll() is None


def test_a_predecessor_that_hears_nobody_is_ended(tmp_path, holder) -> None:
    assert NodeLock(tmp_path / "node.lock").take(Late()) == 0
    assert holder.wait(timeout=20) == -signal.SIGKILL
