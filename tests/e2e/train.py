"""A training script without torch: it counts, saves, and does what a test asks of it by files in `control/`.

`once.<rank>` is an action that is taken once, `every.<rank>` one for each attempt after step 3; `finish` ends training. So a story
lasts as long as its test needs, whatever the machine's load.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

from ftsup_worker import beat, saved

SAVE_EVERY = 5
LAST_WORDS: list[str] = []
GPU = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.02 GiB is free. "
    "Process 4711 has 78.08 GiB memory in use. Of the allocated memory 76.12 GiB is allocated by PyTorch"
)
"""torch's own words."""


def stand_still() -> None:
    while True:
        time.sleep(3600)


def eat() -> None:
    """Until the kernel says no."""
    kept = []
    while True:
        kept.append(b"x" * (16 << 20))


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
    elif word == "eat":
        eat()
    elif word == "eat of the GPU":
        import torch  # noqa: PLC0415 - the other stories start without

        raise torch.OutOfMemoryError(GPU)
    elif word == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def inside() -> dict[str, object]:
    """What a rank is given, besides its environment."""
    umask = os.umask(0)
    os.umask(umask)
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
    return {
        "umask": umask,
        "limits": limits,
        "cpus": sorted(os.sched_getaffinity(0)),
        "oom": int(Path("/proc/self/oom_score_adj").read_text()),
    }


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
    (control / f"inside.{rank}").write_text(json.dumps(inside()))
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
