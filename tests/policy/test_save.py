"""Save on request in the fake world: the two phases, each reason for a save, each nasty moment, and leaders that die in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Ask, Line, VerdictKind
from ftsup.policy import machine, nodestate
from ftsup.policy.rules import HangMode
from ftsup.policy.state import State
from tests.world import RULES, World

EVERY = replace(RULES, every_s=20.0)
ASKS, GOES_ON, EXITS, DEAF = "asks", "goes on", "exits", "deaf"
LISTENS = (ASKS, GOES_ON, EXITS)


def decided(world: World) -> list[tuple[VerdictKind, str]]:
    """All decisions about a grant, in their order."""
    found = [order.verdict for line in world.log for order in line.orders if isinstance(order, ev.Decide)]
    return list(dict.fromkeys((verdict.kind, verdict.reason) for verdict in found))


def replays(world: World) -> None:
    state = State()
    for line in world.log:
        out = machine.step(state, line.event, world.rules)
        assert out.orders == line.orders
        state = out.state
    assert state == world.state


def good(world: World) -> World:
    """What holds after each story."""
    assert world.partial() == []
    replays(world)
    return world


def finished(world: World) -> bool:
    return world.over is not None and world.over.kind is VerdictKind.FINISHED


# checkpoint.every ---------------------------------------------------------------------------------------------------------


def test_every_rank_that_asks_saves_at_the_same_beat_again_and_again() -> None:
    world = good(World(rules=EVERY, script=ASKS, steps=100).run())
    assert finished(world)
    assert [beats for _, beats in world.saves] == [27, 54, 81]
    assert world.verdicts() == []


@pytest.mark.parametrize("script", [GOES_ON, EXITS, DEAF])
def test_handlers_are_not_called_only_because_it_is_time(script: str) -> None:
    world = good(World(rules=EVERY, script=script, steps=100).run())
    assert finished(world)
    assert world.saves == {}
    assert world.asked(Ask.PROPOSE) == []
    assert world.news == ["training finished"]


def test_a_save_of_the_script_itself_puts_ours_off() -> None:
    world = World(rules=EVERY, script=ASKS, steps=60).start()
    for seconds in range(15, 60, 15):
        world.at(seconds, lambda: world.tell(ev.Saved(node="n1", epoch=world.state.epoch, step=1)))
    good(world.run())
    assert world.saves == {}


def test_ranks_that_return_right_after_a_save_are_launched_again_and_then_are_finished() -> None:
    """Whether training is done, or the script ends whenever it is asked, only another launch can show."""
    world = World(rules=EVERY, script=ASKS, steps=27).start()
    good(world.run())
    assert finished(world)
    assert world.saves.popitem()[0][1] == 27
    assert world.verdicts() == []
    assert len(world.launches) == 2
    assert world.news[0] == "all ranks saved and left, and the end is not near: launched again"


def test_a_script_that_leaves_at_each_save_has_an_end() -> None:
    rules = replace(RULES, policy=replace(RULES.policy, hard_cap=3))
    world = World(script=EXITS, steps=1000, rules=rules).start()
    for seconds in (30, 80, 130):
        world.warn(seconds)
    good(world.run())
    assert world.over is not None
    assert world.over.kind is VerdictKind.STOP
    assert world.over.reason == "3 attempts in this run (policy.hard_cap); in the last one all ranks saved and left"


# The warning --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", LISTENS)
@pytest.mark.parametrize("code", [0, 3])
def test_a_warning_saves_and_requeues_at_once_and_the_next_grant_goes_on_from_there(script: str, code: int) -> None:
    world = World(script=script, steps=150, save_every=1000).start().limit(120)
    world.exit_code = code
    good(world.run())
    assert finished(world)
    ((_, ranks),) = world.saves.items()
    assert len(ranks) == 4
    saved = next(iter(ranks.values()))
    assert decided(world)[0] == (VerdictKind.REQUEUE, f"the time limit is near, and training is saved at step {saved}: requeue")
    assert world.requeues[0] < 1000 + 120 - RULES.warning_s + 15
    assert world.log[-1].event is not None
    assert world.base == saved
    assert world.verdicts() == []


def test_a_script_that_does_not_listen_trains_until_the_requeue() -> None:
    world = good(World(script=DEAF, steps=150).start().limit(120).run())
    assert finished(world)
    assert world.asked(Ask.PROPOSE) == []
    assert [text for text in world.news if "nothing can be saved on request" in text] == [world.news[0]]
    assert 1000 + 90 <= world.requeues[0] < 1000 + 120 - 5 - 15 + 6


def test_a_warning_during_the_start_is_served_after_the_first_step() -> None:
    world = World(script=ASKS, steps=150, save_every=1000).start()
    world.limit_t = world.t + 60
    good(world.warn(1).run())
    assert finished(world)
    assert len(world.saves) == 1
    assert decided(world)[0][1].startswith("the time limit is near, and training is saved at step")


def test_a_warning_during_a_save_takes_that_save() -> None:
    world = World(rules=replace(RULES, every_s=30.0), script=ASKS, steps=150, save_every=1000).start()
    world.save_s = 10.0
    world.limit_t = world.t + 100
    saving = [False]

    def warn() -> None:
        saving[0] = any(rank.saving_t for node in world.nodes.values() for rank in node.ranks)
        for node in world.nodes.values():
            world._happen(node, nodestate.Signal(t=world.t, warning=True))  # noqa: SLF001 - the world is ours

    world.at(43, warn).run(until=lambda: bool(world.requeues))
    assert saving == [True]
    assert len(world.saves) == 1
    assert "training is saved at step" in decided(world)[0][1]


def test_a_warning_during_a_hang_saves_nothing_and_does_not_restart_for_a_minute() -> None:
    world = World(script=ASKS, steps=150).strike("hang", rank=3, step=50).start().limit(130)
    good(world.run())
    assert finished(world)
    assert world.saves == {}
    kind, reason = decided(world)[0]
    assert kind is VerdictKind.REQUEUE
    assert "rank 3 on n2 stood still" in reason
    assert reason.endswith("the time limit is near: requeue instead of a restart")
    assert len({epoch.grant for epoch, _ in world.launches}) == len(world.launches) == 2


def test_a_hang_long_before_the_end_is_restarted_although_a_warning_came() -> None:
    world = World(script=DEAF, steps=150).strike("kill", rank=3, step=50).start().warn(30)
    world.limit_t = world.t + 1000
    world.run()
    assert finished(world)
    assert world.verdicts() == [(VerdictKind.RESTART, "otherwise")]


def test_warned_twice_it_saves_once() -> None:
    world = World(script=ASKS, steps=150, save_every=1000).start().limit(120).warn(65)
    good(world.run())
    assert len(world.saves) == 1


def test_warned_a_minute_early_the_requeue_still_follows_the_save() -> None:
    world = World(script=ASKS, steps=300, save_every=1000).start().limit(200, early_s=60.0)
    good(world.run(until=lambda: bool(world.requeues)))
    assert world.t < 1000 + 100
    assert "training is saved at step" in decided(world)[0][1]


@pytest.mark.parametrize("script", LISTENS)
def test_the_signal_sent_by_hand_saves_and_training_goes_on(script: str) -> None:
    world = World(script=script, steps=150, save_every=1000).start()
    world.limit_t = world.t + 4000
    good(world.warn(50).run())
    assert finished(world)
    assert len(world.saves) == 1
    assert world.requeues == []
    assert "the end is 66 min away: training goes on" in world.news[0]
    assert world.verdicts() == []
    assert len(world.launches) == (2 if script == EXITS else 1)


def test_the_warning_comes_again_after_one_that_was_sent_by_hand() -> None:
    world = World(script=ASKS, steps=500, save_every=1000).start().limit(300).warn(50)
    good(world.run(until=lambda: bool(world.requeues)))
    assert len(world.saves) == 2


def test_a_save_that_takes_too_long_does_not_keep_the_requeue() -> None:
    world = World(script=ASKS, steps=300).start().limit(150)
    world.save_s = 500.0
    world.run(until=lambda: bool(world.requeues))
    assert world.t < 1000 + 150 - 5
    assert "the save that was asked for is not through" in decided(world)[0][1]


def test_slurm_that_is_away_does_not_keep_the_requeue() -> None:
    world = World(script=ASKS, steps=300).start().limit(150)
    world.at(85, lambda: setattr(world, "slurm_away", True)).run(until=lambda: bool(world.requeues))
    assert world.t < 1000 + 115


@pytest.mark.parametrize("left_s", [120, 4000])
def test_ranks_that_get_the_signal_itself_leave_one_by_one_and_that_is_no_fault(left_s: int) -> None:
    world = World(script="plain", steps=150, rules=replace(RULES, plain=True)).start().warn(55)
    world.limit_t = world.t + left_s
    world.run()
    replays(world)
    assert finished(world)
    assert world.verdicts() == []
    assert len(world.requeues) == (left_s == 120)
    assert len(world.launches) == 2


def test_without_requeue_the_script_saves_and_the_run_ends_saved() -> None:
    rules = replace(RULES, can_requeue=False)
    world = good(World(script=EXITS, rules=rules, steps=300).start().limit(150).run())
    assert world.over is not None
    assert world.over.kind is VerdictKind.STOP
    assert "left, and slurm.requeue is off" in world.over.reason
    assert world.verdicts() == []


# ftsup stop ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", LISTENS)
def test_stop_saves_and_ends_the_run_with_success(script: str) -> None:
    world = good(World(script=script, steps=500).start().ask("stop", seconds=40).run())
    ((_, ranks),) = world.saves.items()
    assert world.over is not None
    assert world.over.kind is VerdictKind.STOP
    assert world.over.reason == f"stopped by ada, saved at step {ranks[0]}"
    assert world.quit == 0
    assert world.requeues == []
    assert world.verdicts() == []


def test_stop_of_a_deaf_script_ends_it_at_once_and_says_so() -> None:
    world = World(script=DEAF, steps=500).start().ask("stop", seconds=40).run()
    assert world.over is not None
    assert world.over.reason.startswith("stopped by ada, nothing could be saved on request: not every rank calls asked()")
    assert world.quit == 0
    assert world.t < 1000 + 50


@pytest.mark.parametrize("seconds", [1, 3, 4, 5])
def test_stop_during_the_start_ends_it(seconds: int) -> None:
    world = World(script=ASKS, steps=500).start().ask("stop", seconds=seconds).run()
    assert world.over is not None
    assert world.over.reason.startswith("stopped by ada, ")
    assert world.quit == 0
    assert world.t < 1000 + 20


def test_stop_during_a_hang_waits_for_its_end_and_does_not_restart() -> None:
    world = World(script=ASKS, steps=500).strike("hang", rank=3, step=30).start().ask("stop", seconds=40).run()
    assert world.over is not None
    assert world.over.reason.startswith("stopped by ada, the newest checkpoint stands; last: rank 3 on n2 stood still")
    assert len(world.launches) == 1
    assert world.quit == 0


def test_stop_during_a_requeue_stops_the_next_grant_before_it_trains() -> None:
    world = World(script=DEAF, steps=500).start().limit(120)
    world.refusals = 1
    world.run(until=lambda: bool(world.requeues)).ask("stop", seconds=1).run()
    assert world.over is not None
    assert world.over.reason == "stopped by ada, nothing was training: the newest checkpoint stands"
    assert len(world.launches) == 1


def test_stop_and_the_time_limit_is_nearer_than_the_end_of_the_save() -> None:
    world = World(script=ASKS, steps=500).start().limit(120).ask("stop", seconds=50)
    world.save_s = 500.0
    world.run()
    assert world.over is not None
    assert world.over.reason == "stopped by ada, the time limit came before the save was through"
    assert world.requeues == []


def test_stop_twice_and_cancel_afterwards() -> None:
    world = World(script=ASKS, steps=500).start().ask("stop", seconds=40).ask("stop", seconds=41)
    world.save_s = 30.0
    world.ask("cancel", seconds=50).run()
    assert world.over is not None
    assert world.over.kind is VerdictKind.CANCELLED


def test_a_run_that_finishes_before_it_can_be_stopped_is_finished() -> None:
    world = good(World(script=ASKS, steps=50).start().ask("stop", seconds=53).run())
    assert finished(world)


# Nasty moments ------------------------------------------------------------------------------------------------------------


def first(kind: type, ask: Ask | None = None) -> Callable[[Line], bool]:
    """A line with such an event, or with an order of such a word."""

    def matches(line: Line) -> bool:
        orders = [order for order in line.orders if isinstance(order, ev.AskRanks)]
        return isinstance(line.event, kind) and (ask is None or any(order.ask is ask for order in orders))

    return matches


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param((ev.Warned, Ask.COUNT), id="count"),
        pytest.param((ev.Counted, None), id="counted"),
        pytest.param((ev.Counted, Ask.PROPOSE), id="propose"),
        pytest.param((ev.Voted, None), id="voted"),
        pytest.param((ev.Voted, Ask.COMMIT), id="commit"),
        pytest.param((ev.SaveOver, None), id="over"),
    ],
)
@pytest.mark.parametrize("script", LISTENS)
def test_a_leader_that_dies_at_any_stage_is_followed_by_one_that_goes_on(stage: tuple[type, Ask | None], script: str) -> None:
    world = World(script=script, steps=150, save_every=1000).start().limit(130)
    world.die_after = first(*((ev.AttemptOver, None) if stage[0] is ev.SaveOver and script == EXITS else stage))
    good(world.run())
    assert world.die_after is None
    assert finished(world)
    assert len(world.saves) == 1
    assert "training is saved at step" in decided(world)[0][1]


def test_a_leader_that_stays_away_for_longer_than_ranks_wait() -> None:
    """They agreed, and nobody answers: they go on, and the next leader proposes anew."""
    world = World(script=ASKS, steps=150, save_every=1000).start()
    world.at(30, lambda: world._happen(world.nodes["n1"], nodestate.Signal(t=world.t, warning=True)))  # noqa: SLF001
    world.limit_t = world.t + 130

    def dies(line: Line) -> bool:
        if first(ev.Counted, Ask.PROPOSE)(line):
            world.later = [one for one in world.later if one[2] != world.start_leader]
            world.at(40.0, world.start_leader)
        return False

    world.die_after = dies
    world.at(33, world.kill_leader)
    good(world.run())
    assert finished(world)
    assert len(world.saves) == 1


@pytest.mark.parametrize("seconds", range(40, 48))
def test_a_supervisor_that_dies_in_a_save_costs_an_attempt_and_no_more(seconds: int) -> None:
    world = World(script=ASKS, steps=80).start()
    world.rules = replace(world.rules, every_s=35.0)
    world.at(seconds, lambda: world.kill_supervisor("n2")).run()
    replays(world)
    assert finished(world)
    assert world.verdicts() == [(VerdictKind.RESTART, "otherwise")]


def test_a_vote_that_is_lost_with_its_leader_is_given_again() -> None:
    world = World(script=ASKS, steps=150, save_every=1000).start().limit(130)

    def forget() -> None:
        for node in world.nodes.values():
            node.outbox.clear()

    def lose(line: Line) -> bool:
        if not first(ev.Counted, Ask.PROPOSE)(line):
            return False
        world.at(3, forget)
        return True

    world.die_after = lose
    good(world.run())
    assert finished(world)
    assert len(world.saves) == 1


@pytest.mark.parametrize("delay_s", [1.0, 3.0, 8.0])
def test_a_slow_link_makes_the_lead_longer_until_all_are_in_time(delay_s: float) -> None:
    world = World(script=ASKS, steps=400, nodes=4, rules=replace(RULES, every_s=50.0)).start()
    for name in ("n3", "n4"):
        world.nodes[name].delay_s = delay_s
    good(world.run())
    assert finished(world)
    assert len(world.saves) >= 2


def test_a_rank_that_hangs_while_others_wait_is_found() -> None:
    world = World(script=ASKS, steps=80, rules=replace(RULES, every_s=20.0)).start()
    world.strike("hang", rank=2, step=24).run()
    assert finished(world)
    assert world.roots()[0].rank == 2


def test_an_exception_in_the_save_is_an_incident() -> None:
    world = World(script=ASKS, steps=150).strike("error", rank=1, step=62).start().limit(130)
    world.save_s = 1.0
    world.run()
    replays(world)
    assert finished(world)
    assert world.roots()[0].rank == 1


def test_a_node_older_than_the_question_does_not_keep_the_leader_waiting() -> None:
    world = World(script=ASKS, steps=500).start().ask("stop", seconds=40)
    world.at(39, lambda: setattr(world.nodes["n2"], "delay_s", 1e6)).run(limit_s=200)
    assert world.over is not None
    assert "no answer from n2" in world.over.reason


def test_observed_hangs_do_not_end_a_save() -> None:
    rules = replace(RULES, every_s=20.0, hang=replace(RULES.hang, mode=HangMode.OBSERVE, checkpoint_s=3.0))
    world = World(script=ASKS, steps=60, rules=rules).start()
    world.save_s = 8.0
    good(world.run())
    assert finished(world)
    assert len(world.saves) >= 1
