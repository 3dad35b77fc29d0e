"""Every way to hang: caught within its limit and a tick, with the rank and the line; who only waits is told to be waiting.

One launch of torch takes seconds, so several hangs share a run, one attempt each.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from ftsup import events as ev
from ftsup.events import Epoch, Fault, How, VerdictKind
from ftsup.ports import JobState

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "hangs.py"
HANG = {"step": "6s", "checkpoint": "8s", "first_step": "15s", "init": "90s", "import": "90s", "shutdown": "6s", "stopped": "2s"}
TICK_S = 0.5
SLACK_S = 2.0
"""Two cores, shared with other tests: a look may come so late."""


def submit(site, **config):
    settings = {
        "command": [str(SCRIPT)],
        "resume_args": ["{path}"],
        "checkpoint": {"dir": "ckpt", "pattern": "step*.pt"},
        "workers_per_node": 3,
        "slurm": {"time": "30min"},
        "hang": HANG,
        "policy": {"back_off": "0s", "same_node": 99},
        "env": {"OMP_NUM_THREADS": "1"},
    }
    return site.submit(**{**settings, **config})


class Hangs:
    """One run, and its hangs in turn. Each attempt gets so far that it is progress, and no budget is spent."""

    def __init__(self, site, **config: object) -> None:
        self.run = submit(site, **config)
        self.number = 0

    def trains(self) -> None:
        self.run.until_trains(epoch=Epoch(1, self.number + 1), more=12)

    def strike(self, rank: int, word: str) -> Hang:
        """It trains, then the rank hangs."""
        self.trains()
        if word == "stop":
            self.run.rank(rank).suspend()
        else:
            self.run.once(rank, word)
        return self.caught(rank, word)

    def caught(self, rank: int, word: str) -> Hang:
        """The incident, judged."""
        self.number += 1
        incident = self.run.until_judged(self.number)
        stalled = [event for event in self.run.events(ev.Stalled) if event.epoch == incident.epoch]
        for fault in {fault.rank: fault for event in reversed(stalled) for fault in event.faults}.values():  # told again when others join
            assert fault.limit_s <= fault.quiet_s <= fault.limit_s + 1.5 * TICK_S + SLACK_S, self.run.story()
        hang = Hang(incident.root, {fault.rank: fault for fault in incident.faults}, incident.verdict)
        began = self.run.work / "control" / f"hung.{rank}"
        if began.exists():
            late_s = stalled[-1].t - float(began.read_text()) - incident.root.limit_s
            print(f"{word}: told {late_s:.2f} s after the limit of {incident.root.limit_s:g} s")
            began.unlink()
        assert (hang.root.rank, hang.verdict.kind) == (rank, VerdictKind.RESTART), self.run.story()
        return hang

    def end(self) -> None:
        self.trains()
        self.run.finish()
        assert self.run.until_over().exit_code == 0


class Hang(NamedTuple):
    root: Fault
    ranks: dict[int, Fault]
    verdict: ev.Verdict

    def others_wait(self) -> bool:
        """In a collective, as their stacks say, and not guilty."""
        others = [fault for rank, fault in self.ranks.items() if rank != self.root.rank]
        return len(others) > 0 and all(fault.how is How.WAITING and fault.where for fault in others)


def test_hangs_in_a_data_loaders_worker_and_in_a_save(site) -> None:
    hangs = Hangs(site, workers_per_node=2)
    hangs.run.until(lambda: hangs.run.events(ev.Learned))
    loader = hangs.strike(1, "loader")
    assert loader.root.how is How.QUIET
    assert loader.root.where.endswith("in train")
    assert "waits for its data loader's worker" in loader.root.error
    assert "in __getitem__" in loader.verdict.reason
    assert loader.others_wait()

    save = hangs.strike(0, "save")
    assert (save.root.how, save.root.phase, save.root.limit_s) == (How.QUIET, "checkpoint", 8.0)
    assert save.root.where.endswith("in __reduce__")
    assert save.others_wait()

    hangs.run.until(lambda: Epoch(1, 3) in hangs.run.launches())
    launches = {order.epoch: order for order in hangs.run.orders(ev.Launch)}
    learned = [event.median_s for event in hangs.run.events(ev.Learned) if event.epoch == Epoch(1, 1)]
    assert launches[Epoch(1, 1)].median_s == launches[Epoch(1, 1)].restart_s == 0.0
    assert launches[Epoch(1, 2)].median_s == learned[-1], "what the first attempt learned is in force in the next"
    assert launches[Epoch(1, 3)].restart_s > 1.0
    site.run("scancel", hangs.run.job)
    hangs.run.until_over(state=JobState.CANCELLED)


@pytest.mark.drill
def test_hangs_of_python_and_of_c(site) -> None:
    hangs = Hangs(site)
    lines = {"forward": "in forward", "hook": "in after_step", "gil": "in hold_the_gil", "lock": "in wait_for_a_lock", "leave": "in end"}
    for word, line in lines.items():
        found = hangs.strike(1, word)
        assert (found.root.how, found.root.where.partition(" ")[2]) == (How.QUIET, line)
        assert found.others_wait()
    hangs.end()


@pytest.mark.drill
def test_hangs_below_python_and_before_the_first_step(site) -> None:
    hangs = Hangs(site)
    stopped = hangs.strike(0, "stop")
    assert stopped.root.how is How.STOPPED
    assert stopped.root.quiet_s <= 2.0 + 1.5 * TICK_S + SLACK_S

    hangs.trains()
    hangs.run.once(2, "before")
    kernel = hangs.strike(1, "kernel")
    assert kernel.root.how is How.STORAGE
    assert kernel.root.error.startswith("in state D at")
    assert kernel.others_wait()

    before = hangs.caught(2, "before")
    assert (before.root.how, before.root.phase, before.root.limit_s) == (How.QUIET, "first_step", 15.0)
    assert before.root.where.endswith("in main")
    assert before.others_wait()

    barrier = hangs.strike(1, "leave for a barrier")
    assert (barrier.root.how, barrier.root.where.partition(" ")[2]) == (How.WAITING, "in end")
    assert barrier.others_wait()
    hangs.end()


@pytest.mark.drill
@pytest.mark.parametrize("word", ["atexit", "thread"])
def test_a_stuck_exit_is_ended_and_training_is_finished(site, word: str) -> None:
    run = submit(site)
    run.until_trains(more=12)
    run.once(1, word)
    run.finish()
    incident = run.until_judged(1)
    assert (incident.root.rank, incident.verdict.kind) == (1, VerdictKind.FINISHED)
    assert incident.root.phase in {"shutdown", "exited"}
    assert run.until_over().exit_code == 0


@pytest.mark.drill
def test_two_nodes_of_two_ranks(site) -> None:
    """The rank is on the second node; the first node's ranks are told to be waiting."""
    hangs = Hangs(site, workers_per_node=2, slurm={"nodes": 2, "time": "30min"})
    for word in ("forward", "loader", "kernel"):
        found = hangs.strike(3, word)
        assert found.root.node == "mock2"
        assert found.others_wait()
        assert {fault.node for fault in found.ranks.values()} == {"mock1", "mock2"}
    hangs.end()
