"""A training script without torch that can save on request, in the way that its argument names; `control/finish` ends it.

asks: asked() in the loop. Its own handler of SIGUSR1 (of SIGUSR2, where the way begins with "2"): handler saves and exits with code 3; text
with a message; hard by os._exit(7); flag sets a flag, at which the loop saves and goes on; late looks at its flag every 20 steps; later
too, and leaves with code 5. deaf: neither. More words: `step=` and `save=` say how long these take, `start=` what comes before the first
step, `own=` after how many steps it saves by itself. `control/hang.<rank>`: that rank stands still, once. Each save is a line in `saves`:
rank, step, where it happened, when (by the boot clock, as ftsup's own).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from ftsup_worker import asked, beat, phase, saved

WAY, RANK = sys.argv[1], int(os.environ["RANK"])
KIND = WAY.removeprefix("2")
TIMES = {name: float(value) for name, is_time, value in (word.partition("=") for word in sys.argv[2:]) if is_time}
STEP = 0
FLAG = False


def save(where: str) -> None:
    """One write, so that lines of several ranks stay whole."""
    assert threading.current_thread() is threading.main_thread()
    with phase("checkpoint"):
        time.sleep(TIMES.get("save", 0.0))
    if RANK == 0:
        folder = Path(f"ckpt/step{STEP:06}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state.json").write_text(json.dumps({"step": STEP}))
        (folder / "complete").touch()
    with Path("saves").open("ab", buffering=0) as file:
        file.write(f"{RANK} {STEP} {where} {time.clock_gettime(time.CLOCK_BOOTTIME):.4f}\n".encode())
    saved(STEP)


def save_and_exit(_number: int, _frame: object) -> None:
    save("handler")
    if KIND == "hard":
        os._exit(7)
    sys.exit("saved because of the signal" if KIND == "text" else 3)


def set_flag(_number: int, _frame: object) -> None:
    global FLAG  # noqa: PLW0603 - as such scripts are written
    FLAG = True


def hang() -> None:
    """Stand still, if somebody wants it."""
    wanted = Path(f"control/hang.{RANK}")
    if wanted.exists():
        wanted.unlink()
        time.sleep(3600)


def main() -> None:
    global STEP, FLAG  # noqa: PLW0603
    if "--resume" in sys.argv:
        STEP = json.loads(Path(sys.argv[-1], "state.json").read_text())["step"]
    if KIND not in {"asks", "deaf"}:
        number = signal.SIGUSR2 if WAY.startswith("2") else signal.SIGUSR1
        signal.signal(number, save_and_exit if KIND in {"handler", "text", "hard"} else set_flag)
    time.sleep(TIMES.get("start", 0.0))
    while not Path("control/finish").exists():
        time.sleep(TIMES.get("step", 0.05))
        STEP += 1
        beat(step=STEP)
        hang()
        if STEP % TIMES.get("own", STEP + 1) == 0:
            save("own")
        if KIND == "asks" and asked():
            save("asked")
        elif FLAG and (KIND == "flag" or STEP % 20 == 0):
            save(KIND)
            FLAG = False
            if KIND == "later":
                sys.exit(5)


main()
