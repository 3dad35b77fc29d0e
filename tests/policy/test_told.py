"""Why are we being told to stop? Each cause, as Slurm tells it, and what follows."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Fault, How, Request, Verdict, VerdictKind
from ftsup.policy import node as noding
from ftsup.policy import nodestate
from ftsup.policy.ending import TERMED_S
from ftsup.policy.nodestate import Stage as NodeStage
from ftsup.policy.state import Stage
from ftsup.policy.told import ALONE_S, SCRIPT
from tests.policy.test_review import NODES, ONE, RULES4, Desk

ENDS = ev.SlurmSaid(state="UNKNOWN", completing=True)
RUNNING = ev.SlurmSaid(state="RUNNING", left_s=5000.0)
GRACE = ev.SlurmSaid(state="RUNNING", left_s=40.0, preempted=True)
DONE = ev.Decided(mirrored=True)
OFF = replace(RULES4, can_requeue=False)


def told(desk: Desk | None = None, *, leader: bool = True) -> Desk:
    """All of a running job was told to end."""
    desk = desk or Desk().running()
    desk.tell(*(ev.Terminated(node=node) for node in NODES))
    if leader:
        desk.tell(ev.Signalled(signal="SIGTERM"))
    assert desk.state.stage is Stage.TERMED
    return desk


def verdict(desk: Desk) -> Verdict:
    assert desk.state.verdict is not None
    return desk.state.verdict


def given(desk: Desk, kind: type) -> list[Any]:
    return [order for order in desk.all if isinstance(order, kind)]


def test_a_word_lies_in_the_run_directory_until_it_is_known() -> None:
    desk = told()
    assert [order.over for order in given(desk, ev.Unexplained)] == [False]
    desk.tell(ev.SlurmFailed(op="show", kind="Unavailable", why="away"), ENDS)
    assert [order.over for order in given(desk, ev.Unexplained)] == [False, False, True]


@pytest.mark.parametrize(
    "said, kind, rule, words",
    [
        (ENDS, VerdictKind.CANCELLED, "cancelled", "scancel"),
        (ev.SlurmSaid(state="CANCELLED"), VerdictKind.CANCELLED, "cancelled", "scancel"),
        (replace(ENDS, restarts=1), VerdictKind.REQUEUE, "elsewhere", "requeued by somebody else"),
        (replace(ENDS, restarts=1, unfit=("n2 is drained (disk)",)), VerdictKind.REQUEUE, "elsewhere", "n2 is drained (disk)"),
        (ev.SlurmSaid(state="PENDING", restarts=1), VerdictKind.REQUEUE, "elsewhere", "requeued by somebody else"),
        (replace(ENDS, preempted=True), VerdictKind.REQUEUE, "preempted", "PreemptMode=CANCEL"),
        (ev.SlurmSaid(state="PREEMPTED", preempted=True), VerdictKind.REQUEUE, "preempted", "PreemptMode=CANCEL"),
        (replace(ENDS, reason="NodeDown", requeueable=False), VerdictKind.REQUEUE, "preempted", "another job of this run follows"),
        (replace(ENDS, reason="TimeLimit"), VerdictKind.REQUEUE, "time limit", "before a requeue was asked for"),
        (ev.SlurmSaid(state="TIMEOUT"), VerdictKind.REQUEUE, "time limit", "before a requeue was asked for"),
        (ev.SlurmSaid(state="DEADLINE"), VerdictKind.STOP, "time limit", "deadline"),
    ],
)
def test_each_cause_by_what_slurm_says(said: ev.SlurmSaid, kind: VerdictKind, rule: str, words: str) -> None:
    found = verdict(told().tell(said))
    assert (found.kind, found.rule) == (kind, rule)
    assert words in found.reason


def test_what_slurm_ends_for_a_lost_node_and_does_not_requeue_has_a_successor_at_once() -> None:
    lost = replace(ENDS, reason="NodeDown", requeueable=False)
    desk = told().tell(lost, DONE)
    assert given(desk, ev.Requeue) == [ev.Requeue(chain=True, ended=True)]
    desk.tell(ev.Chained(job="8"))
    assert desk.kinds() == ["Decide", "Leave", "Leave", "Quit"]
    off = told(Desk(OFF).running()).tell(lost)
    assert (verdict(off).kind, "slurm.requeue is off" in verdict(off).reason) == (VerdictKind.STOP, True)
    itself = told().tell(replace(lost, requeueable=True))
    assert itself.state.verdict is None, "its restart count will move"


def test_preempted_and_not_requeueable_it_has_a_successor_before_it_has_ended() -> None:
    """A submit plugin has taken --requeue away, and PreemptMode is CANCEL."""
    taken = replace(ENDS, preempted=True, requeueable=False)
    desk = told().tell(taken, DONE, ev.SlurmFailed(op="requeue", kind="Refused", why="disabled"), taken, DONE)
    assert given(desk, ev.Requeue) == [ev.Requeue(ended=True), ev.Requeue(chain=True, ended=True)]


def test_it_may_be_cancelled_and_over_before_anybody_has_told_us() -> None:
    found = verdict(Desk().running().tell(ev.SlurmSaid(state="CANCELLED")))
    assert (found.kind, found.reason) == (VerdictKind.CANCELLED, "cancelled (scancel)")


def test_it_may_complete_before_anybody_has_told_us() -> None:
    desk = Desk().running().tell(ENDS)
    assert verdict(desk).kind is VerdictKind.CANCELLED
    assert [order.over for order in given(desk, ev.Unexplained)] == [False, True]


@pytest.mark.parametrize("said", [replace(ENDS, preempted=True), replace(ENDS, reason="TimeLimit")])
def test_what_slurm_itself_has_ended_is_requeued_by_us_although_we_are_told_to_end(said: ev.SlurmSaid) -> None:
    desk = told().tell(said, DONE)
    assert [order.ended for order in given(desk, ev.Requeue)] == [True]
    desk.tell(ev.RequeueAsked(), said)
    assert desk.state.stage is Stage.REQUEUE, "it does not show yet"
    desk.tell(replace(ENDS, restarts=1))
    assert [order.code for order in given(desk, ev.Quit)] == [0]


@pytest.mark.parametrize("said", [replace(ENDS, preempted=True), replace(ENDS, reason="TimeLimit")])
def test_where_requeues_are_off_it_stops(said: ev.SlurmSaid) -> None:
    desk = told(Desk(OFF).running()).tell(said, DONE)
    assert verdict(desk).kind is VerdictKind.STOP
    assert "slurm.requeue is off" in verdict(desk).reason
    assert given(desk, ev.Requeue) == []


def test_a_preemption_stops_at_the_hard_cap_and_for_a_person() -> None:
    capped = replace(RULES4, policy=replace(RULES4.policy, hard_cap=1))
    assert "hard_cap" in verdict(told(Desk(capped).running()).tell(replace(ENDS, preempted=True))).reason
    desk = told()
    desk.tell(ev.Asked(request=Request.STOP, who="ada", id="1"), replace(ENDS, preempted=True))
    assert (verdict(desk).kind, verdict(desk).rule) == (VerdictKind.STOP, "stop asked")


def test_preempted_with_grace_the_ranks_are_asked_to_save_and_train_on() -> None:
    desk = told(leader=False).tell(GRACE)
    assert {order.node for order in given(desk, ev.GoOn)} == set(NODES)
    assert (desk.state.stage, desk.state.preempted, desk.state.warned, desk.state.end_t) == (Stage.LAUNCH, True, True, None)
    assert sum(order.kind == "preempted" for order in given(desk, ev.Notify)) == 1
    desk.tell(*(ev.Launched(node=node, epoch=ONE, pid=1) for node in NODES))
    assert desk.state.stage is Stage.RUN
    desk.tell(*(ev.Progressed(node=node, epoch=ONE, phase="step", step=5, beats=5) for node in NODES))
    assert any(order.ask is ev.Ask.COUNT for order in given(desk, ev.AskRanks))
    desk.tell(GRACE)
    assert sum(order.kind == "preempted" for order in given(desk, ev.Notify)) == 1
    desk.tell(ev.Tick(), after=100.0)
    assert given(desk, ev.Requeue) == [], "Slurm does it by itself"
    found = verdict(told(desk).tell(replace(ENDS, restarts=1)))
    assert (found.rule, "another job has our nodes" in found.reason) == ("elsewhere", True)


def test_the_warning_may_come_for_a_preemption() -> None:
    """PreemptParameters=send_user_signal."""
    desk = Desk().running().tell(ev.Warned(node="n1"), GRACE)
    assert (desk.state.stage, desk.state.preempted, desk.state.end_t) == (Stage.RUN, True, None)
    desk.tell(RUNNING)
    assert not desk.state.preempted


@pytest.mark.parametrize(
    "partial, over, words",
    [
        (False, (), "saved at step 7 for the preemption; training goes on until Slurm ends the job"),
        (True, (), "the save is partial for the preemption; training goes on until Slurm ends the job"),
        (False, NODES, "all ranks saved at step 7 and left"),
    ],
)
@pytest.mark.parametrize("said", ["now", "before"])
def test_saved_for_a_preemption_its_nodes_are_ours_until_slurm_takes_them(partial, over, words: str, said: str) -> None:
    desk = Desk().running()
    desk.state = replace(desk.state, look_t=desk.t + 1.0, warned=True, saved_step=7, partial=partial, over=over, preempted=said == "before")
    if said == "now":
        desk.tell(GRACE)
    else:
        desk.tell(ev.Tick(), after=2.0)
    assert given(desk, ev.Requeue) == [], "Slurm does it by itself"
    found = [order.text for order in given(desk, ev.Notify)] + ([verdict(desk).reason] if over else [])
    assert any(words in text for text in found), found


def test_what_breaks_while_it_is_preempted_is_requeued_and_not_started_again() -> None:
    desk = Desk().running().tell(ev.Warned(node="n1"), GRACE)
    fault = Fault(how=How.SIGNAL, node="n1", rank=0, signal="SIGKILL")
    desk.tell(ev.RankEnded(node="n1", epoch=ONE, fault=fault))
    desk.tell(*(ev.Collected(node=node, epoch=ONE, incident=1) for node in NODES))
    desk.tell(*(ev.AttemptOver(node=node, epoch=ONE, code=1) for node in NODES))
    assert (verdict(desk).kind, verdict(desk).rule) == (VerdictKind.REQUEUE, "preempted")


def test_a_node_that_had_to_end_its_ranks_before_our_word_is_to_blame_for_nothing() -> None:
    desk = told(leader=False).tell(GRACE)
    ended = (Fault(how=How.SIGNAL, node="n1", rank=0, signal="SIGTERM"),)
    desk.tell(ev.AttemptOver(node="n1", epoch=ONE, code=-15, ended=ended))
    assert (verdict(desk).rule, "its signal has ended the ranks on n1" in verdict(desk).reason) == ("preempted", True)
    assert desk.state.incident == 0


def test_preempted_with_grace_where_the_ranks_are_gone_we_requeue_at_once() -> None:
    """Process tracking that hands SIGTERM to everybody."""
    desk = told(leader=False)
    desk.tell(*(ev.AttemptOver(node=node, epoch=ONE, code=-15) for node in NODES))
    desk.tell(GRACE, DONE)
    assert verdict(desk).rule == "preempted"
    assert [order.ended for order in given(desk, ev.Requeue)] == [False], "a job that runs: never what somebody has cancelled meanwhile"


def test_a_signal_to_the_leader_alone_changes_nothing() -> None:
    desk = Desk().running().tell(ev.Signalled(signal="SIGTERM"), RUNNING)
    assert desk.state.stage is Stage.TERMED
    desk.tell(RUNNING, after=ALONE_S)
    assert (desk.state.stage, desk.state.signalled) == (Stage.LAUNCH, False)
    desk.tell(*(ev.Launched(node=node, epoch=ONE, pid=1) for node in NODES))
    assert (desk.state.stage, desk.state.incident, given(desk, ev.Quit)) == (Stage.RUN, 0, [])


def test_a_signal_to_the_batch_script_is_a_wish_to_end_the_job_as_of_any_script() -> None:
    """scancel --full or --batch: the steps hear nothing of it, and their ranks train."""
    desk = Desk().running().tell(ev.Signalled(signal=SCRIPT), ev.Signalled(signal="SIGTERM"), RUNNING)
    assert desk.state.verdict is None
    desk.tell(RUNNING, after=ALONE_S)
    assert (verdict(desk).kind, "to the batch script by hand" in verdict(desk).reason) == (VerdictKind.CANCELLED, True)
    assert "to all of it" in verdict(told().tell(ev.Signalled(signal=SCRIPT)).tell(RUNNING, after=ALONE_S)).reason


def test_where_nothing_ends_the_job_the_batch_script_forgets_what_it_was_told() -> None:
    desk = Desk().running().tell(ev.Signalled(signal=SCRIPT), GRACE)
    assert [(order.over, order.back) for order in given(desk, ev.Unexplained)] == [(False, False), (True, True)]
    assert (desk.state.stage, desk.state.script) == (Stage.LAUNCH, False)
    assert not any(order.back for order in given(told().tell(ENDS), ev.Unexplained)), "it ends"


def test_what_was_seen_while_nobody_knew_is_acted_on_afterwards() -> None:
    desk = Desk().running().tell(ev.Signalled(signal="SIGTERM"))
    ended = (Fault(how=How.EXIT, node="n1", rank=0, code=3),)
    desk.tell(ev.AttemptOver(node="n1", epoch=ONE, code=1, ended=ended), ev.AttemptOver(node="n1", epoch=ONE, code=1, ended=ended))
    desk.tell(RUNNING, after=ALONE_S)
    assert (desk.state.stage, desk.state.incident, desk.state.waiting) == (Stage.COLLECT, 1, ("n2",))
    other = Desk().running().tell(ev.Signalled(signal="SIGTERM"), ev.AttemptOver(node="n1", epoch=ONE, code=1))
    assert [fault.how for fault in other.state.faults] == [How.TORCHRUN]


def test_training_may_have_finished_meanwhile() -> None:
    desk = Desk().running().tell(ev.Signalled(signal="SIGTERM"))
    desk.tell(*(ev.AttemptOver(node=node, epoch=ONE, code=0) for node in NODES))
    desk.tell(RUNNING, after=ALONE_S)
    assert verdict(desk).kind is VerdictKind.FINISHED


def before(stage: Stage) -> Desk:
    """A leader in this stage."""
    desk = Desk()
    if stage is Stage.GATHER:
        return desk.lead()
    if stage is Stage.PICK:
        return desk.gathered()
    if stage is Stage.PREPARE:
        return desk.prepared()
    desk.running()
    if stage is Stage.CLOSE:
        return desk.tell(replace(RUNNING, left_s=10.0), ev.Tick(), replace(RUNNING, left_s=5.0), ev.Tick())
    fault = Fault(how=How.SIGNAL, node="n1", rank=0, signal="SIGKILL")
    desk.tell(ev.RankEnded(node="n1", epoch=ONE, fault=fault))
    if stage in {Stage.STOP, Stage.BACK_OFF}:
        desk.tell(*(ev.Collected(node=node, epoch=ONE, incident=1) for node in NODES))
    if stage is Stage.BACK_OFF:
        desk.state = replace(desk.state, stage=Stage.BACK_OFF, deadline_t=desk.t + 60.0)
    return desk


@pytest.mark.parametrize(
    "was, then",
    [
        (Stage.GATHER, Stage.GATHER),
        (Stage.PICK, Stage.PICK),
        (Stage.PREPARE, Stage.PREPARE),
        (Stage.COLLECT, Stage.STOP),
        (Stage.STOP, Stage.STOP),
        (Stage.BACK_OFF, Stage.BACK_OFF),
        (Stage.CLOSE, Stage.REQUEUE),
    ],
)
def test_it_goes_on_from_where_it_was(was: Stage, then: Stage) -> None:
    desk = before(was)
    assert desk.state.stage is was
    desk.tell(ev.Signalled(signal="SIGTERM"), DONE)
    assert desk.state.stage is Stage.TERMED
    desk.tell(RUNNING, after=ALONE_S)
    if was is Stage.CLOSE:
        desk.tell(DONE)
    assert desk.state.stage is then
    assert given(desk, ev.Quit) == []


def test_nodes_that_came_meanwhile_are_there() -> None:
    desk = Desk().lead().tell(ev.Signalled(signal="SIGTERM"), *(ev.NodeUp(node=node, instance=f"{node}:1") for node in NODES))
    desk.tell(RUNNING, after=ALONE_S)
    assert desk.state.stage is Stage.PICK


def test_a_signal_to_one_supervisor_is_a_fault_of_its_node() -> None:
    desk = Desk().running().tell(ev.Terminated(node="n2"), ev.Terminated(node="n2"), RUNNING)
    desk.tell(RUNNING, after=ALONE_S)
    assert (desk.state.stage, [fault.how for fault in desk.state.faults]) == (Stage.COLLECT, [How.NODE])
    assert given(desk, ev.GoOn) == []


@pytest.mark.parametrize("leader", [True, False])
def test_a_signal_to_all_of_it_is_taken_for_a_wish_to_end_it(leader: bool) -> None:  # noqa: FBT001 - a test parameter
    desk = told(leader=leader).tell(RUNNING)
    assert desk.state.verdict is None
    desk.tell(RUNNING, after=ALONE_S)
    assert (verdict(desk).kind, "by hand" in verdict(desk).reason) == (VerdictKind.CANCELLED, True)
    desk.tell(DONE)
    assert desk.state.stage is Stage.OVER


def late(said: ev.SlurmSaid, asked_t: float) -> ev.SlurmSaid:
    """An answer to a question that was asked then: the controller takes its time."""
    return replace(said, asked_t=asked_t)


def test_an_answer_to_a_question_before_the_end_of_the_grace_does_not_make_it_go_on() -> None:
    """Slurm said that there is time, and meanwhile it is over: with PreemptMode=CANCEL nobody but us would bring the run back."""
    desk = told(leader=False).tell(GRACE, *(ev.Launched(node=node, epoch=ONE, pid=1) for node in NODES))
    assert desk.state.stage is Stage.RUN
    asked_t, went_on = desk.t, len(given(desk, ev.GoOn))
    told(desk).tell(late(GRACE, asked_t))
    assert (desk.state.stage, desk.kinds(), len(given(desk, ev.GoOn))) == (Stage.TERMED, ["AskSlurm"], went_on)
    assert verdict(desk.tell(replace(ENDS, preempted=True))).rule == "preempted"


@pytest.mark.parametrize("more", [ev.Signalled(signal=SCRIPT), ev.Terminated(node="n1")])
def test_nor_does_it_where_the_grace_was_over_before_that_was_answered(more: Any) -> None:
    desk = told(leader=False)
    asked_t = desk.t
    desk.tell(more, late(GRACE, asked_t))
    assert (desk.state.stage, desk.kinds(), given(desk, ev.GoOn)) == (Stage.TERMED, ["AskSlurm"], [])
    assert desk.tell(late(GRACE, desk.t - 0.5)).state.stage is Stage.LAUNCH, "and this one is of now"


def test_a_signal_that_reaches_one_node_later_than_another_is_the_same_one() -> None:
    desk = Desk().running().tell(ev.Terminated(node="n1"))
    asked_t = desk.t
    desk.tell(ev.Terminated(node="n2"), late(GRACE, asked_t))
    assert {order.node for order in given(desk, ev.GoOn)} == set(NODES)


def test_a_node_that_is_told_after_the_others_went_on_goes_on_as_well() -> None:
    """On a slow node the signal is later than Slurm's answer: what trains is not given back at once, unsaved."""
    desk = Desk().running().tell(*(ev.Progressed(node=node, epoch=ONE, phase="step", step=5, beats=5) for node in NODES))
    desk.tell(ev.Terminated(node="n1"), GRACE)
    assert desk.state.stage is Stage.LAUNCH
    desk.tell(ev.Terminated(node="n2"), GRACE)
    assert [order.node for order in given(desk, ev.GoOn)] == ["n1", "n2"]
    desk.tell(*(ev.Launched(node=node, epoch=ONE, pid=1) for node in NODES))
    assert (desk.state.stage, desk.state.verdict) == (Stage.RUN, None)
    assert any(order.ask is ev.Ask.COUNT for order in given(desk, ev.AskRanks))


def test_what_was_asked_before_a_signal_is_of_before_also_while_we_wait_for_our_requeue() -> None:
    desk = before(Stage.CLOSE).tell(DONE)
    assert desk.state.stage is Stage.REQUEUE
    desk.tell(ev.Signalled(signal=SCRIPT))
    assert (desk.state.told_t, desk.kinds()) == (desk.t, ["AskSlurm"])


def test_what_is_only_being_launched_is_given_back_at_once() -> None:
    desk = Desk().prepared().tell(*(ev.Prepared(node=node, epoch=ONE, address="a", port=1) for node in NODES))
    assert desk.state.stage is Stage.LAUNCH
    assert "nothing trains here" in verdict(told(desk, leader=False).tell(GRACE)).reason


def test_that_a_job_ran_before_it_was_told_to_end_proves_no_persons_signal() -> None:
    """An administrator requeues it, and the controller takes ten seconds for an answer."""
    desk = told()
    desk.tell(late(RUNNING, desk.t - 3.0), after=ALONE_S)
    assert (desk.state.verdict, desk.kinds()) == (None, ["AskSlurm"])
    desk.tell(late(RUNNING, desk.t - ALONE_S + 1.0))
    assert desk.state.verdict is None, "a second after the signal"
    assert verdict(desk.tell(replace(ENDS, restarts=1))).rule == "elsewhere"


def test_a_word_that_we_do_not_know_is_no_answer() -> None:
    desk = told().tell(ev.SlurmSaid(state="UNKNOWN"), ev.SlurmSaid(state="UNKNOWN", completing=True, reason="Whatever"))
    assert (desk.state.stage, desk.state.verdict) == (Stage.TERMED, None)


def test_a_leader_that_takes_over_asks_as_well() -> None:
    desk = told().tell(ev.LeaderStarted(job="7", restarts=0, host="n1", pid=2, nodes=NODES))
    assert desk.kinds() == ["AskSlurm", "Unexplained"]
    desk.tell(ev.Tick(), after=TERMED_S)
    assert desk.kinds() == ["Leave", "Leave", "Quit"]


# A node supervisor ----------------------------------------------------------------------------------------------------------


def runs(*, kill_wait_s: float = 30.0) -> nodestate.State:
    return nodestate.State(node="n1", stage=NodeStage.RUNNING, epoch=ONE, kill_wait_s=kill_wait_s, ranks=(0, 1))


def does(state: nodestate.State, *happenings: nodestate.Happening) -> tuple[nodestate.State, list[str]]:
    found: list[str] = []
    for happening in happenings:
        state, acts = noding.step(state, happening, RULES4)
        found += [type(act).__name__ for act in acts]
    return state, found


TERM = nodestate.Signal(t=100.0, warning=False)


def test_a_node_waits_a_moment_for_the_leaders_word() -> None:
    state, acts = does(runs(), TERM)
    assert (acts, noding.told_until_t(state, RULES4)) == (["Tell"], 110.0)
    state, acts = does(state, nodestate.Waited(t=109.9), nodestate.LeaderQuiet(t=109.9))
    assert acts == []
    state, acts = does(state, nodestate.Waited(t=110.0))
    assert (acts, state.leaving, noding.told_until_t(state, RULES4)) == (["EndChild"], True, None)


def test_a_short_kill_wait_leaves_the_ranks_their_time() -> None:
    state, _ = does(runs(kill_wait_s=5.0), TERM)
    assert noding.told_until_t(state, RULES4) == 102.5
    _, acts = noding.step(state, nodestate.Waited(t=102.5), RULES4)
    assert [act.grace_s for act in acts if isinstance(act, nodestate.EndChild)] == [0.5]


def test_the_leader_says_that_there_is_time() -> None:
    state, acts = does(runs(), TERM, nodestate.Ordered(t=101.0, order=ev.GoOn(node="n1")), nodestate.Waited(t=120.0))
    assert (acts, state.stage, state.leaving) == (["Tell"], NodeStage.RUNNING, False)


def test_the_leader_says_that_there_is_none() -> None:
    state, acts = does(runs(), TERM, nodestate.Ordered(t=101.0, order=ev.Leave(node="n1")))
    assert (acts, state.stage) == (["Tell", "EndChild"], NodeStage.ENDING)
    _, acts = does(state, TERM)
    assert acts == ["Tell", "EndChild"]


def test_once_its_ranks_are_gone_there_is_nothing_to_wait_for() -> None:
    state, acts = does(runs(), TERM, nodestate.ChildEnded(t=101.0, code=-15), nodestate.Gone(t=102.0))
    assert acts == ["Tell", "EndChild", "Tell", "Exit"]
    assert state.stage is NodeStage.IDLE


def test_a_node_where_nothing_runs_leaves_at_once() -> None:
    _, acts = does(nodestate.State(node="n1"), TERM)
    assert acts == ["Tell", "Exit"]
