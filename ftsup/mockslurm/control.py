"""The mock's own handles, for tests, the demo and `ftsup mock`: make one, change its settings, order faults, look, stop."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ftsup.errors import ConfigError
from ftsup.mockslurm import processes, recovery, rules, show
from ftsup.mockslurm.client import changing
from ftsup.mockslurm.main import write_programs
from ftsup.mockslurm.model import Faults, NodeRec, Settings, World
from ftsup.mockslurm.store import Store
from ftsup.nearest import did_you_mean
from ftsup.slurm.hostlist import compress

STOP_S = 15.0


def create(state_dir: Path, *, nodes: int = 4, prefix: str = "mock", **settings: object) -> dict[str, str]:
    """Make a mock in this directory, or change the settings of the one that is there; what to add to the environment.

    `settings` are the fields of `Settings`. Nodes are called mock1, mock2, ... (`prefix`); a mock that is there only gains nodes.
    """
    store = Store(state_dir.absolute())
    store.prepare()
    write_programs(store)
    with store.change() as world:
        world.booted_at = world.booted_at or time.time()
        world.limits = world.limits or processes.soft_limits()
        for number in range(1, nodes + 1):
            world.nodes.setdefault(f"{prefix}{number}", NodeRec(name=f"{prefix}{number}"))
        world.settings = _changed(world.settings, settings)
    return environment(state_dir)


def environment(state_dir: Path) -> dict[str, str]:
    """The variables that put this mock first."""
    store = Store(state_dir.absolute())
    path = [part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if part != str(store.bin)]
    return {"PATH": os.pathsep.join([str(store.bin), *path]), recovery.STATE: str(store.root)}


def shell_text(variables: Mapping[str, str]) -> str:
    """The same for `eval` in a shell."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def configure(state_dir: Path, **settings: object) -> Settings:
    """Change settings of a living mock; the settings now in force."""
    store = _there(state_dir)
    with store.change() as world:
        world.settings = _changed(world.settings, settings)
        _wake_all(store, world.jobs)
        return world.settings


def _changed(settings: Settings, changes: Mapping[str, object]) -> Settings:
    try:
        return msgspec.convert(msgspec.to_builtins(settings) | msgspec.to_builtins(dict(changes)), type=Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"mock Slurm: {error}", hint=f"its settings: {', '.join(Settings.__struct_fields__)}") from None


def away(state_dir: Path, *, seconds: float) -> None:
    """The controller answers nobody for so long (0: it is back)."""
    store = _there(state_dir)
    with store.change() as world:
        world.faults = Faults(away_until=time.time() + seconds, refuse_requeues=world.faults.refuse_requeues)
        _wake_all(store, world.jobs)


def refuse_requeues(state_dir: Path, *, count: int) -> None:
    """Refuse the next so many requeues."""
    store = _there(state_dir)
    with store.change() as world:
        world.faults.refuse_requeues = count


def node_down(state_dir: Path, name: str, *, reason: str = "Not responding") -> None:
    """Lose a node with everything that runs on it."""
    store = _there(state_dir)
    with changing(store) as (world, now):
        _check_node(world, name)
        rules.node_down(world, world.nodes[name], reason=reason, now=now)


def node_up(state_dir: Path, name: str) -> None:
    """The node is back."""
    store = _there(state_dir)
    with changing(store) as (world, _):
        _check_node(world, name)
        world.nodes[name] = NodeRec(name=name)


def _check_node(world: World, name: str) -> None:
    if name not in world.nodes:
        hint = did_you_mean(name, world.nodes, most=3) or f"its nodes: {compress(tuple(world.nodes))}"
        raise ConfigError(f"mock Slurm: no node {name}", hint=hint)


def status(state_dir: Path) -> str:
    """What there is and what happens, for people."""
    store = _there(state_dir)
    with store.change() as world:
        now = time.time()
        recovery.revive(store, world, now)
        settings = world.settings
    lines = [f"mock Slurm in {store.root}"]
    lines += [
        f"nodes: {name} {show.node_word(world, node)}{f' ({node.reason})' if node.reason else ''}" for name, node in world.nodes.items()
    ]
    if world.faults.away_until > now:
        lines.append(f"fault: the controller is away for {world.faults.away_until - now:.1f} s more")
    if world.faults.refuse_requeues:
        lines.append(f"fault: the next {world.faults.refuse_requeues} requeues are refused")
    lines.append(f"settings: {', '.join(f'{key}={value}' for key, value in msgspec.to_builtins(settings).items())}")
    for job in world.jobs.values():
        where = f" on {','.join(job.nodes)}" if job.nodes else ""
        lines.append(f"job {job.job} {job.name}: {show.state(job)} ({job.reason}), restarts {job.restarts}{where}")
    return "\n".join(lines if world.jobs else [*lines, "no jobs"])


def stop(state_dir: Path, *, patience_s: float = STOP_S) -> bool:
    """End every job with everything it has, at once; False when something could not be ended. The directory stays."""
    store = _there(state_dir)
    with store.change() as world:
        world.faults = Faults()
        for job in list(world.jobs.values()):
            daemons = [who for step in job.steps for who in step.stepds.values()] + ([job.runner] if job.runner else [])
            processes.end_trees(daemons, patience_s=patience_s)
            rules.cancel(job, time.time())
            job.completing = False
        swept = [recovery.sweep(store, job) for job in world.jobs]
    return all(swept)


def _there(state_dir: Path) -> Store:
    store = Store(state_dir.absolute())
    if not store.exists:
        raise ConfigError(f"no mock Slurm in {store.root}", hint='make one: eval "$(ftsup mock env)"')
    return store


def _wake_all(store: Store, jobs: Mapping[int, object]) -> None:
    for job in jobs:
        store.wake(job)
