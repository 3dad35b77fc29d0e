"""A training script without torch for bench_supervisor: twenty beats and one line of output a second, until it is told to finish."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ftsup_worker import beat

step = 0
while not Path("finish").exists():
    step += 1
    beat(step=step)
    if step % 20 == 0:
        print(f"rank {os.environ['RANK']} step {step} loss {1 / step:.6f}")
    time.sleep(0.05)
