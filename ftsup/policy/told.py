"""Why are we being told to stop? TERM has six causes; each is told apart, first by what we did ourselves, then by one answer of Slurm's.

    own flag     we asked for a requeue: that is it (`requeue`)
    RUNNING      another job gets our nodes, later (preemption with grace): save where the script can, go on until Slurm ends the job
                 nothing of the kind: a person's signal. To all nodes, or to the batch script (scancel --full, --batch): an end is
                 wanted, as of any job. To one supervisor: a fault of its node. To the leader alone: nothing
    COMPLETING   the restart count moved: somebody else's requeue (a preemption, an administrator, a node that was drained or is down)
                 preempted: its PreemptMode is CANCEL, and the requeue is ours
                 TimeLimit: the limit came before our requeue, which is made good
                 NodeDown, and it may not be requeued: another job of this run follows
                 no sign of any of these: cancelled, and never again
    no answer    nothing is requeued; `unexplained.json` in the run directory says so, and `ftsup watch` reads it

Part of the leader's machine, pure as the rest; what going on means is the machine's.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import How, LeaderOrder, Request, Verdict, VerdictKind
from ftsup.policy import ending
from ftsup.policy.rules import Rules
from ftsup.policy.spool import LIVES
from ftsup.policy.state import Stage, State

Change = tuple[State, tuple[LeaderOrder, ...]]

NODE_DOWN = "NodeDown"
"""Slurm's reason for a job that it ends since one of its nodes does not answer any more (NODE_FAIL, once it has ended)."""
SCRIPT = "SIGHUP"
"""What the batch script hands on to the leader when it gets SIGTERM."""
ALONE_S = 10.0
"""The job runs, and Slurm says nothing of an end: by then everybody who was meant has been told, and a person did it."""


class Unexplained(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`unexplained.json`: a grant that was told to end, and nobody has said why. Nothing was requeued."""

    job: str
    """As scontrol takes it: `123`, or `120_7`."""
    restarts: int
    """Its restart count then: a higher one shows that it was requeued all the same."""
    signal: str = "SIGTERM"
    wall: str = ""
    """When, for people."""
    why: str = ""
    """Why nobody knows: what Slurm said instead of an answer; empty: it was not heard yet."""


def signalled(state: State, event: ev.Signalled, _rules: Rules) -> Change:
    """TERM at the leader, or at the batch script, and not by our own requeue."""
    return _told(replace(state, signalled=True, script=state.script or event.signal == SCRIPT, told_t=event.t), event.t)


def terminated(state: State, event: ev.Terminated, _rules: Rules) -> Change:
    """TERM at a node: mostly at all of them."""
    if event.node in state.termed:  # once more: a preemption's grace is over
        return _told(replace(state, told_t=event.t), event.t)
    return _told(replace(state, termed=(*state.termed, event.node)), event.t)


def _told(state: State, t: float) -> Change:
    return (state, ()) if state.stage in ending.AT_END - {Stage.TERMED} else ending.find_out(state, t)


def tick(state: State, t: float) -> Change:
    """Ask again, for as long as it makes sense."""
    if state.end_t is not None and t >= state.end_t:
        return unexplained(state)
    asked_s = 0.0 if state.end_t is None else t - (state.end_t - ending.TERMED_S)
    return replace(state, deadline_t=t + max(ending.ASK_AGAIN_S, asked_s / ending.SLOWER)), (ev.AskSlurm(),)


def failed(state: State) -> Change:
    """Slurm did not answer: the word in the run directory says so. `tick` asks again."""
    return state, (ev.Unexplained(),)


def unexplained(state: State) -> Change:
    """Nobody says why. No decision: the run is not over, and nothing of ours requeues it."""
    return replace(state, deadline_t=None, end_t=None), (*ending.leaves(state), ev.Quit(code=ending.TOLD))


def last_words(state: State) -> Change:
    """Told to end, and a node has ended its part: perhaps nothing is left to wait for."""
    return state, (ev.AskSlurm(),) if _deserted(state) else ()


def _deserted(state: State) -> bool:
    """Every node's supervisor has gone, or has said its last. The step's end may not show: a clerk that hangs with its disk is in it."""
    return state.alone or {*state.nodes} <= {*state.over} & {*state.termed}


def goes_on(state: State, event: ev.SlurmSaid) -> bool:
    """Whether the job lives on, and what we did before is what to do: a preemption with grace, or a signal that was not for all of us."""
    if state.stage is not Stage.TERMED or event.completing or event.state not in LIVES or _outdated(state, event):
        return False
    if event.preempted:
        return _trains(state)
    return _by_hand(state, event) and not _all_nodes(state) and not state.script


def _trains(state: State) -> bool:
    """Or did, and one node was told later than the others: after those the nodes are asked anew what runs there (LAUNCH)."""
    asked = state.told_in is Stage.LAUNCH and state.launched_t is None
    return (state.told_in is Stage.RUN or asked) and not state.over and not state.faults


def _asked_t(event: ev.SlurmSaid) -> float:
    return event.t if event.asked_t is None else event.asked_t


def _outdated(state: State, event: ev.SlurmSaid) -> bool:
    """It was asked for before we were told the last time: a controller that takes its time has looked at the job as it was."""
    return _asked_t(event) < state.told_t


def _by_hand(state: State, event: ev.SlurmSaid) -> bool:
    return state.end_t is not None and _asked_t(event) >= state.end_t - ending.TERMED_S + ALONE_S


def _all_nodes(state: State) -> bool:
    return {*state.nodes} <= {*state.termed}


def said(state: State, event: ev.SlurmSaid, rules: Rules) -> Change:
    """What Slurm says of a job that was told to end, where that is the end of this grant."""
    if event.state == "CANCELLED":
        return ending.close(state, ending.cancelled(state, "cancelled (scancel)"), event.t)
    if event.state == "PENDING" or event.restarts > state.restarts:
        return ending.close(state, Verdict(kind=VerdictKind.REQUEUE, reason=_requeued(state, event), rule="elsewhere"), event.t)
    if event.state == "PREEMPTED" or (event.completing and event.preempted):
        reason = "preempted: another job has our nodes, and Slurm (PreemptMode=CANCEL) has ended this one: we requeue it"
        return _bring_back(replace(state, taken=True), event.t, rules, reason)
    if event.state == "TIMEOUT" or (event.completing and event.reason == "TimeLimit"):
        return _timed_out(replace(state, taken=True), event.t, rules)
    if event.state == "DEADLINE" or (event.completing and event.reason == "DeadLine"):
        return ending.close(
            state, Verdict(kind=VerdictKind.STOP, reason="its deadline (--deadline) ended the job", rule="time limit"), event.t
        )
    if event.completing and event.reason == NODE_DOWN and not event.requeueable:
        return _node_lost(state, event.t, rules)
    if event.completing:
        return _completing(state, event)
    if event.state in LIVES and _outdated(state, event):
        return state, (ev.AskSlurm(),)
    if event.state in LIVES and event.preempted:
        return _bring_back(state, event.t, rules, "another job gets our nodes (preemption), and nothing trains here: requeue at once")
    if event.state in LIVES and _by_hand(state, event):
        whom = "the batch script" if state.script and not _all_nodes(state) else "all of it"
        reason = f"SIGTERM was sent to {whom} by hand (scancel --signal, or kill): that is taken for a wish to end it"
        return ending.close(state, ending.cancelled(state, reason), event.t)
    return state, ()


def _completing(state: State, event: ev.SlurmSaid) -> Change:
    """Slurm ends the job, and did not say that it is for another job, for its time, for a node, or to begin again."""
    if not event.reason and not event.code:
        return ending.close(state, ending.cancelled(state, "cancelled (scancel)"), event.t)
    return unexplained(state) if _deserted(state) and state.end_t is not None else (state, ())


def _requeued(state: State, event: ev.SlurmSaid) -> str:
    if state.preempted:
        who = "preempted: another job has our nodes, and Slurm has requeued this one"
    elif event.unfit:
        who = f"requeued by Slurm or an administrator: {'; '.join(event.unfit)}"
    else:
        who = "requeued by somebody else (an administrator, or Slurm for a preemption)"
    return f"{who}: go on from the newest checkpoint"


def _timed_out(state: State, t: float, rules: Rules) -> Change:
    reason = "the time limit ended the job before a requeue was asked for"
    if not rules.can_requeue:
        return ending.close(state, Verdict(kind=VerdictKind.STOP, reason=f"{reason}, and slurm.requeue is off", rule="time limit"), t)
    return ending.leave(state, t, rules, f"{reason}: we requeue it now")


def _node_lost(state: State, t: float, rules: Rules) -> Change:
    """Slurm requeues what may be requeued by itself; this job may not, and its successor is to be submitted while we live."""
    reason = "Slurm has lost a node of the job, and ended the job"
    return _bring_back(replace(state, taken=True, chain=True), t, rules, f"{reason}: another job of this run follows", why=reason)


def _bring_back(state: State, t: float, rules: Rules, reason: str, *, why: str = "preempted: another job got our nodes") -> Change:
    """Requeue for what is nobody's fault, such as a preemption: it spends no budget but the hard cap."""
    wish = state.wish
    if wish is not None and wish.request in {Request.STOP, Request.PAUSE}:
        return ending.close(state, ending.wished(wish, f"when its job ended ({why})"), t)
    kind = VerdictKind.REQUEUE
    if not rules.can_requeue:
        kind, reason = VerdictKind.STOP, f"{why}, and slurm.requeue is off"
    elif state.history.attempts >= rules.policy.hard_cap:
        kind, reason = VerdictKind.STOP, f"{why}, after {state.history.attempts} attempts in this run (policy.hard_cap)"
    return ending.close(state, Verdict(kind=kind, reason=reason, rule=ending.PREEMPTED), t)


def ended_by_it(state: State, event: ev.AttemptOver) -> bool:
    """Whether a preemption's SIGTERM ended a node's ranks: it may reach them directly, and our word that there is time may be late."""
    bad = [fault for fault in event.ended if fault.how not in {How.RETURNED, How.SAVED}]
    return not state.faults and event.code != 0 and all(fault.signal == "SIGTERM" for fault in bad)


def preempted(state: State, t: float, rules: Rules, how: str) -> Change:
    """All ranks have left in the time that a preemption gives: nothing is left to wait for."""
    return _bring_back(state, t, rules, f"another job gets our nodes (preemption), and {how}: requeue")
