"""Where the time of a run went: each second is somewhere, once, whatever the log looks like; and what single incidents cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Fault, How, Line, WatchedBy
from ftsup.report.costs import Cause, by_cause, cause, costs
from ftsup.report.ledger import Ledger, Part, keep
from ftsup.report.story import Moment, between_s, tell
from tests.report.leader import NODES, Leader
from tests.report.logs import ALL, cancelled, hang_and_crash, log_of, requeued, stopped
from tests.world import RULES, World


@pytest.fixture
def leader() -> Leader:
    one = Leader()
    one.grant()
    one.after(10).launch()
    one.after(20).train(1)
    return one


def chain_s(lines: list[Line]) -> float:
    """From line to line, by the clock that counts between them: the oracle for the whole."""
    story, total_s, last = tell([]), 0.0, None
    for n in range(1, len(lines) + 1):
        story = tell(lines[:n])
        total_s += between_s(last, story.last) or 0.0 if last else 0.0
        last = story.last
    return total_s


def sound(ledger: Ledger) -> None:
    """The law of the table."""
    seconds = by_cause(ledger)
    assert all(spent_s >= 0 for spent_s in seconds.values()), seconds
    assert sum(seconds.values()) == pytest.approx(ledger.whole_s)
    assert all(spell.spent_s > 0 or spell.incident is not None for spell in ledger.spells)
    each = costs(ledger)
    assert len(each) == len(ledger.story.incidents)
    assert sum(one.total_s for one in each) <= ledger.whole_s + ledger.idle_s + 1e-6


@pytest.mark.parametrize("made", ALL, ids=lambda made: made.__name__)
def test_each_second_of_a_run_is_somewhere_once(made: Callable[[], list[Line]]) -> None:
    lines = made()
    ledger = keep(lines)
    sound(ledger)
    assert ledger.whole_s + ledger.idle_s == pytest.approx(chain_s(lines))
    assert ledger.story == tell(lines)


LOGS = [made() for made in ALL]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_each_second_is_somewhere_once_in_logs_with_holes_with_torn_ends_and_with_clocks_that_jump(data: st.DataObject) -> None:
    lines = data.draw(st.sampled_from(LOGS))
    lines = lines[data.draw(st.integers(0, len(lines))) :][: data.draw(st.integers(0, len(lines)))]
    gone = data.draw(st.sets(st.integers(0, max(len(lines) - 1, 0)), max_size=20))
    jump_s, late = data.draw(st.sampled_from([0.0, -500.0, 500.0])), data.draw(st.integers(0, len(lines)))
    mangled = [
        replace(line, event=replace(line.event, t=line.event.t + (jump_s if n >= late else 0.0)))
        for n, line in enumerate(lines)
        if n not in gone
    ]
    wall = data.draw(st.sampled_from([None, "", "soon", "2020-01-01T00:00:00+00:00"]))
    sound(keep([line if wall is None else replace(line, wall=wall) for line in mangled]))


def parts_s(ledger: Ledger) -> dict[Part, float]:
    return {part: sum(spell.spent_s for spell in ledger.spells if spell.part is part) for part in {s.part for s in ledger.spells}}


def test_a_hang_is_quiet_then_stopped_then_restarted_and_the_quiet_is_no_training(leader) -> None:
    leader.after(60).hang(at=118)
    leader.after(4).end_attempt()
    leader.after(7).launch(checkpoint=100)
    leader.after(30).train(101)
    leader.after(9).take(ev.Tick())
    (cost,) = costs(keep(leader.lines))
    assert (cost.quiet_s, cost.stop_s, cost.restart_s, cost.total_s) == (5.2, 4.0, 37.0, pytest.approx(46.2))
    seconds = by_cause(keep(leader.lines))
    assert seconds[Cause.HANG] == pytest.approx(46.2)
    assert seconds[Cause.STARTUP] == 30.0
    assert seconds[Cause.TRAINING] == pytest.approx(60 - 5.2 + 9)


def test_a_hang_that_was_held_because_all_waited_for_storage_was_quiet_since_then(leader) -> None:
    faults = tuple(
        Fault(how=How.STORAGE, node=node, rank=rank, step=118, phase="step", quiet_s=120.0, limit_s=120.0)
        for rank, node in enumerate(NODES)
    )
    leader.after(200)
    for fault in faults:
        leader.take(ev.Stalled(node=fault.node, epoch=leader.epoch, faults=(fault,)))
    for _ in range(2):  # the first one asks Slurm how long the job has
        leader.after(1740).take(ev.Tick())
    leader.end_attempt()
    (cost,) = costs(keep(leader.lines))
    assert cost.quiet_s == pytest.approx(3600.0)


def test_a_storage_that_came_back_costs_nothing_that_is_known(leader) -> None:
    fault = Fault(how=How.STORAGE, node="n1", rank=0, step=118, phase="step", quiet_s=120.0, limit_s=120.0)
    leader.after(200).take(ev.Stalled(node="n1", epoch=leader.epoch, faults=(fault,)))
    leader.after(100).take(ev.Moving(node="n1", epoch=leader.epoch))
    leader.after(300).hang(at=130)
    leader.after(1).end_attempt()
    (cost,) = costs(keep(leader.lines))
    assert cost.quiet_s == 5.2


def test_steps_that_are_made_again_are_taken_out_of_training_at_the_measured_step(leader) -> None:
    leader.after(100).train(101)  # a step a second
    leader.after(20).train(121)
    leader.take(ev.RankEnded(node="n1", epoch=leader.epoch, fault=Fault(how=How.SIGNAL, node="n1", rank=0, step=121, signal="SIGKILL")))
    leader.end_attempt()
    leader.after(5).launch(checkpoint=100)
    leader.after(5).train(101)
    ledger = keep(leader.lines)
    assert ledger.measured.step_s == 1.0
    (cost,) = costs(ledger)
    assert (cost.replayed_s, cost.quiet_s) == (21.0, 0.0)
    seconds = by_cause(ledger)
    assert (seconds[Cause.REPLAYED], seconds[Cause.CRASH], seconds[Cause.TRAINING]) == (21.0, 10.0, 99.0)


def test_more_cannot_be_made_again_than_was_trained(leader) -> None:
    leader.after(10).take(ev.Learned(node="n1", epoch=leader.epoch, median_s=5.0))
    leader.hang(at=118)
    leader.end_attempt()
    leader.launch(checkpoint=10)
    leader.after(5).train(11)
    ledger = keep(leader.lines)
    assert ledger.story.incidents[0].replayed == 108
    assert by_cause(ledger)[Cause.TRAINING] == 0.0
    sound(ledger)


def test_a_requeue_costs_the_queue_and_the_start_up_of_the_next_grant(leader) -> None:
    leader.after(100).take(ev.Signalled(signal="SIGTERM"))
    leader.after(2).take(ev.SlurmSaid(state="PENDING", restarts=1))
    leader.grant(1, waited_s=7200.0)
    leader.after(10).launch(checkpoint=1)
    leader.after(50).train(2)
    leader.after(5).take(ev.Tick())
    ledger = keep(leader.lines)
    (cost,) = costs(ledger)
    assert (cost.queue_s, cost.startup_s, cost.unknown_s) == (pytest.approx(7202.0), 60.0, 0.0)
    seconds = by_cause(ledger)
    assert (seconds[Cause.QUEUE], seconds[Cause.STARTUP], seconds[Cause.TRAINING]) == (pytest.approx(7202.0), 90.0, 105.0)


def test_a_grant_that_ended_without_a_word_leaves_time_of_which_nothing_is_known(leader) -> None:
    leader.after(100).train(100)
    leader.grant(1, waited_s=500.0)
    leader.launch(checkpoint=50)
    leader.after(50).train(51)
    ledger = keep(leader.lines)
    (cost,) = costs(ledger)
    assert (cost.unknown_s, cost.startup_s, ledger.story.incidents[0].replayed) == (pytest.approx(500.0), 50.0, 50)
    assert by_cause(ledger)[Cause.UNKNOWN] == pytest.approx(500.0)


def test_the_time_between_the_end_and_being_continued_is_not_counted(leader) -> None:
    for node in NODES:
        leader.after(10).take(ev.AttemptOver(node=node, epoch=leader.epoch, code=0))
    leader.after(3).take(ev.Decided(mirrored=True))
    leader.grant(1, waited_s=86400.0)
    ledger = keep(leader.lines)
    assert ledger.idle_s == pytest.approx(86400.0)
    assert ledger.whole_s == pytest.approx(30 + 20 + 3)
    sound(ledger)


def test_a_leader_that_died_and_was_started_again_cost_no_training(leader) -> None:
    leader.after(100).train(100)
    leader.after(30).take(ev.LeaderStarted(job="7", restarts=0, host="n1", pid=2, nodes=NODES))
    leader.after(10).take(ev.Tick())
    ledger = keep(leader.lines)
    assert (ledger.measured.leaders, parts_s(ledger)) == (1, {Part.STARTUP: 30.0, Part.TRAINING: 140.0})


def test_one_supervisor_that_is_told_to_end_is_no_requeue(leader) -> None:
    """`meant_alone`: the job goes on, and so does the count of training."""
    leader.after(100).take(ev.Terminated(node="n2"))
    leader.after(12).take(ev.SlurmSaid(state="RUNNING"))
    leader.take(ev.NodeUp(node="n2", instance="n2.again"))
    leader.end_attempt()
    leader.after(1).launch(checkpoint=10)
    leader.after(9).train(11)
    leader.after(100).train(111)
    ledger = keep(leader.lines)
    (incident,) = ledger.story.incidents
    assert cause(incident) is Cause.NODE
    assert by_cause(ledger)[Cause.TRAINING] > 180.0


def test_saving_is_taken_out_of_training_as_the_nodes_saw_it(leader) -> None:
    def progress(node: str, step: int, saving_s: float | None) -> None:
        leader.take(
            ev.Progressed(node=node, epoch=leader.epoch, phase="step", step=step, beats=step, by=WatchedBy.STEPS, saving_s=saving_s)
        )

    assert keep(leader.lines).measured.saving_s is None
    leader.after(60)
    progress("n1", 50, 6.0)
    progress("n2", 50, 5.0)
    leader.after(60)
    progress("n1", 100, 4.0)
    ledger = keep(leader.lines)
    assert ledger.measured.saving_s == 10.0
    assert by_cause(ledger)[Cause.SAVING] == 10.0
    assert by_cause(ledger)[Cause.TRAINING] == 110.0


def test_a_restart_that_a_person_asked_for_is_start_up_and_steps_made_again() -> None:
    world = World(steps=90, rules=replace(RULES, beats_s=5.0)).ask("restart", seconds=60.0, from_step=30)
    ledger = keep(log_of(world.run()))
    sound(ledger)
    (wish,) = ledger.wishes
    assert (wish.who, wish.request) == ("ada", "restart")
    assert wish.answer.startswith("ada asked for a restart from step 30: at once")
    assert ledger.story.incidents == ()
    assert ledger.measured.asked_again == pytest.approx(26, abs=4)
    assert by_cause(ledger)[Cause.REPLAYED] == pytest.approx(ledger.measured.asked_again * 1.0)
    starts = [spell.spent_s for spell in ledger.spells if spell.part is Part.STARTUP]
    assert len(starts) == 2, "the grant's, and the one that was asked for"


@pytest.mark.parametrize(
    "how,expected",
    [
        (How.QUIET, Cause.HANG),
        (How.WAITING, Cause.HANG),
        (How.SIGNAL, Cause.CRASH),
        (How.EXCEPTION, Cause.CRASH),
        (How.TORCHRUN, Cause.CRASH),
        (How.NODE, Cause.NODE),
        (How.DEVICE, Cause.NODE),
        (How.PORT, Cause.STARTUP),
    ],
)
def test_every_fault_counts_as_something(leader, how, expected) -> None:
    leader.hang()
    incident = keep(leader.lines).story.incidents[0]
    assert cause(replace(incident, root=Fault(how=how, node="n1"))) is expected


def test_no_fault_of_a_rank_is_without_a_cause(leader) -> None:
    leader.hang()
    incident = keep(leader.lines).story.incidents[0]
    unknown = {how for how in How if cause(replace(incident, root=Fault(how=how, node="n1"))) is Cause.UNKNOWN}
    assert unknown == {How.RETURNED, How.WARNED}, "what is no fault begins no incident"


def test_a_save_on_request_is_measured_from_the_agreement_to_its_end() -> None:
    ledger = keep(requeued())
    assert ledger.measured.ears is ev.Ears.ASKS
    assert 2.0 <= ledger.measured.asked_s <= 8.0
    assert ledger.measured.late_saves == 0


def test_a_save_that_the_time_limit_did_not_wait_for_is_counted() -> None:
    world = World(steps=300, script="asks").limit(120.0)
    world.save_s = 500.0
    lines = [replace(line, wall="") for line in world.run(until=lambda: bool(world.requeues)).log]
    assert keep(lines).measured.late_saves == 1


def test_stories_have_the_causes_that_they_are_about() -> None:
    hung, again, twice, ended = (by_cause(keep(made())) for made in (hang_and_crash, requeued, stopped, cancelled))
    assert hung[Cause.HANG] > 20
    assert hung[Cause.CRASH] > 0
    assert hung[Cause.NODE] > 0
    assert again[Cause.QUEUE] > 10
    assert twice[Cause.CRASH] > 0
    assert {one for one, spent_s in ended.items() if spent_s} == {Cause.TRAINING, Cause.STARTUP}


def test_an_empty_log_has_no_time() -> None:
    ledger = keep([])
    assert (ledger.whole_s, ledger.spells, ledger.story.last) == (0.0, (), None)
    sound(ledger)
    assert Moment() == Moment(wall="", t=0.0, grant=0)
