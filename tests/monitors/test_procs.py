"""Finding and ending processes: those of the mark, those below us, and nobody else."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from msgspec.structs import replace

from ftsup.monitors import procs
from ftsup.monitors.procs import Process, State

READY = "import os, sys, time\n{before}\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n"


def start(before: str = "", *, mark: str = "", clear: bool = False) -> subprocess.Popen:
    env = {} if clear else {key: value for key, value in os.environ.items() if key != "FTSUP_MARK"}
    if mark:
        env["FTSUP_MARK"] = mark
    process = subprocess.Popen(
        [sys.executable, "-c", READY.format(before=before)], env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    process.child = int(process.stdout.readline())
    return process


@pytest.fixture
def ending():
    """Ends what a test has started."""
    with contextlib.ExitStack() as stack:

        def later(process: subprocess.Popen) -> subprocess.Popen:
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield later


@pytest.fixture
def mark() -> str:
    return f"run/{uuid.uuid4()}/node1/"


def pids(processes: list[Process]) -> set[int]:
    return {process.pid for process in processes}


def test_a_process_carries_its_mark(ending, mark: str):
    ours = ending(start(mark=mark + "1.1"))
    ending(start(mark=mark.replace("node1", "node10") + "1.1"))
    ending(start())
    [found] = procs.marked(mark)
    assert (found.pid, found.parent, found.state) == (ours.pid, os.getpid(), State.RUNNING)
    assert found.command.startswith(f"{sys.executable} -c import os")
    assert len(found.command) <= 120
    assert procs.marked(mark + "1.2") == []


def test_the_mark_is_the_whole_value_and_not_a_part_of_another(ending, mark: str):
    ending(start(mark="x" + mark))
    assert procs.marked(mark) == []


def test_no_mark_is_a_mistake():
    with pytest.raises(AssertionError, match="every attempt"):
        procs.marked("")


def test_descendants_are_found_without_a_mark(ending):
    fork = "if os.fork():\n    os.wait()\n    sys.exit()\nos.setsid()"
    parent = ending(start(fork, clear=True))
    assert pids(procs.below(parent.pid)) == {parent.child}
    assert parent.pid in pids(procs.below(os.getpid()))
    os.kill(parent.child, signal.SIGKILL)
    parent.wait(timeout=10)


def test_catching_a_signal_is_seen(ending):
    process = ending(start("import signal; signal.signal(signal.SIGUSR2, lambda *_: 0); signal.signal(signal.SIGUSR1, signal.SIG_IGN)"))
    assert procs.catches(process.pid, signal.SIGUSR2)
    assert not procs.catches(process.pid, signal.SIGUSR1)
    assert not procs.catches(2**22 + 1, signal.SIGUSR2)


def test_only_exactly_this_process_is_struck(ending):
    process = ending(start())
    seen = procs.look(process.pid)
    assert seen is not None
    assert not procs.strike(replace(seen, started=seen.started + 1), signal.SIGKILL)
    assert process.poll() is None
    assert procs.strike(seen, signal.SIGKILL)
    assert process.wait(timeout=10) == -signal.SIGKILL
    assert not procs.strike(seen, signal.SIGKILL)


STRAYS = {
    "plain": "",
    "own session": "os.setsid() if os.getpid() != os.getsid(0) else None",
    "ignores TERM": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "stopped": "",
    "double fork": "if os.fork():\n    os._exit(0)\nos.setsid()\nif os.fork():\n    os._exit(0)",
    "many": "for _ in range(5):\n    if not os.fork():\n        time.sleep(60)",
}


@pytest.mark.parametrize("kind", STRAYS)
def test_a_sweep_ends_the_mark_and_proves_it(ending, mark: str, kind: str):
    stranger = ending(start(mark=mark.replace("node1", "node2")))
    stray = ending(start(STRAYS[kind], mark=mark))
    if kind == "stopped":
        os.kill(stray.child, signal.SIGSTOP)
    assert stray.child in pids(procs.sweep(mark, root=None))
    rounds = until_nobody(mark, root=None)
    assert rounds < 1000
    assert stray.stdout.read() == ""  # nobody holds the pipe any more
    assert stranger.poll() is None


def until_nobody(mark: str, *, root: int | None) -> int:
    rounds = 0
    while procs.sweep(mark, root=root):
        rounds += 1
    return rounds


def test_a_sweep_below_a_root_finds_those_without_a_mark_and_spares(ending, mark: str):
    root = ending(start("import subprocess\nfor _ in range(3): subprocess.Popen(['/bin/sleep', '60'], env={})"))
    one, *rest = sorted(pids(procs.below(root.pid)))
    spared = procs.look(one)
    assert spared is not None
    assert pids(procs.sweep(mark, root=root.pid, spare={one})) == set(rest)
    while procs.sweep(mark, root=root.pid, spare={one}):
        pass
    assert procs.look(one) == spared
    assert root.poll() is None
    procs.strike(spared, signal.SIGKILL)


def test_a_sweep_never_ends_the_one_who_sweeps(mark: str):
    sweeper = (
        "import sys\nfrom ftsup.monitors import procs\nwhile procs.sweep(sys.argv[1], root=None): pass\n"
        "print([one.pid for one in procs.marked(sys.argv[1])])"
    )
    env = {**os.environ, "FTSUP_MARK": mark}
    run = subprocess.run([sys.executable, "-c", sweeper, mark], env=env, capture_output=True, text=True, timeout=30, check=False)
    assert (run.returncode, run.stdout.count(",")) == (0, 0)


def test_a_zombie_is_nobody(ending, mark: str):
    process = ending(start(mark=mark))
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    seen = procs.look(process.pid)
    assert seen is not None
    assert procs.state_of(process.pid, started=seen.started) is State.GONE
    assert procs.sweep(mark, root=None) == []


def test_uninterruptible_waiting_is_its_own_state(ending, mark: str):
    """As when a disk does not answer: a parent in vfork is in state D until its child ends, and dies of SIGKILL only."""
    process = ending(start("import ctypes; ctypes.CDLL(None).vfork()", mark=mark))
    seen = procs.look(process.pid)
    while seen is not None and seen.state is not State.DISK:
        seen = procs.look(process.pid)
    assert seen is not None
    assert process.child in pids(procs.below(process.pid))
    until_nobody(mark, root=None)
    assert process.wait(timeout=10) == -signal.SIGKILL


def test_a_hidden_or_vanished_process_is_no_error(tmp_path: Path):
    (tmp_path / "41").mkdir()
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "environ").write_text("A=1\0FTSUP_MARK=run/1/n/1.1\0")
    (tmp_path / "self").mkdir()
    assert procs.marked("run/1/n/", proc=tmp_path) == []
    assert procs.below(1, proc=tmp_path) == []
    assert procs.look(41, proc=tmp_path) is None
