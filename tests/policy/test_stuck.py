"""A run without progress is told of once, by whichever leader is there; one whose steps are unknown never is."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.policy.machine import next_deadline, step
from ftsup.policy.state import State
from ftsup.policy.stuck import follow as stuck_follow
from tests.world import RULES, World


def stuck(world: World) -> list[str]:
    return [order.text for line in world.log for order in line.orders if isinstance(order, ev.Notify) and order.kind == "no progress"]


def after(world: World, seconds: float) -> World:
    end_t = world.t + seconds
    return world.run(until=lambda: world.t >= end_t)


@pytest.fixture
def world() -> World:
    """Ranks that stand still at step 20, and a limit that lets them."""
    rules = replace(RULES, no_progress_s=120.0, hang=replace(RULES.hang, step_s=1e6))
    return World(steps=5000, rules=rules).strike("hang", rank=1, step=20).start()


def test_it_is_told_once_after_its_time_and_wakes_the_machine_for_it(world):
    after(world, 100)
    assert stuck(world) == []
    due_t = world.state.stuck_t
    assert next_deadline(replace(world.state, ask_t=None)) == due_t
    after(world, 100)
    assert stuck(world) == ["no progress for 2 min: step 20 is still the farthest (attempt 1.1, 1 in all)"]
    after(world, 400)
    assert len(stuck(world)) == 1


def test_a_leader_that_takes_over_does_not_tell_it_again(world):
    after(world, 250)
    world.kill_leader()
    after(world, 400)
    assert len(stuck(world)) == 1


def test_with_steps_it_is_never_told():
    world = World(steps=3000, rules=replace(RULES, no_progress_s=120.0)).start()
    after(world, 500)
    assert stuck(world) == []


def test_a_run_that_never_makes_a_step_is_told_as_well_and_the_queue_is_nobodys_fault():
    rules = replace(RULES, no_progress_s=600.0, hello_s=1e6)
    begun = step(State(), ev.LeaderStarted(t=1000.0, job="7", restarts=0, host="n1", pid=1, nodes=("n1",)), rules).state
    before, out = (step(replace(begun, ask_t=None), ev.Tick(t=t), rules) for t in (1599.0, 1600.0))
    assert before.orders == ()
    assert out.orders == (ev.Notify(kind="no progress", text="no progress for 10 min: not one step was made (attempt 1.0, 0 in all)"),)
    again = step(out.state, ev.LeaderStarted(t=50.0, job="7", restarts=1, host="n1", pid=1, nodes=("n1",)), rules).state
    assert again.stuck_t == 650.0


@pytest.mark.parametrize("rules", [{"no_progress_s": 0.0}, {"watched": False}])
def test_where_nobody_wants_it_or_steps_are_unknown_nothing_is_told(world, rules):
    world.rules = replace(world.rules, **rules)
    after(world, 500)
    assert stuck(world) == []


def test_while_steps_are_unknown_a_tick_changes_nothing_and_once_they_are_known_the_time_begins():
    rules = replace(RULES, no_progress_s=600.0, hello_s=1e6)
    begun = step(State(), ev.LeaderStarted(t=1000.0, job="7", restarts=0, host="n1", pid=1, nodes=("n1",)), rules).state
    unknown = step(replace(begun, unknown=True, ask_t=None), ev.Tick(t=1001.0), rules).state
    assert step(unknown, ev.Tick(t=1002.0), rules).state == unknown
    assert unknown.stuck_t is None
    assert stuck_follow(unknown, replace(unknown, unknown=False), 1003.0, rules)[0].stuck_t == 1603.0
