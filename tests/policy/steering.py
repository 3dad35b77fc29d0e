"""What stories of steering are made of: a world whose people ask, and the leader's machine with events by hand."""

from __future__ import annotations

from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Epoch, Request, VerdictKind
from ftsup.policy import machine
from ftsup.policy.state import State
from tests.world import RULES, World

ONE = Epoch(1, 1)
ASKS = "asks"


def asked(script: str = ASKS, **settings: object) -> World:
    return World(script=script, **settings).start()  # type: ignore[arg-type]


def replays(world: World) -> None:
    state = State()
    for line in world.log:
        out = machine.step(state, line.event, world.rules)
        assert out.orders == line.orders
        state = out.state
    assert state == world.state


def answers(world: World) -> list[str]:
    """What people were told at once."""
    return [
        order.text
        for line in world.log
        if isinstance(line.event, ev.Asked)
        for order in line.orders
        if isinstance(order, ev.Notify) and order.kind in {"asked", "refused"}
    ]


def ended(world: World) -> tuple[VerdictKind, str]:
    replays(world)
    assert world.over is not None
    return world.over.kind, world.over.reason


def attempts(world: World) -> list[str]:
    return [str(epoch) for epoch, _ in world.launches]


class Desk:
    """The leader's machine, and events by hand."""

    def __init__(self) -> None:
        self.state, self.t, self.orders = State(), 0.0, []

    def tell(self, *events: ev.Event, after: float = 0.0) -> Desk:
        self.t += after
        for event in events:
            out = machine.step(self.state, replace(event, t=self.t), RULES)  # type: ignore[arg-type]
            self.state = out.state
            self.orders += out.orders
        return self

    def ask(self, request: Request, *, from_step: int | None = None, avoid: tuple[str, ...] = ()) -> Desk:
        return self.tell(ev.Asked(request=request, who="ada", from_step=from_step, avoid=avoid))

    def until_pick(self, nodes: tuple[str, ...] = ("n1", "n2")) -> Desk:
        self.tell(ev.LeaderStarted(job="7", restarts=0, host="n1", pid=1, nodes=nodes))
        return self.tell(*(ev.NodeUp(node=node, instance=f"{node}:1") for node in nodes))

    def running(self, nodes: tuple[str, ...] = ("n1", "n2")) -> Desk:
        self.until_pick(nodes).tell(ev.CheckpointPicked(epoch=ONE))
        self.tell(*(ev.Prepared(node=node, epoch=ONE, port=1) for node in nodes))
        self.tell(*(ev.Launched(node=node, epoch=ONE, pid=1) for node in nodes))
        return self.tell(ev.Progressed(node="n1", epoch=ONE, phase="step", step=1, beats=1, by=ev.WatchedBy.STEPS))

    def save_fails(self) -> Desk:
        """No node answers the question how far its ranks are."""
        assert self.state.save is not None
        return self.tell(ev.Tick(), after=31.0)

    def told(self) -> list[str]:
        return [order.text for order in self.orders if isinstance(order, ev.Notify)]

    def incidents(self) -> list[ev.Incident]:
        return [order for order in self.orders if isinstance(order, ev.Incident)]

    def kinds(self, kind: type) -> int:
        return sum(isinstance(order, kind) for order in self.orders)
