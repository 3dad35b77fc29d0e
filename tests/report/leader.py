"""The leader's own machine with a log, for tests of what is told about it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Epoch, Fault, How, Line
from ftsup.policy.machine import step
from ftsup.policy.rules import Rules
from ftsup.policy.state import State
from ftsup.report.story import Story, tell

NODES = ("n1", "n2")
BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


class Leader:
    """The leader's machine with a log: what happens is told by methods, and it answers as it does in life."""

    def __init__(self) -> None:
        self.state, self.lines, self.t, self.base_t = State(), [], 0.0, 0.0

    def take(self, event) -> None:
        out = step(self.state, replace(event, t=self.t), Rules())
        self.state = out.state
        wall = (BEGAN + timedelta(seconds=self.base_t + self.t)).isoformat(timespec="milliseconds")
        self.lines.append(Line(n=len(self.lines) + 1, wall=wall, event=replace(event, t=self.t), orders=out.orders))

    def after(self, seconds: float) -> Leader:
        self.t += seconds
        return self

    @property
    def epoch(self) -> Epoch:
        return self.state.epoch

    def grant(self, restarts: int = 0, *, waited_s: float = 0.0) -> None:
        """A leader begins on another host, whose clock counts from elsewhere."""
        self.base_t += self.t + waited_s - 1000.0 * restarts
        self.t = 1000.0 * restarts
        self.take(ev.LeaderStarted(job="7", restarts=restarts, host="n1", pid=1, nodes=NODES))
        for node in NODES:
            self.take(ev.NodeUp(node=node, instance=f"{node}.{restarts}"))

    def launch(self, *, checkpoint: int | None = None) -> None:
        path = None if checkpoint is None else f"/c/{checkpoint}"
        self.take(ev.CheckpointPicked(epoch=self.epoch, path=path, step=checkpoint))
        for node in NODES:
            self.take(ev.Prepared(node=node, epoch=self.epoch, address="n1", port=1 if node == "n1" else 0))
        for node in NODES:
            self.take(ev.Launched(node=node, epoch=self.epoch, pid=1))

    def train(self, step_now: int) -> None:
        self.take(ev.Progressed(node="n1", epoch=self.epoch, phase="step", step=step_now, beats=5))

    def end_attempt(self) -> None:
        for node in NODES:
            self.take(ev.Collected(node=node, epoch=self.epoch, incident=self.state.incident))
        for node in NODES:
            self.take(ev.AttemptOver(node=node, epoch=self.epoch, code=1))

    def hang(self, *, rank: int = 3, at: int = 118) -> None:
        fault = Fault(how=How.QUIET, node="n2", rank=rank, step=at, phase="step", quiet_s=5.2, limit_s=5.0)
        self.take(ev.Stalled(node="n2", epoch=self.epoch, faults=(fault,)))

    @property
    def story(self) -> Story:
        return tell(self.lines)
