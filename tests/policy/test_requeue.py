"""A requeue is believed when Slurm shows it; a chain has one successor; nodes are kept out by whoever comes first, and let in again."""

from __future__ import annotations

from itertools import count

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import VerdictKind
from ftsup.policy import exclusion, requeue
from ftsup.policy.ending import CHAIN_S, SHOWS_S
from ftsup.policy.rules import Budgets, Rules
from ftsup.policy.state import Stage
from tests.policy.test_review import NODES, RULES4, Desk
from tests.world import RULES, World

ENDS = ev.SlurmSaid(state="UNKNOWN", completing=True)
"""COMPLETING, and the restart count as it was: cancelled, most likely."""
SHOWS = ev.SlurmSaid(state="UNKNOWN", completing=True, restarts=1)
RUNS = ev.SlurmSaid(state="RUNNING")
CHAINS = replace(RULES4, chain=True)


def requeueing(rules: Rules = RULES4, *, avoided: tuple[str, ...] = ()) -> Desk:
    """The time limit is near: a requeue is decided and asked for."""
    desk = Desk(rules).running()
    desk.state = replace(desk.state, end_t=desk.t, end_checked=True, history=replace(desk.state.history, avoided=avoided))
    desk.tell(ev.Tick(), ev.Decided(mirrored=True))
    assert desk.state.stage is Stage.REQUEUE
    return desk


def no(op: str, kind: str = "Refused") -> ev.SlurmFailed:
    return ev.SlurmFailed(op=op, kind=kind, why="Requested operation is presently disabled")


def count_of(desk: Desk, kind: type) -> int:
    return sum(isinstance(order, kind) for order in desk.all)


def reason(desk: Desk) -> str:
    assert desk.state.verdict is not None
    return desk.state.verdict.reason


# Believed when seen -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", [SHOWS, ev.SlurmSaid(state="PENDING", restarts=1), ev.SlurmSaid(state="PENDING")])
def test_a_higher_count_or_a_job_that_waits_shows_it(shown: ev.SlurmSaid) -> None:
    desk = requeueing().tell(ev.RequeueAsked(), shown)
    assert (desk.state.seen, desk.state.deadline_t, desk.kinds()) == (True, None, ["Shown"])
    desk.tell(shown)
    assert desk.orders == ()
    desk.tell(ev.Signalled(signal="SIGTERM"))
    assert desk.kinds() == ["Leave", "Leave", "Quit"]


@pytest.mark.parametrize("said", [ENDS, RUNS, ev.SlurmSaid(state="PENDING", completing=True)])
def test_a_job_that_only_completes_is_not_believed_to_be_requeued(said: ev.SlurmSaid) -> None:
    desk = requeueing(avoided=("n2",)).tell(ev.RequeueAsked(), said)
    assert (desk.state.seen, desk.orders) == (False, ())
    desk.tell(ev.Tick(), after=SHOWS_S)
    assert desk.kinds() == ["Requeue"], "Slurm may have taken the request and done nothing"


def test_told_to_end_while_it_completes_without_a_requeue_it_was_cancelled() -> None:
    desk = requeueing().tell(ev.RequeueAsked(), ENDS, ev.Signalled(signal="SIGTERM"))
    assert desk.kinds() == ["AskSlurm"]
    desk.tell(ENDS, ev.Decided(mirrored=True))
    assert (desk.state.stage, reason(desk)) == (Stage.OVER, "cancelled (scancel)")
    assert not any(isinstance(order, (ev.Shown, ev.Avoid)) for order in desk.all)


def test_cancelled_while_it_is_requeued_is_cancelled() -> None:
    desk = requeueing().tell(ev.RequeueAsked(), ev.SlurmSaid(state="CANCELLED", restarts=1))
    assert (desk.state.stage, reason(desk)) == (Stage.CLOSE, "cancelled while it was being requeued")
    desk.tell(ev.Decided(mirrored=True))
    assert desk.state.stage is Stage.OVER


@pytest.mark.parametrize("state", ["TIMEOUT", "FAILED", "NODE_FAIL", "PREEMPTED", "GONE"])
def test_a_job_that_ended_before_leaves_its_requeue_to_others(state: str) -> None:
    desk = requeueing().tell(ev.SlurmSaid(state=state))
    assert desk.kinds() == ["Leave", "Leave", "Quit"]
    assert desk.state.stage is Stage.REQUEUE, "the run is not over"


def test_while_the_controller_is_away_it_is_asked_later_each_time_and_for_ever() -> None:
    desk, waits = requeueing(), []
    assert desk.state.verdict is not None
    desk.state = replace(desk.state, verdict=replace(desk.state.verdict, rule="hello"))
    for _ in range(8):
        desk.tell(no("requeue", "Unavailable"))
        assert desk.state.deadline_t is not None
        waits.append(desk.state.deadline_t - desk.t)
        desk.tell(ev.Tick(), after=waits[-1])
        assert desk.kinds() == ["Requeue"]
    assert waits == [10.0, 20.0, 40.0, 60.0, 60.0, 60.0, 60.0, 60.0]


def test_a_leader_that_takes_over_looks_before_it_asks_again() -> None:
    desk = requeueing().lead()
    assert desk.kinds() == ["Decide", "AskSlurm"]
    desk.tell(SHOWS)
    assert desk.kinds() == ["Shown"]
    assert count_of(desk, ev.Requeue) == 1


def test_what_else_fails_changes_nothing() -> None:
    desk = requeueing()
    before = desk.state
    desk.tell(no("show", "Refused"))
    assert (desk.state, desk.orders) == (before, ())
    desk.tell(no("keep_out"))  # asked for by a leader before us
    assert (desk.state, desk.orders) == (before, ())
    assert Desk().running().tell(ev.RequeueAsked()).orders == ()


# Refused: the chain -------------------------------------------------------------------------------------------------------


def test_a_job_that_may_not_be_requeued_is_followed_by_another() -> None:
    desk = requeueing().tell(no("requeue"))
    assert desk.kinds() == ["AskSlurm"]
    desk.tell(replace(RUNS, requeueable=False))
    (decide,) = desk.orders
    assert isinstance(decide, ev.Decide)
    assert (decide.chain, decide.done, decide.verdict.kind) == (True, False, VerdictKind.REQUEUE)
    assert decide.verdict.reason.endswith("Slurm does not requeue job 7 (the job is not requeueable): another job of this run follows")
    desk.tell(ev.Decided(mirrored=True))
    assert desk.orders[-1] == ev.Requeue(chain=True)
    desk.tell(ev.Chained(job="8"))
    assert desk.kinds() == ["Decide", "Leave", "Leave", "Quit"]
    assert count_of(desk, ev.Requeue) == 2


def test_refused_again_and_again_is_followed_by_another_job_as_well() -> None:
    desk = requeueing()
    for _ in range(2):
        desk.tell(no("requeue"), RUNS, ev.Tick(), after=11.0)
        assert not desk.state.chain
    desk.tell(no("requeue"))
    assert desk.state.chain
    assert "refused 3 times: Requested operation is presently disabled" in reason(desk)


def test_neither_a_requeue_nor_a_successor_stops_the_run() -> None:
    desk = requeueing(CHAINS)
    for _ in range(2):
        desk.tell(no("successor"))
        assert desk.orders == ()
    desk.tell(no("successor"))
    assert desk.state.verdict is not None
    assert (desk.state.verdict.kind, desk.state.verdict.rule) == (VerdictKind.STOP, "refused")


def test_a_successor_is_asked_for_by_one_child_at_a_time_and_found_where_its_answer_was_lost() -> None:
    desk = requeueing(CHAINS)
    assert desk.orders[-1] == ev.Requeue(chain=True)
    desk.tell(ev.Tick(), after=SHOWS_S * 3)
    assert desk.orders == ()
    desk.tell(no("successor", "Unanswered"))
    assert desk.state.deadline_t == desk.t + requeue.LOST_S
    desk.tell(ev.Tick(), after=requeue.LOST_S)
    assert desk.orders == (ev.Requeue(chain=True),)
    assert desk.state.deadline_t == desk.t + CHAIN_S


def test_requeued_by_somebody_while_a_successor_was_asked_for() -> None:
    desk = requeueing(CHAINS).tell(SHOWS)
    assert desk.kinds() == ["Shown"]


@pytest.mark.parametrize("nth", range(5))
@pytest.mark.parametrize("why", ["configured", "refused"])
def test_a_chained_world_goes_on_in_one_other_job_whatever_dies(nth: int, why: str) -> None:
    """The leader is killed at the n-th line from the decision on; the child that submits goes on, and its answer is lost."""
    configured = why == "configured"
    world = World(steps=60, rules=replace(RULES, chain=configured)).start()
    world.requeueable = configured
    world.limit(70)
    lines = count(-nth)
    deciding = (ev.Decide, ev.Requeue, ev.AskSlurm, ev.Quit)
    world.die_after = lambda line: any(isinstance(order, deciding) for order in line.orders) and world.state.verdict and next(lines) == 0
    world.run(limit_s=2000)
    assert world.die_after is None or nth > 1, "it was killed"
    assert world.over is not None
    assert (world.over.kind, world.successors) == (VerdictKind.FINISHED, ["8"])
    assert not configured or world.requeues == []


@pytest.mark.parametrize("rules", [RULES4, CHAINS])
def test_what_was_asked_for_and_has_begun_already_is_not_asked_for_again(rules: Rules) -> None:
    """The log of the run has another leader in it; Slurm may have forgotten the successor by now."""
    desk = requeueing(rules).tell(ev.Superseded(why="job 8 leads"))
    assert desk.kinds() == ["Decide", "Leave", "Leave", "Quit"]
    assert desk.orders[0].done
    desk.tell(ev.Tick(), after=1000.0)
    assert count_of(desk, ev.Requeue) == 1


def test_a_world_that_refuses_requeues_chains() -> None:
    world = World(steps=60).start()
    world.requeueable = False
    world.limit(70)
    world.run(limit_s=2000)
    assert world.over is not None
    assert (world.over.kind, world.successors) == (VerdictKind.FINISHED, ["8"])


# Kept out -----------------------------------------------------------------------------------------------------------------


def test_nodes_are_kept_out_in_the_window_and_then_we_go() -> None:
    desk = requeueing(avoided=("n2",)).tell(ev.RequeueAsked(), SHOWS)
    assert desk.orders == (ev.Shown(), ev.Avoid(nodes=("n2",)))
    desk.tell(ev.Signalled(signal="SIGTERM"))
    assert desk.kinds() == ["AskSlurm"], "not before they are"
    desk.tell(ev.SlurmFailed(op="keep_out", kind="Unavailable", why="away"), ev.Tick(), after=2.0)
    assert desk.orders == (ev.Avoid(nodes=("n2",)),)
    desk.tell(ev.AvoidSet(nodes=("n2",)))
    assert desk.kinds() == ["Leave", "Leave", "Quit"]
    assert desk.state.exclusions.listed == ("n2",)


def test_in_one_errand_the_list_is_known_before_the_requeue_shows() -> None:
    desk = requeueing(avoided=("n2",)).tell(ev.Signalled(signal="SIGTERM"))
    assert desk.kinds() == ["AskSlurm"]
    desk.tell(ev.AvoidSet(nodes=("n2",)))
    assert (desk.state.seen, desk.orders) == (False, ())
    desk.tell(ev.RequeueAsked(), SHOWS)
    assert desk.kinds() == ["Shown", "Leave", "Leave", "Quit"]


def test_a_late_failure_of_what_shows_already_only_asks() -> None:
    desk = requeueing().tell(SHOWS, no("requeue", "Unavailable"), ev.Tick(), after=11.0)
    assert desk.kinds() == ["AskSlurm"]


def test_a_refusal_is_asked_about_and_given_up() -> None:
    desk = requeueing(avoided=("n2",)).tell(SHOWS, ev.Signalled(signal="SIGTERM"), no("keep_out"))
    assert desk.kinds() == ["AskSlurm"], "it may have been cancelled meanwhile"
    desk.tell(SHOWS, no("keep_out"))
    desk.tell(no("keep_out"))
    assert desk.kinds() == ["Notify", "Leave", "Leave", "Quit"]
    assert desk.state.exclusions.listed == ()


def test_one_that_has_no_room_is_told_and_used() -> None:
    desk = requeueing(avoided=("n2", "n3")).tell(SHOWS, ev.AvoidSet(nodes=("n3",), let_in=("n2",)))
    assert [order.text for order in desk.orders if isinstance(order, ev.Notify)] == [
        "n2 may be used again: without them too few nodes remain for this job"
    ]
    again = desk.tell(ev.LeaderStarted(job="7", restarts=1, host="n1", pid=2, nodes=NODES))
    assert again.state.stage is Stage.GATHER


def test_where_it_is_not_clear_which_nodes_can_run_it_that_is_told() -> None:
    desk = requeueing(avoided=("n2",)).tell(SHOWS, ev.AvoidSet(nodes=(), let_in=("n2",), unsure="--constraint=[a|b]"))
    (text,) = [order.text for order in desk.orders if isinstance(order, ev.Notify)]
    assert text.endswith("(which nodes can run it is not clear from --constraint=[a|b]: only such as it had were counted)")


def test_a_list_that_slurm_has_is_not_written_again() -> None:
    desk = requeueing(avoided=("n2",))
    desk.state = replace(desk.state, exclusions=replace(desk.state.exclusions, listed=("n2",)))
    assert desk.tell(SHOWS).kinds() == ["Shown"]


def test_the_next_leader_is_the_third_chance() -> None:
    """Neither the leader nor the batch script could do it, and the node is given again."""
    desk = requeueing(avoided=("n2",))
    desk.state = replace(desk.state, exclusions=replace(desk.state.exclusions, listed=("n2",)))  # somebody has written another list
    spent = desk.state.history.requeues
    desk.tell(ev.LeaderStarted(job="7", restarts=1, host="n1", pid=2, nodes=NODES))
    assert (desk.state.stage, desk.kinds()) == (Stage.CLOSE, ["Decide"])
    assert reason(desk) == "n2 was to be kept out, and is in this allocation: requeue without it"
    assert desk.state.history.requeues == spent + 1
    desk.tell(ev.Decided(mirrored=True), replace(SHOWS, restarts=2))
    assert desk.orders[-1] == ev.Avoid(nodes=("n2",))


@pytest.mark.parametrize("rules", [replace(RULES4, can_requeue=False), replace(RULES4, policy=Budgets(requeues=1))])
def test_where_nothing_can_be_requeued_any_more_the_node_is_used(rules: Rules) -> None:
    desk = Desk(rules)
    desk.lead()
    desk.state = replace(desk.state, history=replace(desk.state.history, avoided=("n2",), requeues=1))
    desk.tell(ev.LeaderStarted(job="7", restarts=1, host="n1", pid=2, nodes=NODES))
    assert desk.state.stage is Stage.GATHER


def test_another_allocation_begins_at_once() -> None:
    desk = requeueing(avoided=("n2",)).tell(ev.LeaderStarted(job="7", restarts=1, host="n1", pid=2, nodes=("n1", "n3")))
    assert desk.state.stage is Stage.GATHER


def test_a_node_is_let_in_again_when_its_time_is_over() -> None:
    rules = replace(RULES4, policy=Budgets(avoid_for_s=1000.0))
    desk = requeueing(rules, avoided=("n2",))
    desk.tell(SHOWS, ev.AvoidSet(nodes=("n2",)))
    desk.tell(ev.LeaderStarted(job="7", restarts=1, host="n3", pid=2, nodes=("n3",)), after=5000.0)  # so long in the queue
    assert desk.state.history.avoided == ("n2",), "the time in the queue mends nothing"
    desk.tell(RUNS, after=900.0).tell(RUNS, after=150.0)
    desk.tell(ev.LeaderStarted(job="7", restarts=2, host="n3", pid=2, nodes=("n3",)))
    assert (desk.state.history.avoided, desk.state.exclusions.expired) == ((), ("n2",))
    desk.state = replace(desk.state, end_t=desk.t, end_checked=True)
    desk.tell(ev.Tick(), ev.Decided(mirrored=True), replace(SHOWS, restarts=3))
    assert desk.orders[-1] == ev.Avoid(nodes=(), drop=("n2",))
    desk.tell(ev.AvoidSet(nodes=()))
    assert exclusion.wanted(desk.state) is None


def test_for_good_where_no_time_is_set() -> None:
    rules = replace(RULES4, policy=Budgets(avoid_for_s=0.0))
    desk = requeueing(rules, avoided=("n2",)).tell(SHOWS, ev.AvoidSet(nodes=("n2",)))
    desk.tell(replace(SHOWS), after=1e7).tell(ev.LeaderStarted(job="7", restarts=1, host="n3", pid=2, nodes=("n3",)))
    assert desk.state.history.avoided == ("n2",)


def test_a_leader_outside_of_a_requeue_only_remembers_what_slurm_has() -> None:
    desk = Desk().running().tell(ev.AvoidSet(nodes=("n9",)))
    assert (desk.state.exclusions.listed, desk.orders) == (("n9",), ())


def test_a_world_without_room_trains_on_what_there_is() -> None:
    world = World(nodes=2, steps=200, rules=replace(RULES, policy=Budgets(same_node=2))).start()
    world.usable = 2
    world.strike("kill", rank=0, step=20).strike("kill", rank=0, step=40).strike("kill", rank=0, step=60).run(limit_s=4000)
    assert world.over is not None
    assert world.over.kind is VerdictKind.FINISHED
    assert world.excluded == set()
