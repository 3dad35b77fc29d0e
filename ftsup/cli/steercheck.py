"""What can be told to be impossible before a leader is asked: a step without a checkpoint, a node that is none of the run's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ftsup.checkpoint.entries import entries
from ftsup.checkpoint.home import Home
from ftsup.config import Config, from_json
from ftsup.errors import RunError, SlurmError
from ftsup.nearest import did_you_mean
from ftsup.plain import read_plain, told
from ftsup.ports import Disk, Node
from ftsup.rundir import RunDir

SHOWN = 10


def _config(run: RunDir) -> Config:
    try:
        return from_json(read_plain(run.config_json))
    except (OSError, ValueError) as error:
        raise RunError(f"{run.config_json} cannot be read: {told(error)}") from error


def earlier(run: RunDir, disk: Disk, from_step: int) -> str:
    """Which checkpoint of step `from_step` at most is the newest, as a sentence; empty where that cannot be seen from here."""
    config = _config(run)
    if not config.checkpoint.dir:
        raise RunError("checkpoint.dir is not set: there is nothing to go back to")
    folder = Path(config.workdir) / config.checkpoint.dir
    try:
        found = [entry for entry in entries(disk, Home(folder), pattern=config.checkpoint.pattern) if entry.step is not None]
    except OSError:
        return ""
    if not found and not folder.is_dir():
        return ""
    best = next((entry for entry in found if entry.step is not None and entry.step <= from_step), None)
    if best is None:
        steps = [str(entry.step) for entry in reversed(found)]
        shown = ", ".join(steps[:SHOWN]) + (f" and {len(steps) - SHOWN} more" if len(steps) > SHOWN else "")
        raise RunError(
            f"no checkpoint of step {from_step} at most in {folder}", hint=f"there are steps {shown}" if steps else "there is none"
        )
    return f"{best.name} (step {best.step}) is the newest of step {from_step} at most; it is verified first"


def nodes_left(run: RunDir, nodes_now: Sequence[str], avoid: Sequence[str], *, nodes: Callable[[], Sequence[Node]]) -> None:
    """RunError: it cannot do without these nodes, or one of them is none."""
    unknown = [name for name in avoid if nodes_now and name not in nodes_now]
    if unknown:
        hint = (
            did_you_mean(unknown[0], nodes_now)
            or f"its nodes are {', '.join(nodes_now[:SHOWN])}{', ...' if len(nodes_now) > SHOWN else ''}"
        )
        raise RunError(f"{', '.join(unknown)}: none of its nodes", hint=hint)
    if not avoid:
        return
    config = _config(run)
    try:
        count = len({node.name for node in nodes()} - {*avoid, *config.slurm.exclude})
    except SlurmError:
        return
    if count < config.slurm.nodes:
        raise RunError(f"without {', '.join(avoid)} the cluster has {count} nodes for it, and it needs {config.slurm.nodes}")
