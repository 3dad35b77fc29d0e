"""The stages of an attempt: how each is entered, its orders and its limit, and how the next attempt begins.

Orders are idempotent: a new leader enters the stage it finds, and gives them again. What a bad sign leads to is in `breaking`.
"""

from __future__ import annotations

from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import LeaderOrder
from ftsup.policy import resume
from ftsup.policy import save as saving
from ftsup.policy.rules import Rules
from ftsup.policy.state import Stage, State

Change = tuple[State, tuple[LeaderOrder, ...]]

ATTEMPT = frozenset({Stage.PREPARE, Stage.LAUNCH, Stage.RUN})
"""Stages in which a bad sign opens an incident."""


def enter(state: State, stage: Stage, t: float, rules: Rules, *, waiting: tuple[str, ...] | None = None) -> Change:
    """Begin a stage, or (a new leader) give its orders again."""
    state = replace(state, stage=stage, waiting=state.waiting if waiting is None else waiting)
    limit_s = {
        Stage.GATHER: rules.hello_s / 2,  # then whoever is missing is started once more
        Stage.PICK: rules.pick_s,
        Stage.PREPARE: rules.setup_s,
        Stage.LAUNCH: rules.hello_s,
        Stage.COLLECT: rules.evidence_s + 2,
        Stage.STOP: rules.grace_s + rules.hello_s,
        Stage.RUN: state.held_s or None,  # a new leader waits no longer than the old one
    }.get(stage)
    return replace(state, again=False, blind=False, deadline_t=None if limit_s is None else t + limit_s), orders(state, rules)


def orders(state: State, rules: Rules) -> tuple[LeaderOrder, ...]:
    """What the stage orders of the nodes that it waits for."""
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


def attempt(state: State, t: float, rules: Rules) -> Change:
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


def refill(state: State) -> State:
    """Progress: every budget is whole again."""
    return replace(state, moved=True, history=replace(state.history, past=(), requeues=0))


def reached(state: State, step_now: int | None) -> State:
    """Take in how far the attempt came; past the best step of the others is progress."""
    if step_now is None or step_now <= state.best_step:
        return state
    return refill(replace(state, best_step=step_now))
