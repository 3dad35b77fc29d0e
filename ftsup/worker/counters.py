"""The rank's side of the beat file: 64 bytes of node-local memory, in which it says how far it is and hears whether a save is wanted.

Counters, no time: the watcher remembers on its own clock when it last saw them move. Every rank imports this before its script
begins, so it imports next to nothing itself. Layout, native byte order (both sides are on one host):

    0  magic and version    4 bytes
    4  pid                  u32    0: the rank has not begun
    8  started              u64    start time of the process in clock ticks (field 22 of /proc/<pid>/stat)
    16 life                 u64    anything that shows life, but beats: both together are the activity
    24 step                 i64    -1: unknown
    32 saved_step           i64    -1: none
    40 beats                u32    optimizer steps that the hook saw in this attempt; what ranks are compared by
    44 ack                  u32    the beat after which this rank agreed to hold and save; 0: none
    48 phase                u16
    50 code                 i16    -1: still running
    52 writing              u16    saves in flight in the background
    54 flags                u16
    56 ask                  u64    written by the supervisor: beats << 2 | word, bit 63: handlers too; 0: nothing is asked
"""

from __future__ import annotations

import mmap
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

SIZE = 64
MAGIC = b"FTB\x02"
ALL = struct.Struct("@4sIQQqqIIHhHHQ")
SAID_AT, ASK_AT = 16, 56
HANDLERS = 1 << 63

STARTED, LIFE, STEP, SAVED_STEP, ASK = 1, 2, 3, 4, 7
"""Places in `Writer.longs`."""
PID, BEATS, ACK = 1, 10, 11
"""Places in `Writer.words`."""
PHASE, CODE, WRITING, FLAGS = 24, 25, 26, 27
"""Places in `Writer.halves`."""

# The numbers of beatfile's enums, which cost too much to import and to look up here.
IN_START, IN_IMPORT, IN_INIT, IN_FIRST_STEP, IN_STEP, IN_EVALUATION, IN_CHECKPOINT, IN_SHUTDOWN, EXITED = range(9)
NOTHING, PROPOSED, COMMIT, ABORT = range(4)
ASKS, HANDLES, TOOK, COUNTS, UNSURE = 1, 2, 4, 8, 16


def empty() -> bytes:
    """A rank that has not begun."""
    return ALL.pack(MAGIC, 0, 0, 0, -1, -1, 0, 0, IN_START, -1, 0, 0, NOTHING)


def asking(beats: int, word: int, *, handlers: bool = False) -> int:
    """The ask word."""
    return beats << 2 | word | (HANDLERS if handlers else 0)


def asked(value: int) -> tuple[int, int, bool]:
    """The ask word in its parts: beats, word, whether handlers are to be called. Signed or not: it comes as either."""
    return (value & (HANDLERS - 1)) >> 2, value & 3, value & HANDLERS != 0


class Writer:
    """Writes into thin air until `attach`, and again after `detach`: callers need not ask whether they run under ftsup.

    The memory is the only place of the counters; its views are open to the hook, where a property would cost more than the write.
    """

    __slots__ = ("attached", "halves", "longs", "words")

    def __init__(self) -> None:
        self.attached = False
        """Whether somebody may be reading."""
        self._use(bytearray(empty()))

    def _use(self, memory: mmap.mmap | bytearray) -> None:
        whole = memoryview(memory)
        self.longs, self.words, self.halves = whole.cast("q"), whole.cast("I"), whole.cast("H")

    def attach(self, path: Path | str, *, pid: int, started: int) -> None:
        """Write into this file from now on. OSError, or ValueError when it is not a beat file."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size != SIZE or os.pread(fd, len(MAGIC), 0) != MAGIC:
                message = f"{path} is not a beat file of this version"
                raise ValueError(message)
            memory = mmap.mmap(fd, SIZE)
        finally:
            os.close(fd)
        memory[SAID_AT:ASK_AT] = bytes(self.longs)[SAID_AT:ASK_AT]
        self._use(memory)
        self.longs[STARTED] = started  # each by one store (struct.pack_into clears first), the pid last: whoever reads meanwhile
        self.words[PID] = pid  # sees a rank that has not begun, and never no beat file or half of a process
        self.attached = True

    def detach(self) -> None:
        """Leave the file alone: in a forked child it belongs to the parent, and so does what is asked."""
        said = bytes(self.longs)
        self._use(bytearray(said[:ASK_AT] + bytes(SIZE - ASK_AT)))
        self.attached = False

    @property
    def step(self) -> int:
        """-1: unknown."""
        return self.longs[STEP]

    @property
    def phase(self) -> int:
        """The number of a `Phase`."""
        return self.halves[PHASE]

    def flag(self, flag: int, *, to: bool = True) -> None:
        """Raise a flag, or take it down."""
        halves = self.halves
        halves[FLAGS] = halves[FLAGS] | flag if to else halves[FLAGS] & ~flag
