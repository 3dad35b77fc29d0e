"""A training script without torch: it counts, saves, and does what a test asks of it by files in `control/`.

`once.<rank>` is an action that is taken once, `every.<rank>` one for each attempt after step 3; `finish` ends training. So a story
lasts as long as its test needs, whatever the machine's load.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import sys
import threading
import time
from pathlib import Path

from ftsup_worker import beat, saved

SAVE_EVERY = 5
LAST_WORDS: list[str] = []


def stand_still() -> None:
    while True:
        time.sleep(3600)


def act(word: str) -> None:
    if word == "hang":
        stand_still()
    elif word == "exit":
        sys.exit(3)
    elif word == "raise":
        raise ValueError("this batch is broken")
    elif word == "thread at the end":
        threading.Thread(target=stand_still).start()
    elif word == "atexit at the end":
        atexit.register(stand_still)
    elif word == "leave at the end":
        LAST_WORDS.append(word)


def asked(control: Path, rank: int, step: int) -> str:
    once, every = control / f"once.{rank}", control / f"every.{rank}"
    if once.exists():
        word = once.read_text()
        once.unlink()
        return word
    return every.read_text() if step >= 3 and every.exists() else ""


def save(folder: Path, step: int) -> None:
    folder.mkdir(exist_ok=True)
    part = folder / f".step{step}.part"
    part.write_text(json.dumps({"step": step}))
    part.replace(folder / f"step{step:06}.json")
    saved(step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    resume = parser.parse_args().resume
    rank, control = int(os.environ["RANK"]), Path("control")
    step = json.loads(Path(resume).read_text())["step"] if resume else 0
    print(f"rank {rank} begins after step {step}")
    (control / f"environ.{rank}").write_text(json.dumps(dict(os.environ)))
    epoch, made = os.environ["FTSUP_MARK"].rpartition("/")[2], (control / f"steps.{rank}").open("a", buffering=1)
    while not (control / "finish").exists():
        time.sleep(0.1)
        step += 1
        beat(step=step)
        made.write(f"{epoch} {step}\n")
        if rank == 0 and step % SAVE_EVERY == 0:
            save(Path("ckpt"), step)
        act(asked(control, rank, step))
    print(f"rank {rank} is done at step {step}")
    if LAST_WORDS:
        os._exit(0)  # as people do who have seen NCCL hang in its own end


main()
