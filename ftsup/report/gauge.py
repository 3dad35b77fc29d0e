"""What a log measures of the training itself: how long a step takes, what a save costs, how the script hears of one.

Sees each line once, in order, and remembers sums only. What no line tells stays None.
"""

from __future__ import annotations

import msgspec

from ftsup import events
from ftsup.events import Ask, Ears, Epoch, Line
from ftsup.report.story import WORKS, Moment, Stage, Story, between_s


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the log measures of the training itself."""

    step_s: float | None = None
    """A step of training, with its share of evaluations and saves; None: not known."""
    median_s: float = 0.0
    """A step's median, as the nodes learned it; 0: not known."""
    restart_s: float = 0.0
    """The newest time from a launch to its first step; 0: not known."""
    saving_s: float | None = None
    """Seconds in which ranks were seen saving while training waited; None: an older ftsup did not look."""
    saves: int = 0
    """Checkpoints that were sealed, or that the script told of, whatever is more."""
    asked_s: float = 0.0
    """The longest save on request, from the agreement to its end on all nodes; 0: there was none."""
    late_saves: int = 0
    """Requeues for the time limit that did not wait for a save that was under way."""
    ears: Ears | None = None
    """How the script hears that a save is wanted; None: it never was asked."""
    kill_wait_s: float | None = None
    asked_again: int = 0
    """Steps made again since a person asked for an earlier checkpoint."""
    leaders: int = 0
    """Leaders that took over in a grant from one that died."""


class Gauge:
    """What is measured on the way."""

    def __init__(self) -> None:
        self.leaders = self.asked_again = 0
        self.spent_s, self.steps = 0.0, 0
        self.at: tuple[str, Epoch, int, Moment] | None = None
        self.seals = self.told_saves = self.late_saves = 0
        self.saving_s: dict[str, float] = {}
        """By node: they save together, or one does."""
        self.asked_s = self.median_s = self.restart_s = 0.0
        self.begun: dict[int, Moment] = {}
        self.epoch: Epoch | None = None
        self.ears: Ears | None = None
        self.kill_wait_s: float | None = None

    def see(self, line: Line, before: Story, now: Moment) -> None:
        """One more line; `before` is the story without it."""
        event = line.event
        if isinstance(event, events.Progressed):
            self._progressed(event, now)
        elif isinstance(event, events.Learned):
            self.median_s = event.median_s
        elif isinstance(event, events.Sealed):
            self.seals += 1
        elif isinstance(event, events.Saved):
            self.told_saves += 1
        elif isinstance(event, events.Counted):
            self.ears = event.ears
        elif isinstance(event, events.SaveOver) and event.save in self.begun:
            self.asked_s = max(self.asked_s, between_s(self.begun[event.save], now) or 0.0)
        elif isinstance(event, events.SlurmSaid) and event.kill_wait_s is not None:
            self.kill_wait_s = event.kill_wait_s
        for order in line.orders:
            self._order(order, before, now)

    def _order(self, order: events.LeaderOrder, before: Story, now: Moment) -> None:
        if isinstance(order, events.AskRanks) and order.ask is Ask.COMMIT:
            self.begun.setdefault(order.save, now)
        elif isinstance(order, events.Launch):
            self.restart_s = order.restart_s or self.restart_s
            self._launched(order, before)
        elif isinstance(order, events.Decide) and order.verdict.rule == "time limit":
            self.late_saves += before.saving is not None and before.saving.begun

    def _launched(self, order: events.Launch, before: Story) -> None:
        """An attempt begins, once for all its nodes, and no incident asked for it."""
        if order.epoch != self.epoch and before.stage is Stage.TRAINING and before.step is not None and order.base_step is not None:
            self.asked_again += max(before.step - order.base_step, 0)
        self.epoch = order.epoch

    def _progressed(self, event: events.Progressed, now: Moment) -> None:
        """Steps a second, from one node of one attempt, while it trains."""
        if event.saving_s is not None:
            self.saving_s[event.node] = self.saving_s.get(event.node, 0.0) + event.saving_s
        known, self.at = self.at, None
        if event.phase not in WORKS or event.step is None:
            return
        self.at = (event.node, event.epoch, event.step, now)
        if known is None or known[1] != event.epoch:
            return
        if known[0] != event.node:
            self.at = known
        elif event.step > known[2]:
            self.spent_s += between_s(known[3], now) or 0.0
            self.steps += event.step - known[2]

    def measured(self) -> Measured:
        """What it comes to."""
        return Measured(
            step_s=self.spent_s / self.steps if self.steps else self.median_s or None,
            median_s=self.median_s,
            restart_s=self.restart_s,
            saving_s=max(self.saving_s.values(), default=None),
            saves=max(self.seals, self.told_saves),
            asked_s=self.asked_s,
            late_saves=self.late_saves,
            ears=self.ears,
            kill_wait_s=self.kill_wait_s,
            leaders=self.leaders,
            asked_again=self.asked_again,
        )
