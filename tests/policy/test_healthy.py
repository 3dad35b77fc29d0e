"""Healthy and nasty: trainings that are slow in every way a healthy one can be, and are never killed."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import How, VerdictKind
from ftsup.policy.judge import root
from ftsup.policy.rules import Hang, HangMode
from ftsup.worker.beatfile import Phase
from tests.world import RULES, Rank, World


class Work:
    """What a rank does next: a phase, for how long, and whether it shows signs of life meanwhile."""

    def __init__(self, phase: Phase, seconds: float, *, active: bool = False) -> None:
        self.phase, self.left_s, self.active = phase, seconds, active


class Nasty(World):
    """Ranks with work of their own between two collectives, at which all of them meet. Everything comes from the seed."""

    def __init__(self, seed: int, *, steps: int = 22, **hang: object) -> None:
        self.chance = random.Random(seed)
        self.pace_s = self.chance.choice([1, 2])
        limits = Hang(step_floor_s=6.0 * self.pace_s, **hang)  # the default is 120 s: for steps of 20 s
        super().__init__(nodes=2, ranks=2, steps=steps, rules=replace(RULES, hang=limits))
        self.work: dict[int, list[Work]] = {}
        self.uneven = [1.0, *(self.chance.uniform(1.0, 4.0) for _ in range(3))]
        self.habits = {name: self.chance.random() < 0.5 for name in ("evaluate alone", "save alone", "accumulate", "burst", "uneven")}
        self.burst = 0

    def _train(self) -> None:
        ranks = sorted((rank for node in self.nodes.values() for rank in node.ranks), key=lambda rank: rank.rank)
        if len(ranks) < len(self.names) * self.per_node:
            self.work = {}
            return
        for rank in ranks:
            self._work(rank)
        if any(self.work.get(rank.rank) for rank in ranks) or any(not rank.alive or rank.hangs for rank in ranks):
            return
        for rank in ranks:
            if rank.phase is not Phase.INIT:  # else they have only just begun
                rank.beats += 1
                rank.phase = Phase.STEP
                self._struck(rank, self.base + rank.beats)
            if self.base + rank.beats >= self.total and not rank.hangs:
                self._finish(rank)
            else:
                self.work[rank.rank] = list(self._next(rank))

    def _finish(self, rank: Rank) -> None:
        rank.fault = ev.Fault(how=How.RETURNED, node=rank.node, rank=rank.rank, code=0)
        rank.process = type(rank.process).GONE

    def _work(self, rank: Rank) -> None:
        todo = self.work.get(rank.rank, [])
        if not todo or not rank.alive or rank.hangs:
            return
        first = todo[0]
        if first.phase is not rank.phase or first.active:
            rank.phase = first.phase
            rank.life += 1
        first.left_s -= 1
        if first.left_s <= 0:
            todo.pop(0)
            if first.phase in {Phase.EVALUATION, Phase.CHECKPOINT}:  # back in training
                rank.phase = Phase.STEP
                rank.life += 1

    def _next(self, rank: Rank) -> Iterator[Work]:
        pace_s, beats = self.pace_s, rank.beats
        if beats == 0:
            yield Work(Phase.FIRST_STEP, 60 * pace_s * self.chance.uniform(0.5, 1))
            return
        if beats % 10 == 0 and (rank.rank == 0 or not self.habits["save alone"]):
            yield Work(Phase.CHECKPOINT, 30 * pace_s * self.chance.uniform(0.3, 1))
        if beats % 15 == 0 and (rank.rank == 0 or not self.habits["evaluate alone"]):
            yield Work(Phase.EVALUATION, 40 * pace_s * self.chance.uniform(0.5, 1), active=True)
        if self.habits["burst"] and rank.rank == 0 and self.chance.random() < 0.1:
            self.burst = 3
        slow = self.chance.uniform(5, 15) if self.burst else 1.0
        self.burst -= rank.rank == 0 and self.burst > 0
        if self.habits["uneven"]:
            slow *= self.uneven[rank.rank] if slow == 1.0 else 1.0
        micro = self.chance.randint(8, 16) if self.habits["accumulate"] else 1
        for _ in range(micro):
            yield Work(Phase.STEP, 1, active=micro > 1)
            yield Work(Phase.STEP, max(pace_s * slow / micro - 1, 0))


@pytest.mark.parametrize("block", range(10))
def test_slow_in_every_healthy_way_is_never_killed(block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        world = Nasty(seed).run(limit_s=30000)
        killed = [line for line in world.log if isinstance(line.event, ev.Stalled) or any(isinstance(o, ev.Incident) for o in line.orders)]
        assert world.verdicts() == [], (seed, world.pace_s, world.habits, killed[-3:])
        assert world.over is not None
        assert world.over.kind is VerdictKind.FINISHED


def hung(world: World) -> ev.Fault:
    world.run(until=lambda: bool(world.verdicts()), limit_s=30000)
    return world.roots()[0]


@pytest.mark.parametrize("seed", range(20))
def test_a_hang_among_all_that_is_found_all_the_same(seed: int) -> None:
    rank, step = seed % 4, 6 + seed % 15
    first = hung(Nasty(seed).strike("hang", rank=rank, step=step))
    assert (first.how, first.rank, first.step, first.phase) == (How.QUIET, rank, step, "step")


class Alone(Nasty):
    """Rank 0 saves and evaluates while the others wait for it at the next step."""

    def __init__(self, **hang: object) -> None:
        super().__init__(0, **hang)
        self.habits = {**dict.fromkeys(self.habits, False), "save alone": True, "evaluate alone": True}
        self.stuck: Phase | None = None

    def _train(self) -> None:
        if not self.apart:
            super()._train()
            return
        for rank in (rank for node in self.nodes.values() for rank in node.ranks if not rank.hangs):
            rank.beats += 1

    def _work(self, rank: Rank) -> None:
        super()._work(rank)
        rank.hangs = rank.hangs or rank.phase is self.stuck


def test_who_waits_for_a_save_has_the_limit_of_the_save() -> None:
    world = Alone(checkpoint_s=300.0)
    world.stuck = Phase.CHECKPOINT
    first = hung(world)
    assert (first.how, first.rank, first.phase, first.limit_s) == (How.QUIET, 0, "checkpoint", 300.0)
    assert first.quiet_s <= 301.0
    stalled = [line.event for line in world.log if isinstance(line.event, ev.Stalled)]
    assert {fault.rank for event in stalled for fault in event.faults} == {0, 1, 2, 3}


def test_a_new_leader_waits_for_a_save_no_longer_than_the_old_one() -> None:
    world = Alone(checkpoint_s=300.0)
    world.stuck = Phase.CHECKPOINT
    world.run(until=lambda: world.state.held_s > 0, limit_s=3000)
    world.kill_leader()
    world.at(5, world.start_leader)
    assert hung(world).limit_s == 300.0


def test_who_waited_and_does_not_go_on_after_a_save_hangs() -> None:
    """Rank 0 is through, and steps by itself: the others have the time of a step, and no more."""
    world = Alone(checkpoint_s=300.0)
    world.run(until=lambda: world.state.held_s > 0, limit_s=3000)
    world.run(until=lambda: not world.state.busy, limit_s=3000)
    through_t, world.apart = world.t, True
    for node in world.nodes.values():
        for rank in node.ranks:
            rank.hangs = rank.rank != 0
    first = hung(world)
    assert (first.how, first.phase) == (How.QUIET, "step")
    assert world.t - through_t <= first.limit_s + 10


def test_observe_tells_each_hang_once() -> None:
    world = Nasty(0, mode=HangMode.OBSERVE).strike("hang", rank=1, step=12)
    world.run(until=lambda: bool(world.news), limit_s=3000)
    for _ in range(600):
        world.second()
    (news,) = world.news
    assert "stood still" in news
    assert "hang.mode is observe: nothing is done" in news
    for node in world.nodes.values():
        for rank in node.ranks:
            rank.hangs = False
    world.strike("hang", rank=2, step=20).run(until=lambda: len(world.news) > 1, limit_s=3000)
    for _ in range(600):
        world.second()
    assert len(world.news) == 2
    assert world.verdicts() == []


def test_limits_that_were_learned_hold_after_a_restart_and_after_a_requeue() -> None:
    world = World(steps=300).strike("kill", rank=0, step=100).start()
    world.at(200, world.requeue_job).run(limit_s=3000)
    orders = [order for line in world.log for order in line.orders if isinstance(order, ev.Launch) and order.node == world.names[0]]
    assert [str(order.epoch) for order in orders] == ["1.1", "1.2", "2.1"]
    first, second, third = orders
    assert (first.median_s, first.restart_s) == (0.0, 0.0)
    learned = [line.event for line in world.log if isinstance(line.event, ev.Learned)]
    assert second.median_s == third.median_s == learned[-1].median_s == 1.0
    assert second.restart_s > 0
    assert third.restart_s > 0


def waiting(rank: int, where: str) -> ev.Fault:
    return ev.Fault(how=How.WAITING, node=f"n{rank // 2}", rank=rank, step=7, where=where)


def test_where_all_wait_the_one_that_left_the_loop_is_named() -> None:
    assert root([waiting(0, "train.py:5"), waiting(1, "train.py:5"), waiting(2, "train.py:9"), waiting(3, "train.py:5")]).rank == 2
    assert root([waiting(0, "train.py:5"), waiting(1, "train.py:9")]).rank == 0
