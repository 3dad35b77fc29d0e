"""What people want to know of the machine's state: what is left of the budgets, whom it waits for, and when something is due.

Pure, and read by nobody who decides: the leader puts it into `status.json`. Times are seconds from now, since no clock of the
leader means anything to a reader.
"""

from __future__ import annotations

import msgspec

from ftsup.policy import save as saving
from ftsup.policy.ending import BEFORE_END
from ftsup.policy.judge import BUDGETS, spent_of
from ftsup.policy.rules import Rules
from ftsup.policy.state import State


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """One of `policy`'s budgets."""

    left: int
    of: int


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What may follow, and when."""

    budgets: dict[str, Budget] = {}
    """By the key of `policy`. All but `hard_cap` refill with progress."""
    waiting: tuple[str, ...] = ()
    """Nodes whose answer the stage waits for."""
    until_s: float | None = None
    """In a back-off: to the next attempt. Else: to the end of the stage's patience."""
    save_s: float | None = None
    """To the next request for a save."""
    end_s: float | None = None
    """To the requeue that comes before the time limit."""


def outlook(state: State, rules: Rules, *, now: float, asks: bool) -> Outlook:
    """The view from here. `asks`: every rank calls asked(); all others are asked for nothing because it is time."""

    def ahead_s(t: float | None) -> float | None:
        return None if t is None else round(max(t - now, 0.0), 1)

    return Outlook(
        budgets=budgets(state, rules),
        waiting=state.waiting,
        until_s=ahead_s(state.deadline_t),
        save_s=ahead_s(saving.due_t(state)) if asks and state.save is None else None,
        end_s=ahead_s(state.end_t) if state.stage in BEFORE_END else None,
    )


def budgets(state: State, rules: Rules) -> dict[str, Budget]:
    """What is left of each budget."""
    history, limits = state.history, rules.policy
    spent = {key: spent_of(history, kinds) for key, kinds in BUDGETS} | {"requeues": history.requeues, "hard_cap": history.attempts}
    return {key: Budget(left=max(getattr(limits, key) - count, 0), of=getattr(limits, key)) for key, count in spent.items()}
