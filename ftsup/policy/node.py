"""The node supervisor's machine: one attempt's life on one node, what is told to the leader, and what to do without a leader.

    step(state, happening, rules) -> state, acts

Pure, as the leader's. What happens here stays in memory (`Happening`); what matters to the run is told to the leader as an
event of `ftsup.events`, and only the leader decides. Orders are idempotent by their epoch; one of an older epoch does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Fault, How
from ftsup.policy import nodewatch
from ftsup.policy import votes as voting
from ftsup.policy import watch as watching
from ftsup.policy.nodestate import (
    Act,
    AskBatchHost,
    BatchHost,
    Change,
    ChildEnded,
    EndChild,
    Exit,
    FilesSeen,
    FindPort,
    ForwardWarning,
    Gather,
    Gathered,
    Glanced,
    Gone,
    Happening,
    Heard,
    LeaderQuiet,
    LookAt,
    Looked,
    NotStarted,
    Ordered,
    PortFound,
    RanksEnded,
    RequeueAlone,
    RunSetup,
    SetupEnded,
    Signal,
    Stage,
    StartChild,
    Started,
    State,
    Tell,
    TellRanks,
    Waited,
    WasAway,
)
from ftsup.policy.rules import Rules
from ftsup.policy.votes import View
from ftsup.policy.watch import Watch

SWEEP_GRACE_S = 2.0
"""What torchrun left behind gets this long: torchrun had its own turn to end it."""


ANSWER_S, ANSWER_PART = 10.0, 0.5
"""Told to end, with ranks that run: so long, and such a part of KillWait at most, is the leader's to find out why."""


def step(state: State, happening: Happening, rules: Rules) -> Change:
    """Take one happening in."""
    return HANDLERS[type(happening)](state, happening, rules)


# Orders -------------------------------------------------------------------------------------------------------------------


def _ordered(state: State, happening: Ordered, rules: Rules) -> Change:
    order = happening.order
    if isinstance(order, ev.Leave):
        return _leave(state, rules.grace_s if state.term_t is None else _left_s(state, happening.t, rules))
    if isinstance(order, ev.GoOn):
        return replace(state, term_t=None), ()
    if order.epoch < state.epoch:
        return state, ()
    if order.epoch > state.epoch and state.stage in {Stage.RUNNING, Stage.ENDING} and not isinstance(order, (ev.Collect, ev.AskRanks)):
        # The leader gave this attempt up, and never heard of its end: there is no other before the proof.
        acts = (EndChild(grace_s=rules.grace_s),) if state.stage is Stage.RUNNING else ()
        return replace(state, stage=Stage.ENDING, next=order), acts
    return ORDERS[type(order)](state, order, rules)


def _prepare(state: State, order: ev.Prepare, _rules: Rules) -> Change:
    if state.stage in {Stage.RUNNING, Stage.ENDING}:
        return state, ()
    known = order.epoch == state.epoch and state.stage is Stage.LOOK
    state = replace(state, epoch=order.epoch, node_rank=order.node_rank, hint=order.hint, path=order.path, files=order.files, over=None)
    if known:  # told twice: it looks already
        return state, ()
    if state.setup_done:
        return _look_at(state)
    acts = () if state.setup_runs else (RunSetup(),)  # never two at once: it may write where all nodes see it
    return replace(state, stage=Stage.SETUP, setup_runs=True), acts


def _look_at(state: State) -> Change:
    return replace(state, stage=Stage.LOOK), (LookAt(epoch=state.epoch, path=state.path, files=state.files),)


def _files_seen(state: State, happening: FilesSeen, _rules: Rules) -> Change:
    if state.stage is not Stage.LOOK or happening.epoch != state.epoch:
        return state, ()
    return _failed(state, Fault(how=How.SETUP, node=state.node, error=happening.why)) if happening.why else _ready(state)


def _ready(state: State) -> Change:
    state = replace(state, stage=Stage.READY)
    if state.node_rank == 0:
        return state, (FindPort(hint=state.hint),)
    return state, (Tell(event=ev.Prepared(node=state.node, epoch=state.epoch)),)


def _setup_ended(state: State, happening: SetupEnded, _rules: Rules) -> Change:
    state = replace(state, setup_runs=False, setup_done=not happening.why)
    if state.stage is not Stage.SETUP:
        return state, ()
    if not happening.why:
        return _look_at(state)
    return _failed(state, Fault(how=How.SETUP, node=state.node, error=happening.why))


def _failed(state: State, fault: Fault) -> Change:
    state = replace(state, stage=Stage.IDLE)
    return state, (Tell(event=ev.LaunchFailed(node=state.node, epoch=state.epoch, fault=fault)),)


def _port_found(state: State, happening: PortFound, _rules: Rules) -> Change:
    if state.stage is not Stage.READY:
        return state, ()
    event = ev.Prepared(node=state.node, epoch=state.epoch, address=happening.address, port=happening.port)
    return state, (Tell(event=event),)


def _launch(state: State, order: ev.Launch, _rules: Rules) -> Change:
    if order.epoch == state.epoch and state.stage is Stage.READY:
        watch = Watch(median_s=order.median_s, restart_s=order.restart_s, base_step=order.base_step)
        state = replace(state, stage=Stage.RUNNING, watch=watch, kill_wait_s=order.kill_wait_s)
        state = replace(
            state,
            save=None,
            forwarded=False,
            code=None,
            ended=(),
            told=(),
            told_t=None,
            alone_t=None,
            alone_told=False,
            doubts=(),
            heard=frozenset(),
        )
        return state, (StartChild(order=order),)
    if order.epoch == state.epoch and state.stage is Stage.RUNNING:
        return state, (Tell(event=_launched(state, 0)),)
    if order.epoch == state.epoch and state.over is not None:
        return state, (Tell(event=state.over),)
    if state.stage is Stage.IDLE:
        error = "its supervisor was started again between set-up and launch"
        return _failed(replace(state, epoch=order.epoch), Fault(how=How.SETUP, node=state.node, error=error))
    return state, ()


def _launched(state: State, pid: int) -> ev.Launched:
    return ev.Launched(node=state.node, epoch=state.epoch, pid=pid, ranks=state.ranks)


def _started(state: State, happening: Started, _rules: Rules) -> Change:
    state = replace(state, ranks=happening.ranks)
    return state, (Tell(event=_launched(state, happening.pid)),)


def _not_started(state: State, happening: NotStarted, _rules: Rules) -> Change:
    return _failed(state, happening.fault)


def _collect(state: State, order: ev.Collect, _rules: Rules) -> Change:
    if order.epoch == state.epoch and state.stage in {Stage.RUNNING, Stage.ENDING}:
        return state, (Gather(epoch=order.epoch, incident=order.incident, limit_s=order.limit_s),)
    missing = "nothing of the attempt runs here"
    return state, (Tell(event=ev.Collected(node=state.node, epoch=order.epoch, incident=order.incident, missing=missing)),)


def _gathered(state: State, happening: Gathered, _rules: Rules) -> Change:
    found = (_ended(state, fault) if voting.by_itself(fault) else fault for fault in happening.faults)
    faults = tuple(_quiet(state, fault, happening.t) for fault in found)
    event = ev.Collected(node=state.node, epoch=state.epoch, incident=happening.incident, faults=faults, missing=happening.missing)
    return state, (Tell(event=event),)


def _quiet(state: State, fault: Fault, t: float) -> Fault:
    """What a stack shows of a living rank, with how long it has not moved."""
    mark = state.watch.marks.get(-1 if fault.rank is None else fault.rank)
    if mark is None or fault.how is not How.QUIET:
        return fault
    return nodewatch.at_step(state, replace(fault, quiet_s=round(t - mark.moved_t, 1)))


def _stop(state: State, order: ev.Stop, _rules: Rules) -> Change:
    if state.stage is Stage.RUNNING and order.epoch == state.epoch:
        return replace(state, stage=Stage.ENDING), (EndChild(grace_s=order.grace_s),)
    if state.stage is Stage.ENDING:
        return state, ()
    if order.epoch == state.epoch and state.over is not None:
        return state, (Tell(event=state.over),)
    state = replace(state, epoch=order.epoch, stage=Stage.IDLE)
    return state, (Tell(event=ev.AttemptOver(node=state.node, epoch=order.epoch, code=None)),)


def _leave(state: State, grace_s: float) -> Change:
    state = replace(state, leaving=True, term_t=None)
    if state.stage in {Stage.RUNNING, Stage.ENDING}:  # while it ends: there may be less time than was thought
        return replace(state, stage=Stage.ENDING), (EndChild(grace_s=grace_s),)
    return state, (Exit(),)


# Ends ---------------------------------------------------------------------------------------------------------------------


def _ranks_ended(state: State, happening: RanksEnded, _rules: Rules) -> Change:
    if state.stage is not Stage.RUNNING:
        return state, ()
    known = {fault.rank for fault in state.ended}
    new = tuple(_ended(state, fault) for fault in happening.faults if fault.rank not in known)
    state = replace(state, ended=state.ended + new)
    return state, tuple(Tell(event=ev.RankEnded(node=state.node, epoch=state.epoch, fault=fault)) for fault in new)


def _ended(state: State, fault: Fault) -> Fault:
    """How a rank ended, and where: one that left no word ended at the step of its last beat."""
    saved = state.forwarded and voting.by_itself(fault)
    return nodewatch.at_step(state, replace(fault, how=How.SAVED) if saved else voting.left(state.save, fault))


def _child_ended(state: State, happening: ChildEnded, _rules: Rules) -> Change:
    if state.stage not in {Stage.RUNNING, Stage.ENDING}:
        return state, ()
    newer = {fault.rank: _ended(state, fault) for fault in happening.ended}
    ended = tuple(newer.pop(fault.rank, fault) for fault in state.ended) + tuple(newer.values())
    was = state.stage
    if was is Stage.RUNNING and happening.code < 0:  # not by us: its ranks, which die with it, are not to blame
        name, killed = happening.signal or "a signal", happening.killed
        error = f"was ended by {name}" + (f": {killed}" if killed else "")
        kind = ev.Kind.HOST_MEMORY if killed else None
        ended += (Fault(how=How.TORCHRUN, node=state.node, code=happening.code, signal=name, error=error, kind=kind),)
    state = replace(state, stage=Stage.ENDING, code=happening.code, ended=ended)
    return state, (EndChild(grace_s=SWEEP_GRACE_S),) if was is Stage.RUNNING else ()


def _gone(state: State, happening: Gone, rules: Rules) -> Change:
    if state.stage is not Stage.ENDING:
        return state, ()
    over = ev.AttemptOver(
        node=state.node,
        epoch=state.epoch,
        code=state.code,
        ended=state.ended,
        left=happening.left,
        took_s=happening.took_s,
        step=happening.step,
    )
    state, later = replace(state, stage=Stage.IDLE, over=over, watch=Watch(), next=None), state.next
    if state.leaving or state.term_t is not None or later is None:  # told to end, and nothing is left to hold on to
        return state, (Tell(event=over), *((Exit(),) if state.leaving or state.term_t is not None else ()))
    state, acts = _ordered(state, Ordered(t=happening.t, order=later), rules)
    return state, (Tell(event=over), *acts)


# Save on request ----------------------------------------------------------------------------------------------------------


def _ask(state: State, order: ev.AskRanks, _rules: Rules) -> Change:
    if order.epoch != state.epoch or state.stage is not Stage.RUNNING:
        over = (Tell(event=state.over),) if state.over is not None and state.over.epoch == order.epoch else ()
        return state, over or tuple(Tell(event=event) for event in voting.nobody(order))
    save = voting.take(state.save, order)
    if save is not state.save:
        return replace(state, save=save), (TellRanks(order=order),) if order.beats else ()
    same = (save.order.save, save.order.ask, save.order.beats) == (order.save, order.ask, order.beats)
    return state, (Tell(event=save.said),) if same and save.said is not None else ()


def _glanced(state: State, happening: Glanced, _rules: Rules) -> Change:
    if state.save is None or state.stage is not Stage.RUNNING:
        return state, ()
    view = View(
        t=happening.t,
        beats=happening.beats,
        ranks=state.ranks,
        ended=frozenset(fault.rank for fault in state.ended if fault.rank is not None),
        cut=frozenset(fault.rank for fault in state.ended if fault.rank is not None and fault.how is How.SIGNAL),
        base_step=state.watch.base_step,
        step_s=watching.step_now_s(state.watch),
    )
    save, told = voting.look(state.save, view)
    return replace(state, save=save), tuple(Tell(event=event) for event in told)


# Signals, and life without a leader ---------------------------------------------------------------------------------------


def _signal(state: State, happening: Signal, rules: Rules) -> Change:
    if happening.warning:
        forward = rules.plain and state.stage is Stage.RUNNING
        extra: tuple[Act, ...] = (ForwardWarning(),) if forward else ()
        return replace(state, forwarded=state.forwarded or forward), (Tell(event=ev.Warned(node=state.node)), *extra)
    told = Tell(event=ev.Terminated(node=state.node))
    if state.stage is Stage.RUNNING and not state.leaving:
        return replace(state, term_t=happening.t if state.term_t is None else state.term_t), (told,)
    state, acts = _leave(state, _left_s(state, happening.t, rules))
    return state, (told, *acts)


def _left_s(state: State, t: float, rules: Rules) -> float:
    """What the ranks get to end, of a KillWait that began when we were told."""
    gone_s = 0.0 if state.term_t is None else t - state.term_t
    wait_s = rules.kill_wait_s if state.kill_wait_s is None else state.kill_wait_s
    return max(min(rules.grace_s, wait_s - rules.kill_margin_s - gone_s), 0.5)


def told_until_t(state: State, rules: Rules) -> float | None:
    """Until when the leader may say that there is time: only Slurm knows whether KillWait runs."""
    wait_s = rules.short_kill_wait_s if state.kill_wait_s is None else state.kill_wait_s
    return None if state.term_t is None else state.term_t + min(ANSWER_S, ANSWER_PART * wait_s)


def _waited(state: State, happening: Waited, rules: Rules) -> Change:
    """Nobody says that there is time: then there is none."""
    until_t = told_until_t(state, rules)
    return _leave(state, _left_s(state, happening.t, rules)) if until_t is not None and happening.t >= until_t else (state, ())


def _leader_quiet(state: State, _happening: LeaderQuiet, _rules: Rules) -> Change:
    return state, () if state.leaving or state.term_t is not None else (AskBatchHost(),)


def _batch_host(state: State, happening: BatchHost, rules: Rules) -> Change:
    """Silence is no proof: only a batch host that Slurm calls gone ends the waiting."""
    if happening.alive is not False or not rules.can_requeue:
        return state, ()
    wait_s = 0.0 if state.lost else rules.stagger_s * min(state.index, rules.staggers)  # a second time: the request was not taken
    return replace(state, lost=True), (RequeueAlone(delay_s=wait_s),)


ORDERS: dict[type, Callable[[State, Any, Rules], Change]] = {
    ev.Prepare: _prepare,
    ev.Launch: _launch,
    ev.AskRanks: _ask,
    ev.Collect: _collect,
    ev.Stop: _stop,
}
HANDLERS: dict[type, Callable[[State, Any, Rules], Change]] = {
    Ordered: _ordered,
    Looked: nodewatch.looked,
    Glanced: _glanced,
    WasAway: nodewatch.was_away,
    SetupEnded: _setup_ended,
    FilesSeen: _files_seen,
    PortFound: _port_found,
    Started: _started,
    NotStarted: _not_started,
    Heard: nodewatch.heard,
    RanksEnded: _ranks_ended,
    ChildEnded: _child_ended,
    Gone: _gone,
    Gathered: _gathered,
    Signal: _signal,
    Waited: _waited,
    LeaderQuiet: _leader_quiet,
    BatchHost: _batch_host,
}
