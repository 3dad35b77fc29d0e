"""The supervisor's side of the beat file: makes it, reads it, and asks its rank for a save. Its layout is in `counters`.

A read is never locked; one that falls into a write is just another change.
"""

from __future__ import annotations

import os
import struct
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import NamedTuple

from . import counters

_WORD = struct.Struct("@Q")


class Phase(IntEnum):
    """What a rank is doing; every phase has a time limit of its own."""

    START = counters.IN_START
    """The interpreter is up; torch is not wanted yet."""
    IMPORT = counters.IN_IMPORT
    """The import of torch has begun."""
    INIT = counters.IN_INIT
    """torch is there; model, process group and data are being built."""
    FIRST_STEP = counters.IN_FIRST_STEP
    """An optimizer was built; nothing was stepped yet."""
    STEP = counters.IN_STEP
    EVALUATION = counters.IN_EVALUATION
    CHECKPOINT = counters.IN_CHECKPOINT
    SHUTDOWN = counters.IN_SHUTDOWN
    """The script's body has ended; threads and atexit handlers may still run."""
    EXITED = counters.EXITED
    """The last atexit handler has run."""


class Flag(IntFlag):
    """What a supervisor must know of a rank: to ask it for a save, and to watch it."""

    ASKS = counters.ASKS
    """The script has called asked()."""
    HANDLES = counters.HANDLES
    """The script has a handler for the warning signal."""
    TOOK = counters.TOOK
    """What this rank agreed to last was handed to the script."""
    COUNTS = counters.COUNTS
    """The script says its steps itself: beat(step=...)."""
    UNSURE = counters.UNSURE
    """Its steps are not known: optimizers that do not take turns, or none of torch's, only batches that are taken."""


class Word(IntEnum):
    """Save at beat N, in two phases."""

    NOTHING = counters.NOTHING
    PROPOSED = counters.PROPOSED
    """Who sees it in time agrees, and holds after beat N until the word says more."""
    COMMIT = counters.COMMIT
    """All have agreed: save at beat N."""
    ABORT = counters.ABORT
    """Somebody has not: go on."""


class Beat(NamedTuple):
    """The last thing a rank said."""

    pid: int = 0
    started: int = 0
    activity: int = 0
    step: int = -1
    saved_step: int = -1
    beats: int = 0
    phase: Phase = Phase.START
    code: int = -1
    ack: int = 0
    writing: int = 0
    flags: Flag = Flag(0)


def create(path: Path) -> None:
    """Make the file before its rank starts. Its memory is taken now: a full tmpfs fails here (OSError), never in the trainer."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, counters.SIZE)
        os.pwrite(fd, counters.empty(), 0)
    finally:
        os.close(fd)


def read(path: Path) -> Beat | None:
    """The rank's last word; None when there is no such file or it is not a beat file of this version."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) != counters.SIZE or data[: len(counters.MAGIC)] != counters.MAGIC:
        return None
    _, pid, started, life, step, saved_step, beats, ack, phase, code, writing, flags, _ = counters.ALL.unpack(data)
    if phase > max(Phase):
        return None
    return Beat(pid, started, life + beats, step, saved_step, beats, Phase(phase), code, ack, writing, Flag(flags))


def ask(path: Path, *, beats: int, word: Word, handlers: bool = False) -> None:
    """Write the rank's ask word; `handlers`: the script's own handler for the warning may answer it. OSError when the file is gone."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(fd, _WORD.pack(counters.asking(beats, word, handlers=handlers)), counters.ASK_AT)
    finally:
        os.close(fd)
