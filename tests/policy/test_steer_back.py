"""Back to an earlier step, and on in another job: what a run remembers of its checkpoints, and what it forgets."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Epoch, Request, VerdictKind
from ftsup.policy import machine
from ftsup.policy.state import Checkpoints, State, Wish
from tests.policy.steering import ONE, Desk, asked, attempts, ended
from tests.world import RULES, World

# From an earlier step -----------------------------------------------------------------------------------------------------


def test_from_an_earlier_step_and_a_fault_afterwards_goes_on_with_the_new_branch() -> None:
    """Steps 20 and 30 of the abandoned branch stay where they are, and nothing resumes from them until they are written anew."""
    world = asked("deaf").ask("restart", seconds=40, from_step=15)
    world.run(until=lambda: attempts(world) == ["1.1", "1.2"])
    world.strike("kill", rank=0, step=18).strike("kill", rank=0, step=24).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert world.picks == [0, 10, 10, 20]
    assert world.verdicts() == [(VerdictKind.RESTART, "otherwise")] * 2
    assert (
        "ada asked for a restart from step 15: from step10.pt, of step 10; left behind until they are written anew: step20.pt, step30.pt"
        in (world.news)
    )
    assert world.saves == {}


def test_progress_counts_from_where_a_person_went_back_to() -> None:
    world = asked("deaf").ask("restart", seconds=40, from_step=15)
    world.run(until=lambda: attempts(world) == ["1.1", "1.2"])
    assert world.state.best_step == 10


def test_what_is_left_behind_stays_so_over_requeues_and_continuations() -> None:
    world = asked("deaf").ask("restart", seconds=40, from_step=15)
    world.run(until=lambda: attempts(world) == ["1.1", "1.2"])
    world.requeue_job()
    world.run(until=lambda: len(world.launches) == 3)
    world.ask("stop").run()
    world.continued().run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert world.picks == [0, 10, 10, 10]


def test_from_a_step_that_was_left_behind_it_may_be_chosen_again() -> None:
    world = asked("deaf").ask("restart", seconds=40, from_step=15)
    world.run(until=lambda: attempts(world) == ["1.1", "1.2"])
    world.ask("restart", seconds=3, from_step=25).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert world.picks == [0, 10, 20]


def test_without_such_a_checkpoint_it_is_refused_and_goes_on_from_the_newest() -> None:
    world = asked("deaf").ask("restart", seconds=30, from_step=5).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert world.picks == [0, 20]
    refused = "ada asked for a restart from step 5: refused: no checkpoint of step 5 at most; it goes on from step20.pt"
    assert refused in world.news


def test_before_any_checkpoint_it_begins_from_the_beginning() -> None:
    world = asked("deaf").ask("restart", seconds=8, from_step=5).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert any(text.endswith("no checkpoint of step 5 at most; it begins from the beginning") for text in world.news)


def test_when_only_what_was_left_behind_is_there_a_person_decides() -> None:
    world = asked("deaf").ask("restart", seconds=40, from_step=15)
    world.run(until=lambda: attempts(world) == ["1.1", "1.2"])
    world.stored.remove(10)
    world.strike("kill", rank=0, step=12).run()
    kind, reason = ended(world)
    assert kind is VerdictKind.STOP
    assert reason.startswith("there is no checkpoint but those that a restart from an earlier step left behind (step20.pt, step30.pt)")


@pytest.mark.parametrize("seconds", range(1, 8))
def test_from_an_earlier_step_while_an_attempt_begins(seconds: int) -> None:
    world = World(script="deaf").start()
    world.stored, world.stamps = [10, 20], {10: 1, 20: 2}
    world.ask("restart", seconds=seconds, from_step=10).ask("restart", seconds=seconds, from_step=10, who="bob").run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert world.picks[-1] == 10
    assert world.state.incident == 0


def test_what_is_being_chosen_is_chosen_again_when_another_step_is_wanted() -> None:
    desk = Desk().until_pick().ask(Request.RESTART).ask(Request.RESTART, from_step=7).tell(ev.Tick())
    assert "an attempt is about to begin anyway" in desk.told()[0]
    picks = [order for order in desk.orders if isinstance(order, ev.PickCheckpoint)]
    assert [(str(order.epoch), order.from_step) for order in picks] == [("1.1", None), ("1.2", 7)]
    assert "ada asked for it before" in desk.ask(Request.RESTART, from_step=7).told()[-1]


@pytest.mark.parametrize("seconds", range(19, 36))
def test_a_requeue_by_somebody_else_does_not_lose_the_step(seconds: int) -> None:
    world = asked("deaf").ask("restart", seconds=35, from_step=15)
    world.at(seconds, world.requeue_job).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert world.picks[-1] == 10


def test_a_checkpoint_that_was_left_behind_and_is_sealed_removed_or_quarantined_is_none_any_more() -> None:
    left = tuple(ev.Left(name=name, stamp="1") for name in ("a", "b", "c", "d"))
    desk = Desk().running()
    desk.state = replace(desk.state, checkpoints=Checkpoints(left=left))
    desk.tell(ev.Sealed(epoch=ONE, name="a"), ev.Quarantined(name="b", why="x", path="y"), ev.Pruned(names=("c",)))
    assert [one.name for one in desk.state.checkpoints.left] == ["d"]


def test_many_that_are_left_behind_are_told_in_few_words() -> None:
    desk = Desk()
    desk.state = replace(desk.state, checkpoints=Checkpoints(wish=Wish(request=Request.RESTART, who="ada", from_step=7)))
    left = tuple(ev.Left(name=f"step{n}", stamp="1") for n in range(8, 13))
    desk.until_pick().tell(ev.CheckpointPicked(epoch=ONE, path="/c/step7", name="step7", step=7, left=left))
    assert desk.told()[-1].endswith("from step7, of step 7; left behind until they are written anew: step8, step9, step10 and 2 more")
    desk = Desk()
    desk.state = replace(desk.state, checkpoints=Checkpoints(wish=Wish(request=Request.RESTART, who="ada", from_step=7)))
    desk.until_pick().tell(ev.CheckpointPicked(epoch=ONE, path="/c/step7", name="step7", step=7, left=()))
    assert desk.told()[-1] == "ada asked for a restart from step 7: from step7, of step 7"


# Continued ----------------------------------------------------------------------------------------------------------------


def test_a_continuation_forgets_what_was_spent_and_keeps_what_is_known() -> None:
    world = asked("deaf").strike("error", rank=1, step=12, times=2).run()
    assert ended(world)[0] is VerdictKind.STOP
    incidents, best = world.state.incident, world.state.best_step
    world.continued().run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert (world.state.incident, world.state.history.past, world.state.epoch) == (incidents, (), Epoch(2, 1))
    assert best == 11
    assert world.picks[-1] == 10


def test_a_suspect_is_tried_again_and_another_directory_has_none_of_the_old_names() -> None:
    state = State(checkpoints=Checkpoints(sealed=("a",), suspects=("b",), left=(ev.Left(name="c", stamp="1"),), loaded="d"))
    known = machine.step(state, ev.Continued(n=1, who="ada"), RULES).state.checkpoints
    assert known == Checkpoints(sealed=("a",), left=(ev.Left(name="c", stamp="1"),))
    for key in ("workdir", "checkpoint.dir", "checkpoint.pattern"):
        assert machine.step(state, ev.Continued(n=1, who="ada", changed=(key,)), RULES).state.checkpoints == Checkpoints()


def test_a_leader_that_takes_over_after_a_continuation_does_not_begin_it_again() -> None:
    world = asked().ask("pause", seconds=20).run()
    world.continued()
    world.at(20, world.kill_leader).at(25, world.start_leader).run()
    assert ended(world)[0] is VerdictKind.FINISHED
    assert attempts(world) == ["1.1", "2.1"]
