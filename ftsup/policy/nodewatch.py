"""Watching the ranks of one node: what is told to the leader of how they move, stand still, save, and of what they report.

Who has moved, and for how long not, is in `watch`; what a report leads to in `reports`.
"""

from __future__ import annotations

from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Fault, How
from ftsup.policy import reports as reporting
from ftsup.policy import watch as watching
from ftsup.policy.nodestate import Change, Heard, Looked, Stage, State, Tell, WasAway
from ftsup.policy.reports import Acts
from ftsup.policy.rules import Rules
from ftsup.policy.watch import Process


def at_step(state: State, fault: Fault) -> Fault:
    """The fault, with the step and phase at which its rank stands."""
    mark = state.watch.marks.get(-1 if fault.rank is None else fault.rank)
    if fault.step is not None or mark is None:
        return fault
    return replace(fault, step=watching.step_of(mark.beat, state.watch.base_step), phase=fault.phase or mark.beat.phase.name.lower())


def looked(state: State, happening: Looked, rules: Rules) -> Change:
    """A look at every rank: what is worth the leader's while."""
    if state.stage is not Stage.RUNNING:
        return state, ()
    node, epoch = state.node, state.epoch
    watch, seen = watching.look(state.watch, happening.t, happening.sights, rules, node=node)
    state = replace(state, watch=watch)
    tell: list[ev.NodeEvent] = []
    if seen.learned:
        tell.append(ev.Learned(node=node, epoch=epoch, median_s=watch.median_s))
    if seen.saved is not None:
        tell.append(ev.Saved(node=node, epoch=epoch, step=seen.saved))
    state, progress = _progress(state, happening.t, rules)
    tell += progress
    if seen.busy:
        tell.append(_busy(state, rules))
    if seen.stalled:
        tell.append(ev.Stalled(node=node, epoch=epoch, faults=seen.stalled))
    if seen.moving:
        tell.append(ev.Moving(node=node, epoch=epoch))
    doubts, true = reporting.still(state.doubts, watch, happening.t, rules)
    state = replace(state, doubts=doubts)
    tell += [ev.Reported(node=node, epoch=epoch, fault=at_step(state, fault), fatal=True) for fault in true]
    state, alone = _alone(state, happening, rules)
    return state, tuple(Tell(event=event) for event in (*tell, *alone))


def heard(state: State, happening: Heard, _rules: Rules) -> Change:
    """Each rank's word of one kind is told once; what may be fatal waits for the rank, each time anew."""
    if state.stage is not Stage.RUNNING:
        return state, ()
    ended = {fault.rank for fault in state.ended}
    tell = []
    for report in happening.reports:
        name = (report.fault.rank, report.name)
        if report.acts is Acts.AT_END or report.fault.rank in ended:
            continue
        if report.acts is Acts.WHEN_STILL:
            others = tuple(doubt for doubt in state.doubts if (doubt.report.fault.rank, doubt.report.name) != name)
            state = replace(state, doubts=(*others, reporting.Doubt(report=report, since_t=happening.t)))
        if name not in state.heard:
            fatal = report.acts is Acts.AT_ONCE
            tell.append(ev.Reported(node=state.node, epoch=state.epoch, fault=at_step(state, report.fault), fatal=fatal))
        state = replace(state, heard=state.heard | {name})
    return state, tuple(Tell(event=event) for event in tell)


def _busy(state: State, rules: Rules) -> ev.Busy:
    phase = state.watch.busy
    if phase is None:
        return ev.Busy(node=state.node, epoch=state.epoch)
    return ev.Busy(node=state.node, epoch=state.epoch, phase=phase.name.lower(), limit_s=rules.hang.limit_s(phase))


def _progress(state: State, t: float, rules: Rules) -> tuple[State, list[ev.NodeEvent]]:
    """A phase that the attempt comes to for the first time is told by every node at once, other changes within a minute.

    Phases come back all the time (a save, an evaluation). The steps are told once a minute, by one node.
    """
    phase, by = watching.slowest_phase(state.watch), watching.slowest_by(state.watch)
    now = (phase, by)
    changed = bool(state.watch.marks) and now != (state.told[-1] if state.told else None)
    due = state.told_t is None or t - state.told_t >= rules.beats_s
    if not (changed and (due or now not in state.told)) and not (due and state.node_rank == 0 and state.told):
        return state, []
    step_now, beats = watching.steps(state.watch)
    event = ev.Progressed(
        node=state.node,
        epoch=state.epoch,
        phase="" if phase is None else phase.name.lower(),
        step=step_now,
        beats=beats,
        by=by,
        saving_s=round(state.watch.saving_s, 1),
    )
    told = (*(one for one in state.told if one != now), now)
    return replace(state, told=told, told_t=t, watch=replace(state.watch, saving_s=0.0)), [event]


def _alone(state: State, happening: Looked, rules: Rules) -> tuple[State, list[ev.NodeEvent]]:
    """Every rank is gone and torchrun goes on living: it hangs."""
    begun = [sight for sight in happening.sights.values() if sight.beat.pid]
    if not begun or any(sight.process is not Process.GONE for sight in begun):
        return replace(state, alone_t=None), []
    since_t = happening.t if state.alone_t is None else state.alone_t
    state = replace(state, alone_t=since_t)
    quiet_s, limit_s = happening.t - since_t, rules.hang.shutdown_s
    if quiet_s < limit_s or state.alone_told or len(state.ended) < len(begun):  # how the others ended is told in a moment
        return state, []
    done = all(fault.how is How.RETURNED for fault in state.ended)
    fault = Fault(
        how=How.TORCHRUN,
        node=state.node,
        phase="shutdown" if done else "",
        error="does not end, and all its ranks are gone",
        quiet_s=round(quiet_s, 1),
        limit_s=limit_s,
    )
    return replace(state, alone_told=True), [ev.Stalled(node=state.node, epoch=state.epoch, faults=(fault,))]


def was_away(state: State, happening: WasAway, _rules: Rules) -> Change:
    """The supervisor itself stood still: nobody is quiet for that."""
    alone_t = None if state.alone_t is None else happening.t
    return replace(state, watch=watching.away(state.watch, happening.t), alone_t=alone_t), ()
