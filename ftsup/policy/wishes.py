"""What people ask of a run while it lives: what is refused and why, which of two requests counts, and how one is carried out.

Part of the leader's machine, pure as the rest. The law: every request is answered at once, by one sentence. One wish at a time; the
stronger one stays (cancel, stop, pause, requeue, restart), and one that has begun is not begun again. A person's restart is no incident
and spends no budget of faults; the hard cap counts it. What cannot be done in this grant is done by the leader of the next one.

A restart `--from-step N` resumes from the newest checkpoint whose step is at most N. All others that are there by then are *left
behind*: neither removed nor set aside, and no later restart, requeue or continuation of this run resumes from one of them, until its
files are written anew. So a fault after the restart goes on with the new branch, however high the steps of the abandoned one are. A
later `--from-step M` may choose among all of step M at most, also of those that were left behind.
"""

from __future__ import annotations

from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import LeaderOrder, Request, VerdictKind
from ftsup.policy import ending
from ftsup.policy.rules import Rules
from ftsup.policy.state import Stage, State, Wish

Change = tuple[State, tuple[LeaderOrder, ...]]

NOT_RUNNING = frozenset({Stage.GATHER, Stage.PICK, Stage.PREPARE, Stage.LAUNCH, Stage.BACK_OFF})
STRENGTH = tuple(Request)
"""The strongest first."""
BEGINS = frozenset({Stage.GATHER, Stage.PICK})
"""An attempt is about to begin: a plain restart adds nothing."""


def asked(state: State, event: ev.Asked, rules: Rules) -> Change:
    """A person asked for something: take it up or refuse it, and say so. `save.follow` begins with it."""
    if event.request is Request.CANCEL:
        return _cancel(state, event)
    if why := _refused(state, event, rules):
        return state, (ev.Notify(kind="refused", text=f"{_who(event)}: refused: {why}"),)
    wish = Wish(request=event.request, who=event.who, from_step=event.from_step, avoid=event.avoid)
    for other in (state.wish, state.checkpoints.wish):
        if other is not None and replace(wish, who=other.who) == other:
            return state, (_taken(event, f"{other.who} asked for it before, and it is under way"),)
    if wish.request is Request.RESTART and wish.from_step is None and state.stage in BEGINS:
        return state, (_taken(event, "an attempt is about to begin anyway, from the newest checkpoint"),)
    instead = "" if state.wish is None else f", instead of {_phrase(state.wish)} for {state.wish.who}"
    return replace(state, wish=wish), (_taken(event, f"{_when(state, wish)}, {_what(wish)}{instead}"),)


def _cancel(state: State, event: ev.Asked) -> Change:
    known = state.stage is Stage.CLOSE and state.verdict is not None and state.verdict.kind is VerdictKind.CANCELLED
    if state.stage is Stage.OVER or known:
        return state, (_taken(event, f"the run is over: {state.verdict.reason}" if state.verdict else "the run is over"),)
    verdict = ev.Verdict(kind=VerdictKind.CANCELLED, reason=f"cancelled by {event.who}", rule="cancelled")
    state, orders = ending.close(state, verdict, event.t)
    return state, (_taken(event, "at once"), *orders)


# What is refused ----------------------------------------------------------------------------------------------------------


def _refused(state: State, event: ev.Asked, rules: Rules) -> str:
    verdict, request = state.verdict, event.request
    if state.stage in {Stage.CLOSE, Stage.REQUEUE, Stage.OVER} and verdict is not None:
        if verdict.kind is not VerdictKind.REQUEUE:
            return f"the run has come to its end: {verdict.reason}"
        if request is Request.REQUEUE or (request is Request.RESTART and event.from_step is None):
            return "the job is being requeued already"
    if state.wish is not None and STRENGTH.index(state.wish.request) < STRENGTH.index(request):
        return f"{state.wish.who} asked for {_phrase(state.wish)} before, and that comes first"
    if request in {Request.REQUEUE, Request.RESTART} and state.history.attempts >= rules.policy.hard_cap:
        return f"{state.history.attempts} attempts in this run (policy.hard_cap); ftsup submit --continue counts anew"
    return _not_requeued(state, event, rules) if request is Request.REQUEUE else ""


def _not_requeued(state: State, event: ev.Asked, rules: Rules) -> str:
    if not rules.can_requeue:
        return "slurm.requeue is off"
    known = {*state.nodes, *state.history.avoided}
    if unknown := [node for node in event.avoid if node not in known]:
        return f"{', '.join(unknown)}: not among the nodes of this job: {', '.join(state.nodes)}"
    kept_out = tuple(dict.fromkeys((*state.history.avoided, *event.avoid)))
    if event.avoid and len(kept_out) > rules.policy.avoid_max:
        return f"{len(kept_out)} nodes would be kept out: {', '.join(kept_out)} (policy.avoid_max is {rules.policy.avoid_max})"
    return ""


# The sentences ------------------------------------------------------------------------------------------------------------


def _taken(event: ev.Asked, text: str) -> ev.Notify:
    return ev.Notify(kind="asked", text=f"{_who(event)}: {text}")


def _who(event: ev.Asked) -> str:
    return f"{event.who} asked for {_phrase(event)}"


def _phrase(wish: Wish | ev.Asked) -> str:
    noun = {Request.CANCEL: "an end", Request.STOP: "a stop", Request.PAUSE: "a pause", Request.REQUEUE: "a requeue"}
    without = f" without {', '.join(wish.avoid)}" if wish.avoid else ""
    back = f" from step {wish.from_step}" if wish.from_step is not None else ""
    return noun.get(wish.request, "a restart") + without + back


def _when(state: State, wish: Wish) -> str:
    if state.stage in ending.AT_END:
        return "the leader of the next grant does it"
    if state.stage in {Stage.COLLECT, Stage.STOP}:
        return "once nothing of this attempt is left"
    if state.stage is Stage.RUN and wish.from_step is None:
        return "the ranks save first, where the script can"
    return "at once"


def _what(wish: Wish) -> str:
    if wish.request is Request.RESTART:
        which = "" if wish.from_step is None else f" of step {wish.from_step} at most"
        return f"then the next attempt begins from the newest checkpoint{which}"
    return {
        Request.STOP: "then the run ends",
        Request.PAUSE: "then the job is released, and ftsup submit --continue goes on",
        Request.REQUEUE: "then the job goes back to the queue",
    }[wish.request]


# Carrying out -------------------------------------------------------------------------------------------------------------


def idle(state: State, t: float, rules: Rules) -> Change:
    """Nothing trains: what is wanted is done at once."""
    wish = state.wish
    if wish is None or state.stage not in NOT_RUNNING:
        return state, ()
    if wish.request is not Request.RESTART:
        return carry_out(state, t, rules, "nothing was training: the newest checkpoint stands")
    if state.stage is Stage.BACK_OFF:
        return replace(state, deadline_t=t), ()
    if state.stage is Stage.PICK:  # what is being chosen is not what is wanted
        return again(state, t), ()
    return carry_out(state, t, rules, "nothing was training") if state.stage in {Stage.PREPARE, Stage.LAUNCH} else (state, ())


def carry_out(state: State, t: float, rules: Rules, how: str) -> Change:
    """What could be saved is saved: do what is wanted."""
    wish = state.wish
    assert wish is not None
    if wish.request is Request.RESTART:
        return _end_attempt(state, wish, t, rules, how)
    if wish.request is Request.REQUEUE:
        state = replace(state, wish=None, history=replace(state.history, avoided=ending.with_avoided(state, wish)))
    return ending.close(state, ending.wished(wish, how), t)


def _end_attempt(state: State, wish: Wish, t: float, rules: Rules, how: str) -> Change:
    """Nobody is to blame: no evidence, no incident."""
    waiting = tuple(node for node in state.nodes if node not in state.over)
    news = ev.Notify(kind="restart", text=f"{_phrase(wish)} for {wish.who}, {how}: this attempt is ended")
    if not waiting:
        return again(state, t), (news,)
    deadline_t = t + rules.grace_s + rules.hello_s
    state = replace(state, stage=Stage.STOP, stopping=True, waiting=waiting, deadline_t=deadline_t, held_s=0.0)
    return state, (news, *(ev.Stop(node=node, epoch=state.epoch, grace_s=rules.grace_s) for node in waiting))


def again(state: State, t: float) -> State:
    """The next attempt, now."""
    return replace(state, stage=Stage.BACK_OFF, stopping=False, waiting=(), faults=(), deadline_t=t)


def carried(state: State, nodes: tuple[str, ...]) -> Wish | None:
    """What is left to do of a wish when the next grant begins on these nodes: it is a restart and a requeue by itself."""
    wish = state.wish
    if wish is None or wish.request in {Request.STOP, Request.PAUSE}:
        return wish
    if wish.request is Request.RESTART:
        return wish if wish.from_step is not None else None
    return wish if (set(wish.avoid) & set(nodes)) - set(state.history.avoided) else None  # those are kept out by themselves
