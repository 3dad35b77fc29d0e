"""Save on request, the leader's part: when a save is wanted, the two phases that bring every rank into it at one beat, and what follows.

    COUNT -> PROPOSE N -> (all agreed) COMMIT -> over          one rank is past N: COUNT again, with a later N

Pure, a part of the leader's machine. `follow` is called after every event: it begins what is wanted as soon as it can be, and drops
what an incident, a lost node or the end of the attempt has overtaken. Never a COMMIT before every rank has agreed. A save never
keeps a requeue from its time, and whoever is asked to save for a warning or for a person may leave afterwards: that is no fault.
"""

from __future__ import annotations

from math import ceil

from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Ask, Ears, Fault, How, LeaderOrder, Verdict, VerdictKind
from ftsup.policy import ending, told, wishes
from ftsup.policy.rules import Rules
from ftsup.policy.state import Save, Stage, State, Why, Wish

Change = tuple[State, tuple[LeaderOrder, ...]]

COUNT_S = 30.0
"""A node that has not counted its ranks by then is in trouble of its own, or older than this question."""
TRIES = 6
"""Proposals that come too late, each with twice the lead, before a save is given up."""
DELAY_MAX_S = 5.0
"""A count that took longer was held up once: it says nothing about the next word."""
VOTE_S = 600.0
"""Ranks may evaluate first, and those that hang are found; but one that never counts a beat would be waited for without end."""
YOUNG = 4
"""Beats after which a script that listens at every step is known to listen."""
LOOK_S = 15.0
"""The most that a requeue waits, after the save, for Slurm's word that the end is near. A busy one takes its time, also for a requeue."""
LEAVES = frozenset({Why.WARNING, Why.ASKED})


def follow(state: State, t: float, rules: Rules) -> Change:
    """After every event: drop what is overtaken, begin what is wanted."""
    state, orders = _drop(state)
    if state.stage is not Stage.RUN:
        state, more = wishes.idle(state, t, rules)
        return replace(state, save_t=None, look_t=None, answered=state.answered and state.warned), orders + more
    if state.wish is not None and (why := _unsaved(state, state.wish, rules)):
        state, more = wishes.carry_out(state, t, rules, why)
        state, taken_back = _drop(state)
        return state, (*orders, *taken_back, *more)
    state, more = _time(_upgrade(state), t, rules)
    orders += more
    if state.stage is not Stage.RUN or state.save is not None:
        return state, orders
    if state.save_t is None and state.launched_t is None and rules.every_s and rules.watched:
        state = replace(state, save_t=t + rules.every_s)
    why_now = _wanted(state, t)
    if why_now is None or not _able(state):
        return state, orders
    state, more = _count(replace(state, saves=state.saves + 1), Save(number=state.saves + 1, why=why_now, epoch=state.epoch), t)
    return state, orders + more


def deadline_t(state: State) -> float | None:
    """When the next thing of a save is due."""
    if state.stage is not Stage.RUN:
        return None
    times = (state.save.deadline_t if state.save else due_t(state), state.look_t)
    return min((t for t in times if t is not None), default=None)


def due_t(state: State) -> float | None:
    """When checkpoint.every is due, while it trains; never between the warning's save and Slurm's word, which may be the end."""
    return state.save_t if state.stage is Stage.RUN and _able(state) and state.look_t is None else None


def orders(state: State) -> tuple[LeaderOrder, ...]:
    """What the save in flight wants of the nodes whose answer it waits for; given again by a new leader."""
    save = state.save
    return () if save is None else tuple(_ask(node, save, save.stage) for node in save.waiting)


def _ask(node: str, save: Save, ask: Ask) -> ev.AskRanks:
    handlers = ask is Ask.COMMIT and save.why in LEAVES
    return ev.AskRanks(node=node, epoch=save.epoch, save=save.number, ask=ask, beats=save.beats, handlers=handlers)


def script_saved(state: State, event: ev.Saved, rules: Rules) -> Change:
    """The script saved on its own: the next save counts from here."""
    return (state, ()) if state.save_t is None else (replace(state, save_t=event.t + rules.every_s), ())


def again(state: State, t: float) -> State:
    """Time that nobody led, or that we were away, is not the nodes' delay."""
    if state.save is None:
        return state
    limit_s = COUNT_S if state.save.stage is Ask.COUNT else VOTE_S
    return replace(state, save=replace(state.save, since_t=t, deadline_t=None if state.save.deadline_t is None else t + limit_s))


# Wanted, and possible -----------------------------------------------------------------------------------------------------


def _unsaved(state: State, wish: Wish, rules: Rules) -> str:
    """Why a wish is carried out without a save. Empty: the ranks are asked first."""
    if wish.from_step is not None:
        return "what came after is left behind"
    if _stored(state):
        return "its ranks wait for storage: the newest checkpoint stands"
    if state.launched_t is not None or not rules.watched:
        return "nothing could be saved on request: the newest checkpoint stands"
    return ""


def _wanted(state: State, t: float) -> Why | None:
    if state.wish:
        return Why.ASKED
    if state.warned and not state.answered:
        return Why.WARNING
    due = due_t(state)
    return Why.EVERY if due is not None and t >= due else None


def _stored(state: State) -> bool:
    return state.held_s > 0 and all(fault.how is How.STORAGE for fault in state.faults)


def _able(state: State) -> bool:
    """It trains, nothing of it ends, and nothing is wrong."""
    return state.launched_t is None and not (state.over or state.faults or state.held_s)


def _upgrade(state: State) -> State:
    """A save that is under way serves whoever wants one meanwhile."""
    save = state.save
    if save is None:
        return state
    why = Why.ASKED if state.wish else Why.WARNING if state.warned and not state.answered else save.why
    return state if why is save.why else replace(state, save=replace(save, why=why))


def _drop(state: State) -> Change:
    save = state.save
    if save is None or (state.stage is Stage.RUN and save.epoch == state.epoch and (not state.over or save.stage is Ask.COMMIT)):
        return state, ()
    return replace(state, save=None, save_t=None), _taken_back(state, save)


def _taken_back(state: State, save: Save) -> tuple[LeaderOrder, ...]:
    """What was proposed is nothing to wait for any more; there is no way back from COMMIT."""
    if not save.beats or save.stage is Ask.COMMIT or save.epoch != state.epoch:
        return ()
    return tuple(_ask(node, save, Ask.ABORT) for node in state.nodes if node not in state.over)


def _time(state: State, t: float, rules: Rules) -> Change:
    """What is due by now."""
    if state.look_t is not None and t >= state.look_t:  # no answer now; perhaps there was one since the warning
        return _end_is(state, None if state.end_t is None else state.end_t - t + ending.tail_s(state, rules), t, rules)
    save = state.save
    if save is None or save.deadline_t is None or t < save.deadline_t:
        return state, ()
    if not save.waiting:
        return _count(state, save, t)
    return _failed(state, t, rules, f"no answer from {', '.join(save.waiting)}")


# The two phases -----------------------------------------------------------------------------------------------------------


def _count(state: State, save: Save, t: float) -> Change:
    """How far are they, and do they listen? What was proposed before is taken back."""
    save = replace(
        save, stage=Ask.COUNT, waiting=state.nodes, since_t=t, deadline_t=t + COUNT_S, least=None, most=0, ears=Ears.ASKS, step_s=0.0
    )
    state = replace(state, save=save)
    return state, orders(state)


def counted(state: State, event: ev.Counted, rules: Rules) -> Change:
    """A node said how far its ranks are; the last one leads to a proposal."""
    save = state.save
    if save is None or not _answers(save, event, Ask.COUNT):
        return state, ()
    ears = min(save.ears, event.ears, key=tuple(Ears).index)
    least = event.least if save.least is None else min(save.least, event.least)
    save = replace(save, least=least, most=max(save.most, event.most), ears=ears, step_s=max(save.step_s, event.step_s))
    save = replace(save, waiting=tuple(node for node in save.waiting if node != event.node))
    state = replace(state, save=save)
    return (state, ()) if save.waiting else _propose(state, save, event.t, rules)


def _propose(state: State, save: Save, t: float, rules: Rules) -> Change:
    if save.ears is Ears.ENDED and save.tries + 1 >= TRIES:
        return _failed(state, t, rules, "ranks have ended")
    if save.ears is Ears.ENDED or save.least == 0 or (save.ears is Ears.NONE and (save.least or 0) < YOUNG):
        tries = save.tries + (save.ears is Ears.ENDED)  # mostly the end of training, which settles it
        return replace(state, save=replace(save, tries=tries, deadline_t=t + max(1.0, 2 * save.step_s))), ()
    if save.why is Why.EVERY and save.ears is not Ears.ASKS:
        return replace(state, save=None, save_t=t + rules.every_s), ()
    if save.ears is Ears.NONE:
        return _failed(state, t, rules, "not every rank calls asked() or handles the warning signal")
    delay_s = min(t - save.since_t, DELAY_MAX_S)
    lead = (2 + (ceil(3 * delay_s / save.step_s) if save.step_s else 0)) * 2**save.tries
    save = replace(save, stage=Ask.PROPOSE, waiting=state.nodes, deadline_t=t + VOTE_S, beats=save.most + lead)
    state = replace(state, save=save)
    return state, orders(state)


def voted(state: State, event: ev.Voted, rules: Rules) -> Change:
    """The ranks of a node agreed, or missed it: all for one."""
    save = state.save
    if save is None or not _answers(save, event, Ask.PROPOSE, again=not event.ready) or event.beats != save.beats:
        return state, ()
    if not event.ready and save.tries + 1 >= TRIES:
        return _failed(state, event.t, rules, f"the ranks missed {TRIES} proposals")
    if not event.ready:
        return _count(state, replace(save, tries=save.tries + 1), event.t)
    save = replace(save, waiting=tuple(node for node in save.waiting if node != event.node))
    if not save.waiting:
        save = replace(save, stage=Ask.COMMIT, waiting=state.nodes, deadline_t=None)
        return replace(state, save=save), orders(replace(state, save=save))
    return replace(state, save=save), ()


def _answers(save: Save, event: ev.Counted | ev.Voted | ev.SaveOver, stage: Ask, *, again: bool = False) -> bool:
    """`again`: a node may take its first answer back."""
    asked = again or event.node in save.waiting
    return (save.epoch, save.number, save.stage) == (event.epoch, event.save, stage) and asked


def save_over(state: State, event: ev.SaveOver, rules: Rules) -> Change:
    """A node's ranks are through; the last one leads to what the save was for."""
    save = state.save
    if save is None or not _answers(save, event, Ask.COMMIT):
        return state, ()
    waiting = tuple(node for node in save.waiting if node != event.node)
    save = replace(save, waiting=waiting, steps=(*save.steps, event.step), missed=(*save.missed, *event.missed))
    state = replace(state, save=save)
    return (state, ()) if waiting else _done(state, save, event.t, rules)


def _done(state: State, save: Save, t: float, rules: Rules) -> Change:
    known = [step for step in save.steps if step is not None]
    at = min(known) if known and len(known) == len(save.steps) else None
    state = replace(state, save=None, save_t=t + rules.every_s if rules.every_s else None, saved_step=at)
    state = replace(state, partial=bool(save.missed), ended=state.ended and not save.missed)
    orders: tuple[LeaderOrder, ...] = ()
    if save.missed:
        ranks = ", ".join(str(rank) for rank in sorted(set(save.missed)))
        orders = (ev.Notify(kind="save", text=f"the save{_at(at)} is partial: rank {ranks} had agreed to it, and took no part to its end"),)
    if save.why is Why.ASKED:
        state, more = wishes.carry_out(state, t, rules, f"saved{_at(at)}")
        return state, orders + more
    if save.why is Why.EVERY:
        return state, orders
    state = replace(state, answered=True)
    return _look(state, t, orders) if rules.can_requeue else _nobody_left(state, t, rules, orders)


def _look(state: State, t: float, orders: tuple[LeaderOrder, ...]) -> Change:
    """Slurm says whether the end is near; if it does not, it is."""
    return replace(state, look_t=t + LOOK_S), (*orders, ev.AskSlurm())


def _failed(state: State, t: float, rules: Rules, why: str) -> Change:
    """Nothing comes of it."""
    save = state.save
    assert save is not None
    told = _taken_back(state, save)
    state = replace(state, save=None, save_t=t + rules.every_s if rules.every_s else None)
    if save.why is Why.EVERY:
        return state, told
    if save.why is Why.ASKED:
        state, more = wishes.carry_out(state, t, rules, f"nothing could be saved on request: {why}: the newest checkpoint stands")
        return state, told + more
    text = f"warned of the end, and nothing can be saved on request: {why}; up to one checkpoint interval is replayed"
    if rules.plain:
        text = f"warned of the end; ranks have the signal itself (slurm.handlers is plain), and no save is asked for: {why}"
    return replace(state, answered=True), (*told, ev.Notify(kind="save", text=text))


# What follows -------------------------------------------------------------------------------------------------------------


def _at(step: int | None) -> str:
    return "" if step is None else f" at step {step}"


def requeue(state: State, t: float, rules: Rules) -> Change:
    """The warning's save is through, and the end is near."""
    state = replace(state, look_t=None)
    if state.preempted:
        return _until_taken(state, t, rules)
    saved = f"the save{_at(state.saved_step)} is partial" if state.partial else f"training is saved{_at(state.saved_step)}"
    return ending.leave(state, t, rules, f"the time limit is near, and {saved}: requeue")


def end_said(state: State, event: ev.SlurmSaid, rules: Rules) -> Change:
    """After the warning's save: is the end near, as Slurm sees it? If not, somebody sent the signal by hand, or the limit was moved."""
    if state.look_t is None or state.stage is not Stage.RUN:
        return state, ()
    if event.preempted:
        return _until_taken(replace(state, look_t=None, preempted=True), event.t, rules)
    if ending.outdated(state, event, rules):
        return state, ()
    return _end_is(replace(state, end_known=True), event.left_s, event.t, rules)


def _end_is(state: State, left_s: float | None, t: float, rules: Rules) -> Change:
    """So far away; what Slurm has not said since the warning is near."""
    if not state.end_known or ending.near(left_s, rules):
        return requeue(state, t, rules)
    left = "there is no time limit" if left_s is None else f"the end is {left_s / 60:.0f} min away"
    text = f"saved{_at(state.saved_step)} because of the warning signal; {left}: training goes on"
    end_t = None if left_s is None else state.end_t  # what the warning made us believe
    state = replace(state, look_t=None, warned=False, end_t=end_t, ask_t=t + ending.WARN_ASK_S)  # signals are not sent for nothing
    return state, (ev.Notify(kind="save", text=text),)


def _until_taken(state: State, t: float, rules: Rules) -> Change:
    """Saved for a preemption: Slurm ends the job by itself, and until then its nodes are ours, as long as anybody trains on them."""
    if len(state.over) == len(state.nodes):
        return told.preempted(state, t, rules, f"all ranks saved{_at(state.saved_step)} and left")
    saved = "the save is partial" if state.partial else f"saved{_at(state.saved_step)}"
    return state, (ev.Notify(kind="save", text=f"{saved} for the preemption; training goes on until Slurm ends the job"),)


def may_leave(state: State, fault: Fault) -> bool:
    """Whether a rank's end is the answer to a request. Those that are slower than the first are ended by torchrun, with TERM."""
    saving = state.answered or (state.save is not None and state.save.stage is Ask.COMMIT)
    return fault.how in {How.SAVED, How.RETURNED} or (saving and fault.how is How.SIGNAL and fault.signal == "SIGTERM")


def left(state: State, event: ev.AttemptOver, rules: Rules) -> Change | None:
    """All of a node left because they were asked; None: it is another end."""
    saved = [fault for fault in event.ended if fault.how is How.SAVED]
    if not saved or event.left or not all(may_leave(state, fault) for fault in event.ended):
        return None
    state = replace(state, over=(*state.over, event.node))
    state = replace(state, ended=len(state.over) == len(state.nodes) and not state.partial)
    if state.save is None or state.save.stage is not Ask.COMMIT:
        return _nobody_left(state, event.t, rules, ())
    steps = [fault.step for fault in saved]
    known = [step for step in steps if step is not None]
    cut = tuple(fault.rank for fault in event.ended if fault.how is How.SIGNAL and fault.rank is not None)
    step = min(known) if len(known) == len(steps) else None
    over = ev.SaveOver(t=event.t, node=event.node, epoch=event.epoch, save=state.save.number, step=step, missed=cut)
    return save_over(state, over, rules)


def _nobody_left(state: State, t: float, rules: Rules, orders: tuple[LeaderOrder, ...]) -> Change:
    """Every rank has saved and left; where Slurm is still asked, or has said that the end is far, that says what follows."""
    if len(state.over) < len(state.nodes) or state.look_t is not None or not (state.warned or state.preempted):
        return state, orders
    if rules.can_requeue:
        return _look(state, t, orders)
    reason = f"the ranks saved{_at(state.saved_step)} and left, and slurm.requeue is off"
    state, more = ending.close(state, Verdict(kind=VerdictKind.STOP, reason=reason, rule="time limit"), t)
    return state, orders + more
