"""A requeue, from the request until Slurm shows it; or, where Slurm requeues nothing, the one job that follows.

Part of the leader's machine, pure as the rest. The law: believed is only what Slurm shows: a higher restart count, or a job that waits.
COMPLETING says nothing, since a cancelled job completes as well. A requeue that is refused becomes a chain: the same script, once more.
Which nodes are kept out is in `exclusion`.
"""

from __future__ import annotations

from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import LeaderOrder, Verdict, VerdictKind
from ftsup.policy import ending, exclusion
from ftsup.policy import told as finding
from ftsup.policy.rules import Rules
from ftsup.policy.state import Stage, State

Change = tuple[State, tuple[LeaderOrder, ...]]

LOST_S = 15.0
"""Slurm may still take a submission whose answer was lost: so long before it is looked for."""
BACK_OFF_S, BACK_OFF_MAX_S = 5.0, 60.0
BACK_OFF_AT_END_S = 10.0
"""A controller that was away looks at time limits half a minute after it is back (seen): a job past its own must have asked by then."""
REFUSED_OUT = 3
"""So often may Slurm refuse to keep nodes out: then the batch script and the next leader have their turn."""
BROKEN = ending.ENDED | {"TIMEOUT", "DEADLINE", "PREEMPTED"}
"""Slurm's words for a job that has ended and was not requeued."""


def wait_s(state: State) -> float:
    """Until a request that was made is made again."""
    return ending.CHAIN_S if state.chain else ending.SHOWS_S


def tick(state: State, t: float) -> Change:
    """It does not show yet, or nodes are not kept out yet."""
    if not state.seen:
        return replace(state, deadline_t=t + wait_s(state), tries=state.tries + 1), (ev.Requeue(chain=state.chain, ended=state.taken),)
    avoid = _avoid(state)
    return replace(state, deadline_t=t + ending.ASK_AGAIN_S), (ev.AskSlurm() if avoid is None else avoid,)


def _avoid(state: State) -> ev.Avoid | None:
    return None if state.avoid_set else exclusion.wanted(state)


def asked(state: State, _event: ev.RequeueAsked, _rules: Rules) -> Change:
    """Slurm took the request: now see whether it shows."""
    return state, (ev.AskSlurm(),) if state.stage is Stage.REQUEUE else ()


def chained(state: State, _event: ev.Chained, _rules: Rules) -> Change:
    """The successor waits for our end: end, without asking for a requeue as well."""
    if state.stage is not Stage.REQUEUE:
        return state, ()
    state = replace(state, seen=True, signalled=True, deadline_t=None)
    return state, (ending.decide(state), *ending.leaves(state), ev.Quit(code=0))


def said(state: State, event: ev.SlurmSaid, rules: Rules) -> Change:
    """What Slurm says of our job while we wait for the requeue to show."""
    if event.state == "CANCELLED":
        return ending.close(state, ending.cancelled(state, "cancelled while it was being requeued"), event.t)
    if event.restarts > state.restarts or (event.state == "PENDING" and not event.completing):
        return _shows(state, event.t)
    if not state.taken and event.completing and state.signalled:
        # Ended by somebody else before our request came through: why?
        return finding.said(replace(state, end_t=event.t + ending.TERMED_S), event, rules)
    if event.state in BROKEN and not event.completing:  # nothing is left to lead, and the run is not over
        return replace(state, deadline_t=None), (*ending.leaves(state), ev.Quit(code=1))
    if not event.requeueable and (state.taken or not event.completing) and not state.chain:
        return _chain(state, "the job is not requeueable", event.t)
    return state, ()


def _shows(state: State, t: float) -> Change:
    news = () if state.seen else (ev.Shown(),)
    state = replace(state, seen=True)
    if (avoid := _avoid(state)) is not None:
        return replace(state, deadline_t=t + ending.ASK_AGAIN_S), (*news, avoid)
    state, orders = _left(state)
    return state, (*news, *orders)


def _left(state: State) -> Change:
    """The requeue shows and nothing is left to do: stay until we are told to end, then go at once."""
    if not state.signalled:
        return replace(state, deadline_t=None), ()
    return replace(state, deadline_t=None), (*ending.leaves(state), ev.Quit(code=0))


def told(state: State) -> Change:
    """TERM: by our own requeue, if it shows."""
    if state.seen and _avoid(state) is None:
        return _left(state)
    return state, (ev.AskSlurm(),)


def avoid_set(state: State, event: ev.AvoidSet, _rules: Rules) -> Change:
    """The exclusion list is as we want it, as far as enough nodes remain."""
    if state.stage is not Stage.REQUEUE:
        return exclusion.listed(state, event), ()
    state = exclusion.listed(replace(state, avoid_set=True), event)
    news = (exclusion.let_in_news(event),) if event.let_in else ()
    state, orders = _left(state) if state.seen else (state, ())
    return state, (*news, *orders)


def failed(state: State, event: ev.SlurmFailed, rules: Rules) -> Change:
    """A call failed. Silence says nothing about the job: it is asked again, later each time. A no is told from it."""
    refused = event.kind == "Refused"
    if event.op in {"avoid", "keep_out"}:
        return _not_kept_out(state, event, refused=refused)
    if event.op not in {"requeue", "requeue_without", "submit", "successor"}:
        return state, ()
    if not refused:
        after_s = LOST_S if event.kind in {"Unanswered", "Unreadable"} else 0.0
        at_end = state.verdict is not None and state.verdict.rule == "time limit"
        back_off_s = min(BACK_OFF_S * 2 ** min(state.tries, 4), BACK_OFF_AT_END_S if at_end else BACK_OFF_MAX_S)
        return replace(state, deadline_t=event.t + max(after_s, back_off_s)), ()
    state = replace(state, refused=state.refused + 1)
    if state.refused < rules.policy.refusals:  # is it requeueable at all?
        return replace(state, deadline_t=event.t + BACK_OFF_S * 2 ** (state.refused - 1)), (() if state.chain else (ev.AskSlurm(),))
    if not state.chain:
        return _chain(state, f"refused {state.refused} times: {event.why}", event.t)
    reason = f"Slurm takes neither a requeue nor another job of this run (refused {state.refused} times: {event.why})"
    return ending.close(state, Verdict(kind=VerdictKind.STOP, reason=reason, rule="refused"), event.t)


def _chain(state: State, why: str, t: float) -> Change:
    """Decided anew, so that no batch script asks for a requeue beside it."""
    verdict = state.verdict
    assert verdict is not None
    reason = f"{verdict.reason}; Slurm does not requeue job {state.job} ({why}): another job of this run follows"
    return ending.close(replace(state, chain=True), replace(verdict, reason=reason), t)


def _not_kept_out(state: State, event: ev.SlurmFailed, *, refused: bool) -> Change:
    if not state.seen or state.avoid_set:
        return state, ()
    state = replace(state, refused=state.refused + refused, deadline_t=event.t + 1.0)
    if state.refused < REFUSED_OUT:
        return state, (ev.AskSlurm(),) if refused and state.signalled else ()
    text = f"{', '.join(state.history.avoided)} could not be kept out of the next grant: {event.why}"
    state, orders = _left(replace(state, avoid_set=True))
    return state, (ev.Notify(kind="requeue", text=text), *orders)
