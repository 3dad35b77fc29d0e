"""The beat file: 64 bytes of node-local memory in which a rank says how far it is, and nothing else.

Counters, no time: the watcher remembers on its own clock when it last saw them move. A read is never locked; one that falls
into a write is just another change. Layout, native byte order (both sides are on one host):

    0  magic and version    4 bytes
    4  pid                  u32    0: the rank has not begun
    8  started              u64    start time of the process in clock ticks (field 22 of /proc/<pid>/stat)
    16 activity             u64    anything that shows life
    24 step                 i64    -1: unknown
    32 saved_step           i64    -1: none
    40 beats                u32    optimizer steps that the hook saw in this attempt; what ranks are compared by
    44 phase                u16
    46 code                 i16    -1: still running
    48 (free)               u64
    56 ask                  u64    written by the supervisor: save once this many beats are done; 0: nothing is asked
"""

from __future__ import annotations

import mmap
import os
import struct
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

SIZE = 64
MAGIC = b"FTB\x01"

_ALL = struct.Struct("@4sIQQqqIHhQQ")
_WHO = struct.Struct("@4sIQ")
_COUNTERS = struct.Struct("@QqqIHh")
_COUNTERS_AT = 16
_WORD = struct.Struct("@Q")
_ASK_AT = 56


class Phase(IntEnum):
    """What a rank is doing; every phase has a time limit of its own."""

    START = 0
    """The interpreter is up; torch is not wanted yet."""
    IMPORT = 1
    """The import of torch has begun."""
    INIT = 2
    """torch is there; model, process group and data are being built."""
    FIRST_STEP = 3
    """An optimizer was built; nothing was stepped yet."""
    STEP = 4
    EVALUATION = 5
    CHECKPOINT = 6
    SHUTDOWN = 7
    """The script's body has ended; threads and atexit handlers may still run."""
    EXITED = 8
    """The last atexit handler has run."""


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


def create(path: Path) -> None:
    """Make the file before its rank starts. Its memory is taken now: a full tmpfs fails here (OSError), never in the trainer."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, SIZE)
        os.pwrite(fd, _pack(Beat()), 0)
    finally:
        os.close(fd)


def read(path: Path) -> Beat | None:
    """The rank's last word; None when there is no such file or it is not a beat file of this version."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) != SIZE or data[: len(MAGIC)] != MAGIC:
        return None
    _, pid, started, activity, step, saved_step, beats, phase, code, _, _ = _ALL.unpack(data)
    if phase > max(Phase):
        return None
    return Beat(pid, started, activity, step, saved_step, beats, Phase(phase), code)


def ask(path: Path, *, beats: int) -> None:
    """Ask the rank to save once it has done `beats` beats; 0 takes it back."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(fd, _WORD.pack(beats), _ASK_AT)
    finally:
        os.close(fd)


def _pack(beat: Beat) -> bytes:
    pid, started, *counters, phase, code = beat
    return _ALL.pack(MAGIC, pid, started, *counters, phase, code, 0, 0)


class Writer:
    """The rank's side. Writes into thin air until `attach`, and again after `detach`: callers need not ask whether they run under ftsup."""

    __slots__ = ("_map", "activity", "beats", "code", "phase", "saved_step", "step")

    def __init__(self) -> None:
        self._map: mmap.mmap | bytearray = bytearray(SIZE)
        self.activity = 0
        self.step = -1
        self.saved_step = -1
        self.beats = 0
        self.phase: int = Phase.START
        self.code = -1

    def attach(self, path: Path, *, pid: int, started: int) -> None:
        """Write into this file from now on. OSError, or ValueError when it is not a beat file."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size != SIZE or os.pread(fd, len(MAGIC), 0) != MAGIC:
                message = f"{path} is not a beat file of this version"
                raise ValueError(message)
            self._map = mmap.mmap(fd, SIZE)
        finally:
            os.close(fd)
        _WHO.pack_into(self._map, 0, MAGIC, pid, started)
        self.write()

    def detach(self) -> None:
        """Leave the file alone: in a forked child it belongs to the parent."""
        self._map = bytearray(SIZE)

    @property
    def attached(self) -> bool:
        """Whether somebody may be reading."""
        return not isinstance(self._map, bytearray)

    def write(self) -> None:
        """Say all counters: a memory write, no syscall."""
        _COUNTERS.pack_into(self._map, _COUNTERS_AT, self.activity, self.step, self.saved_step, self.beats, self.phase, self.code)

    def ask(self) -> int:
        """The ask word: save once this many beats are done; 0 when nothing is asked."""
        word: int = _WORD.unpack_from(self._map, _ASK_AT)[0]
        return word
