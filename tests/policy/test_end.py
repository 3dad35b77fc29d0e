"""The time limit in the fake world: no signal comes, Slurm does not answer, an admin moves it, and a warning that was for nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import VerdictKind
from ftsup.policy.rules import Rules
from tests.policy.test_save import ASKS, DEAF, EVERY, LISTENS, decided, finished, good
from tests.world import RULES, World

BEGAN = 1000.0
MARGIN_S = RULES.end_margin_s + RULES.kill_wait_s


def limited(seconds: float, *, script: str = ASKS, rules: Rules = RULES) -> World:
    """A time limit, and no signal before it."""
    world = World(script=script, steps=900, save_every=1000, rules=rules)
    world.limit_t = world.t + seconds
    return world.start()


def requeued(world: World) -> World:
    """Until it asks for the requeue; each save is on all ranks, and the log replays to the same orders."""
    return good(world.run(until=lambda: bool(world.requeues)))


def after(world: World, seconds: float, left_s: float) -> World:
    """An admin sets what is left."""
    return world.at(seconds, lambda: setattr(world, "limit_t", world.t + left_s))


@pytest.mark.parametrize("script", LISTENS)
def test_without_a_signal_the_leader_knows_the_end_by_slurms_clock(script: str) -> None:
    world = requeued(limited(200, script=script))
    assert len(world.saves) == 1
    assert BEGAN + 200 - RULES.warning_s <= world.t < BEGAN + 200 - RULES.warning_s + 20
    assert "training is saved at step" in decided(world)[0][1]


def test_a_script_that_does_not_listen_is_requeued_in_time_and_nothing_is_asked_of_it() -> None:
    world = requeued(limited(200, script=DEAF))
    assert world.saves == {}
    assert BEGAN + 200 - MARGIN_S - 2 <= world.t <= BEGAN + 200 - MARGIN_S + 6
    assert [text for text in world.news if "nothing can be saved on request" in text] == world.news[:1]


def test_slurm_that_is_away_when_the_warning_is_due_keeps_nobody_from_saving() -> None:
    world = limited(200).at(100, lambda: setattr(world, "slurm_away", True))
    requeued(world)
    assert len(world.saves) == 1


@pytest.mark.parametrize("seconds", [20, 100, 138])
def test_a_limit_that_was_moved_away_is_followed(seconds: int) -> None:
    """Nothing is saved at the old end, not even where nobody has asked since."""
    world = after(limited(200), seconds, 300)
    requeued(world)
    assert len(world.saves) == 1
    assert world.t > BEGAN + seconds + 300 - RULES.warning_s


def test_a_limit_that_is_moved_away_in_the_save_lets_training_go_on() -> None:
    world = limited(200)
    world.save_s = 10.0
    requeued(after(world, 150, 500))
    assert len(world.saves) == 2
    assert any("training goes on" in text for text in world.news)
    assert world.t > BEGAN + 150 + 500 - RULES.warning_s


def test_a_limit_that_was_moved_near_is_seen_at_the_next_look() -> None:
    world = after(limited(2000, rules=replace(RULES, ask_s=30.0)), 65, 130)
    requeued(world)
    assert len(world.saves) == 1
    assert world.t < BEGAN + 65 + 130 - RULES.warning_s + 20


def test_no_limit_at_all_and_then_one() -> None:
    world = World(script=ASKS, steps=900, save_every=1000, rules=replace(RULES, ask_s=30.0)).start()
    requeued(after(world, 65, 130))
    assert len(world.saves) == 1


def test_a_limit_that_is_taken_away() -> None:
    world = limited(200, rules=replace(RULES, ask_s=30.0)).at(100, lambda: setattr(world, "limit_t", None))
    good(world.run())
    assert finished(world)
    assert (world.saves, world.requeues) == ({}, [])


def test_a_signal_by_hand_that_nobody_could_answer_does_not_keep_the_warning_from_being_heard() -> None:
    """Its ranks missed every proposal, or did not listen yet."""
    world = limited(900, script=DEAF, rules=replace(RULES, ask_s=50.0)).warn(30)
    world.at(60, lambda: [setattr(rank, "script", ASKS) for node in world.nodes.values() for rank in node.ranks])
    world.total = 2000
    requeued(world)
    assert len(world.saves) == 1
    assert "training is saved at step" in decided(world)[0][1]


def test_what_slurm_said_since_the_warning_counts_when_it_is_silent_after_the_save() -> None:
    """A busy controller must not make a requeue of a signal that was sent by hand."""
    world = limited(900).warn(30).at(32, lambda: setattr(world, "slurm_away", True)).at(60, lambda: setattr(world, "slurm_away", False))
    world.save_s = 10.0
    requeued(world)
    assert len(world.saves) == 2
    assert world.t > BEGAN + 900 - RULES.warning_s
    assert "the end is 14 min away: training goes on" in world.news[0]


def test_no_other_save_begins_between_the_warnings_and_slurms_word() -> None:
    """The requeue would come in the middle of it."""
    world = limited(900, rules=replace(EVERY, ask_s=1000.0, every_s=7.0))
    world.save_s = 3.0
    world.at(28, lambda: setattr(world, "slurm_takes_s", 12.0)).at(29, world.ask_slurm)
    requeued(after(world, 30, 100).warn(30))
    assert len({line.event.save for line in world.log if isinstance(line.event, ev.Voted) and line.event.t >= BEGAN + 30}) == 1
    assert world.state.save is None
    assert "training is saved at step" in decided(world)[0][1]


def test_an_end_that_is_suddenly_near_is_a_warning_at_once() -> None:
    """The limit was moved, no signal has come yet, and a busy controller is not asked once more."""
    world = after(limited(900, rules=replace(RULES, ask_s=1000.0)), 60, RULES.warning_s)
    world.at(59, lambda: setattr(world, "slurm_takes_s", 6.0)).at(61, world.ask_slurm)
    good(world.run(until=lambda: bool(world.saves)))
    assert BEGAN + 67 <= world.t <= BEGAN + 71


def test_an_answer_that_calls_the_end_near_counts_whenever_it_was_asked_for() -> None:
    world = limited(150).warn(60).at(58, lambda: setattr(world, "slurm_takes_s", 14.0))
    world.at(59, world.ask_slurm)
    requeued(world)
    assert BEGAN + 72 <= world.t <= BEGAN + 75


@pytest.mark.parametrize("script", LISTENS)
def test_a_busy_controller_is_waited_for_so_that_a_signal_by_hand_requeues_nothing(script: str) -> None:
    world = limited(900, script=script, rules=replace(RULES, ask_s=1000.0)).warn(30)
    world.at(28, lambda: setattr(world, "slurm_takes_s", 8.0))
    world.at(29, world.ask_slurm).at(100, lambda: setattr(world, "slurm_takes_s", 0.0))
    requeued(world)
    assert len(world.saves) == 2
    assert world.t > BEGAN + 900 - RULES.warning_s
    assert [text for text in world.news if "training goes on" in text]


@pytest.mark.parametrize("script", [*LISTENS, DEAF])
@pytest.mark.parametrize("takes_s", [4.0, 8.0, 25.0])
@pytest.mark.parametrize("asked_before_s", [1.0, 3.0])
def test_an_answer_to_a_question_before_the_warning_says_nothing_about_the_end(script: str, takes_s: float, asked_before_s: float) -> None:
    """The limit is moved near while a busy controller has a question in hand, and then it warns."""
    world = limited(900, script=script, rules=replace(RULES, ask_s=1000.0))
    world.at(59, lambda: setattr(world, "slurm_takes_s", takes_s))
    world.at(60 - asked_before_s, world.ask_slurm)
    requeued(after(world, 60, 100).warn(60))
    assert len(world.saves) == (script is not DEAF)
    assert world.t < BEGAN + 60 + 100 - RULES.kill_wait_s
    assert not [text for text in world.news if "training goes on" in text]


def test_the_limit_of_a_run_that_is_not_requeued_is_a_save_and_an_end() -> None:
    world = limited(200, script="exits", rules=replace(RULES, can_requeue=False))
    good(world.run())
    assert len(world.saves) == 1
    assert world.over is not None
    assert world.over.kind is VerdictKind.STOP


def test_a_save_because_it_is_time_serves_the_end_as_well() -> None:
    world = limited(200, rules=replace(EVERY, every_s=133.0))
    world.save_s = 8.0
    requeued(world)
    assert len(world.saves) == 1
