"""A training script without torch that can save on request, in the way that its argument names; `control/finish` ends it.

asks: asked() in the loop. handler: its own handler of SIGUSR1 saves and exits with code 3. flag: its handler sets a flag, at which the loop
saves and goes on. late: the same for SIGUSR2, and the loop looks at its flag every 20 steps. deaf: neither.
Each save is a line in `saves`: rank, step, where it happened.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from ftsup_worker import asked, beat, saved

WAY, RANK = sys.argv[1], int(os.environ["RANK"])
STEP = 0
FLAG = False


def save(where: str) -> None:
    """One write, so that lines of several ranks stay whole."""
    assert threading.current_thread() is threading.main_thread()
    if RANK == 0:
        folder = Path(f"ckpt/step{STEP:06}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state.json").write_text(json.dumps({"step": STEP}))
        (folder / "complete").touch()
    with Path("saves").open("ab", buffering=0) as file:
        file.write(f"{RANK} {STEP} {where} {time.monotonic():.4f}\n".encode())
    saved(STEP)


def save_and_exit(_number: int, _frame: object) -> None:
    save("handler")
    sys.exit(3)


def set_flag(_number: int, _frame: object) -> None:
    global FLAG  # noqa: PLW0603 - as such scripts are written
    FLAG = True


def main() -> None:
    global STEP, FLAG  # noqa: PLW0603
    if "--resume" in sys.argv:
        STEP = json.loads(Path(sys.argv[-1], "state.json").read_text())["step"]
    if WAY in {"handler", "flag", "late"}:
        number = signal.SIGUSR2 if WAY == "late" else signal.SIGUSR1
        signal.signal(number, save_and_exit if WAY == "handler" else set_flag)
    while not Path("control/finish").exists():
        time.sleep(0.05)
        STEP += 1
        beat(step=STEP)
        if WAY == "asks" and asked():
            save("asked")
        elif FLAG and (WAY == "flag" or STEP % 20 == 0):
            save(WAY)
            FLAG = False


main()
