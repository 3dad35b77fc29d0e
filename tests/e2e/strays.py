"""A training whose ranks leave all kinds of processes behind, each of which hides in its own way. No torch."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ftsup_worker import beat

BOMB = 200
HOUR_S = 3600


def forked(then: Callable[[], None]) -> None:
    if os.fork() == 0:
        try:
            then()
        finally:
            os._exit(0)


def sleeps() -> None:
    time.sleep(HOUR_S)


def daemon() -> None:
    """Double fork, a session of its own, nothing open."""
    os.setsid()
    os.closerange(0, 64)
    forked(sleeps)


def renamed() -> None:
    """What setproctitle does: another name, and another command line."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(15, b"kworker/0:1", 0, 0, 0)
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(stat[45]), int(stat[46])
    ctypes.memset(start, 0, end - start)
    sleeps()


def deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sleeps()


def bomb() -> None:
    """So many at once, in a tree, all of them deaf."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _level in range(7):
        os.fork()
    if os.fork() == 0 and os.getpid() % 3:
        os._exit(0)
    sleeps()


def runner(left: int = BOMB) -> None:
    """Never the same pid for long: it forks its successor and goes."""
    while left and os.fork() == 0:
        left -= 1
        time.sleep(0.01)
    if not left:
        sleeps()


def main() -> None:
    for kind in (daemon, renamed, deaf, bomb, runner):
        forked(kind)
    subprocess.Popen(["env", "-i", "sleep", str(HOUR_S)], start_new_session=True)
    subprocess.Popen(["env", "-i", sys.executable, "-c", "import os, time; os.fork(); os.setsid(); time.sleep(3600)"])
    step = 0
    while not Path("control/finish").exists():
        step += 1
        beat(step=step)
        time.sleep(0.05)


main()
