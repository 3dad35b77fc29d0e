"""Logs of whole runs for tests of what is told about them: stories of the fake world, with a wall clock that goes with its time."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from ftsup.events import Line
from tests.report.leader import BEGAN
from tests.world import World


def log_of(world: World) -> list[Line]:
    """The world's log; its leader's clock never starts anew, and the wall clock is as good."""
    return [replace(line, wall=(BEGAN + timedelta(seconds=line.event.t)).isoformat(timespec="milliseconds")) for line in world.log]


def hang_and_crash() -> list[Line]:
    """A hang, a crash, and a supervisor that dies."""
    world = World(steps=120).strike("hang", rank=3, step=25).strike("kill", rank=0, step=45)
    world.at(95.0, lambda: world.kill_supervisor("n2"))
    return log_of(world.run())


def requeued() -> list[Line]:
    """The time limit, with a save on request, and a requeue; the leader was killed once."""
    world = World(steps=200, script="asks").limit(120.0)
    return log_of(world.at(40.0, world.kill_leader).at(45.0, world.start_leader).run())


def stopped() -> list[Line]:
    """The same error twice."""
    return log_of(World(steps=60).strike("error", rank=1, step=25, times=2).run())


def cancelled() -> list[Line]:
    """A person had enough."""
    return log_of(World(steps=200).ask("cancel", seconds=60.0).run())


ALL = (hang_and_crash, requeued, stopped, cancelled)
