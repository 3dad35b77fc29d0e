"""When people are told that a run makes no progress: it has its nodes, and has not got past its best step for long.

Part of the leader's machine, pure as the rest. It tells, once until there is progress again, and decides nothing. In the queue nobody
is there to tell; training whose steps are unknown is never said to be stuck.
"""

from __future__ import annotations

from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import LeaderOrder
from ftsup.policy.ending import AT_END
from ftsup.policy.rules import Rules
from ftsup.policy.state import Stage, State

Change = tuple[State, tuple[LeaderOrder, ...]]


def follow(before: State, state: State, t: float, rules: Rules) -> Change:
    """What the last event means for it."""
    if not rules.no_progress_s or not rules.watched:
        return state, ()
    if state.unknown:  # a time that moved with every tick would be a line of the log a tick
        return replace(state, stuck_t=None), ()
    if before.unknown or before.epoch.grant != state.epoch.grant or before.best_step != state.best_step:
        return replace(state, stuck_t=t + rules.no_progress_s), ()
    if state.stuck_t is None or t < state.stuck_t or state.stage in AT_END:
        return state, ()
    return replace(state, stuck_t=None), (ev.Notify(kind="no progress", text=_text(state, rules)),)


def deadline_t(state: State) -> float | None:
    """When it is to be told."""
    return None if state.stage in AT_END | {Stage.NEW} else state.stuck_t


def _text(state: State, rules: Rules) -> str:
    far = f"step {state.best_step} is still the farthest" if state.best_step >= 0 else "not one step was made"
    return f"no progress for {rules.no_progress_s / 60:.0f} min: {far} (attempt {state.epoch}, {state.history.attempts} in all)"
