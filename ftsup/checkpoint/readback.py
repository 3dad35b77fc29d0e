"""When a checkpoint was last read back, and whether it was equal to its manifest: `.ftsup/verified.json`, for people who list them.

Only a memory: nothing rests on it, and whoever wants to be sure reads again. A new seal makes an old entry void.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import xxhash

from ftsup.checkpoint.disk import publish, read_small
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.manifest import Manifest, encode
from ftsup.ports import Disk


class ReadBack(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint's bytes were read. `seal`: against which manifest; `damage`: the first thing that did not match it."""

    wall: str
    seal: str
    damage: str = ""


def seal_of(manifest: Manifest) -> str:
    """What tells one seal of a checkpoint from another."""
    return xxhash.xxh3_128_hexdigest(encode(manifest))


def read_backs(disk: Disk, home: Home) -> dict[str, ReadBack]:
    """By name; empty where nothing can be read."""
    try:
        return msgspec.json.decode(read_small(disk, home.verified) or b"{}", type=dict[str, ReadBack])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def remember(disk: Disk, home: Home, found: Mapping[str, ReadBack | None]) -> None:
    """Note what was read back; None: nothing is known any more. What is gone from `sealed` is dropped."""
    if not found or disk.look(home.own) is None:
        return
    known = {**read_backs(disk, home), **found}
    kept = {name: back for name, back in known.items() if back is not None and disk.look(home.manifest(name)) is not None}
    publish(disk, home.verified, msgspec.json.encode(kept))
