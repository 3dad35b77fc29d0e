"""How a grant ends: closing with a verdict, and the time limit. The requeue itself is in `requeue`,
and why we are told to end in `told`.

Part of the leader's machine, pure as the rest. The law: told to end by somebody else, nothing is requeued; a cancelled, stopped,
paused or finished run never begins again by itself.
"""

from __future__ import annotations

from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import LeaderOrder, Request, Verdict, VerdictKind
from ftsup.policy.rules import Rules
from ftsup.policy.state import Stage, State, Wish

Change = tuple[State, tuple[LeaderOrder, ...]]

AT_END = frozenset({Stage.CLOSE, Stage.REQUEUE, Stage.TERMED, Stage.OVER})
BEFORE_END = frozenset(Stage) - AT_END - {Stage.NEW}
CODES = {VerdictKind.FINISHED: 0, VerdictKind.REQUEUE: 0, VerdictKind.PAUSED: 0}
"""What the job exits with; all others: 1."""
PREEMPTED = "preempted"
"""The rule of what follows where another job gets our nodes: Slurm has said so, and it may not be by chance."""
STOPPED = "stop asked"
"""The rule of a STOP that a person asked for: it did what was wanted."""
FORGOTTEN = "GONE"
SURE = 3
"""That Slurm does not know a job in which we live is believed when it says so again and again."""
ENDED = frozenset({"COMPLETED", "FAILED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", FORGOTTEN})
"""Slurm's words for a job that is over, by none of our ways."""
SHOWS_S = 10.0
"""A request that Slurm took and that does not show by then is made again (`incomplete` may return 0 and do nothing)."""
CHAIN_S = 180.0
"""A successor takes several questions to Slurm, and is asked for by one child at a time."""
ASK_AGAIN_S = 2.0
"""Between two looks at a state that is about to change."""
SLOWER = 10.0
"""What did not show in the first seconds is asked for less and less often: after ten minutes once a minute."""
ASK_SOON_S = 60.0
"""Slurm did not answer: until it is asked again how long we have."""
TOLD = 143
"""The code of a leader that was told to end and decided nothing: bash ends as well, and starts no other one."""
WARN_ASK_S = 10.0
"""The most that a warning by EndTime waits for Slurm to say once more when that is: a busy controller may take its time."""
EARLY_S = 90.0
"""The warning may come up to a minute early; one that is earlier was sent by a person."""
TERMED_S = 600.0
"""Told to end, the job still runs, nobody says why: a preemption's grace can be that long."""


def wished(wish: Wish, how: str) -> Verdict:
    """A person asked for the run to be saved and stopped, paused or requeued."""
    kind, done = {
        Request.STOP: (VerdictKind.STOP, "stopped by"),
        Request.PAUSE: (VerdictKind.PAUSED, "paused by"),
        Request.REQUEUE: (VerdictKind.REQUEUE, "requeued for"),
    }[wish.request]
    without = f" without {', '.join(wish.avoid)}" if wish.avoid else ""
    return Verdict(kind=kind, reason=f"{done} {wish.who}{without}, {how}", rule=f"{wish.request.value} asked", avoid=wish.avoid)


def with_avoided(state: State, wish: Wish | None) -> tuple[str, ...]:
    """All nodes that the run keeps out, with those that a person wants kept out."""
    return tuple(dict.fromkeys((*state.history.avoided, *(wish.avoid if wish else ()))))


def finished() -> Verdict:
    """Every rank of every node ended well."""
    return Verdict(kind=VerdictKind.FINISHED, reason="training finished", rule="finished")


# Closing ------------------------------------------------------------------------------------------------------------------


def close(state: State, verdict: Verdict, t: float) -> Change:
    """The grant ends so; the decision goes to disk before anything is done about it."""
    known = (ev.Unexplained(over=True),) if state.stage is Stage.TERMED else ()
    state = replace(
        state, stage=Stage.CLOSE, verdict=verdict, waiting=(), deadline_t=t + 30.0, seen=False, tries=0, refused=0, avoid_set=False
    )
    return state, (decide(state), *known)


def _code(verdict: Verdict) -> int:
    return 0 if verdict.rule == STOPPED else CODES.get(verdict.kind, 1)


def decide(state: State) -> ev.Decide:
    """The decision, as it stands by now."""
    verdict = state.verdict
    assert verdict is not None
    done = verdict.kind is not VerdictKind.REQUEUE or verdict.rule == "elsewhere" or state.seen
    return ev.Decide(verdict=verdict, code=_code(verdict), done=done, chain=state.chain and verdict.kind is VerdictKind.REQUEUE)


def decided(state: State, event: ev.Decided, _rules: Rules) -> Change:
    """The decision is safe: carry it out."""
    if state.stage is not Stage.CLOSE:
        return state, ()
    return _carry_out(state, event.t)


def _carry_out(state: State, t: float) -> Change:
    verdict = state.verdict
    assert verdict is not None
    news = ev.Notify(kind=verdict.kind.value, text=verdict.reason)
    if verdict.kind is VerdictKind.REQUEUE and verdict.rule not in {"elsewhere", PREEMPTED} and state.signalled and not state.taken:
        # Told to end before we asked for anything: by somebody else, and perhaps for good.
        return find_out(state, t)
    if verdict.kind is VerdictKind.REQUEUE and verdict.rule != "elsewhere":
        state = replace(state, stage=Stage.REQUEUE, tries=1, deadline_t=t + (CHAIN_S if state.chain else SHOWS_S))
        return state, (news, ev.Requeue(chain=state.chain, ended=state.taken))
    if verdict.kind is VerdictKind.REQUEUE:  # somebody else did it: the run is not over
        return replace(state, stage=Stage.REQUEUE, seen=True, signalled=True, deadline_t=None), (news, *leaves(state), ev.Quit(code=0))
    code = _code(verdict)
    return replace(state, stage=Stage.OVER, deadline_t=None), (news, *leaves(state), ev.Quit(code=code))


def leaves(state: State) -> tuple[LeaderOrder, ...]:
    """All node supervisors may go."""
    return tuple(ev.Leave(node=node) for node in state.nodes)


def again(state: State) -> Change:
    """A leader begins for a run that is over (a stray requeue, a leader that died after deciding): the same end, at once."""
    return state, (decide(state), *leaves(state), ev.Quit(code=_code(state.verdict) if state.verdict else 1))


def take_over(state: State, event: ev.LeaderStarted, _rules: Rules) -> Change | None:
    """A new leader in the same grant, in one of our stages: give its orders again. None: not one of ours."""
    if state.stage is Stage.CLOSE:
        return replace(state, deadline_t=event.t + 30.0), (decide(state),)
    if state.stage is Stage.REQUEUE and state.seen and state.signalled:  # it was done, and our predecessor was about to go
        return replace(state, deadline_t=None), (decide(state), *leaves(state), ev.Quit(code=0))
    if state.stage is Stage.REQUEUE:  # it may have been done: look first
        return replace(state, deadline_t=event.t + SHOWS_S), (decide(state), ev.AskSlurm())
    if state.stage is Stage.TERMED:
        return replace(state, deadline_t=event.t + ASK_AGAIN_S, end_t=state.end_t or event.t + TERMED_S), (
            ev.AskSlurm(),
            ev.Unexplained(),
        )
    if state.stage is Stage.BACK_OFF:
        return replace(state, deadline_t=event.t), ()
    return None


def tick(state: State, event: ev.Tick, _rules: Rules) -> Change:
    """A deadline of one of our stages."""
    if state.stage is Stage.CLOSE:  # the disk does not answer: what is decided is decided
        return _carry_out(state, event.t)
    return state, ()


def slurm_failed(state: State, event: ev.SlurmFailed, _rules: Rules) -> Change:
    """A question was not answered: that says nothing about the job, and it is asked again soon."""
    return replace(state, ask_t=event.t + ASK_SOON_S) if state.away else state, ()


# The time limit -----------------------------------------------------------------------------------------------------------


def warned(state: State, event: ev.Warned, rules: Rules) -> Change:
    """Slurm's warning: the end is `warning_s` away, or up to a minute more; ask when exactly."""
    if state.warned or state.stage not in BEFORE_END:
        return state, ()
    state = _warned(state, event.t)
    if rules.can_requeue and state.end_t is None:
        state = replace(state, end_t=event.t + max(rules.warning_s - tail_s(state, rules), 0.0))
    return state, (ev.AskSlurm(),)


def _warned(state: State, t: float) -> State:
    return replace(state, warned=True, warned_t=t, answered=False, end_known=False, warn_t=None, warn_checked=False)


def warn_due(state: State, t: float, rules: Rules) -> Change:
    """By EndTime the warning's time has come, and no signal: there is none, it is late, or it was lost. Asked once more, as in `due`."""
    if not state.warn_checked:
        return replace(state, warn_checked=True, warn_t=t + min(rules.warning_s / 6, WARN_ASK_S)), (ev.AskSlurm(),)
    return _warned(state, t), ()


def tail_s(state: State, rules: Rules) -> float:
    """What must be left before the limit when the requeue is asked for."""
    return (rules.kill_wait_s if state.kill_wait_s is None else state.kill_wait_s) + rules.end_margin_s


def due(state: State, t: float, rules: Rules) -> Change:
    """The end is near by what we knew: ask once more (an admin may have moved it), then requeue."""
    if not state.end_checked:
        return replace(state, end_checked=True, end_t=t + min(rules.end_margin_s / 3, 5.0)), (ev.AskSlurm(),)
    unsaved = ", and the save that was asked for is not through" if state.save else ""
    return leave(state, t, rules, f"the time limit is near{unsaved}: requeue, and go on from the newest checkpoint")


def leave(state: State, t: float, rules: Rules, reason: str) -> Change:
    """Requeue because of the time limit, if the budgets still allow it."""
    wish, history = state.wish, state.history
    if wish is not None and wish.request in {Request.STOP, Request.PAUSE}:
        return close(state, wished(wish, "the time limit came before the save was through"), t)
    if not may_requeue(state, rules):
        why = f"{history.requeues} requeues without progress (policy.requeues)"
        return close(state, Verdict(kind=VerdictKind.STOP, reason=why, rule="time limit"), t)
    if history.attempts >= rules.policy.hard_cap:
        why = f"{history.attempts} attempts in this run (policy.hard_cap)"
        return close(state, Verdict(kind=VerdictKind.STOP, reason=why, rule="time limit"), t)
    if wish is not None and wish.request is Request.REQUEUE:  # that is what was wanted
        return close(_requeued(state, wish), replace(wished(wish, reason), rule="time limit"), t)
    return close(_requeued(state, None), Verdict(kind=VerdictKind.REQUEUE, reason=reason, rule="time limit"), t)


def _requeued(state: State, wish: Wish | None) -> State:
    history = replace(state.history, requeues=state.history.requeues + 1, avoided=with_avoided(state, wish))
    return replace(state, history=history, wish=None if wish else state.wish)


def may_requeue(state: State, rules: Rules) -> bool:
    """Whether the budget of requeues without progress has room."""
    known = rules.watched and not state.unknown
    return not known or state.moved or state.history.requeues < rules.policy.requeues


def instead(state: State, verdict: Verdict, fault: str, t: float, rules: Rules) -> Verdict:
    """A verdict to go on, held against what we were told meanwhile: a person's wish to stop, or an end that is too near for a restart."""
    if verdict.kind not in {VerdictKind.RESTART, VerdictKind.REQUEUE}:
        return verdict
    if state.wish is not None:
        verdict = _as_wished(state, state.wish, verdict, fault, rules)
    if verdict.kind not in {VerdictKind.RESTART, VerdictKind.REQUEUE}:
        return verdict
    if state.preempted and rules.can_requeue and verdict.kind is VerdictKind.RESTART:
        return Verdict(
            kind=VerdictKind.REQUEUE, reason=f"{fault}; the job is being preempted: requeue instead of a restart", rule=PREEMPTED
        )
    near = state.warned and state.end_t is not None and state.end_t - t <= rules.warning_s + EARLY_S
    if not near or verdict.kind is VerdictKind.REQUEUE or not may_requeue(state, rules):
        return verdict
    return Verdict(kind=VerdictKind.REQUEUE, reason=f"{fault}; the time limit is near: requeue instead of a restart", rule="time limit")


def _as_wished(state: State, wish: Wish, verdict: Verdict, fault: str, rules: Rules) -> Verdict:
    """A verdict to go on, and a person's wish."""
    if wish.request is Request.RESTART:
        at_once = replace(verdict, reason=f"{fault}: restart here, at once, since {wish.who} asked for one", delay_s=0.0)
        return at_once if verdict.kind is VerdictKind.RESTART else verdict
    asked = wished(wish, f"the newest checkpoint stands; last: {fault}")
    old = state.history.avoided
    avoid = tuple(node for node in dict.fromkeys((*wish.avoid, *verdict.avoid)) if node not in old)
    return replace(asked, avoid=avoid[: max(rules.policy.avoid_max - len(old), 0)], suspect=verdict.suspect)


def end_said(state: State, event: ev.SlurmSaid, rules: Rules) -> State:
    """When the end is, and who makes it."""
    if event.kill_wait_s is not None:
        state = replace(state, kill_wait_s=event.kill_wait_s, unkillable_s=event.unkillable_s)
    if event.preempted:  # what follows is Slurm's to do: we only save
        state = _watch_end(state, event, rules)
        state = state if state.preempted else replace(_warned(state, event.t), preempted=True)
        return replace(state, end_t=None)
    state = replace(state, preempted=False)
    if outdated(state, event, rules):
        return state
    state = _watch_end(state, event, rules)
    if not rules.can_requeue:
        return state
    if event.left_s is None:
        return replace(state, end_t=None if not state.warned else state.end_t)
    end_t = event.t + max(event.left_s - tail_s(state, rules), 0.0)
    if state.end_checked and end_t <= event.t + 1.0:
        return replace(state, end_t=event.t)
    return replace(state, end_t=end_t, end_checked=False)


def near(left_s: float | None, rules: Rules) -> bool:
    """Whether that is what the warning is about."""
    return left_s is not None and left_s <= rules.warning_s + EARLY_S


def outdated(state: State, event: ev.SlurmSaid, rules: Rules) -> bool:
    """It calls the end far, and was asked for before the warning: somebody may have moved the limit in between. It is asked again."""
    return state.warned and event.asked_t is not None and event.asked_t < state.warned_t and not near(event.left_s, rules)


def _preemption(state: State, event: ev.SlurmSaid) -> tuple[LeaderOrder, ...]:
    """The news, once."""
    if not event.preempted or state.preempted:
        return ()
    left = "" if event.left_s is None else f", in {event.left_s:.0f} s"
    text = f"another job gets our nodes{left} (preemption): training is saved where the script can, and goes on until Slurm ends the job"
    return (ev.Notify(kind="preempted", text=text),)


def _watch_end(state: State, event: ev.SlurmSaid, rules: Rules) -> State:
    """When the warning is due. One that was answered is over once the end is far: it was sent by hand, or the limit was moved."""
    left_s = event.left_s
    if state.warned and state.answered and not near(left_s, rules):
        state = replace(state, warned=False)
    if state.warned or left_s is None:
        return replace(state, warn_t=None, warn_checked=False, end_known=state.warned)
    warn_t = event.t + left_s - rules.warning_s
    if warn_t <= event.t + 1.0:  # the signal is late, or lost, or there is none; or the limit was moved near just now
        return replace(_warned(state, event.t), end_known=True)
    return replace(state, warn_t=warn_t, warn_checked=False)


# Told to end: `told` finds out why -----------------------------------------------------------------------------------------


def find_out(state: State, t: float) -> Change:
    """Told to end, and not by what we did ourselves: nothing else is done until Slurm has said why."""
    if state.stage is Stage.TERMED:
        return state, (ev.AskSlurm(),)
    state = replace(state, told_in=state.stage, told_t=t, deadline_t=t + ASK_AGAIN_S, end_t=t + TERMED_S, warn_t=None)
    return replace(state, stage=Stage.TERMED), (ev.AskSlurm(), ev.Unexplained())


def cancelled(state: State, reason: str) -> Verdict:
    """Slurm has cancelled the job: that is how a job is paused that waits in the queue."""
    if state.wish is not None and state.wish.request is Request.PAUSE:
        return wished(state.wish, "its job was cancelled in Slurm")
    return Verdict(kind=VerdictKind.CANCELLED, reason=reason, rule="cancelled")


def taken(state: State, event: ev.CheckpointsTaken, _rules: Rules) -> Change:
    """Two runs that write and remove in one directory would ruin each other's checkpoints."""
    if state.stage not in BEFORE_END:
        return state, ()
    return close(state, Verdict(kind=VerdictKind.STOP, reason=event.why, rule="checkpoints taken"), event.t)


SUPERSEDED = Verdict(
    kind=VerdictKind.REQUEUE,
    reason="Slurm has given up this grant and requeued the job, and could tell nobody here: its ranks end",
    rule="elsewhere",
)
"""Nobody told us to end, since nobody could: two grants of one run would write to the same checkpoints."""


def superseded(state: State, event: ev.Superseded, _rules: Rules) -> Change:
    """The run directory shows it where Slurm cannot."""
    if state.stage is Stage.REQUEUE:  # what we asked for has begun
        if state.seen and state.signalled:  # known, and we leave already
            return state, ()
        state = replace(state, seen=True, signalled=True, deadline_t=None)
        return state, (decide(state), *leaves(state), ev.Quit(code=0))
    if state.stage not in BEFORE_END | {Stage.TERMED}:
        return state, ()
    return close(state, replace(SUPERSEDED, reason=f"{event.why}: the ranks of this grant end here"), event.t)


def slurm_said(state: State, event: ev.SlurmSaid, rules: Rules) -> Change:
    """An answer about our job."""
    state = replace(state, forgotten=state.forgotten + 1 if event.state == FORGOTTEN else 0)
    if 0 < state.forgotten < SURE and state.stage in BEFORE_END:
        return replace(state, ask_t=event.t + ASK_AGAIN_S), ()
    if event.state in ENDED and not event.completing and state.stage is not Stage.OVER:
        # The job ended under us (bash was killed, and we outlived it). Nothing is left to lead; the run itself is not over.
        return replace(state, deadline_t=None, end_t=None, ask_t=None), (*leaves(state), ev.Quit(code=1))
    if event.state == "CANCELLED" and state.stage in BEFORE_END:
        return close(state, cancelled(state, "cancelled (scancel)"), event.t)
    if state.stage in BEFORE_END and not event.completing and (event.state == "PENDING" or event.restarts > state.restarts):
        return close(state, SUPERSEDED, event.t)
    if state.stage in BEFORE_END:
        again = (ev.AskSlurm(),) if outdated(state, event, rules) else ()
        return end_said(state, event, rules), (*_preemption(state, event), *again)
    return state, ()
