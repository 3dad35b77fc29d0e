"""The leader's machine: every rule of an attempt's life is here; how a grant ends is in `ending`, what a fault leads to in `judge`.

    step(state, event, rules) -> state, orders, next deadline

Pure: no clock, process, file, socket or Slurm. The table HANDLERS says which rule takes which event; an event of an older
attempt changes nothing. The stages of an attempt:

    GATHER -> PICK -> PREPARE -> LAUNCH -> RUN -> COLLECT -> STOP -> judge -> (BACK_OFF ->) PICK | CLOSE
                                            |                                                        |
                                            +-- every node over with code 0 --------> finished ------+

A leader that takes over within a grant replays the log and gives the orders of the stage again: orders are idempotent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from ftsup import events as ev
from ftsup.errors import RuleBroken
from ftsup.events import Fault, How, LeaderEvent, LeaderOrder, Request
from ftsup.policy import blame, ending, exclusion, requeue, resume, stuck, told, wishes
from ftsup.policy import save as saving
from ftsup.policy.judge import HANGS, Case, at_end, describe, judge, remember
from ftsup.policy.rules import HangMode, Rules
from ftsup.policy.state import Checkpoints, Out, Stage, State

Change = tuple[State, tuple[LeaderOrder, ...]]

ATTEMPT = frozenset({Stage.PREPARE, Stage.LAUNCH, Stage.RUN})
"""Stages in which a bad sign opens an incident."""
MISSING = 10
"""Times in a row that a node is told silent, each followed by a new supervisor, before it is given up."""
STEP_AGAIN_S = 15.0
"""After an srun that Slurm did not answer."""
ANSWERS = (ev.SlurmSaid, ev.RequeueAsked, ev.Chained, ev.AvoidSet)


def step(state: State, event: LeaderEvent, rules: Rules) -> Out:
    """Take one event in."""
    handler = HANDLERS.get(type(event))
    if handler is None:
        message = f"no rule for {type(event).__name__} in stage {state.stage.value}"
        raise RuleBroken(message, hint="please report this, with the run's events.jsonl")
    if state.stage is Stage.NEW and not isinstance(event, (ev.LeaderStarted, ev.Continued)):
        message = f"{type(event).__name__} before LeaderStarted"
        raise RuleBroken(message, hint="please report this, with the run's events.jsonl")
    after, orders = handler(_contact(state, event), event, rules)
    after, more = saving.follow(exclusion.follow(after, event.t), event.t, rules)
    after, news = stuck.follow(state, after, event.t, rules)
    return Out(state=after, orders=orders + more + news, deadline_t=next_deadline(after))


def _contact(state: State, event: LeaderEvent) -> State:
    """Whether Slurm answers at all."""
    if isinstance(event, (*ANSWERS, ev.SlurmFailed)):
        return replace(state, away=isinstance(event, ev.SlurmFailed) and event.kind != "Refused")
    return replace(state, away=True) if isinstance(event, ev.StepEnded) and event.unanswered else state


def next_deadline(state: State) -> float | None:
    """When the machine wants to be woken, if nothing happens."""
    ends = (state.end_t, state.warn_t, state.ask_t) if state.stage in ending.BEFORE_END else ()
    times = [t for t in (state.deadline_t, saving.deadline_t(state), stuck.deadline_t(state), *ends) if t is not None]
    return min(times) if times and state.stage is not Stage.OVER else None


def _same(state: State, _event: LeaderEvent, _rules: Rules) -> Change:
    return state, ()


# Stages -------------------------------------------------------------------------------------------------------------------


def enter(state: State, stage: Stage, t: float, rules: Rules, *, waiting: tuple[str, ...] | None = None) -> Change:
    """Begin a stage, or (a new leader) give its orders again."""
    state = replace(state, stage=stage, waiting=state.waiting if waiting is None else waiting)
    orders = _orders(state, rules)
    limit_s = {
        Stage.GATHER: rules.hello_s / 2,  # then whoever is missing is started once more
        Stage.PICK: rules.pick_s,
        Stage.PREPARE: rules.setup_s,
        Stage.LAUNCH: rules.hello_s,
        Stage.COLLECT: rules.evidence_s + 2,
        Stage.STOP: rules.grace_s + rules.hello_s,
        Stage.RUN: state.held_s or None,  # a new leader waits no longer than the old one
    }.get(stage)
    return replace(state, again=False, deadline_t=None if limit_s is None else t + limit_s), orders


def _orders(state: State, rules: Rules) -> tuple[LeaderOrder, ...]:
    epoch, rank = state.epoch, state.nodes.index
    if state.stage is Stage.GATHER and state.instances:  # the step would start a second one where one lives
        return tuple(ev.StartNode(node=node) for node in state.waiting)
    if state.stage is Stage.GATHER:
        return (ev.StartStep(),)
    if state.stage is Stage.PICK:
        return (resume.pick(state),)
    if state.stage is Stage.PREPARE:
        files = state.checkpoints.files
        return tuple(
            ev.Prepare(node=n, epoch=epoch, node_rank=rank(n), path=state.path, files=files, hint=_hint(state)) for n in state.waiting
        )
    if state.stage is Stage.LAUNCH:
        return tuple(
            ev.Launch(
                node=n,
                epoch=epoch,
                node_rank=rank(n),
                nodes=len(state.nodes),
                address=state.address,
                port=state.port,
                path=state.path,
                base_step=state.base_step,
                median_s=state.median_s,
                restart_s=state.restart_s,
                kill_wait_s=state.kill_wait_s,
                unkillable_s=state.unkillable_s,
            )
            for n in state.waiting
        )
    if state.stage is Stage.COLLECT:
        return tuple(ev.Collect(node=n, epoch=epoch, incident=state.incident, limit_s=rules.evidence_s) for n in state.waiting)
    if state.stage is Stage.STOP:
        return tuple(ev.Stop(node=n, epoch=epoch, grace_s=rules.grace_s) for n in state.waiting)
    return saving.orders(state) if state.stage is Stage.RUN else ()


def _hint(state: State) -> str:
    """How a node that is not the first reached the leader: mostly the address by which its ranks reach the first node's as well."""
    return next((state.via[node] for node in state.nodes[1:] if state.via.get(node)), "")


def _attempt(state: State, t: float, rules: Rules) -> Change:
    """The next attempt, once every node has a supervisor."""
    missing = tuple(node for node in state.nodes if node not in state.instances)
    state = replace(state, over=(), faults=(), suspects=(), launched_t=None)
    if missing:
        return enter(state, Stage.GATHER, t, rules, waiting=missing)
    restart = state.wish if state.wish and state.wish.request is ev.Request.RESTART else None
    known, back = state.checkpoints, restart if restart and restart.from_step is not None else None
    state = replace(
        state,
        epoch=ev.Epoch(state.epoch.grant, state.epoch.attempt + 1),
        wish=None if restart else state.wish,
        returned=(),
        moved=False,
        unknown=False,
        held_s=0.0,
        busy={},
        busy_t=None,
        told=False,
        checkpoints=replace(known, begun=False, wish=back or known.wish),
        history=replace(state.history, attempts=state.history.attempts + 1),
    )
    return enter(state, Stage.PICK, t, rules, waiting=())


def _answered(state: State, node: str, t: float, rules: Rules, then: Stage) -> Change:
    """A node answered what the stage waited for; the last one leads to the next stage."""
    state = replace(state, waiting=tuple(n for n in state.waiting if n != node))
    if state.waiting:
        return state, ()
    if then is Stage.PICK:
        return _attempt(state, t, rules)
    waiting = tuple(n for n in state.nodes if n not in state.over) if then in {Stage.LAUNCH, Stage.STOP} else ()
    if then is Stage.STOP and not waiting:
        return _judge(replace(state, stage=Stage.STOP), t, rules)
    if then is Stage.LAUNCH:
        state = replace(state, launched_t=t)
    return enter(state, then, t, rules, waiting=waiting)


# A leader begins, time passes ---------------------------------------------------------------------------------------------


def _leader_started(state: State, event: ev.LeaderStarted, rules: Rules) -> Change:
    if state.stage is Stage.OVER and state.verdict is not None:
        return ending.again(state)
    if (event.job, event.restarts) == (state.job, state.restarts):
        return ending.take_over(state, event, rules) or enter(saving.again(state, event.t), state.stage, event.t, rules)
    state = exclusion.begun(state, event.t, rules)
    state = State(
        epoch=ev.Epoch(state.epoch.grant + 1, 0),
        job=event.job,
        restarts=event.restarts,
        nodes=event.nodes,
        incident=state.incident,
        continued=state.continued,
        best_step=state.best_step,
        median_s=state.median_s,
        restart_s=state.restart_s,
        history=state.history,
        path=state.path,
        checkpoints=state.checkpoints,
        ended=state.ended,
        saves=state.saves,
        saved_step=state.saved_step,
        foreground=event.foreground,
        wish=wishes.carried(state, event.nodes),
        chain=rules.chain,
        exclusions=state.exclusions,
    )
    if rules.can_requeue and state.history.requeues < rules.policy.requeues and (verdict := exclusion.missed(state)) is not None:
        state = replace(exclusion.unlisted(state), history=replace(state.history, requeues=state.history.requeues + 1))
        return ending.close(state, verdict, event.t)
    state, orders = enter(state, Stage.GATHER, event.t, rules, waiting=event.nodes)
    return replace(state, ask_t=event.t + rules.ask_s), (*orders, ev.AskSlurm())


def _begun_anew(state: State, event: ev.Continued, _rules: Rules) -> Change:
    """A new job follows: nothing that was spent counts, and what a person may have mended is tried again."""
    moved = bool({"workdir", "checkpoint.dir", "checkpoint.pattern"} & set(event.changed))
    known = Checkpoints() if moved else Checkpoints(sealed=state.checkpoints.sealed, left=state.checkpoints.left)
    return State(
        epoch=state.epoch,
        incident=state.incident,
        continued=event.n,
        best_step=state.best_step,
        path=state.path,
        checkpoints=known,
        ended=state.ended,
        saves=state.saves,
        saved_step=state.saved_step,
    ), ()


def _tick(state: State, event: ev.Tick, rules: Rules) -> Change:
    if state.end_t is not None and event.t >= state.end_t and state.stage in ending.BEFORE_END:
        return ending.due(state, event.t, rules)
    if state.warn_t is not None and event.t >= state.warn_t and state.stage in ending.BEFORE_END:
        return ending.warn_due(state, event.t, rules)
    if state.ask_t is not None and event.t >= state.ask_t and state.stage in ending.BEFORE_END:
        return replace(state, ask_t=event.t + rules.ask_s), (ev.AskSlurm(),)
    if state.deadline_t is None or event.t < state.deadline_t:
        return state, ()
    state = replace(state, deadline_t=None)
    if state.stage is Stage.BACK_OFF:
        return _attempt(state, event.t, rules)
    if state.stage is Stage.COLLECT:
        return _answered(replace(state, waiting=()), "", event.t, rules, Stage.STOP)
    if state.stage is Stage.RUN:
        return _hung(replace(state, held_s=0.0), event.t, rules)
    if state.stage is Stage.PICK:
        return _failed_start(state, event.t, rules, "choosing the checkpoint took too long")
    if state.stage in {Stage.GATHER, Stage.PREPARE, Stage.LAUNCH, Stage.STOP}:
        return _wait_for_slurm(state, event.t, rules) or _once_more(state, event.t, rules) or _gave_up(state, event.t, rules, "")
    if state.stage is Stage.TERMED:
        return told.tick(state, event.t)
    return requeue.tick(state, event.t) if state.stage is Stage.REQUEUE else ending.tick(state, event, rules)


def _wait_for_slurm(state: State, t: float, rules: Rules) -> Change | None:
    """Slurm does not answer, so nobody can start the supervisors that are missing: that is no fault of their nodes. None: it is."""
    if not state.away or (state.stage is not Stage.GATHER and any(node not in state.silent for node in state.waiting)):
        return None
    state, orders = enter(replace(state, alone=False), state.stage, t, rules)
    return state, (*orders, ev.AskSlurm())


def _once_more(state: State, t: float, rules: Rules) -> Change | None:
    """Half of the wait for hellos is over: where few are missing, they may have died on their way. None: it is all over."""
    if state.stage is not Stage.GATHER or state.again:
        return None
    few = state.instances and len(state.waiting) <= MISSING
    orders = tuple(ev.StartNode(node=node) for node in state.waiting) if few else ()
    return replace(state, again=True, deadline_t=t + rules.hello_s / 2), orders


def _gave_up(state: State, t: float, rules: Rules, text: str) -> Change:
    """The nodes that the stage waits for do not answer."""
    how = How.UNKILLABLE if state.stage is Stage.STOP else How.HELLO
    error = "no answer to the order to stop" if how is How.UNKILLABLE else text
    lost = tuple(Fault(how=how, node=node, error=error) for node in state.waiting)
    instances = {node: one for node, one in state.instances.items() if node not in state.waiting}
    state = replace(state, faults=state.faults + lost, over=state.over + state.waiting, instances=instances)
    return _judge(state, t, rules) if state.stage is Stage.STOP else _open(state, t, rules)


def _step_ended(state: State, event: ev.StepEnded, rules: Rules) -> Change:
    """While we gather: nobody else will come. While it trains it matters to nobody: a silent node gets a supervisor of its own."""
    state = replace(state, alone=True)
    if state.stage is Stage.TERMED:
        return told.last_words(state)
    if state.stage is not Stage.GATHER or state.instances:
        return state, ()
    if event.unanswered:
        return replace(state, deadline_t=event.t + STEP_AGAIN_S), ()
    return _gave_up(state, event.t, rules, event.text)


def _away(state: State, event: ev.Away, _rules: Rules) -> Change:
    """Answers that came while we were away are still in the queue: what we wait for gets its time again."""
    state = saving.again(state, event.t)
    return replace(state, deadline_t=None if state.deadline_t is None else state.deadline_t + event.away_s), ()


# Nodes --------------------------------------------------------------------------------------------------------------------


def _node_up(state: State, event: ev.NodeUp, rules: Rules) -> Change:
    node = event.node
    if node not in state.nodes:
        return state, ()
    if event.held:  # only stopped: whoever did that may end it again; its ranks are watched by nobody, and are not to blame
        return replace(state, silent={**state.silent, node: 1}), ()
    known = state.instances.get(node)
    silent = {n: count for n, count in state.silent.items() if n != node}
    state = replace(
        state, instances={**state.instances, node: event.instance}, silent=silent, via={**state.via, node: event.via}, alone=False
    )
    stuck = _unkillable(event) if known != event.instance else ()
    state = replace(state, faults=(*state.faults, *stuck))
    if state.stage is Stage.GATHER:
        return _open(state, event.t, rules) if stuck else _answered(state, node, event.t, rules, Stage.PICK)
    if event.running == state.epoch:
        if state.stage is Stage.LAUNCH:
            return _answered(state, node, event.t, rules, Stage.RUN)
        return state, tuple(order for order in _orders(state, rules) if getattr(order, "node", "") == node)
    if known is not None and known != event.instance and node not in state.over:
        return _supervisor_died(state, node, event.t, rules)
    return state, tuple(order for order in _orders(state, rules) if getattr(order, "node", "") == node)


def _unkillable(event: ev.NodeUp | ev.AttemptOver) -> tuple[Fault, ...]:
    return tuple(Fault(how=How.UNKILLABLE, node=event.node, error=left) for left in event.left)


def _supervisor_died(state: State, node: str, t: float, rules: Rules) -> Change:
    """Its ranks died with it, and the new one has swept: that is proof."""
    if state.stage is Stage.PREPARE and node not in {*state.waiting, *state.over}:  # it was ready; its successor is not
        state = replace(state, waiting=(*state.waiting, node))
    if state.stage in {Stage.PREPARE, Stage.PICK, Stage.BACK_OFF}:
        return state, tuple(order for order in _orders(state, rules) if getattr(order, "node", "") == node)
    if state.stage not in {Stage.LAUNCH, Stage.RUN, Stage.COLLECT, Stage.STOP}:
        return state, ()
    state = replace(state, over=(*state.over, node), faults=(*state.faults, Fault(how=How.NODE, node=node)))
    if state.stage in ATTEMPT:
        return _open(state, t, rules)
    return _answered(state, node, t, rules, Stage.STOP) if state.stage is Stage.COLLECT else _stopped(state, node, t, rules)


def _node_silent(state: State, event: ev.NodeSilent, rules: Rules) -> Change:
    if event.node not in state.nodes or state.stage in ending.AT_END:
        return state, ()
    again = event.quiet_s >= 2 * rules.node_grace_s  # else it was heard since it was silent the last time
    count = state.silent.get(event.node, 0) + 1 if again and not state.away else 1  # what could not be started was no try
    state = replace(state, silent={**state.silent, event.node: count})
    waits = count <= MISSING or state.away or event.node in state.over
    if waits or state.stage not in {Stage.LAUNCH, Stage.RUN, Stage.COLLECT, Stage.STOP}:
        asked = (ev.AskSlurm(),) if again else ()  # while it does not answer, nobody can be started
        return state, (ev.StartNode(node=event.node), *asked)
    lost = Fault(how=How.HELLO, node=event.node)
    state = replace(state, over=(*state.over, event.node), faults=(*state.faults, lost))
    if state.stage in ATTEMPT:
        return _open(state, event.t, rules)
    return (
        _answered(state, event.node, event.t, rules, Stage.STOP)
        if state.stage is Stage.COLLECT
        else _stopped(state, event.node, event.t, rules)
    )


# An attempt begins --------------------------------------------------------------------------------------------------------


def _picking(state: State, event: ev.Picking, rules: Rules) -> Change:
    """The disk gives its bytes: as long as it does, nothing hangs."""
    waits = event.epoch == state.epoch and state.stage is Stage.PICK
    return replace(state, deadline_t=event.t + rules.pick_s) if waits else state, ()


def _picked(state: State, event: ev.CheckpointPicked, rules: Rules) -> Change:
    if event.epoch != state.epoch or state.stage is not Stage.PICK:
        return state, ()
    newer = event.path is not None and state.path is not None and event.path != state.path
    further = event.step is None or (not rules.watched and event.step > (state.base_step or 0))
    if newer and further:
        state = _refill(state)  # a script whose steps are unknown still shows its progress by what it saves
    base = event.step if event.path else 0
    state, told = resume.picked(replace(state, path=event.path, base_step=base, ended=False), event)
    nothing_left = resume.nothing_left(state, event)
    if nothing_left is not None:
        state, orders = ending.close(state, nothing_left, event.t)
    else:
        state, orders = enter(state, Stage.PREPARE, event.t, rules, waiting=state.nodes)
    return state, told + orders


def _pick_failed(state: State, event: ev.PickFailed, rules: Rules) -> Change:
    if event.epoch != state.epoch or state.stage is not Stage.PICK:
        return state, ()
    if event.final:
        return ending.close(state, ev.Verdict(kind=ev.VerdictKind.STOP, reason=event.why, rule="no checkpoint"), event.t)
    return _failed_start(state, event.t, rules, event.why)


def _failed_start(state: State, t: float, rules: Rules, why: str) -> Change:
    """Nothing was launched yet, and no node is to blame: straight to the judge."""
    lost = Fault(how=How.SETUP, node="", error=why)
    return _open(replace(state, faults=(*state.faults, lost)), t, rules)


def _prepared(state: State, event: ev.Prepared, rules: Rules) -> Change:
    if event.epoch != state.epoch or state.stage is not Stage.PREPARE:
        return state, ()
    if event.port:
        state = replace(state, address=event.address, port=event.port)
    return _answered(state, event.node, event.t, rules, Stage.LAUNCH)


def _launched(state: State, event: ev.Launched, rules: Rules) -> Change:
    if event.epoch != state.epoch or state.stage is not Stage.LAUNCH:
        return state, ()
    return _answered(state, event.node, event.t, rules, Stage.RUN)


def _launch_failed(state: State, event: ev.LaunchFailed, rules: Rules) -> Change:
    if event.epoch != state.epoch or event.node in state.over:
        return state, ()
    state = replace(state, faults=(*state.faults, event.fault), over=(*state.over, event.node))
    if state.stage in ATTEMPT:
        return _open(state, event.t, rules)
    return _gone(state, event.node, event.t, rules)


# It trains ----------------------------------------------------------------------------------------------------------------


def _refill(state: State) -> State:
    return replace(state, moved=True, history=replace(state.history, past=(), requeues=0))


def _reached(state: State, step_now: int | None) -> State:
    """Take in how far the attempt came; past the best step of the others is progress."""
    if step_now is None or step_now <= state.best_step:
        return state
    return _refill(replace(state, best_step=step_now))


def _progressed(state: State, event: ev.Progressed, _rules: Rules) -> Change:
    if event.epoch != state.epoch:
        return state, ()
    if state.launched_t is not None and event.beats > 0:
        state = resume.begun(replace(state, restart_s=event.t - state.launched_t, launched_t=None))
    state = replace(state, unknown=event.step is None and event.by is not None)
    state = resume.stepped(state, event.step)
    return _reached(state, event.step), ()


def _learned(state: State, event: ev.Learned, _rules: Rules) -> Change:
    return replace(state, median_s=event.median_s), ()


# Something breaks ---------------------------------------------------------------------------------------------------------


def _stalled(state: State, event: ev.Stalled, rules: Rules) -> Change:
    if event.epoch != state.epoch or event.node in state.over:
        return state, ()
    state = blame.merge(state, event.faults)
    if state.stage not in ATTEMPT:
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
    return _hung(state, event.t, rules)


def _excused(state: State, faults: list[Fault], t: float) -> float | None:
    """Until when those who stand still in training may wait for a rank that is busy, or was a moment ago. None: they may not."""
    limit_s = max(fault.limit_s for fault in faults)
    if any(fault.how not in {How.QUIET, How.STORAGE} or fault.phase != "step" for fault in faults):
        return None
    if state.busy:
        patience_s = max(state.busy.values())
        return t + patience_s if patience_s > limit_s else None
    return None if state.busy_t is None or t >= state.busy_t + limit_s else state.busy_t + limit_s


def _hung(state: State, t: float, rules: Rules) -> Change:
    """It is a hang: act, or tell it once."""
    if rules.hang.mode is HangMode.ACT:
        return _open(state, t, rules)
    if state.told:
        return state, ()
    text = "; ".join(describe(fault) for fault in state.faults)
    return replace(state, told=True), (ev.Notify(kind="hang", text=f"{text}. hang.mode is observe: nothing is done"),)


def _busy(state: State, event: ev.Busy, _rules: Rules) -> Change:
    """Somebody saves or evaluates, or is through: then those who waited have the time of a step to move again."""
    if event.epoch != state.epoch or state.stage not in ATTEMPT:
        return state, ()
    busy = {node: limit_s for node, limit_s in {**state.busy, event.node: event.limit_s}.items() if limit_s}
    state = replace(state, busy=busy, busy_t=None if busy else event.t)
    if busy or not state.held_s or all(fault.how is How.STORAGE for fault in state.faults):
        return state, ()
    return replace(state, deadline_t=event.t + max(fault.limit_s for fault in state.faults)), ()


def _moving(state: State, event: ev.Moving, _rules: Rules) -> Change:
    if event.epoch != state.epoch or state.stage not in ATTEMPT:
        return state, ()
    faults = tuple(fault for fault in state.faults if fault.node != event.node)
    if all(at_end(fault) for fault in faults):
        deadline_t = None if state.held_s else state.deadline_t
        state = replace(state, held_s=0.0, told=False, deadline_t=deadline_t)
    return replace(state, faults=faults), ()


def _open_at_end(state: State, t: float, rules: Rules) -> Change:
    """Some hang in their shutdown. The others may have work left (rank 0 writes the last file): not before it is done."""
    if not state.faults or state.stage not in ATTEMPT or not all(at_end(fault) for fault in state.faults):
        return state, ()
    done = {*state.returned, *(fault.rank for fault in state.faults)}
    of_node = rules.workers_per_node
    open_ranks = {i * of_node + k for i, node in enumerate(state.nodes) if node not in state.over for k in range(of_node)}
    return _hung(state, t, rules) if open_ranks <= done else (state, ())


def _rank_ended(state: State, event: ev.RankEnded, rules: Rules) -> Change:
    if event.epoch != state.epoch or event.node in state.over:
        return state, ()
    if event.fault.how is How.RETURNED:
        known = event.fault.rank is None or event.fault.rank in state.returned
        state = state if known else replace(state, returned=(*state.returned, event.fault.rank))
        return _open_at_end(state, event.t, rules)
    if state.stage is Stage.RUN and saving.may_leave(state, event.fault):
        return state, ()
    if state.stage in ATTEMPT:
        return _open(blame.merge(state, (event.fault,)), event.t, rules)
    return (blame.merge(state, (event.fault,)) if state.stage is Stage.COLLECT else state), ()


def _reported(state: State, event: ev.Reported, rules: Rules) -> Change:
    """A fatal report is acted on at once; what it lacks (who began it) comes with the evidence."""
    fault = event.fault
    if not event.fatal or event.epoch != state.epoch or event.node in state.over or fault.rank in state.returned:
        return state, ()
    if rules.hang.mode is HangMode.OBSERVE:
        text = f"{describe(fault)}. hang.mode is observe: nothing is done"
        return state, (ev.Notify(kind="report", text=text),) if state.stage in ATTEMPT else ()
    if state.stage in ATTEMPT:
        return _open(blame.merge(state, (fault,)), event.t, rules)
    return (blame.merge(state, (fault,)) if state.stage is Stage.COLLECT else state), ()


def _collected(state: State, event: ev.Collected, rules: Rules) -> Change:
    if event.epoch != state.epoch or state.stage is not Stage.COLLECT:
        return state, ()
    known = {(fault.node, fault.rank) for fault in state.faults}
    still = {How.QUIET, How.STORAGE}
    told = tuple(fault for fault in event.faults if fault.how not in still or (fault.node, fault.rank) in known)
    suspects = tuple(fault for fault in event.faults if fault.how in still and (fault.node, fault.rank) not in known)
    state = replace(state, suspects=state.suspects + suspects)
    return _answered(blame.merge(state, told), event.node, event.t, rules, Stage.STOP)


def _attempt_over(state: State, event: ev.AttemptOver, rules: Rules) -> Change:
    if event.epoch != state.epoch:
        return state, ()
    state = resume.stepped(_reached(state, event.step), event.step)
    if state.stage is Stage.TERMED:
        return told.last_words(_over(state, event))
    if state.stage in ending.AT_END and event.node not in state.over:  # the leader may go once it has heard of all
        return replace(state, over=(*state.over, event.node)), ()
    if event.node in state.over or state.stage not in ATTEMPT | {Stage.COLLECT, Stage.STOP}:
        return state, ()
    if state.preempted and state.stage in {Stage.LAUNCH, Stage.RUN} and told.ended_by_it(state, event):
        how = "its signal has ended the ranks" if len(state.nodes) == 1 else f"its signal has ended the ranks on {event.node}"
        return told.preempted(state, event.t, rules, how)
    if state.stage is Stage.RUN and (left := saving.left(state, event, rules)):
        return _anew(*left, event.t, rules)
    bad = tuple(fault for fault in event.ended if fault.how is not How.RETURNED)
    stuck = _unkillable(event)
    state = replace(state, over=(*state.over, event.node))
    if state.stage in ATTEMPT and event.code == 0 and not stuck:
        if len(state.over) < len(state.nodes):
            return _open_at_end(state, event.t, rules)
        return ending.close(state, ending.finished(), event.t)
    if state.stage is Stage.STOP:
        known = {(fault.node, fault.rank) for fault in state.faults if fault.how not in HANGS and not fault.alive}
        bad = tuple(fault for fault in bad if fault.rank is None or (fault.node, fault.rank) in known)  # the others: our stop did it
    elif not bad and not state.faults and not stuck:
        bad = (Fault(how=How.TORCHRUN, node=event.node, code=event.code),)
    state = replace(blame.merge(state, bad), faults=blame.merge(state, bad).faults + stuck)
    return _open(state, event.t, rules) if state.stage in ATTEMPT else _gone(state, event.node, event.t, rules)


def _over(state: State, event: ev.AttemptOver) -> State:
    """A node's part is over while nobody knows why we are told to end. Its ranks are to blame only if it was not told itself."""
    if event.node in state.over:
        return state
    bad = tuple(fault for fault in event.ended if fault.how is not How.RETURNED)
    if event.code and not bad:
        bad = (Fault(how=How.TORCHRUN, node=event.node, code=event.code),)
    state = replace(state, over=(*state.over, event.node))
    return state if event.node in state.termed else blame.merge(state, bad)


def _anew(state: State, orders: tuple[LeaderOrder, ...], t: float, rules: Rules) -> Change:
    """All ranks saved and left although the end is far (a warning sent by hand, a script that ends at each request): go on."""
    if state.stage is not Stage.RUN or len(state.over) < len(state.nodes) or state.look_t is not None:
        return state, orders
    if state.history.attempts >= rules.policy.hard_cap:
        why = f"{state.history.attempts} attempts in this run (policy.hard_cap); in the last one all ranks saved and left"
        return ending.close(state, ev.Verdict(kind=ev.VerdictKind.STOP, reason=why, rule="hard cap"), t)
    state, more = _attempt(state, t, rules)
    return state, (*orders, ev.Notify(kind="save", text="all ranks saved and left, and the end is not near: launched again"), *more)


def _gone(state: State, node: str, t: float, rules: Rules) -> Change:
    if state.stage is Stage.COLLECT:
        return _answered(state, node, t, rules, Stage.STOP)
    return _stopped(state, node, t, rules) if state.stage is Stage.STOP else (state, ())


def _stopped(state: State, node: str, t: float, rules: Rules) -> Change:
    state = replace(state, waiting=tuple(n for n in state.waiting if n != node))
    return (state, ()) if state.waiting else _judge(state, t, rules)


def _open(state: State, t: float, rules: Rules) -> Change:
    """An incident begins: evidence from every node that still has something of the attempt."""
    state = replace(state, incident=state.incident + 1, held_s=0.0, stopping=False)
    begun: LeaderOrder = ev.Incident(number=state.incident, epoch=state.epoch, faults=state.faults)
    waiting = tuple(node for node in state.nodes if node not in state.over)
    if not waiting or state.stage in {Stage.GATHER, Stage.PICK}:
        state, orders = _judge(state, t, rules)
        return state, (begun, *orders)
    state, orders = enter(state, Stage.COLLECT, t, rules, waiting=waiting)
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
        state = resume.stepped(_reached(state, fault.step), fault.step)
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
    state, orders = _attempt(state, t, rules)
    return state, (closed, news, *orders)


def _restart(state: State, t: float, rules: Rules) -> Change:
    """The attempt was ended for a person. What happened on the way matters only where it keeps the next one from beginning."""
    grave = tuple(fault for fault in state.faults if fault.how in {How.UNKILLABLE, How.HELLO})
    if grave:
        return _open(replace(state, faults=grave), t, rules)
    return wishes.again(state, t), ()


def _slurm_said(state: State, event: ev.SlurmSaid, rules: Rules) -> Change:
    """What Slurm says matters to how a grant ends; but a TERM that was meant for one supervisor is a fault of its node."""
    state = exclusion.aged(state, event.t)
    if state.stage is Stage.REQUEUE:
        return requeue.said(state, event, rules)
    if told.goes_on(state, event):
        return _back(state, event, rules)
    if state.stage in ending.BEFORE_END and event.completing:  # it ends, and nobody has told us yet
        state, asked = ending.find_out(state, event.t)
        state, orders = told.said(state, event, rules)
        return state, (*asked, *orders)
    if state.stage is Stage.TERMED and event.state not in ending.ENDED:
        return told.said(state, event, rules)
    state, orders = ending.slurm_said(state, event, rules)
    state, more = saving.end_said(state, event, rules)
    return _anew(state, orders + more, event.t, rules)


def _back(state: State, event: ev.SlurmSaid, rules: Rules) -> Change:
    """Not the end of us: what was done before goes on. A supervisor that a person has ended is a fault of its node."""
    was, termed, t = state.told_in or Stage.RUN, state.termed, event.t
    state = replace(state, stage=was, told_in=None, signalled=False, termed=(), end_t=None, ask_t=t + rules.ask_s, deadline_t=None)
    orders: tuple[LeaderOrder, ...] = (ev.Unexplained(over=True),)
    if event.preempted:
        orders += tuple(ev.GoOn(node=node) for node in termed)
    elif termed:
        lost = tuple(Fault(how=How.NODE, node=node) for node in termed)
        instances = {node: one for node, one in state.instances.items() if node not in termed}
        state = replace(state, faults=(*state.faults, *lost), instances=instances)
    state, more = _again(state, t, rules)
    state, news = ending.slurm_said(state, event, rules)
    if state.foreground and not event.preempted and not termed and state.stage in ending.BEFORE_END:
        state, asked = wishes.asked(state, ev.Asked(t=t, request=Request.STOP, who="SIGTERM by hand"), rules)
        news += asked
    return state, (*orders, *more, *news)


def _again(state: State, t: float, rules: Rules) -> Change:
    """The orders of the stage once more. What came meanwhile is asked for again: a node that runs says so when it is to launch."""
    if state.stage is Stage.CLOSE and state.verdict is not None:
        return ending.close(state, state.verdict, t)
    if state.stage in {Stage.COLLECT, Stage.STOP}:
        return _answered(replace(state, waiting=()), "", t, rules, Stage.STOP)
    if state.faults and state.stage in ATTEMPT:
        return _open(state, t, rules)
    waiting = tuple(node for node in state.nodes if node not in state.over)
    if state.stage is Stage.RUN:
        return enter(state, Stage.LAUNCH, t, rules, waiting=waiting) if waiting else ending.close(state, ending.finished(), t)
    missing = tuple(node for node in state.nodes if node not in state.instances)
    if state.stage is Stage.GATHER:
        return enter(state, Stage.GATHER, t, rules, waiting=missing) if missing else _attempt(state, t, rules)
    if state.stage is Stage.BACK_OFF:
        return replace(state, deadline_t=t), ()
    return enter(state, state.stage, t, rules, waiting=waiting if state.stage in {Stage.PREPARE, Stage.LAUNCH} else None)


def _slurm_failed(state: State, event: ev.SlurmFailed, rules: Rules) -> Change:
    if state.stage is Stage.TERMED:
        return told.failed(state)
    return (requeue.failed if state.stage is Stage.REQUEUE else ending.slurm_failed)(state, event, rules)


def _signalled(state: State, event: ev.Signalled, rules: Rules) -> Change:
    """TERM at the leader: our own requeue, or somebody else's wish."""
    return requeue.told(replace(state, signalled=True)) if state.stage is Stage.REQUEUE else told.signalled(state, event, rules)


HANDLERS: dict[type, Callable[[State, Any, Rules], Change]] = {
    ev.LeaderStarted: _leader_started,
    ev.Tick: _tick,
    ev.Away: _away,
    ev.NodeUp: _node_up,
    ev.NodeSilent: _node_silent,
    ev.StartFailed: _same,
    ev.StepEnded: _step_ended,
    ev.Picking: _picking,
    ev.CheckpointPicked: _picked,
    ev.PickFailed: _pick_failed,
    ev.Sealed: resume.sealed,
    ev.Quarantined: resume.quarantined,
    ev.Pruned: resume.pruned,
    ev.CheckpointsTaken: ending.taken,
    ev.Prepared: _prepared,
    ev.Launched: _launched,
    ev.LaunchFailed: _launch_failed,
    ev.Progressed: _progressed,
    ev.Saved: saving.script_saved,
    ev.Counted: saving.counted,
    ev.Voted: saving.voted,
    ev.SaveOver: saving.save_over,
    ev.Learned: _learned,
    ev.Busy: _busy,
    ev.Stalled: _stalled,
    ev.Moving: _moving,
    ev.RankEnded: _rank_ended,
    ev.Reported: _reported,
    ev.Collected: _collected,
    ev.AttemptOver: _attempt_over,
    ev.Warned: ending.warned,
    ev.Terminated: told.terminated,
    ev.Signalled: _signalled,
    ev.SlurmSaid: _slurm_said,
    ev.SlurmFailed: _slurm_failed,
    ev.RequeueAsked: requeue.asked,
    ev.Superseded: ending.superseded,
    ev.Chained: requeue.chained,
    ev.AvoidSet: requeue.avoid_set,
    ev.Decided: ending.decided,
    ev.Asked: wishes.asked,
    ev.Continued: _begun_anew,
    ev.Noted: _same,
    ev.Told: _same,
}
