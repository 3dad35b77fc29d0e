"""What is known of an attempt's faults, put together from several reports: one fault a rank, and who is accused at the end.

Pure, a part of the leader's machine. What a fault leads to is the judge's affair.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ftsup.events import Fault, How, Kind
from ftsup.policy.judge import HANGS
from ftsup.policy.reports import explained
from ftsup.policy.state import State


def merge(state: State, faults: tuple[Fault, ...]) -> State:
    """Add what is new; what is known of a rank gets what the newer report adds (a line of code, a signal's name)."""
    merged = {(fault.node, fault.rank): fault for fault in state.faults if fault.rank is not None}
    rankless = [fault for fault in state.faults if fault.rank is None]
    for fault in faults:
        if fault.rank is None:
            rankless.append(fault)
            continue
        old = merged.get((fault.node, fault.rank))
        merged[fault.node, fault.rank] = fault if old is None else _both(old, fault)
    return replace(state, faults=(*merged.values(), *rankless))


def _both(old: Fault, new: Fault) -> Fault:
    """One rank, two reports: an end outranks a standstill; a stack says what a standstill is; empty fields are filled."""
    if old.alive and new.how not in HANGS and not new.alive:
        return explained(replace(new, step=old.step if new.step is None else new.step, phase=new.phase or old.phase), old)
    how = old.how
    if old.how in HANGS and new.alive:  # words about a rank that stands still: only a collective's time-out says why
        how = How.WAITING if old.how is How.QUIET and new.kind is Kind.NCCL_TIMEOUT else old.how
    elif old.how in HANGS and (new.how not in HANGS or (old.how is How.QUIET and new.how is How.WAITING)):
        how = new.how
    if old.how is How.SIGNAL and not old.signal and new.how in {How.EXIT, How.RETURNED}:  # os._exit: only torchrun tells it apart
        how = new.how
    filled: dict[str, Any] = {
        name: getattr(old, name) or getattr(new, name)
        for name in ("phase", "signal", "error", "where", "fingerprint", "order_ns", "quiet_s", "limit_s", "kind", "line")
    }
    code = old.code if old.code is not None else new.code
    return replace(old, how=how, step=old.step if old.step is not None else new.step, code=code, **filled)


def accuse(state: State) -> State:
    """Everybody who stood still only waited: for those who did not, and whose own limit would have been over a moment later."""
    waited = [fault for fault in state.faults if fault.how is How.WAITING or fault.kind is Kind.NCCL_TIMEOUT]
    known = {(fault.node, fault.rank) for fault in state.faults}
    suspects = [fault for fault in state.suspects if (fault.node, fault.rank) not in known]
    if not suspects or len(waited) < len(state.faults):
        return state
    quiet_s, limit_s = max((fault.quiet_s, fault.limit_s) for fault in waited)
    if any(fault.kind is Kind.NCCL_TIMEOUT for fault in waited):  # stacks tell less there: a rank may wait for a GPU that waits for others
        suspects = [fault for fault in suspects if fault.quiet_s >= quiet_s / 2]
        if len(suspects) != 1 or not quiet_s:
            return state
    return merge(state, tuple(replace(fault, quiet_s=quiet_s, limit_s=limit_s) for fault in suspects))
