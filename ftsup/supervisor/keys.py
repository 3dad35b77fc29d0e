"""The link's keys: one CURVE pair for the leader, one for all nodes of the run, in RUN/keys, readable by us alone.

It makes and reads them; it must not know sockets. Whoever holds the node pair is let in, nobody else.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import zmq

from ftsup.errors import RunError

_FILE = "link.json"


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """Both pairs, in zmq's printable form (Z85)."""

    leader_public: str
    leader_secret: str
    node_public: str
    node_secret: str


def make_keys(folder: Path) -> Keys:
    """New keys in `folder` (made 0700); FileExistsError where there are some: keys never change under a run."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (leader_public, leader_secret), (node_public, node_secret) = zmq.curve_keypair(), zmq.curve_keypair()
    keys = Keys(
        leader_public=leader_public.decode(),
        leader_secret=leader_secret.decode(),
        node_public=node_public.decode(),
        node_secret=node_secret.decode(),
    )
    fd = os.open(folder / _FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(keys))
        file.flush()
        os.fsync(fd)
    return keys


def read_keys(folder: Path) -> Keys:
    """The keys of a run. RunError when they are missing, damaged, or readable by others."""
    path = folder / _FILE
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        keys = msgspec.json.decode(path.read_bytes(), type=Keys)
    except OSError as error:
        raise RunError(f"the link's keys cannot be read: {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise RunError(f"the link's keys are damaged: {path}: {error}") from error
    if mode & 0o077:
        raise RunError(
            f"the link's keys can be read by others: {path} has mode {mode:04o}", hint="chmod 600 it, and think about who saw it"
        )
    return keys
