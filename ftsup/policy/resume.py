"""What the leader's machine remembers of checkpoints: from which it resumes, which are sealed, and which are suspects.

Pure, a part of the machine. Names only: which checkpoint is taken is decided where the bytes are (`checkpoint/pick.py`), what a death
before the first step leads to in the judge.
"""

from __future__ import annotations

from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import LeaderOrder, Verdict, VerdictKind
from ftsup.policy.judge import SUSPECT, describe
from ftsup.policy.rules import Rules
from ftsup.policy.state import State, Wish

Change = tuple[State, tuple[LeaderOrder, ...]]

TOLD = 3
"""Names that one sentence holds."""
SEALED = 16
"""Names of sealed ones that are remembered: a manifest that vanishes matters for the newest."""


def pick(state: State) -> ev.PickCheckpoint:
    """The order to choose one."""
    known = state.checkpoints
    from_step = known.wish.from_step if known.wish else None
    return ev.PickCheckpoint(
        epoch=state.epoch, suspects=known.suspects, sealed=known.sealed, ended=state.ended, from_step=from_step, left=known.left
    )


def picked(state: State, event: ev.CheckpointPicked) -> Change:
    """It is chosen."""
    known, name = state.checkpoints, event.name if event.path else ""
    left = known.left if event.left is None else event.left
    best_step = (
        state.best_step if event.left is None or event.step is None else event.step
    )  # progress counts from where a person went back to
    after = replace(known, name=name, files=event.files, begun=False, left=left, wish=None)
    return replace(state, checkpoints=after, best_step=best_step), _told(known.wish, event)


def _told(wish: Wish | None, event: ev.CheckpointPicked) -> tuple[LeaderOrder, ...]:
    """Which one a person's restart took."""
    if wish is None:
        return ()
    asked = f"{wish.who} asked for a restart from step {wish.from_step}"
    if event.left is None:
        where = f"it goes on from {event.name}" if event.path else "it begins from the beginning"
        return (ev.Notify(kind="refused", text=f"{asked}: refused: {event.refused or event.why}; {where}"),)
    names = [one.name for one in event.left]
    more = f" and {len(names) - TOLD} more" if len(names) > TOLD else ""
    behind = f"; left behind until they are written anew: {', '.join(names[:TOLD])}{more}" if names else ""
    return (ev.Notify(kind="restart", text=f"{asked}: from {event.name}, of step {event.step}{behind}"),)


def nothing_left(state: State, event: ev.CheckpointPicked) -> Verdict | None:
    """There was a checkpoint, and no other beside it: to begin anew is a decision for a person. None: there never was one."""
    known = state.checkpoints
    if event.path is not None or not (known.suspects or known.left):
        return None
    if not known.suspects:
        behind = ", ".join(one.name for one in known.left[:TOLD])
        reason = f"there is no checkpoint but those that a restart from an earlier step left behind ({behind}): {event.why}"
        return Verdict(kind=VerdictKind.STOP, reason=reason, rule="no checkpoint")
    name = known.suspects[-1]
    past = next((one for one in reversed(state.history.past) if one.rule == SUSPECT), None)
    last = f": {describe(past.root)}" if past else ""
    reason = f"{name} is whole and cannot be resumed from{last}; and there is no checkpoint before it ({event.why})"
    return Verdict(kind=VerdictKind.STOP, reason=reason, rule=SUSPECT)


def begun(state: State) -> State:
    """The attempt made its first step: what it resumed from can be loaded."""
    known = state.checkpoints
    return replace(state, checkpoints=replace(known, begun=True, loaded=known.name or known.loaded))


def stepped(state: State, step_now: int | None) -> State:
    """A rank is at this step: past the checkpoint's, it made one of its own."""
    further = step_now is not None and step_now > (state.base_step or 0)
    return begun(state) if further and not state.checkpoints.begun else state


def doubt(state: State, rules: Rules) -> str:
    """The checkpoint that may be to blame for an attempt that ended before its first step. Empty: none is."""
    known = state.checkpoints
    if state.launched_t is None or not rules.watched or state.unknown or known.begun or known.name == known.loaded:
        return ""
    return known.name


def suspect(state: State, name: str) -> State:
    """It is passed over from now on."""
    if not name or name in state.checkpoints.suspects:
        return state
    return replace(state, checkpoints=replace(state.checkpoints, suspects=(*state.checkpoints.suspects, name)))


def sealed(state: State, event: ev.Sealed, _rules: Rules) -> Change:
    """What is sealed anew was written anew: a suspect is none any more, and nobody has loaded it yet."""
    known = state.checkpoints
    names = tuple(name for name in known.sealed if name != event.name)
    return replace(
        state,
        checkpoints=replace(
            known,
            sealed=(*names, event.name)[-SEALED:],
            suspects=tuple(name for name in known.suspects if name != event.name),
            left=tuple(one for one in known.left if one.name != event.name),
            loaded="" if known.loaded == event.name else known.loaded,
        ),
    ), ()


def quarantined(state: State, event: ev.Quarantined, _rules: Rules) -> Change:
    """It is damaged, and lies elsewhere now."""
    text = f"checkpoint {event.name} is damaged and was set aside ({event.path}): {event.why}"
    return _gone(state, (event.name,)), (ev.Notify(kind="checkpoint", text=text),)


def pruned(state: State, event: ev.Pruned, _rules: Rules) -> Change:
    """They are gone."""
    return _gone(state, event.names), ()


def _gone(state: State, names: tuple[str, ...]) -> State:
    known = state.checkpoints
    sealed, left = (tuple(name for name in known.sealed if name not in names), tuple(one for one in known.left if one.name not in names))
    return replace(state, checkpoints=replace(known, sealed=sealed, left=left))
