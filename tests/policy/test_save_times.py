"""Save at beat N against the clock: few ranks and many, short steps and long, slow links on half of the nodes. All ranks or none."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from ftsup.events import Ask
from ftsup.policy.state import Stage
from tests.world import RULES, World

CELLS = [(nodes, step_ms, delay_ms) for nodes in (1, 2, 4) for step_ms in (5, 50, 500) for delay_ms in (0, 20, 100)]


def save_once(*, nodes: int, step_ms: int, delay_ms: int, seed: int) -> World:
    """A training begins, learns what a step takes, and is asked to save."""
    rules = replace(RULES, every_s=0.0)
    world = World(nodes=nodes, ranks=2, steps=10**6, save_every=10**6, rules=rules, script="asks").start()
    world.run(until=lambda: world.state.launched_t is None and world.state.stage is Stage.RUN)
    world.dt, world.step_s, world.save_s, world.jitter = 0.005, step_ms / 1000, 0.02, Random(seed)
    for name in world.names[nodes // 2 :]:
        world.nodes[name].delay_s = delay_ms / 1000
    world.run(until=lambda: all(len(node.state.watch.step_s) > 1 for node in world.nodes.values() if node.state))
    world.warn().run(until=lambda: world.state.answered, limit_s=120)
    return world


def check(world: World) -> None:
    assert len(world.saves) == 1
    assert world.partial() == []
    assert world.verdicts() == []


@pytest.mark.parametrize("seed", range(20))
def test_all_ranks_save_at_one_beat(seed: int) -> None:
    nodes, step_ms, delay_ms = CELLS[(seed * 7) % len(CELLS)]
    check(save_once(nodes=nodes, step_ms=step_ms, delay_ms=delay_ms, seed=seed))


@pytest.mark.drill
@pytest.mark.parametrize("nodes, step_ms, delay_ms", CELLS)
def test_all_ranks_save_at_one_beat_30_seeds_each(nodes: int, step_ms: int, delay_ms: int) -> None:
    proposals = []
    for seed in range(30):
        world = save_once(nodes=nodes, step_ms=step_ms, delay_ms=delay_ms, seed=seed)
        check(world)
        proposals.append(len(world.asked(Ask.PROPOSE)))
    assert sum(proposals) / 30 < 3, "mostly the first proposal is in time"
