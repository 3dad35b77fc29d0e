"""Where the demo's faults strike, and what it takes to be satisfied: a story told by the leader's own machine, and its twins gone wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftsup import events as ev
from ftsup.cli.demo_faults import Kind, Seat, Struck, answer, choose, kill, missing, moment, slowest
from ftsup.events import Fault, How
from ftsup.monitors import procs
from ftsup.monitors.heartbeat import RankSight
from ftsup.worker.beatfile import Beat, Phase
from tests.report.leader import Leader

PLAN = choose(1, steps=120, ranks=4)
SLEEP, KILL, REQUEUE = PLAN
STRUCK = tuple(Struck(strike=strike, at=moment(1_000_000.0 + n)) for n, strike in enumerate(PLAN))


@given(seed=st.integers(min_value=0), steps=st.integers(60, 10_000), ranks=st.integers(1, 64))
def test_every_seed_gives_three_faults_with_progress_between_them(seed, steps, ranks):
    plan = choose(seed, steps=steps, ranks=ranks)
    assert [strike.kind for strike in plan] == [Kind.SLEEP, Kind.KILL, Kind.REQUEUE]
    at = [0, *(strike.step for strike in plan), steps]
    assert all(later - earlier >= steps * 0.1 for earlier, later in pairwise(at))
    assert all(strike.rank is None or 0 <= strike.rank < ranks for strike in plan)
    assert plan == choose(seed, steps=steps, ranks=ranks)


def test_seeds_move_the_faults():
    plans = [choose(seed, steps=120, ranks=4) for seed in range(40)]
    assert {plan[0].rank for plan in plans} == {plan[1].rank for plan in plans} == {0, 1, 2, 3}
    assert all(len({plan[n].step for plan in plans}) > 5 for n in range(3))


def survived(*, slept: int | None = SLEEP.rank, killed: int | None = KILL.rank, signal_name: str = "SIGKILL") -> Leader:
    """What the demo's run looks like when all goes well."""
    leader = Leader()
    leader.grant()
    leader.launch()
    leader.after(5).train(1)
    leader.after(5).hang(rank=slept, at=SLEEP.step)
    leader.after(1).end_attempt()
    leader.launch(checkpoint=10)
    leader.after(6).train(11)
    leader.after(9).train(KILL.step)
    fault = Fault(how=How.SIGNAL, node="n1", rank=killed, step=KILL.step, phase="step", signal=signal_name)
    leader.take(ev.RankEnded(node="n1", epoch=leader.epoch, fault=fault))
    leader.after(1).end_attempt()
    leader.launch(checkpoint=40)
    leader.after(6).train(41)
    leader.after(9).train(REQUEUE.step)
    leader.take(ev.Signalled(signal="SIGTERM"))
    leader.after(1).take(ev.SlurmSaid(state="PENDING", restarts=1))
    leader.grant(1, waited_s=2)
    leader.launch(checkpoint=70)
    leader.after(6).train(71)
    return leader


def test_nothing_is_missing_when_every_fault_was_seen_and_survived():
    story = survived().story
    assert missing(story, PLAN, STRUCK) == []
    assert [answer(story, strike).replayed for strike in PLAN] == [SLEEP.step - 10, KILL.step - 40, REQUEUE.step - 70]


@pytest.mark.parametrize(
    "change",
    [{"slept": (SLEEP.rank + 1) % 4}, {"killed": (KILL.rank + 1) % 4}, {"signal_name": "SIGSEGV"}],
    ids=["another rank is said to sleep", "another rank is said to be killed", "another signal"],
)
def test_a_fault_that_is_taken_for_another_is_missing(change):
    found = missing(survived(**change).story, PLAN, STRUCK)
    assert len(found) == 2, found
    assert found[0].startswith("was not seen as what it was")
    assert found[1].startswith("nobody struck, and yet")


def test_a_fault_that_did_not_strike_is_missing():
    found = missing(survived().story, PLAN, STRUCK[:2])
    assert found == ["did not strike: scontrol requeue", "nobody struck, and yet: the job was requeued"]


def test_training_that_did_not_come_back_is_missing():
    leader = survived()
    while not isinstance(leader.lines[-1].event, ev.LeaderStarted):
        leader.lines.pop()
    assert missing(leader.story, PLAN, STRUCK) == ["training did not come back after scontrol requeue"]


def test_an_incident_too_many_is_said():
    leader = survived()
    leader.hang(rank=0, at=75)
    leader.end_attempt()
    leader.launch(checkpoint=70)
    (found,) = missing(leader.story, PLAN, STRUCK)
    assert found.startswith("nobody struck, and yet: rank 0 on n2 stood still")


def sight(process: subprocess.Popen, *, started: int | None = None, step: int = 3) -> RankSight:
    found = procs.look(process.pid)
    beat = Beat(pid=process.pid, started=found.started if started is None else started, step=step, phase=Phase.STEP)
    return RankSight(rank=0, beat=beat)


@pytest.fixture
def marked():
    environ = {**os.environ, "FTSUP_MARK": "demo/this-run/1/n1/1.1"}
    process = subprocess.Popen([sys.executable, "-c", "input()"], env=environ, stdin=subprocess.PIPE)
    with process:
        yield process
        process.kill()


def test_the_rank_itself_is_killed(marked):
    assert kill(Seat(node="n1", sight=sight(marked)), mark="demo/this-run/")
    assert marked.wait() == -signal.SIGKILL


def test_no_process_of_another_run_is_killed_nor_one_that_took_over_the_pid(marked):
    assert not kill(Seat(node="n1", sight=sight(marked)), mark="demo/another-run/")
    assert not kill(Seat(node="n1", sight=sight(marked, started=1)), mark="demo/this-run/")
    assert marked.poll() is None


def test_the_slowest_rank_counts(marked):
    seats = {rank: Seat(node="n1", sight=sight(marked, step=step)) for rank, step in enumerate((5, 4, 6))}
    assert slowest(seats) == 4
    assert slowest(seats | {3: Seat(node="n2", sight=sight(marked, step=-1))}) == 0
    assert slowest({}) == 0
