"""From the first bad sign of an attempt to the verdict: an incident is opened, evidence collected, everything stopped, and judged.

    RUN -> opened: COLLECT -> STOP -> judge -> the next attempt | a back-off | the end of the grant

Who is to blame is in `blame`, what a fault leads to in `judge`, how a grant ends in `ending`.
"""

from __future__ import annotations

from msgspec.structs import replace

from ftsup import events as ev
from ftsup.errors import RuleBroken
from ftsup.events import Fault, How, LeaderOrder
from ftsup.policy import blame, ending, resume, stages, told, wishes
from ftsup.policy import save as saving
from ftsup.policy.judge import HANGS, Case, at_end, describe, judge, remember
from ftsup.policy.rules import HangMode, Rules
from ftsup.policy.stages import Change
from ftsup.policy.state import Stage, State


def answered(state: State, node: str, t: float, rules: Rules, then: Stage) -> Change:
    """A node answered what the stage waited for; the last one leads to the next stage."""
    state = replace(state, waiting=tuple(n for n in state.waiting if n != node))
    if state.waiting:
        return state, ()
    if then is Stage.PICK:
        return stages.attempt(state, t, rules)
    waiting = tuple(n for n in state.nodes if n not in state.over) if then in {Stage.LAUNCH, Stage.STOP} else ()
    if then is Stage.STOP and not waiting:
        return _judge(replace(state, stage=Stage.STOP), t, rules)
    if then is Stage.LAUNCH:
        state = replace(state, launched_t=t)
    return stages.enter(state, then, t, rules, waiting=waiting)


def gave_up(state: State, t: float, rules: Rules, text: str) -> Change:
    """The nodes that the stage waits for do not answer."""
    how = How.UNKILLABLE if state.stage is Stage.STOP else How.HELLO
    error = "no answer to the order to stop" if how is How.UNKILLABLE else text
    lost = tuple(Fault(how=how, node=node, error=error) for node in state.waiting)
    instances = {node: one for node, one in state.instances.items() if node not in state.waiting}
    state = replace(state, faults=state.faults + lost, over=state.over + state.waiting, instances=instances)
    return _judge(state, t, rules) if state.stage is Stage.STOP else opened(state, t, rules)


def unkillable(event: ev.NodeUp | ev.AttemptOver) -> tuple[Fault, ...]:
    """What a node could not end."""
    return tuple(Fault(how=How.UNKILLABLE, node=event.node, error=left) for left in event.left)


def failed_start(state: State, t: float, rules: Rules, why: str) -> Change:
    """Nothing was launched yet, and no node is to blame: straight to the judge."""
    lost = Fault(how=How.SETUP, node="", error=why)
    return opened(replace(state, faults=(*state.faults, lost)), t, rules)


def stalled(state: State, event: ev.Stalled, rules: Rules) -> Change:
    """Ranks stand still beyond their limit: a hang, if nothing excuses it."""
    if event.epoch != state.epoch or event.node in state.over:
        return state, ()
    state = blame.merge(state, event.faults)
    if state.stage not in stages.ATTEMPT:
        return state, ()
    acute = [fault for fault in state.faults if not at_end(fault)]
    if not acute:
        return _open_at_end(state, event.t, rules)
    if all(fault.how is How.STORAGE for fault in acute):
        if state.held_s:
            return state, ()
        wait_s = max(rules.hang.storage_s - event.faults[0].quiet_s, 0.0)
        text = f"{describe(event.faults[0])}; waiting up to {rules.hang.storage_s:g} s (hang.storage)"
        state = replace(state, held_s=rules.hang.storage_s, deadline_t=event.t + wait_s)
        return state, (ev.Notify(kind="storage", text=text),)
    until_t = _excused(state, acute, event.t)
    if until_t is not None:
        return state if state.held_s else replace(state, held_s=until_t - event.t, deadline_t=until_t), ()
    return hung(state, event.t, rules)


def _excused(state: State, faults: list[Fault], t: float) -> float | None:
    """Until when those who stand still in training may wait for a rank that is busy, or was a moment ago. None: they may not."""
    limit_s = max(fault.limit_s for fault in faults)
    if any(fault.how not in {How.QUIET, How.STORAGE} or fault.phase != "step" for fault in faults):
        return None
    if state.busy:
        patience_s = max(state.busy.values())
        return t + patience_s if patience_s > limit_s else None
    return None if state.busy_t is None or t >= state.busy_t + limit_s else state.busy_t + limit_s


def hung(state: State, t: float, rules: Rules) -> Change:
    """It is a hang: act, or tell it once."""
    if rules.hang.mode is HangMode.ACT:
        return opened(state, t, rules)
    if state.told:
        return state, ()
    text = "; ".join(describe(fault) for fault in state.faults)
    return replace(state, told=True), (ev.Notify(kind="hang", text=f"{text}. hang.mode is observe: nothing is done"),)


def busy(state: State, event: ev.Busy, _rules: Rules) -> Change:
    """Somebody saves or evaluates, or is through: then those who waited have the time of a step to move again."""
    if event.epoch != state.epoch or state.stage not in stages.ATTEMPT:
        return state, ()
    busy = {node: limit_s for node, limit_s in {**state.busy, event.node: event.limit_s}.items() if limit_s}
    state = replace(state, busy=busy, busy_t=None if busy else event.t)
    if busy or not state.held_s or all(fault.how is How.STORAGE for fault in state.faults):
        return state, ()
    return replace(state, deadline_t=event.t + max(fault.limit_s for fault in state.faults)), ()


def moving(state: State, event: ev.Moving, _rules: Rules) -> Change:
    """A node's ranks move again: what was said of them is taken back."""
    if event.epoch != state.epoch or state.stage not in stages.ATTEMPT:
        return state, ()
    faults = tuple(fault for fault in state.faults if fault.node != event.node)
    if all(at_end(fault) for fault in faults):
        deadline_t = None if state.held_s else state.deadline_t
        state = replace(state, held_s=0.0, told=False, deadline_t=deadline_t)
    return replace(state, faults=faults), ()


def _open_at_end(state: State, t: float, rules: Rules) -> Change:
    """Some hang in their shutdown. The others may have work left (rank 0 writes the last file): not before it is done."""
    if not state.faults or state.stage not in stages.ATTEMPT or not all(at_end(fault) for fault in state.faults):
        return state, ()
    done = {*state.returned, *(fault.rank for fault in state.faults)}
    of_node = rules.workers_per_node
    open_ranks = {i * of_node + k for i, node in enumerate(state.nodes) if node not in state.over for k in range(of_node)}
    return hung(state, t, rules) if open_ranks <= done else (state, ())


def rank_ended(state: State, event: ev.RankEnded, rules: Rules) -> Change:
    """A rank is over; unless it returned or may leave, that is a bad sign."""
    if event.epoch != state.epoch or event.node in state.over:
        return state, ()
    if event.fault.how is How.RETURNED:
        known = event.fault.rank is None or event.fault.rank in state.returned
        state = state if known else replace(state, returned=(*state.returned, event.fault.rank))
        return _open_at_end(state, event.t, rules)
    if state.stage is Stage.RUN and saving.may_leave(state, event.fault):
        return state, ()
    if state.stage in stages.ATTEMPT:
        return opened(blame.merge(state, (event.fault,)), event.t, rules)
    return (blame.merge(state, (event.fault,)) if state.stage is Stage.COLLECT else state), ()


def reported(state: State, event: ev.Reported, rules: Rules) -> Change:
    """A fatal report is acted on at once; what it lacks (who began it) comes with the evidence."""
    fault = event.fault
    if not event.fatal or event.epoch != state.epoch or event.node in state.over or fault.rank in state.returned:
        return state, ()
    if rules.hang.mode is HangMode.OBSERVE:
        text = f"{describe(fault)}. hang.mode is observe: nothing is done"
        return state, (ev.Notify(kind="report", text=text),) if state.stage in stages.ATTEMPT else ()
    if state.stage in stages.ATTEMPT:
        return opened(blame.merge(state, (fault,)), event.t, rules)
    return (blame.merge(state, (fault,)) if state.stage is Stage.COLLECT else state), ()


def collected(state: State, event: ev.Collected, rules: Rules) -> Change:
    """A node's evidence: it names causes, and those who stood still beside them."""
    if event.epoch != state.epoch or state.stage is not Stage.COLLECT:
        return state, ()
    known = {(fault.node, fault.rank) for fault in state.faults}
    still = {How.QUIET, How.STORAGE}
    told = tuple(fault for fault in event.faults if fault.how not in still or (fault.node, fault.rank) in known)
    suspects = tuple(fault for fault in event.faults if fault.how in still and (fault.node, fault.rank) not in known)
    state = replace(state, suspects=state.suspects + suspects)
    return answered(blame.merge(state, told), event.node, event.t, rules, Stage.STOP)


def attempt_over(state: State, event: ev.AttemptOver, rules: Rules) -> Change:
    """A node's part of the attempt is over: returned, saved, ended by Slurm, or broken."""
    if event.epoch != state.epoch:
        return state, ()
    state = resume.stepped(stages.reached(state, event.step), event.step)
    if state.stage is Stage.TERMED:
        return told.last_words(_over(state, event))
    if state.stage in ending.AT_END and event.node not in state.over:  # the leader may go once it has heard of all
        return replace(state, over=(*state.over, event.node)), ()
    if event.node in state.over or state.stage not in stages.ATTEMPT | {Stage.COLLECT, Stage.STOP}:
        return state, ()
    if state.preempted and state.stage in {Stage.LAUNCH, Stage.RUN} and told.ended_by_it(state, event):
        how = "its signal has ended the ranks" if len(state.nodes) == 1 else f"its signal has ended the ranks on {event.node}"
        return told.preempted(state, event.t, rules, how)
    if state.stage is Stage.RUN and (left := saving.left(state, event, rules)):
        return anew(*left, event.t, rules)
    bad = tuple(fault for fault in event.ended if fault.how is not How.RETURNED)
    stuck = unkillable(event)
    state = replace(state, over=(*state.over, event.node))
    if state.stage in stages.ATTEMPT and event.code == 0 and not stuck:
        if len(state.over) < len(state.nodes):
            return _open_at_end(state, event.t, rules)
        return ending.close(state, ending.finished(), event.t)
    if state.stage is Stage.STOP:
        known = {(fault.node, fault.rank) for fault in state.faults if fault.how not in HANGS and not fault.alive}
        bad = tuple(fault for fault in bad if fault.rank is None or (fault.node, fault.rank) in known)  # the others: our stop did it
    elif not bad and not state.faults and not stuck:
        bad = (Fault(how=How.TORCHRUN, node=event.node, code=event.code),)
    state = replace(blame.merge(state, bad), faults=blame.merge(state, bad).faults + stuck)
    return opened(state, event.t, rules) if state.stage in stages.ATTEMPT else gone(state, event.node, event.t, rules)


def _over(state: State, event: ev.AttemptOver) -> State:
    """A node's part is over while nobody knows why we are told to end. Its ranks are to blame only if it was not told itself."""
    if event.node in state.over:
        return state
    bad = tuple(fault for fault in event.ended if fault.how is not How.RETURNED)
    if event.code and not bad:
        bad = (Fault(how=How.TORCHRUN, node=event.node, code=event.code),)
    state = replace(state, over=(*state.over, event.node))
    return state if event.node in state.termed else blame.merge(state, bad)


def anew(state: State, orders: tuple[LeaderOrder, ...], t: float, rules: Rules) -> Change:
    """All ranks saved and left although the end is far (a warning sent by hand, a script that ends at each request): go on."""
    if state.stage is not Stage.RUN or len(state.over) < len(state.nodes) or state.look_t is not None:
        return state, orders
    if state.history.attempts >= rules.policy.hard_cap:
        why = f"{state.history.attempts} attempts in this run (policy.hard_cap); in the last one all ranks saved and left"
        return ending.close(state, ev.Verdict(kind=ev.VerdictKind.STOP, reason=why, rule="hard cap"), t)
    state, more = stages.attempt(state, t, rules)
    return state, (*orders, ev.Notify(kind="save", text="all ranks saved and left, and the end is not near: launched again"), *more)


def gone(state: State, node: str, t: float, rules: Rules) -> Change:
    """A node has nothing of the attempt any more."""
    if state.stage is Stage.COLLECT:
        return answered(state, node, t, rules, Stage.STOP)
    return stopped(state, node, t, rules) if state.stage is Stage.STOP else (state, ())


def stopped(state: State, node: str, t: float, rules: Rules) -> Change:
    """A node has stopped what it had."""
    state = replace(state, waiting=tuple(n for n in state.waiting if n != node))
    return (state, ()) if state.waiting else _judge(state, t, rules)


def opened(state: State, t: float, rules: Rules) -> Change:
    """An incident begins: evidence from every node that still has something of the attempt."""
    state = replace(state, incident=state.incident + 1, held_s=0.0, stopping=False)
    begun: LeaderOrder = ev.Incident(number=state.incident, epoch=state.epoch, faults=state.faults)
    waiting = tuple(node for node in state.nodes if node not in state.over)
    if not waiting or state.stage in {Stage.GATHER, Stage.PICK}:
        state, orders = _judge(state, t, rules)
        return state, (begun, *orders)
    state, orders = stages.enter(state, Stage.COLLECT, t, rules, waiting=waiting)
    return state, (begun, *orders)


def _judge(state: State, t: float, rules: Rules) -> Change:
    """Everything is gone: what follows?"""
    if state.stopping:
        return _restart(state, t, rules)
    if not state.faults:
        message = "nothing to judge"
        raise RuleBroken(message, hint="please report this, with the run's events.jsonl")
    state = blame.accuse(state)
    for fault in state.faults:
        state = resume.stepped(stages.reached(state, fault.step), fault.step)
    known = not state.unknown and (rules.watched or state.launched_t is None)  # what was never launched made no progress
    doubt = resume.doubt(state, rules)
    case = Case(epoch=state.epoch, faults=state.faults, nodes=state.nodes, history=state.history, known=known, checkpoint=doubt)
    judged = judge(case, rules)
    verdict = ending.instead(state, judged, describe(case.root), t, rules)
    state = resume.suspect(replace(state, history=remember(case, verdict)), judged.suspect)
    closed = ev.Incident(number=state.incident, epoch=state.epoch, root=case.root, faults=state.faults, verdict=verdict)
    if verdict.kind is not ev.VerdictKind.RESTART:
        state, orders = ending.close(state, verdict, t)
        return state, (closed, *orders)
    news = ev.Notify(kind="incident", text=verdict.reason)
    if verdict.delay_s > 0:
        return replace(state, stage=Stage.BACK_OFF, waiting=(), deadline_t=t + verdict.delay_s), (closed, news)
    state, orders = stages.attempt(state, t, rules)
    return state, (closed, news, *orders)


def _restart(state: State, t: float, rules: Rules) -> Change:
    """The attempt was ended for a person. What happened on the way matters only where it keeps the next one from beginning."""
    grave = tuple(fault for fault in state.faults if fault.how in {How.UNKILLABLE, How.HELLO})
    if grave:
        return opened(replace(state, faults=grave), t, rules)
    return wishes.again(state, t), ()
