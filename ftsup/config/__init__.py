"""The configuration: YAML and overrides in, one frozen struct out; every problem at once.

The room: `keys` (each key, default and reason once), `check` (what cannot stand beside each other), `tree` (text to nodes), `read`
(nodes to structs), `values` (one value), `doc` (full.yaml, JSON Schema, `show`). Nothing here knows Slurm's commands or a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ftsup.config.check import OWNED, PLACEHOLDERS, findings, short_warning
from ftsup.config.keys import Checkpoint, Config, Handlers, Launch, Launcher, Notify, Requeue, Share, SlurmOptions, To, Waits, Warning_
from ftsup.config.read import Loaded, read
from ftsup.plain import decode_plain

__all__ = [
    "OWNED", "PLACEHOLDERS", "Checkpoint", "Config", "Handlers", "Launch", "Launcher", "Loaded", "Notify", "Requeue", "Share",
    "SlurmOptions", "To", "Waits", "Warning_", "from_json", "load", "short_warning", "to_json",
]  # fmt: skip


def load(path: Path, *, sets: Sequence[str] = ()) -> Loaded[Config]:
    """The configuration of a file and of `key=value` overrides, with where each value came from; ConfigError has all problems."""
    return read(path, Config, sets=sets, check=findings)


def to_json(config: Config) -> bytes:
    """For the run directory: everything but the values of `env`, which are nobody's business."""
    return msgspec.json.format(msgspec.json.encode(replace(config, env={})), indent=1)


def from_json(data: bytes) -> Config:
    """What `to_json` wrote; `env` is empty."""
    return decode_plain(data, Config)
