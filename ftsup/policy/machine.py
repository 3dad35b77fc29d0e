"""The leader's machine: its table of rules, and those for time, nodes and the beginning of an attempt.

The orders of a stage are in `stages`, what a bad sign leads to in `breaking` and `judge`, how a grant ends in `ending`.

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
from ftsup.policy import breaking, ending, exclusion, requeue, resume, stages, stuck, told, wishes
from ftsup.policy import save as saving
from ftsup.policy.rules import Rules
from ftsup.policy.stages import Change
from ftsup.policy.state import Checkpoints, Out, Stage, State

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


# A leader begins, time passes ---------------------------------------------------------------------------------------------


def _leader_started(state: State, event: ev.LeaderStarted, rules: Rules) -> Change:
    if state.stage is Stage.OVER and state.verdict is not None:
        return ending.again(state)
    if (event.job, event.restarts) == (state.job, state.restarts):
        return ending.take_over(state, event, rules) or stages.enter(saving.again(state, event.t), state.stage, event.t, rules)
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
    state, orders = stages.enter(state, Stage.GATHER, event.t, rules, waiting=event.nodes)
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
        return stages.attempt(state, event.t, rules)
    if state.stage is Stage.COLLECT:
        return breaking.answered(replace(state, waiting=()), "", event.t, rules, Stage.STOP)
    if state.stage is Stage.RUN:
        return breaking.hung(replace(state, held_s=0.0), event.t, rules)
    if state.stage is Stage.PICK:
        return breaking.failed_start(state, event.t, rules, "choosing the checkpoint took too long")
    if state.stage in {Stage.GATHER, Stage.PREPARE, Stage.LAUNCH, Stage.STOP}:
        return _wait_for_slurm(state, event.t, rules) or _once_more(state, event.t, rules) or breaking.gave_up(state, event.t, rules, "")
    if state.stage is Stage.TERMED:
        return told.tick(state, event.t)
    return requeue.tick(state, event.t) if state.stage is Stage.REQUEUE else ending.tick(state, event, rules)


def _wait_for_slurm(state: State, t: float, rules: Rules) -> Change | None:
    """Slurm does not answer, so nobody can start the supervisors that are missing: that is no fault of their nodes. None: it is."""
    if not state.away or (state.stage is not Stage.GATHER and any(node not in state.silent for node in state.waiting)):
        return None
    state, orders = stages.enter(replace(state, alone=False), state.stage, t, rules)
    return replace(state, blind=True), (*orders, ev.AskSlurm())


def _once_more(state: State, t: float, rules: Rules) -> Change | None:
    """Half of the wait for hellos is over: where few are missing, they may have died on their way. Or Slurm answers again, and the step
    has ended. None: it is all over.
    """
    if state.stage is not Stage.GATHER or state.again:
        return None
    none = state.alone and not state.instances
    few = state.instances and len(state.waiting) <= MISSING
    orders = stages.orders(state, rules) if none or few else ()
    return replace(state, again=True, alone=state.alone and not none, deadline_t=t + rules.hello_s / 2), orders


def _step_ended(state: State, event: ev.StepEnded, rules: Rules) -> Change:
    """While we gather: nobody else will come. While it trains it matters to nobody: a silent node gets a supervisor of its own."""
    state = replace(state, alone=True)
    if state.stage is Stage.TERMED:
        return told.last_words(state)
    if state.stage is not Stage.GATHER or state.instances:
        return state, ()
    if event.unanswered or state.blind:
        return replace(state, blind=False, deadline_t=event.t + STEP_AGAIN_S), ()
    return breaking.gave_up(state, event.t, rules, event.text)


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
    stuck = breaking.unkillable(event) if known != event.instance else ()
    state = replace(state, faults=(*state.faults, *stuck))
    if state.stage is Stage.GATHER:
        return breaking.opened(state, event.t, rules) if stuck else breaking.answered(state, node, event.t, rules, Stage.PICK)
    if event.running == state.epoch:
        if state.stage is Stage.LAUNCH:
            return breaking.answered(state, node, event.t, rules, Stage.RUN)
        return state, tuple(order for order in stages.orders(state, rules) if getattr(order, "node", "") == node)
    if known is not None and known != event.instance and node not in state.over:
        return _supervisor_died(state, node, event.t, rules)
    return state, tuple(order for order in stages.orders(state, rules) if getattr(order, "node", "") == node)


def _supervisor_died(state: State, node: str, t: float, rules: Rules) -> Change:
    """Its ranks died with it, and the new one has swept: that is proof."""
    if state.stage is Stage.PREPARE and node not in {*state.waiting, *state.over}:  # it was ready; its successor is not
        state = replace(state, waiting=(*state.waiting, node))
    if state.stage in {Stage.PREPARE, Stage.PICK, Stage.BACK_OFF}:
        return state, tuple(order for order in stages.orders(state, rules) if getattr(order, "node", "") == node)
    if state.stage not in {Stage.LAUNCH, Stage.RUN, Stage.COLLECT, Stage.STOP}:
        return state, ()
    state = replace(state, over=(*state.over, node), faults=(*state.faults, Fault(how=How.NODE, node=node)))
    if state.stage in stages.ATTEMPT:
        return breaking.opened(state, t, rules)
    return breaking.answered(state, node, t, rules, Stage.STOP) if state.stage is Stage.COLLECT else breaking.stopped(state, node, t, rules)


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
    if state.stage in stages.ATTEMPT:
        return breaking.opened(state, event.t, rules)
    return (
        breaking.answered(state, event.node, event.t, rules, Stage.STOP)
        if state.stage is Stage.COLLECT
        else breaking.stopped(state, event.node, event.t, rules)
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
        state = stages.refill(state)  # a script whose steps are unknown still shows its progress by what it saves
    base = event.step if event.path else 0
    state, told = resume.picked(replace(state, path=event.path, base_step=base, ended=False), event)
    nothing_left = resume.nothing_left(state, event)
    if nothing_left is not None:
        state, orders = ending.close(state, nothing_left, event.t)
    else:
        state, orders = stages.enter(state, Stage.PREPARE, event.t, rules, waiting=state.nodes)
    return state, told + orders


def _pick_failed(state: State, event: ev.PickFailed, rules: Rules) -> Change:
    if event.epoch != state.epoch or state.stage is not Stage.PICK:
        return state, ()
    if event.final:
        return ending.close(state, ev.Verdict(kind=ev.VerdictKind.STOP, reason=event.why, rule="no checkpoint"), event.t)
    return breaking.failed_start(state, event.t, rules, event.why)


def _prepared(state: State, event: ev.Prepared, rules: Rules) -> Change:
    if event.epoch != state.epoch or state.stage is not Stage.PREPARE:
        return state, ()
    if event.port:
        state = replace(state, address=event.address, port=event.port)
    return breaking.answered(state, event.node, event.t, rules, Stage.LAUNCH)


def _launched(state: State, event: ev.Launched, rules: Rules) -> Change:
    if event.epoch != state.epoch or state.stage is not Stage.LAUNCH:
        return state, ()
    return breaking.answered(state, event.node, event.t, rules, Stage.RUN)


def _launch_failed(state: State, event: ev.LaunchFailed, rules: Rules) -> Change:
    if event.epoch != state.epoch or event.node in state.over:
        return state, ()
    state = replace(state, faults=(*state.faults, event.fault), over=(*state.over, event.node))
    if state.stage in stages.ATTEMPT:
        return breaking.opened(state, event.t, rules)
    return breaking.gone(state, event.node, event.t, rules)


# It trains ----------------------------------------------------------------------------------------------------------------


def _progressed(state: State, event: ev.Progressed, _rules: Rules) -> Change:
    if event.epoch != state.epoch:
        return state, ()
    if state.launched_t is not None and event.beats > 0:
        state = resume.begun(replace(state, restart_s=event.t - state.launched_t, launched_t=None))
    state = replace(state, unknown=event.step is None and event.by is not None)
    state = resume.stepped(state, event.step)
    return stages.reached(state, event.step), ()


def _learned(state: State, event: ev.Learned, _rules: Rules) -> Change:
    return replace(state, median_s=event.median_s), ()


# What Slurm says ----------------------------------------------------------------------------------------------------------


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
    return breaking.anew(state, orders + more, event.t, rules)


def _back(state: State, event: ev.SlurmSaid, rules: Rules) -> Change:
    """Not the end of us: what was done before goes on. A supervisor that a person has ended is a fault of its node."""
    was, termed, t = state.told_in or Stage.RUN, state.termed, event.t
    state = replace(state, stage=was, told_in=None, signalled=False, script=False, termed=())
    state = replace(state, end_t=None, ask_t=t + rules.ask_s, deadline_t=None)
    orders: tuple[LeaderOrder, ...] = (ev.Unexplained(over=True, back=True),)
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
        return breaking.answered(replace(state, waiting=()), "", t, rules, Stage.STOP)
    if state.faults and state.stage in stages.ATTEMPT:
        return breaking.opened(state, t, rules)
    waiting = tuple(node for node in state.nodes if node not in state.over)
    if state.stage is Stage.RUN:
        return stages.enter(state, Stage.LAUNCH, t, rules, waiting=waiting) if waiting else ending.close(state, ending.finished(), t)
    missing = tuple(node for node in state.nodes if node not in state.instances)
    if state.stage is Stage.GATHER:
        return stages.enter(state, Stage.GATHER, t, rules, waiting=missing) if missing else stages.attempt(state, t, rules)
    if state.stage is Stage.BACK_OFF:
        return replace(state, deadline_t=t), ()
    return stages.enter(state, state.stage, t, rules, waiting=waiting if state.stage in {Stage.PREPARE, Stage.LAUNCH} else None)


def _slurm_failed(state: State, event: ev.SlurmFailed, rules: Rules) -> Change:
    if state.stage is Stage.TERMED:
        return told.failed(state)
    return (requeue.failed if state.stage is Stage.REQUEUE else ending.slurm_failed)(state, event, rules)


def _signalled(state: State, event: ev.Signalled, rules: Rules) -> Change:
    """TERM at the leader: our own requeue, or somebody else's wish."""
    if state.stage is Stage.REQUEUE:
        return requeue.told(replace(state, signalled=True, told_t=event.t))
    return told.signalled(state, event, rules)


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
    ev.Busy: breaking.busy,
    ev.Stalled: breaking.stalled,
    ev.Moving: breaking.moving,
    ev.RankEnded: breaking.rank_ended,
    ev.Reported: breaking.reported,
    ev.Collected: breaking.collected,
    ev.AttemptOver: breaking.attempt_over,
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
