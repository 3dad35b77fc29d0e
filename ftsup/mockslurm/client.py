"""What every command does first: find the state directory, meet the faults, say what died, and change the world under the lock."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import msgspec

from ftsup.mockslurm import recovery, rules
from ftsup.mockslurm.model import World
from ftsup.mockslurm.store import Store

VERSION = "22.05.8"
CONNECT = "Unable to contact slurm controller (connect failure)"


class Away(Exception):
    """The controller does not answer."""


@contextlib.contextmanager
def controller(store: Store) -> Iterator[tuple[World, float]]:
    """The world and the time, for one request of a command. Raises Away."""
    _reach(store)
    with changing(store) as found:
        yield found


@contextlib.contextmanager
def changing(store: Store) -> Iterator[tuple[World, float]]:
    """The same whether the controller answers or not. Afterwards waiting jobs are scheduled and runners woken."""
    woken: list[int] = []
    with store.change() as world:
        now = time.time()
        inside = recovery.enclosing_job(store, world)
        if inside is None:
            recovery.revive(store, world, now)
        before = {job.job: msgspec.json.encode(job) for job in world.jobs.values()}
        yield world, now
        if inside is None:
            recovery.revive(store, world, now)  # a runner before nodes: a running job without one has lost it
        rules.schedule(world, now)
        store.discard(rules.forget(world, now))
        woken = [job.job for job in world.jobs.values() if before.get(job.job) != msgspec.json.encode(job)]
        woken += [inside.job] if inside else []
    for job in woken:
        store.wake(job)


def _reach(store: Store) -> None:
    """Try as long as the real commands do."""
    faults = (world := store.read()).faults
    deadline = time.time() + world.settings.away_delay_s
    while faults.away_until > time.time():
        if time.time() >= deadline:
            raise Away
        time.sleep(max(0.0, min(0.1, faults.away_until - time.time(), deadline - time.time())))
        faults = store.read().faults
