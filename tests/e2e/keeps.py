"""A training script without torch that keeps checkpoints of a kind that says itself when it is whole: safetensors, written by hand.

`control/hold`: no saves; `control/unloadable`: the name of a checkpoint that it cannot load; `once.<rank>` and `every.<rank>` as in
train.py; `control/finish` ends it. A disk that is ill costs it a save, and no more.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import time
from pathlib import Path

from ftsup_worker import beat, phase, saved

SAVE_EVERY = 5
BYTES = 100_000


def save(folder: Path, step: int) -> None:
    tensors = {
        "step": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]},
        "weights": {"dtype": "U8", "shape": [BYTES], "data_offsets": [8, 8 + BYTES]},
    }
    header = json.dumps(tensors).encode()
    part = folder / f".step{step}.part"
    try:
        folder.mkdir(exist_ok=True)
        part.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<q", step) + bytes(BYTES))
        part.replace(folder / f"step{step:06}.safetensors")
    except OSError as error:
        print(f"step {step} is not saved: {error.strerror}", flush=True)
        return
    saved(step)


def load(path: Path, control: Path) -> int:
    data = path.read_bytes()
    unloadable = control / "unloadable"
    if unloadable.exists() and path.name == unloadable.read_text():
        raise RuntimeError(f"{path.name} has no optimizer")
    (length,) = struct.unpack("<Q", data[:8])
    (step,) = struct.unpack("<q", data[8 + length :][:8])
    return int(step)


def act(word: str) -> None:
    if word == "hang":
        while True:
            time.sleep(3600)
    elif word == "exit":
        sys.exit(3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    resume = parser.parse_args().resume
    rank, control = int(os.environ["RANK"]), Path("control")
    step = load(Path(resume), control) if resume else 0
    while not (control / "finish").exists():
        time.sleep(0.1)
        step += 1
        beat(step=step)
        if rank == 0 and step % SAVE_EVERY == 0 and not (control / "hold").exists():
            with phase("checkpoint"):
                save(Path("ckpt"), step)
        once, every = control / f"once.{rank}", control / f"every.{rank}"
        if once.exists():
            word = once.read_text()
            once.unlink()
            act(word)
        if every.exists():
            act(every.read_text())


main()
