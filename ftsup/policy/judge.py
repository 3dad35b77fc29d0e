"""Fault and history -> verdict. An ordered table, read from the top; the first row that matches decides and says why.

Pure. Budgets count attempts *without progress* (`History.past`) and refill when the run gets past its best step; the hard cap
never refills; an attempt whose progress is unknown spends nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple
from zlib import crc32

import msgspec

from ftsup.events import Epoch, Fault, How, Verdict, VerdictKind
from ftsup.policy.rules import Rules

HANGS = frozenset({How.QUIET, How.STOPPED, How.STORAGE, How.WAITING})
ERRORS = frozenset({How.EXCEPTION, How.EXIT, How.PEER, How.DISK})
CRASHES = frozenset({How.SIGNAL, How.DEVICE})
BLAMES = HANGS | CRASHES
"""What a node may be blamed for."""
UNLOADABLE = frozenset({How.EXCEPTION, How.EXIT, How.SIGNAL})
"""How a rank ends that cannot load its checkpoint. A port, a node, a hang, a disk or a GPU says nothing about the checkpoint."""
SUSPECT = "suspect checkpoint"
STARTS = frozenset({How.SETUP, How.HELLO, How.NODE, How.TORCHRUN, How.PORT, How.UNKILLABLE})
BUDGETS = (("hangs", HANGS), ("errors", ERRORS), ("crashes", CRASHES), ("starts", STARTS))
"""Key of `policy`, and what spends it."""


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of an attempt that ended badly."""

    epoch: Epoch
    root: Fault
    counts: bool = True
    """False: its progress is unknown, it spends nothing."""
    rule: str = ""
    """The row that decided then."""
    checkpoint: str = ""
    """It resumed from this one, and ended before its first step."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What the judge remembers of a run."""

    attempts: int = 0
    """All of them, whatever became of them."""
    past: tuple[Past, ...] = ()
    """Those since the last progress, oldest first."""
    requeues: int = 0
    """Requeues since the last progress."""
    row: tuple[str, ...] = ()
    """Nodes blamed in a row, over progress too, newest last (only hangs and signals blame a node)."""
    avoided: tuple[str, ...] = ()


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is judged: one ended attempt."""

    epoch: Epoch
    faults: tuple[Fault, ...]
    nodes: tuple[str, ...]
    """The nodes of the job."""
    history: History
    """As it was before this attempt ended, with progress already taken in."""
    known: bool = True
    """Whether the attempt's progress is known."""
    checkpoint: str = ""
    """It resumed from this one, from which no attempt ever made a step, nor did it."""

    @property
    def root(self) -> Fault:
        """What most probably began it."""
        return root(self.faults)


def _weight(fault: Fault) -> int:
    """How near to the cause: 0 the most."""
    if fault.how is How.SIGNAL and fault.signal == "SIGTERM":
        return 4  # torchrun and we end the others with it
    if fault.how is How.TORCHRUN and fault.signal:
        return 0  # its ranks vanished with it
    if fault.how is How.SIGNAL and not fault.signal:
        return 1  # it vanished: perhaps by torchrun's own hand
    far = {How.QUIET: 1, How.STORAGE: 2, How.TORCHRUN: 3, How.PEER: 3, How.SAVED: 4, How.WAITING: 5, How.RETURNED: 6, How.WARNED: 6}
    return far.get(fault.how, 0)


def root(faults: Sequence[Fault]) -> Fault:
    """The fault that most probably began it: the nearest to a cause; then the earliest step; then the first that was told.

    Where all only wait for others, the one that waits at another line than the most: it left the loop, or never came to it.
    """
    wheres = Counter(fault.where for fault in faults if fault.how is How.WAITING)
    indexed = list(enumerate(faults))
    first = min(indexed, key=lambda pair: (_weight(pair[1]), _late(pair[1]), wheres[pair[1].where], pair[0]))[1]
    if first.how is How.WAITING:
        return first
    return min((f for f in faults if _weight(f) == _weight(first) and f.node == first.node), key=lambda f: (_late(f), f.order_ns))


def _late(fault: Fault) -> float:
    return fault.step if fault.step is not None and fault.how in HANGS else float("inf")


def at_end(fault: Fault) -> bool:
    """It hangs after its work was done."""
    return fault.how in HANGS | {How.TORCHRUN} and fault.phase in {"shutdown", "exited"}


def describe(fault: Fault) -> str:
    """A fault in words: who, where, what."""
    who = f"rank {fault.rank} on {fault.node}" if fault.rank is not None else fault.node or "the job"
    at = f" at step {fault.step}" if fault.step is not None else f" in {fault.phase}" if fault.phase else ""
    where = f" ({fault.where})" if fault.where else ""
    why = f": {fault.error}" if fault.error else ""
    early = "; if that was no hang: hang.init is its limit, and beat() or a line of output a sign of life" if fault.phase == "init" else ""
    return {
        How.QUIET: f"{who} stood still for {fault.quiet_s:g} s (limit {fault.limit_s:g} s){at}{where}{why or early}",
        How.STORAGE: f"{who} waited for storage for {fault.quiet_s:g} s (limit {fault.limit_s:g} s){at}{where}{why}",
        How.WAITING: f"{who} waited for other ranks{at}{where}",
        How.STOPPED: f"{who} was stopped (SIGSTOP) for {fault.quiet_s:g} s{at}",
        How.SIGNAL: f"{who} was ended by {fault.signal or 'a signal'}{at}{': ' + fault.error if fault.error else ''}",
        How.EXIT: f"{who} exited with {fault.code}{at}{where}",
        How.EXCEPTION: f"{who} failed{at}: {fault.error}{where}",
        How.PEER: f"{who} lost its peers{at}: {fault.error}",
        How.DEVICE: f"{who} lost its GPU or network card{at}: {fault.error}",
        How.DISK: f"{who} was refused by a file system{at}: {fault.error}{where}",
        How.NODE: f"the supervisor of {who} died",
        How.TORCHRUN: f"the launcher on {who} {fault.error or f'ended with {fault.code}'}",
        How.PORT: f"the rendezvous port on {who} was taken",
        How.SETUP: f"{who} could not start: {fault.error}",
        How.HELLO: f"{who} never said hello{': ' + fault.error if fault.error else ''}",
        How.UNKILLABLE: f"{who} holds a process that cannot be killed: {fault.error}",
        How.RETURNED: f"{who} finished",
        How.SAVED: f"{who} left{at}, as it was asked to save: going on is what a script does then, and ending the job is ftsup's affair",
        How.WARNED: f"{who} was warned",
    }[fault.how]


# The table ----------------------------------------------------------------------------------------------------------------

Rule = Callable[[Case, Rules], "Verdict | None"]


class Row(NamedTuple):
    """One row: its name, what it is for, the rule; and the rule in words, in which `rulebook` fills the numbers of `policy`."""

    name: str
    why: str
    rule: Rule
    when: str
    then: str


def _stop(reason: str) -> Verdict:
    return Verdict(kind=VerdictKind.STOP, reason=reason)


def _restart(case: Case, rules: Rules, reason: str) -> Verdict:
    delay_s = back_off_s(case, rules)
    wait = f", in {delay_s:.0f} s" if delay_s else ""
    return Verdict(kind=VerdictKind.RESTART, reason=f"{reason}: restart here{wait}", delay_s=delay_s)


def _elsewhere(case: Case, rules: Rules, nodes: Sequence[str], reason: str) -> Verdict:
    """Requeue without some nodes, where that is possible; else a restart here."""
    room = rules.policy.avoid_max - len(case.history.avoided)
    avoid = tuple(node for node in nodes if node not in case.history.avoided)[: max(room, 0)]
    if not rules.can_requeue:
        return _budget(case, rules) or _restart(case, rules, f"{reason} (requeue is off)")
    if case.history.requeues >= rules.policy.requeues:
        return _stop(f"{reason}; {case.history.requeues} requeues brought no progress (policy.requeues)")
    return Verdict(kind=VerdictKind.REQUEUE, reason=f"{reason}: requeue without {', '.join(avoid) or 'exclusions'}", avoid=avoid)


def back_off_s(case: Case, rules: Rules) -> float:
    """The wait before a restart: none for the first one after progress, then doubling, with a jitter that the epoch decides."""
    k = len(case.history.past)
    if k == 0:
        return 0.0
    limits = rules.policy
    share = crc32(f"{case.epoch}/{case.nodes}".encode()) / 0xFFFFFFFF
    wait_s: float = min(limits.back_off_s * 2.0 ** min(k - 1, 30), limits.back_off_max_s)
    return wait_s * (1 + limits.jitter * share)


def _finished(case: Case, _rules: Rules) -> Verdict | None:
    if not all(fault.how is How.RETURNED or at_end(fault) for fault in case.faults):
        return None
    return Verdict(kind=VerdictKind.FINISHED, reason=f"training was finished; {describe(case.root)}: it was ended")


def _hard_cap(case: Case, rules: Rules) -> Verdict | None:
    if case.history.attempts < rules.policy.hard_cap:
        return None
    return _stop(f"{case.history.attempts} attempts in this run (policy.hard_cap); last: {describe(case.root)}")


def _port(case: Case, rules: Rules) -> Verdict | None:
    if case.root.how is not How.PORT:
        return None
    row = [past for past in case.history.past if past.root.how is How.PORT]
    if len(row) >= rules.policy.ports:
        return None
    return Verdict(kind=VerdictKind.RESTART, reason=f"{describe(case.root)}: again on another port")


def _unkillable(case: Case, rules: Rules) -> Verdict | None:
    stuck = [fault for fault in case.faults if fault.how is How.UNKILLABLE]
    return _elsewhere(case, rules, sorted({f.node for f in stuck}), describe(stuck[0])) if stuck else None


def _hello(case: Case, rules: Rules) -> Verdict | None:
    missing = sorted({fault.node for fault in case.faults if fault.how is How.HELLO})
    if not missing or len(missing) == len(case.nodes) > 1:
        return None
    return _elsewhere(case, rules, missing, f"{', '.join(missing)} never said hello")


def _suspect(case: Case, rules: Rules) -> Verdict | None:
    """Verified is not loadable."""
    now, name = case.root, case.checkpoint
    if not name or now.how not in UNLOADABLE:
        return None
    past = case.history.past
    other = next((one for one in reversed(past) if one.rule == SUSPECT), None)
    if other is not None:
        return _stop(
            f"neither {other.checkpoint} nor {name}, the one before it, can be resumed from, although both are whole: "
            f"from {other.checkpoint}, twice: {describe(other.root)}; from {name}: {describe(now)}"
        )
    if not any(one.checkpoint == name and one.root.how in UNLOADABLE for one in past):
        return None
    reason = f"twice before its first step, resumed from {name}: {describe(now)}; the checkpoint before it is tried once"
    return msgspec.structs.replace(_restart(case, rules, reason), suspect=name)


def _same_error(case: Case, _rules: Rules) -> Verdict | None:
    now, before = case.root, case.history.past[-1].root if case.history.past else None
    if now.how is not How.EXCEPTION or not now.fingerprint or before is None or before.fingerprint != now.fingerprint:
        return None
    return _stop(f"the same error twice, without progress between: {describe(now)}")


def _start_errors(case: Case, rules: Rules) -> Verdict | None:
    if case.root.how is not How.SETUP:
        return None
    nodes = sorted({fault.node for fault in case.faults if fault.how is How.SETUP and fault.node})
    before = [past for past in case.history.past if past.root.how is How.SETUP and past.root.node]
    if not before or not nodes:  # without a node: the checkpoint could not be chosen; a disk that is away comes back
        return None
    if len(nodes) == 1 < len(case.nodes):
        return _elsewhere(case, rules, nodes, f"twice {describe(case.root)}")
    return _stop(f"{len(nodes)} of {len(case.nodes)} nodes could not start, twice: {describe(case.root)}")


def _same_step(case: Case, rules: Rules) -> Verdict | None:
    now = case.root
    before = case.history.past[-1] if case.history.past else None
    same = before and before.root.step == now.step is not None and before.root.how in HANGS | {How.SIGNAL}
    if not before or not same or now.how not in HANGS | {How.SIGNAL}:
        return None
    if before.rule == "same step":
        return _stop(f"at step {now.step} again, on other nodes too: {describe(now)}")
    if before.root.node != now.node:
        return None
    if not rules.can_requeue:
        return _stop(f"twice at one step on one node, and requeue is off: {describe(now)}")
    return _elsewhere(case, rules, (now.node,), f"twice at one step on one node: {describe(now)}")


def _bad_node(case: Case, rules: Rules) -> Verdict | None:
    if case.root.how not in BLAMES or len(case.nodes) == 1:
        return None
    needed = 2 if case.root.how is How.DEVICE else rules.policy.same_node  # hardware that failed again does not mend
    row = (*case.history.row, case.root.node)[-needed:]
    if len(row) < needed or len(set(row)) > 1:
        return None
    return _elsewhere(case, rules, (case.root.node,), f"{needed} faults in a row on {case.root.node}, the last: {describe(case.root)}")


def _budget(case: Case, rules: Rules) -> Verdict | None:
    for key, kinds in BUDGETS:
        spent = 1 + spent_of(case.history, kinds)
        if case.root.how in kinds and case.known and spent > getattr(rules.policy, key):
            return _stop(f"{spent} times without progress (policy.{key}): {describe(case.root)}")
    return None


def spent_of(history: History, kinds: frozenset[How]) -> int:
    """What attempts without progress have spent of the budget for such faults."""
    return sum(past.counts and past.root.how in kinds for past in history.past)


def _otherwise(case: Case, rules: Rules) -> Verdict:
    return _restart(case, rules, describe(case.root))


TABLE: tuple[Row, ...] = (
    Row("finished", "everything returned, and only the end hung", _finished,
        "every rank has finished, and only the end hung", "finished"),
    Row("hard cap", "a run has an end", _hard_cap,
        "{hard_cap} attempts were made in this run", "stop"),
    Row("port", "somebody took the port: at once again", _port,
        "the rendezvous port was taken, at most {ports} times without progress", "restart at once, on another port"),
    Row("unkillable", "what cannot be killed keeps its GPU", _unkillable,
        "a process cannot be killed", "{elsewhere}"),
    Row("hello", "a node that never speaks eats attempt after attempt", _hello,
        "a node never said hello, and others did", "{elsewhere}"),
    Row(SUSPECT, "verified is not loadable: the checkpoint before it is tried once, then stop", _suspect,
        "two attempts ended before their first step, resumed from one checkpoint",
        "restart from the checkpoint before it; if that fails as well: stop"),
    Row("same error", "the same traceback twice is a bug", _same_error,
        "the same traceback as the time before, without progress between", "stop"),
    Row("start errors", "on one node its fault, on several the configuration's", _start_errors,
        "set-up failed for the second time without progress", "on one node of several: {elsewhere}; on more: stop"),
    Row("same step", "twice at one step on the same nodes: once more elsewhere, then stop", _same_step,
        "a hang or a signal at the same step on the same node as the time before", "{elsewhere}, once; then, or if requeue is off: stop"),
    Row("bad node", "different steps on one node: the node", _bad_node,
        "{same_node} hangs or crashes in a row on one node of several; 2 where its GPU or network card failed", "{elsewhere}"),
    Row("budget", "nothing goes on for ever without progress", _budget,
        "more than {errors} errors, {hangs} hangs, {crashes} crashes or {starts} failed starts without progress", "stop"),
    Row("otherwise", "restart in the allocation", _otherwise,
        "anything else",
        "restart here; without progress since the last one, after {back_off}, doubling up to {back_off_max}, and up to {jitter} more"),
)  # fmt: skip


def judge(case: Case, rules: Rules) -> Verdict:
    """The first row that matches; its name is in `rule`."""
    found = ((row.name, row.rule(case, rules)) for row in TABLE)
    name, verdict = next((name, verdict) for name, verdict in found if verdict is not None)  # the last row matches everything
    return msgspec.structs.replace(verdict, rule=name)


def remember(case: Case, verdict: Verdict) -> History:
    """The history after this attempt."""
    history = case.history
    past = Past(epoch=case.epoch, root=case.root, counts=case.known, rule=verdict.rule, checkpoint=case.checkpoint)
    blames = case.root.how in BLAMES
    return msgspec.structs.replace(
        history,
        past=(*history.past, past),
        row=(*history.row, case.root.node)[-16:] if blames else history.row,
        requeues=history.requeues + (verdict.kind is VerdictKind.REQUEUE),
        avoided=history.avoided + verdict.avoid,
    )
