"""Evidence of real ranks: the shim without torch, so that each starts in a moment. Waiting is polling, bounded."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys

import msgspec
import pytest

from ftsup.events import Fault, How
from ftsup.incident.collect import Job, collect
from ftsup.monitors import memory, procs
from ftsup.supervisor.clock import BootClock
from ftsup.worker import beatfile, counters, places

pytestmark = pytest.mark.e2e

SCRIPT = """
import ctypes, os, signal, sys, time
def stand_still():
    # on one line: whoever reads this may look before another one is reached
    print("here", flush=True); time.sleep(600)
if sys.argv[1] == "fail":
    raise ValueError("no such thing")
if sys.argv[1] == "fork" and os.fork() == 0:
    time.sleep(600)
if sys.argv[1] == "spawn":
    import subprocess
    subprocess.Popen(["sleep", "600"])
if sys.argv[1] == "slow":
    asked = int(sys.argv[2])
    signal.pthread_sigmask(signal.SIG_BLOCK, [asked])
    child = os.fork() == 0
    while child and asked not in signal.sigpending():
        time.sleep(0.01)
    time.sleep(0.8 if child else 0.0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [asked])
    time.sleep(600 if child else 0.0)
if sys.argv[1] == "kernel":
    print("here", flush=True)
    if ctypes.CDLL(None).vfork() == 0:  # its parent waits in state D until the child ends
        time.sleep(600)
stand_still()
"""


LOADER = """
import ctypes, os, signal, sys, time
def fetch():
    if sys.argv[1] != "none" and os.fork() == 0:
        if sys.argv[1] == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif ctypes.CDLL(None).vfork() == 0:
            time.sleep(600)
    print("here", flush=True)
    time.sleep(600)
"""


class Node:
    def __init__(self, folder):
        self.beats, self.out, self.folder = folder / "beats", folder / "out", folder / "incident"
        self.beats.mkdir()
        self.out.mkdir()
        self.script = folder / "train.py"
        self.script.write_text(SCRIPT)
        self.ranks = {}

    def start(self, rank, *words):
        beatfile.create(places.beat_path(self.beats, rank))
        env = {**os.environ, places.BEATS: str(self.beats), places.OUT_DIR: str(self.out), "RANK": str(rank)}
        argv = [sys.executable, "-m", "ftsup.worker", str(self.script), *words]
        self.ranks[rank] = subprocess.Popen(argv, env=env)
        return self.ranks[rank]

    def until(self, ready):
        clock = BootClock()
        end = clock.now() + 20
        while not ready():
            assert clock.now() < end
            select.select([], [], [], 0.02)

    def said(self, rank):
        path = places.out_path(self.out, rank)
        return path.exists() and "here" in path.read_text()

    def job(self):
        return Job(node="n1", epoch="1.1", beats=str(self.beats), out=str(self.out), folder=str(self.folder))


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path)
    yield node
    children = [child for rank in node.ranks.values() for child in procs.below(rank.pid)]
    for process in node.ranks.values():
        process.kill()
    for child in children:
        procs.strike(child, signal.SIGKILL)
    for process in node.ranks.values():
        process.wait()


def test_a_rank_that_stands_still_is_shown_with_its_line_and_lives_on(node):
    still = node.start(0, "wait")
    node.until(lambda: node.said(0))
    (node.out / "nccl.0").write_text("NCCL WARN\n")
    assert collect(node.job()) == [Fault(how=How.QUIET, node="n1", rank=0, phase="start", where="train.py:5 in stand_still")]
    assert "stand_still" in (node.folder / "stacks.0.txt").read_text()
    assert (node.folder / "log.0.txt").read_text() == "here\n"
    assert (node.folder / "nccl.0.txt").read_text() == "NCCL WARN\n"
    assert "State:" in (node.folder / "status.0.txt").read_text()
    assert still.poll() is None


def test_the_same_rank_can_be_asked_twice_and_only_the_new_stack_is_told(node):
    node.start(0, "wait")
    node.until(lambda: node.said(0))
    collect(node.job())
    collect(node.job())
    assert (node.folder / "stacks.0.txt").read_text().count("in stand_still") == 1


def test_a_failed_rank_is_told_by_its_own_record(node):
    node.start(1, "fail").wait(20)
    (fault,) = collect(node.job())
    assert (fault.how, fault.rank, fault.error) == (How.EXCEPTION, 1, "ValueError: no such thing")
    assert "no such thing" in json.loads((node.folder / "exit.1.json").read_text())["message"]


def test_a_stopped_rank_and_one_without_a_handler_are_left_alone_and_said(node):
    stopped = node.start(0, "wait")
    node.until(lambda: node.said(0))
    os.kill(stopped.pid, signal.SIGSTOP)
    node.until(lambda: procs.look(stopped.pid).state is procs.State.STOPPED)
    node.ranks[1] = bare = subprocess.Popen(["sleep", "600"])
    beatfile.create(places.beat_path(node.beats, 1))
    counters.Writer().attach(places.beat_path(node.beats, 1), pid=bare.pid, started=procs.look(bare.pid).started)
    assert collect(node.job()) == []
    told = json.loads((node.folder / "node.json").read_text())
    assert told["missing"] == [
        "no stack of rank 0: its process is stopped",
        "no stack of rank 1: it has no handler for it yet",
    ]
    assert bare.poll() is None


def test_nothing_there_is_evidence_as_well(node):
    assert collect(node.job()) == []
    told = json.loads((node.folder / "node.json").read_text())
    assert told["ranks"] == []
    assert told["facts"]["/proc/loadavg"]
    assert memory.facts().keys() <= told["facts"].keys()


def test_it_is_a_program_that_prints_its_faults(node):
    node.start(0, "fail").wait(20)
    job = msgspec.json.encode(node.job()).decode()
    done = subprocess.run([sys.executable, "-m", "ftsup.incident", "collect", job], capture_output=True, check=True, timeout=30)
    assert msgspec.json.decode(done.stdout, type=list[Fault])[0].error == "ValueError: no such thing"


def test_long_output_is_cut_to_its_end(node):
    node.start(0, "fail").wait(20)
    (node.out / "torchrun.err").write_text("x" * 1_000_000 + "the end")
    collect(node.job())
    text = (node.folder / "torchrun.err.txt").read_text()
    assert len(text) == 64 * 1024
    assert text.endswith("the end")


def test_a_rank_in_state_d_is_shown_with_the_place_in_the_kernel(node):
    rank = node.start(0, "kernel")
    node.until(lambda: procs.look(rank.pid).state is procs.State.DISK)
    (fault,) = collect(node.job())
    assert (fault.how, fault.rank) == (How.STORAGE, 0)
    assert fault.error.startswith("in state D")
    told = json.loads((node.folder / "node.json").read_text())
    assert told["missing"] == ["no stack of rank 0: its process is disk"]


@pytest.mark.parametrize(
    "word, state, error",
    [
        ("kernel", procs.State.DISK, "which is in state D"),
        ("stop", procs.State.STOPPED, "which is stopped"),
        ("none", None, "its data loader"),
    ],
)
def test_a_worker_that_cannot_answer_is_shown_by_its_state(node, tmp_path, word, state, error):
    loader = tmp_path / "torch" / "utils" / "data"
    loader.mkdir(parents=True)
    (loader / "dataloader.py").write_text(LOADER)
    node.script.write_text(f"import sys; sys.path.insert(0, {str(loader)!r}); import dataloader; dataloader.fetch()")
    rank = node.start(0, word)
    node.until(lambda: node.said(0))
    children = procs.below(rank.pid)
    node.until(lambda: all(procs.look(child.pid).state is state for child in children[:1]))
    (fault,) = collect(node.job())
    assert (fault.how, fault.rank) == (How.QUIET, 0)
    assert error in fault.error
    assert all(str(child.pid) in fault.error for child in children[:1])


def test_forked_children_of_a_rank_are_shown_as_well(node):
    """They inherit the rank's handler, and its file."""
    rank = node.start(0, "fork")
    node.until(lambda: node.said(0))
    (child,) = procs.below(rank.pid)
    assert collect(node.job())[0].where == "train.py:5 in stand_still"
    text = (node.folder / f"stacks.0.{child.pid}.txt").read_text()
    assert re.search(r'train.py", line [89] in <module>', text), text  # it may not have come farther than its fork
    assert procs.look(child.pid) is not None


def test_a_child_that_is_slow_to_answer_is_waited_for(node):
    rank = node.start(0, "slow", str(int(places.STACK_SIGNAL)))
    node.until(lambda: node.said(0))
    (child,) = procs.below(rank.pid)
    collect(node.job())
    assert "train.py" in (node.folder / f"stacks.0.{child.pid}.txt").read_text()


def test_children_without_the_handler_live_on(node):
    rank = node.start(0, "spawn")
    node.until(lambda: node.said(0) and procs.below(rank.pid))
    (child,) = procs.below(rank.pid)
    collect(node.job())
    assert procs.look(child.pid) is not None
    assert not (node.folder / f"stacks.0.{child.pid}.txt").exists()
