"""That two `ftsup watch` never act at once, and what one remembers for the next: a locked file beside the runs.

The lock goes with its holder, however that ends. What is remembered is how long nothing moved in a run, counted from look to look on
watch's own clock; where it is lost, watch begins to count anew, which makes it slower and never wrong.
"""

from __future__ import annotations

import fcntl
import os
import platform
from pathlib import Path

import msgspec

from ftsup.errors import Exit, FtsupError
from ftsup.plain import told

_CAP_BYTES = 16 << 20


class Remembered(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What watch knows of a run from its last look."""

    sign: str = ""
    """Of the files that a leader writes: the same as long as nothing moves."""
    quiet_s: float = 0.0
    over: bool = False
    """It has ended, and Slurm has nothing of it any more."""
    said: str = ""
    """The trouble that was told last."""


class Memory(msgspec.Struct, kw_only=True):
    """From one look to the next. `holder` is for people."""

    holder: str = ""
    looked_s: float = 0.0
    """When the last look was, on the wall clock."""
    runs: dict[str, Remembered] = msgspec.field(default_factory=dict)
    said: dict[str, str] = msgspec.field(default_factory=dict)
    """What was told of clusters, by their name."""


class Held(FtsupError):
    """Another one watches these runs."""

    exit_code = Exit.AGAIN


class Lock:
    """The lock of one folder of runs, held until `close`. Held: another one has it. OSError: there can be none."""

    def __init__(self, runs_dir: Path) -> None:
        self.path = runs_dir / f".watch-{os.getuid()}"
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._read().holder
            os.close(self._fd)
            hint = "one is enough: it looks after all runs there"
            raise Held(f"another ftsup watch looks after {runs_dir}{f': {holder}' if holder else ''}", hint=hint) from None
        except OSError:
            os.close(self._fd)
            raise

    def remembered(self) -> Memory:
        """What the last one left; nothing where that cannot be read."""
        memory = self._read()
        memory.holder = f"pid {os.getpid()} on {platform.node()}"
        self.keep(memory)
        return memory

    def keep(self, memory: Memory) -> None:
        """For the next look. A full disk costs the memory, not the look."""
        data = msgspec.json.encode(memory)
        try:
            os.pwrite(self._fd, data, 0)
            os.ftruncate(self._fd, len(data))
        except OSError:
            return

    def close(self) -> None:
        """Let the next one."""
        os.close(self._fd)

    def _read(self) -> Memory:
        try:
            return msgspec.json.decode(os.pread(self._fd, _CAP_BYTES, 0), type=Memory)
        except (OSError, ValueError, RecursionError):
            return Memory()


def no_lock(runs_dir: Path, error: OSError) -> str:
    """The sentence about a folder in which there can be none."""
    return f"{runs_dir} cannot be locked ({told(error)}): watch only looks, and does nothing"
