"""Which beat is proposed, and when the leader gives up: the test answers for the nodes."""

from __future__ import annotations

from ftsup import events as ev
from ftsup.events import Ask, Ears
from tests.world import World

ASKS = "asks"


def reason(world: World) -> str:
    """Of the first decision."""
    return next(order.verdict.reason for line in world.log for order in line.orders if isinstance(order, ev.Decide))


def counting(world: World, *, seconds: int = 20) -> World:
    """A training that is asked to stop, and whose nodes are answered for by the test."""
    world.start().run(until=lambda: world.t >= 1000 + seconds)
    for node in world.nodes.values():
        node.delay_s = 1e9
        node.outbox.clear()
    world.tell(ev.Asked(request=ev.Request.STOP, who="ada"))
    return world


def answer(world: World, *, least: int = 20, most: int = 20, ears: Ears = Ears.ASKS, step_s: float = 1.0) -> None:
    save = world.state.save
    assert save is not None
    for node in save.waiting:
        world.tell(ev.Counted(node=node, epoch=save.epoch, save=save.number, least=least, most=most, ears=ears, step_s=step_s))


def test_the_lead_doubles_with_each_proposal_that_comes_too_late_until_it_is_given_up() -> None:
    world = counting(World(script=ASKS, steps=500))
    for _ in range(6):
        answer(world)
        save = world.state.save
        assert save is not None
        world.tell(ev.Voted(node="n1", epoch=save.epoch, save=save.number, beats=save.beats, ready=False))
    assert [order.beats - 20 for order in world.asked(Ask.PROPOSE)] == [2, 4, 8, 16, 32, 64]
    assert reason(world).startswith("stopped by ada, nothing could be saved on request: the ranks missed 6 proposals")
    assert world.asked(Ask.ABORT)[-1].beats == 84


def test_the_lead_covers_three_times_the_delay_that_was_seen() -> None:
    world = counting(World(script=ASKS, steps=500))
    world.t += 2.0
    answer(world, step_s=0.5)
    assert world.asked(Ask.PROPOSE)[0].beats == 20 + 2 + 12


def test_answers_to_other_questions_change_nothing() -> None:
    world = counting(World(script=ASKS, steps=500))
    answer(world)
    before, save = world.state, world.state.save
    assert save is not None
    for event in (
        ev.Counted(node="n1", epoch=save.epoch, save=save.number, least=1, most=1, ears=Ears.ASKS),
        ev.Voted(node="n1", epoch=save.epoch, save=save.number, beats=save.beats + 1, ready=True),
        ev.Voted(node="n1", epoch=ev.Epoch(9, 9), save=save.number, beats=save.beats, ready=True),
        ev.SaveOver(node="n1", epoch=save.epoch, save=save.number, step=1),
        ev.SaveOver(node="n1", epoch=save.epoch, save=save.number + 1, step=1),
    ):
        world.tell(event)
        assert world.state == before


def test_ranks_that_end_are_asked_again_and_then_no_more() -> None:
    world = counting(World(script=ASKS, steps=500))
    for _ in range(6):
        answer(world, ears=Ears.ENDED)
        world.t += 2.0
        world.tell(ev.Tick())
    assert "ranks have ended" in reason(world)


def test_nobody_is_called_deaf_in_his_first_steps() -> None:
    world = counting(World(script=ASKS, steps=500))
    answer(world, least=2, ears=Ears.NONE)
    assert world.state.save is not None
    world.t += 2.0
    world.tell(ev.Tick())
    answer(world, least=5, ears=Ears.NONE)
    assert "not every rank calls asked()" in reason(world)


def test_a_proposal_that_nobody_answers_has_an_end() -> None:
    world = counting(World(script=ASKS, steps=500))
    answer(world)
    world.t += 601.0
    world.tell(ev.Tick())
    assert "no answer from n1, n2" in reason(world)
