"""Seals beside training as a run's own keeper does: idle for processors and disk, at the default rate. For bench_checkpoint.py.

`python -m tests.bench.sealer FOLDER NAME`: each line on standard input seals NAME anew, and is answered with the seconds that it took.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil

from ftsup.checkpoint.disk import Pace, RealDisk
from ftsup.checkpoint.entries import Entry
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.seal import Label, Outcome, Sign, seal
from ftsup.config import Checkpoint

HICCUP_S = 0.3
RATE_BYTES = Checkpoint().seal_rate_bytes


class RunningTime:
    """A clock that stands still while this process is stopped, so that nothing is made up for afterwards."""

    def __init__(self) -> None:
        self.last_s, self.total_s = time.monotonic(), 0.0

    def now(self) -> float:
        now_s = time.monotonic()
        self.total_s += min(now_s - self.last_s, HICCUP_S)
        self.last_s = now_s
        return self.total_s


def main(folder: str, name: str) -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    clock = RunningTime()
    pace = Pace(RATE_BYTES, now=clock.now, sleep=time.sleep)
    disk, entry = RealDisk(each=pace.spend), Entry(name=name, step=1)
    for _ in sys.stdin:
        begin = clock.now()
        assert seal(disk, Home(Path(folder)), entry, label=Label(), sign=Sign.ENDED, anew=True).outcome is Outcome.SEALED
        print(clock.now() - begin, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
