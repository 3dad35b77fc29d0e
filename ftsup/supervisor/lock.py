"""One supervisor a node and job: the lock that the living one holds, and what a new one does about an old one.

A predecessor that is stopped is left alone (whoever stopped it may let it go on; its ranks train), and so is one that went on
meanwhile and hears the leader; one that runs and hears nobody is ended; one that died has let go by itself.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
from pathlib import Path

from ftsup.ports import Clock
from ftsup.supervisor import proctree
from ftsup.supervisor.clock import away_s

PATIENCE_S = 5.0
"""A predecessor that is just ending may need so long."""
_LOOK_S = 0.1


class NodeLock:
    """Held until the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, clock: Clock) -> int:
        """0: it is ours. Else the pid of a predecessor that is stopped or well, and not ours to end."""
        end_t, sign = clock.now() + PATIENCE_S, self._sign()
        while not self._try():
            holder = self._holder()
            if holder is not None and (holder.state == "T" or self._sign() != sign):
                return holder.pid
            looked_t = clock.now()
            if looked_t >= end_t and holder is not None:
                self._end(holder)
            select.select([], [], [], _LOOK_S)
            end_t += away_s(clock.now() - looked_t, expected_s=_LOOK_S)  # with the whole job our predecessor was stopped as well
        os.ftruncate(self._fd, 0)
        me = proctree.read(os.getpid())
        os.pwrite(self._fd, f"{os.getpid()} {me.start if me else 0}\n".encode(), 0)
        return 0

    def show_life(self) -> None:
        """For a successor that waits: we run, and hear the leader."""
        os.utime(self._fd)

    def _sign(self) -> int:
        return os.fstat(self._fd).st_mtime_ns

    def _try(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _holder(self) -> proctree.Proc | None:
        """Who wrote itself into the file, if exactly that process still lives."""
        words = os.pread(self._fd, 100, 0).split()
        if len(words) != 2 or not all(word.isdigit() for word in words):  # noqa: PLR2004 - pid and start time
            return None
        holder = proctree.read(int(words[0]))
        return holder if holder is not None and holder.start == int(words[1]) else None

    def _end(self, holder: proctree.Proc) -> None:
        """It had its time, and the leader does not hear it."""
        try:
            fd = os.pidfd_open(holder.pid)
        except ProcessLookupError:
            return
        try:
            again = proctree.read(holder.pid)
            if again is not None and again.start == holder.start:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(fd)
