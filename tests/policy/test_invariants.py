"""Whatever strikes, whenever: the laws of the leader hold, and every run comes to an end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import VerdictKind
from ftsup.policy import machine
from ftsup.policy.rules import Budgets
from ftsup.policy.state import State
from tests.world import RULES, World

SMALL = replace(RULES, policy=Budgets(hard_cap=12), every_s=15.0)
WHATS = st.sampled_from(["hang", "stop", "kill", "error", "exit", "stuck-end"])
STRIKES = st.lists(st.tuples(WHATS, st.integers(0, 3), st.integers(1, 40), st.integers(1, 3)), max_size=4)
OUTSIDE = st.sampled_from(["leader", "supervisor", "stop node", "requeue", "away", "refuse", "warn"])
WISHES = st.sampled_from(
    [
        *((request, None, ()) for request in ("cancel", "stop", "pause", "requeue", "restart")),
        *(("restart", step, ()) for step in (10, 25)),
        ("requeue", None, ("n1",)),
    ]
)
ASKS = st.lists(st.tuples(st.integers(1, 150), WISHES), max_size=4)
SCRIPTS = st.sampled_from(["deaf", "asks", "goes on", "exits"])
ACTIONS = st.lists(st.tuples(st.integers(1, 200), OUTSIDE), max_size=5)


def act(world: World, what: str) -> Callable[[], None]:
    """One disturbance from outside, as something to do later."""

    def leader() -> None:
        if world.leader_alive and world.quit is None:
            world.kill_leader()
            world.at(7, lambda: world.start_leader() if world.job_state == "RUNNING" and not world.completing else None)

    def stop_node() -> None:
        node = world.nodes["n1"] if "n1" in world.nodes else next(iter(world.nodes.values()))
        node.stopped = True
        world.at(45, lambda: setattr(node, "stopped", False))

    def slurm_away() -> None:
        world.slurm_away = True
        world.at(60, lambda: setattr(world, "slurm_away", False))

    def refuse() -> None:
        world.refusals = 1

    acts: dict[str, Callable[[], object]] = {
        "leader": leader,
        "supervisor": lambda: world.kill_supervisor(world.names[-1]),
        "stop node": stop_node,
        "requeue": world.requeue_job,
        "away": slurm_away,
        "refuse": refuse,
        "warn": world.warn,
    }
    return lambda: acts[what]() and None


def disturbed(
    strikes: list[tuple[str, int, int, int]],
    actions: list[tuple[int, str]],
    script: str = "deaf",
    asks: Sequence[tuple[int, tuple[str, int | None, tuple[str, ...]]]] = (),
) -> World:
    world = World(rules=SMALL, steps=40, script=script).start()
    for what, rank, step, times in strikes:
        world.strike(what, rank=rank, step=step, times=times, error=f"ValueError: {step}")
    for seconds, what in actions:
        world.at(seconds, act(world, what))
    for seconds, (request, from_step, avoid) in asks:
        world.ask(request, seconds=seconds, from_step=from_step, avoid=avoid)
    return world


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STRIKES, ACTIONS, SCRIPTS, ASKS)
def test_every_run_ends_and_the_log_replays(
    strikes: list[tuple[str, int, int, int]],
    actions: list[tuple[int, str]],
    script: str,
    asks: list[tuple[int, tuple[str, int | None, tuple[str, ...]]]],
) -> None:
    """World checks by itself: never a Launch while something of the old attempt lives, never a COMMIT before every rank has agreed."""
    world = disturbed(strikes, actions, script, asks).run(limit_s=20000)
    assert world.over is not None
    assert world.over.kind in {VerdictKind.FINISHED, VerdictKind.STOP, VerdictKind.CANCELLED, VerdictKind.PAUSED}
    assert all(told == 1 for told in world.answers().values()), "every request is answered, once"
    assert len({epoch for epoch, _ in world.launches}) <= SMALL.policy.hard_cap
    state = State()
    for line in world.log:
        out = machine.step(state, line.event, world.rules)
        assert out.orders == line.orders
        state = out.state
    assert state == world.state


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STRIKES, ACTIONS, st.integers(1, 150))
def test_cancelled_never_comes_back(strikes: list[tuple[str, int, int, int]], actions: list[tuple[int, str]], second: int) -> None:
    world = disturbed(strikes, actions)
    world.at(second, world.cancel_job)
    for _ in range(second + 400):
        world.second()
    cancelled = world.job_state == "CANCELLED"
    assert cancelled or world.over is not None
    if cancelled:
        assert not world.leader_alive


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STRIKES, st.integers(20, 60), st.integers(100, 2000))
def test_a_late_look_never_makes_a_hang(strikes: list[tuple[str, int, int, int]], second: int, away: int) -> None:
    """The whole job is stopped: no rank moved meanwhile, and none is told to have stood still for it."""
    world = disturbed([strike for strike in strikes if strike[0] in {"kill", "error"}], [])

    def stop() -> None:
        world.t += away
        for node in world.nodes.values():
            node.heard_t = world.t
        world.tell(ev.Away(away_s=float(away)))

    world.at(second, stop).run(limit_s=20000)
    stalls = [line.event for line in world.log if isinstance(line.event, ev.Stalled)]
    assert stalls == []


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ACTIONS, ASKS)
def test_a_requeue_is_not_asked_again_once_it_shows(
    actions: list[tuple[int, str]], asks: list[tuple[int, tuple[str, int | None, tuple[str, ...]]]]
) -> None:
    calm = [action for action in actions if action[1] in {"leader", "stop node"}]
    world = disturbed([("hang", 2, 15, 2)], calm, asks=asks).run(limit_s=20000)
    assert len(world.requeues) <= world.restarts


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    ACTIONS,
    st.sampled_from(["asks", "goes on", "exits"]),
    st.lists(st.integers(5, 100), max_size=3),
    st.integers(0, 4),
    st.sampled_from(["", "commit"]),
)
def test_never_half_the_ranks_in_a_save(
    actions: list[tuple[int, str]], script: str, warnings: list[int], delay_s: int, dies_at: str
) -> None:
    """Whatever happens to leaders and links, while no rank dies: all ranks, at one beat, or none; and the time limit is kept."""
    calm = [action for action in actions if action[1] in {"leader", "away", "refuse", "warn"}]
    world = disturbed([], calm, script)
    world.nodes["n2"].delay_s = float(delay_s)
    world.limit(130)
    for seconds in warnings:
        world.warn(seconds)
    if dies_at:
        world.die_after = lambda line: any(isinstance(order, ev.AskRanks) and order.ask is ev.Ask.COMMIT for order in line.orders)
    world.run(limit_s=20000)
    assert world.partial() == []
    assert world.verdicts() == []
    late = any(isinstance(line.event, ev.SlurmSaid) and line.event.state == "TIMEOUT" for line in world.log)
    assert not late or any(what == "away" for _, what in calm), "only a Slurm that answers nobody can keep a requeue from its time"
    assert late or (world.over is not None and world.over.kind is VerdictKind.FINISHED)
