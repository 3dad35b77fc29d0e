"""The node's part in a save: what it makes of its ranks' beats, one look at a time."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Ask, Ears, Epoch, Fault, How
from ftsup.policy import node as noding
from ftsup.policy import nodestate, votes
from ftsup.policy.rules import Rules
from ftsup.policy.votes import View, Votes
from ftsup.policy.watch import Watch
from ftsup.worker.beatfile import Beat, Flag, Phase

EPOCH = Epoch(1, 1)
N = 10


def order(ask: Ask, *, save: int = 1, beats: int = N) -> ev.AskRanks:
    return ev.AskRanks(node="n1", epoch=EPOCH, save=save, ask=ask, beats=beats)


def rank(beats: int, *, ack: int = N, flags: Flag = Flag.ASKS, step: int = -1, saved_step: int = -1, writing: int = 0) -> Beat:
    return Beat(pid=1, beats=beats, ack=ack, flags=flags, phase=Phase.STEP, step=step, saved_step=saved_step, writing=writing)


def view(*beats: Beat, ended: tuple[int, ...] = (), base_step: int | None = 100, t: float = 0.0) -> View:
    return View(t=t, beats=dict(enumerate(beats)), ranks=tuple(range(len(beats))), ended=frozenset(ended), base_step=base_step)


def cut(*beats: Beat, rank: int) -> View:
    """The same, and torchrun has ended this rank because another one failed."""
    return replace(view(*beats, ended=(rank,)), cut=frozenset({rank}))


def looks(ask: Ask, *views: View) -> tuple[Votes, list[ev.NodeEvent]]:
    """All that is told in so many looks."""
    state, told = Votes(order=order(ask)), []
    for one in views:
        state, events = votes.look(state, one)
        told += events
    return state, told


TOOK = Flag.ASKS | Flag.TOOK


@pytest.mark.parametrize(
    "beats, ears",
    [
        ((rank(3), rank(5)), Ears.ASKS),
        ((rank(3, flags=Flag.HANDLES), rank(5)), Ears.HANDLER),
        ((rank(3, flags=Flag.ASKS | Flag.HANDLES), rank(5)), Ears.ASKS),
        ((rank(3, flags=Flag(0)), rank(5)), Ears.NONE),
        ((rank(3)._replace(phase=Phase.SHUTDOWN), rank(5, flags=Flag(0))), Ears.ENDED),
    ],
)
def test_the_worst_of_the_ranks_counts(beats: tuple[Beat, ...], ears: Ears) -> None:
    _, (event,) = looks(Ask.COUNT, view(*beats), view(*beats))
    assert isinstance(event, ev.Counted)
    assert (event.least, event.most, event.ears) == (3, 5, ears)


def test_a_rank_without_a_file_has_done_nothing_and_hears_nothing() -> None:
    _, (event,) = looks(Ask.COUNT, View(t=0.0, beats={0: rank(4)}, ranks=(0, 1)))
    assert isinstance(event, ev.Counted)
    assert (event.least, event.most, event.ears) == (0, 4, Ears.NONE)


def test_all_agree_once() -> None:
    _, told = looks(Ask.PROPOSE, view(rank(7, ack=0), rank(8)), view(rank(8), rank(8)), view(rank(9), rank(9)))
    assert [event.ready for event in told if isinstance(event, ev.Voted)] == [True]


def test_a_rank_is_late_only_when_two_looks_say_so() -> None:
    """It writes its beat and its agreement one after the other."""
    between = view(rank(N, ack=0), rank(N))
    state, told = looks(Ask.PROPOSE, between, view(rank(N), rank(N)))
    assert [event.ready for event in told if isinstance(event, ev.Voted)] == [True]
    state, told = looks(Ask.PROPOSE, between, between, between)
    assert [event.ready for event in told if isinstance(event, ev.Voted)] == [False]
    assert votes.look_s(state) is None


def test_a_rank_that_gives_up_after_the_vote_takes_it_back() -> None:
    ready = view(rank(N), rank(N))
    gone = view(rank(N + 1, ack=0), rank(N))
    _, told = looks(Ask.PROPOSE, ready, ready, gone, gone, gone)
    assert [event.ready for event in told if isinstance(event, ev.Voted)] == [True, False]


def test_a_rank_that_has_ended_cannot_agree() -> None:
    _, told = looks(Ask.PROPOSE, view(rank(7), rank(7), ended=(1,)))
    assert [event.ready for event in told if isinstance(event, ev.Voted)] == [False]


def over(*views: View) -> ev.SaveOver:
    _, told = looks(Ask.COMMIT, *views)
    (event,) = told
    assert isinstance(event, ev.SaveOver)
    return event


def test_over_when_all_took_it_and_made_another_step() -> None:
    waiting, saving = view(rank(N), rank(N)), view(rank(N, flags=TOOK), rank(N, flags=TOOK))
    _, told = looks(Ask.COMMIT, waiting, saving, saving, view(rank(N + 1, flags=TOOK), rank(N, flags=TOOK)))
    assert told == []
    event = over(waiting, saving, view(rank(N + 1, flags=TOOK), rank(N + 1, flags=TOOK)))
    assert (event.step, event.missed) == (110, ())


def test_a_save_in_the_background_is_waited_for() -> None:
    took = view(rank(N, flags=TOOK))
    _, told = looks(Ask.COMMIT, took, view(rank(N + 5, flags=TOOK, writing=1)))
    assert told == []
    assert over(took, view(rank(N + 5, flags=TOOK, writing=1)), view(rank(N + 6, flags=TOOK))).step == 110


def test_the_step_is_that_of_n_where_the_rank_is_seen_a_little_later() -> None:
    assert over(view(rank(N)), view(rank(N + 3, flags=TOOK, step=113)), view(rank(N + 4, flags=TOOK, step=114))).step == 110


def test_the_step_is_that_of_now_where_the_script_asks_late() -> None:
    late = view(rank(N + 7, step=117))
    assert over(late, view(rank(N + 9, flags=TOOK, step=119)), view(rank(N + 10, flags=TOOK, step=120))).step == 119


def test_what_the_script_says_that_it_saved_is_believed() -> None:
    assert over(view(rank(N, flags=TOOK)), view(rank(N + 1, flags=TOOK, saved_step=112))).step == 112


def test_a_save_that_the_script_makes_at_the_next_step_is_another_one() -> None:
    """These ranks only meet the one that writes for all: they are through at once, and soon say that they have saved step 111."""
    took, told, further = (rank(N + more, flags=TOOK, saved_step=saved) for more, saved in ((0, 90), (0, 110), (1, 111)))
    assert over(view(took, took), view(told, told), view(further, further)).step == 110
    begun = rank(N + 1, flags=TOOK, saved_step=110)._replace(phase=Phase.CHECKPOINT)
    assert over(view(took, took), view(told, told), view(begun, begun)).step == 110


def test_steps_that_are_not_known_stay_unknown() -> None:
    took, on = rank(N, flags=TOOK), rank(N + 1, flags=TOOK)
    assert over(view(took, base_step=None), view(on, base_step=None)).step is None


def test_who_had_agreed_and_went_on_alone_is_told() -> None:
    alone = rank(N + 1, ack=0)
    event = over(view(rank(N, flags=TOOK), alone), view(rank(N + 1, flags=TOOK), alone))
    assert event.missed == (1,)
    event = over(view(rank(N, flags=TOOK), rank(N), ended=(1,)), view(rank(N + 1, flags=TOOK), rank(N), ended=(1,)))
    assert event.missed == (1,)


def test_who_was_ended_in_its_save_has_not_saved() -> None:
    took, on, told = rank(N, flags=TOOK), rank(N + 1, flags=TOOK), rank(N, flags=TOOK, saved_step=110)
    assert over(view(took, took), cut(took, took, rank=1), cut(on, took, rank=1)).missed == (1,)
    assert over(view(took, took), view(took, on), cut(on, on, rank=1)).missed == ()
    assert over(view(took, took), cut(on, told, rank=1)).missed == ()


def test_a_script_that_counts_its_step_after_the_optimizer_has_saved_the_one_before() -> None:
    proposed, _ = looks(Ask.PROPOSE, view(rank(N - 1, flags=Flag.HANDLES, saved_step=100)))
    committed = votes.take(proposed, order(Ask.COMMIT))
    says, on = view(handled(N, saved_step=109)), view(handled(N + 1, saved_step=109))
    state, _ = votes.look(committed, says)
    assert [event.step for event in votes.look(state, on)[1] if isinstance(event, ev.SaveOver)] == [109]
    state, _ = votes.look(votes.take(Votes(order=order(Ask.PROPOSE), before={0: 109}), order(Ask.COMMIT)), says)
    assert votes.look(state, on)[1] == ()


def handled(beats: int, *, phase: Phase = Phase.STEP, saved_step: int = -1) -> Beat:
    """Its handler was called and came back."""
    return rank(beats, flags=Flag.HANDLES | Flag.TOOK, saved_step=saved_step)._replace(phase=phase)


def test_a_flag_that_is_read_a_few_steps_later_is_waited_for() -> None:
    """One rank of the node saves, the others meet it at the next step."""
    before = [view(handled(N + i), handled(N + i), t=1.0 + i) for i in range(10)]
    saving = view(handled(N + 9, phase=Phase.CHECKPOINT), handled(N + 9), t=11.0)
    through = view(handled(N + 9), handled(N + 9), t=12.0)
    assert looks(Ask.COMMIT, *before, saving, through)[1] == []
    assert over(*before, saving, through, view(handled(N + 10), handled(N + 10), t=13.0)).step == 110
    told = handled(N + 9, saved_step=119)
    assert looks(Ask.COMMIT, *before, view(told, handled(N + 9), t=11.0), view(told, handled(N + 9), t=11.1))[1] == []
    assert over(*before, view(told, handled(N + 9), t=11.0), view(handled(N + 10, saved_step=119), handled(N + 10), t=11.1)).step == 119


def test_a_save_that_is_not_seen_is_not_waited_for_without_end() -> None:
    took, on = view(handled(N), t=1.0), view(handled(N + 50), t=30.9)
    assert looks(Ask.COMMIT, took, on)[1] == []
    assert over(took, on, view(handled(N + 51), t=31.0)).missed == ()


def test_who_leaves_a_few_steps_after_its_handler_has_saved() -> None:
    fault = Fault(how=How.EXIT, node="n1", rank=0, code=3)
    state, _ = looks(Ask.COMMIT, view(handled(N), handled(N)), view(handled(N + 4), handled(N + 4)))
    assert votes.left(state, fault).how is How.SAVED
    state, _ = votes.look(state, view(handled(N + 5, phase=Phase.CHECKPOINT), handled(N + 5)))
    state, _ = votes.look(state, view(handled(N + 5), handled(N + 5)))
    assert votes.left(state, fault).how is How.SAVED
    state, (_,) = votes.look(state, view(handled(N + 6), handled(N + 6)))
    assert votes.left(state, fault).how is How.EXIT


def test_who_leaves_at_the_step_of_a_save_that_was_not_seen_and_those_that_leave_with_it() -> None:
    """Rank 0 has saved between two looks, and says so; the others only leave. Whoever makes another step has not left because of it."""
    left = [Fault(how=How.EXIT, node="n1", rank=number, code=5) for number in (0, 1)]
    state, told = looks(Ask.COMMIT, view(handled(N), handled(N)), view(handled(N + 9, saved_step=119), handled(N + 9)))
    assert told == []
    assert [votes.left(state, fault).how for fault in left] == [How.SAVED, How.SAVED]
    state, (_,) = votes.look(state, view(handled(N + 10, saved_step=119), handled(N + 10)))
    assert [votes.left(state, fault).how for fault in left] == [How.EXIT, How.EXIT]


def test_who_took_it_and_left_is_through() -> None:
    event = over(view(rank(N, flags=TOOK), rank(N, flags=TOOK)), view(rank(N, flags=TOOK), rank(N, flags=TOOK), ended=(0, 1)))
    assert (event.step, event.missed) == (110, ())


@pytest.mark.parametrize(
    "fault, how",
    [
        (Fault(how=How.EXIT, node="n1", rank=0, code=3), How.SAVED),
        (Fault(how=How.RETURNED, node="n1", rank=0, code=0), How.SAVED),
        (Fault(how=How.SIGNAL, node="n1", rank=0), How.SAVED),
        (Fault(how=How.SIGNAL, node="n1", rank=0, signal="SIGKILL"), How.SIGNAL),
        (Fault(how=How.EXCEPTION, node="n1", rank=0), How.EXCEPTION),
        (Fault(how=How.EXIT, node="n1", rank=1, code=3), How.EXIT),
        (Fault(how=How.TORCHRUN, node="n1"), How.TORCHRUN),
    ],
)
def test_how_a_rank_ended_that_had_taken_the_request(fault: Fault, how: How) -> None:
    state, _ = looks(Ask.COMMIT, view(rank(N, flags=TOOK), rank(N)))
    assert votes.left(state, fault).how is how
    gone_on, _ = votes.look(state, view(rank(N + 1, flags=TOOK), rank(N)))
    assert votes.left(gone_on, fault).how is fault.how
    assert votes.left(None, fault).how is fault.how


# In the node's machine ----------------------------------------------------------------------------------------------------


def running() -> nodestate.State:
    return nodestate.State(node="n1", epoch=EPOCH, stage=nodestate.Stage.RUNNING, ranks=(0,), watch=Watch(base_step=100))


def told(acts: tuple[nodestate.Act, ...]) -> list[ev.NodeEvent]:
    return [act.event for act in acts if isinstance(act, nodestate.Tell)]


def glance(state: nodestate.State, beat: Beat) -> tuple[nodestate.State, list[ev.NodeEvent]]:
    state, acts = noding.step(state, nodestate.Glanced(t=1.0, beats={0: beat}), Rules())
    return state, told(acts)


def take(state: nodestate.State, *orders: ev.AskRanks) -> tuple[nodestate.State, tuple[nodestate.Act, ...]]:
    acts: tuple[nodestate.Act, ...] = ()
    for one in orders:
        state, acts = noding.step(state, nodestate.Ordered(t=1.0, order=one), Rules())
    return state, acts


def test_an_order_that_is_repeated_is_answered_again_and_not_written_again() -> None:
    state, acts = take(running(), order(Ask.PROPOSE))
    assert acts == (nodestate.TellRanks(order=order(Ask.PROPOSE)),)
    state, (vote,) = glance(state, rank(5))
    state, acts = take(state, order(Ask.PROPOSE))
    assert acts == (nodestate.Tell(event=vote),)


def test_a_count_takes_back_what_is_proposed_and_the_first_one_writes_nothing() -> None:
    state, acts = take(running(), order(Ask.COUNT, beats=0))
    assert acts == ()
    _, acts = take(state, order(Ask.PROPOSE), order(Ask.COUNT))
    assert acts == (nodestate.TellRanks(order=order(Ask.COUNT)),)


def test_there_is_no_way_back_from_commit_and_an_older_save_is_over() -> None:
    state, _ = take(running(), order(Ask.PROPOSE, save=2), order(Ask.COMMIT, save=2))
    for late in (order(Ask.ABORT, save=2), order(Ask.COUNT, save=2), order(Ask.PROPOSE, save=1)):
        after, acts = take(state, late)
        assert (after, acts) == (state, ())
    _, acts = take(state, order(Ask.COUNT, save=3, beats=0), order(Ask.PROPOSE, save=3))
    assert acts == (nodestate.TellRanks(order=order(Ask.PROPOSE, save=3)),)


def test_where_nothing_runs_nobody_agrees() -> None:
    idle = replace(running(), stage=nodestate.Stage.IDLE)
    answers = [told(take(idle, order(ask))[1]) for ask in (Ask.COUNT, Ask.PROPOSE, Ask.COMMIT)]
    assert [getattr(answer[0], "ears", getattr(answer[0], "ready", None)) for answer in answers[:2]] == [Ears.ENDED, False]
    assert answers[2] == []
    ended = replace(idle, over=ev.AttemptOver(node="n1", epoch=EPOCH, code=0))
    assert told(take(ended, order(Ask.COMMIT))[1]) == [ended.over]
    assert glance(idle, rank(3)) == (idle, [])


def test_looks_are_frequent_while_ranks_wait_and_none_are_made_otherwise() -> None:
    state = running()
    assert votes.look_s(state.save) is None
    seen = [votes.look_s(take(state, order(ask))[0].save) for ask in (Ask.COUNT, Ask.PROPOSE, Ask.COMMIT, Ask.ABORT)]
    assert seen == [0.0, votes.PROPOSED_LOOK_S, votes.SAVING_LOOK_S, None]


def test_what_evidence_finds_of_a_rank_that_left_because_it_was_asked_is_no_other_end() -> None:
    """torchrun does not come to its end."""
    state, _ = take(running(), order(Ask.COMMIT))
    state, _ = glance(state, handled(N))
    fault = Fault(how=How.EXIT, node="n1", rank=0, code=3)
    _, acts = noding.step(state, nodestate.Gathered(t=9.0, incident=1, faults=(fault, replace(fault, how=How.QUIET))), Rules())
    (event,) = told(acts)
    assert isinstance(event, ev.Collected)
    assert [found.how for found in event.faults] == [How.SAVED, How.QUIET]
