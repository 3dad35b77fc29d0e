"""A training script without torch whose steps are work of some milliseconds; each writes down when it ended.

`times.<rank>` has one time a line (CLOCK_MONOTONIC, which all processes of a machine share); `control/finish` ends it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from ftsup_worker import beat

WORK = 60_000


def main() -> None:
    step = 0
    with Path(f"times.{os.environ['RANK']}").open("a", buffering=1) as times:
        while not Path("control/finish").exists():
            sum(range(WORK * 10))
            time.sleep(0.01)  # as a rank waits for its peers
            step += 1
            beat(step=step)
            times.write(f"{time.monotonic()}\n")


main()
