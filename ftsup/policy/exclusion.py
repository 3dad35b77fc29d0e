"""Which nodes a run keeps out, since when, and until when; and what to do where one of them is given to it all the same.

Part of the leader's machine, pure as the rest. Time is the run's own: so long as it had its nodes, by the clocks of its grants, of which
no two are compared. `history.avoided` has the names; here is their age, and what Slurm's list is known to hold.
"""

from __future__ import annotations

from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Verdict, VerdictKind
from ftsup.policy.rules import Rules
from ftsup.policy.state import Exclusions, State

RULE = "kept out"
"""Of a requeue that is for nothing but to leave a node that was to be kept out."""


def lived_s(state: State, t: float) -> float:
    """How long the run has had its nodes."""
    out = state.exclusions
    return out.lived_s + (max(t - out.grant_t, 0.0) if out.grant_t is not None else 0.0)


def aged(state: State, t: float) -> State:
    """The time until now, taken in: whatever becomes of this grant."""
    return replace(state, exclusions=replace(state.exclusions, lived_s=lived_s(state, t), grant_t=t))


def follow(state: State, t: float) -> State:
    """Nodes that are newly kept out have their time from now on."""
    since, names = state.exclusions.since_s, state.history.avoided
    if tuple(since) == names:
        return state
    return replace(state, exclusions=replace(state.exclusions, since_s={name: since.get(name, lived_s(state, t)) for name in names}))


def begun(before: State, t: float, rules: Rules) -> State:
    """The next grant begins: whose time is over is let in again, at the next requeue."""
    out, history, limit_s = before.exclusions, before.history, rules.policy.avoid_for_s
    over = tuple(name for name, since_s in out.since_s.items() if limit_s and out.lived_s - since_s >= limit_s)
    history = replace(history, avoided=tuple(name for name in history.avoided if name not in over))
    expired = tuple(dict.fromkeys((*out.expired, *(name for name in over if name in out.listed))))
    since_s = {name: since for name, since in out.since_s.items() if name not in over}
    return replace(before, history=history, exclusions=replace(out, since_s=since_s, expired=expired, grant_t=t))


def wanted(state: State) -> ev.Avoid | None:
    """What Slurm's list is to be told; None: it has all of it."""
    out, names = state.exclusions, state.history.avoided
    expired = tuple(name for name in out.expired if name not in names)
    if set(names) <= set(out.listed) and not expired:
        return None
    return ev.Avoid(nodes=names, drop=expired)


def listed(state: State, event: ev.AvoidSet) -> State:
    """Slurm's list was written, and read back."""
    return replace(state, exclusions=replace(state.exclusions, listed=event.nodes, let_in=event.let_in, expired=()))


def let_in_news(event: ev.AvoidSet) -> ev.Notify:
    """Too few nodes would remain."""
    text = f"{', '.join(event.let_in)} may be used again: without them too few nodes remain for this job"
    unsure = f" (which nodes can run it is not clear from {event.unsure}: only such as it had were counted)" if event.unsure else ""
    return ev.Notify(kind="requeue", text=text + unsure)


def unlisted(state: State) -> State:
    """Whatever Slurm's list held, it does not any more: it is to be written anew."""
    return replace(state, exclusions=replace(state.exclusions, listed=()))


def missed(state: State) -> Verdict | None:
    """A requeue of a grant that has nodes which were to be kept out: neither the last leader nor its batch script could. None: it has none.

    Nodes that had to be let in are used; so are all once requeues bring no progress.
    """
    here = [name for name in state.history.avoided if name in state.nodes and name not in state.exclusions.let_in]
    if not here:
        return None
    reason = f"{', '.join(here)} was to be kept out, and is in this allocation: requeue without it"
    return Verdict(kind=VerdictKind.REQUEUE, reason=reason, rule=RULE)


__all__ = ["RULE", "Exclusions", "aged", "begun", "follow", "let_in_news", "listed", "lived_s", "missed", "unlisted", "wanted"]
