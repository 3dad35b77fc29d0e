"""A DDP training on gloo that hangs in the way that a test asks for: one word in `control/once.<rank>`, taken once.

`control/hung.<rank>` gets the time (of the machine's boot clock, as the supervisors use) at which it began to.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

CONTROL = Path("control")
RANK = int(os.environ["RANK"])
STEP_S = 0.05
SAVE_EVERY = 10


def begins() -> None:
    """A hang begins now."""
    part = CONTROL / f".hung.{RANK}"
    part.write_text(str(time.clock_gettime(time.CLOCK_BOOTTIME)))
    part.replace(CONTROL / f"hung.{RANK}")


def asked(*words: str) -> str:
    """The word for this rank, if it is one of these."""
    path = CONTROL / f"once.{RANK}"
    try:
        word = path.read_text()
    except FileNotFoundError:
        return ""
    if word not in words:
        return ""
    path.unlink()
    return word


class Numbers(torch.utils.data.Dataset):
    """Read by worker processes."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> torch.Tensor:
        if asked("loader"):
            begins()
            time.sleep(3600)
        return torch.full((4,), float(index % 7))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if asked("forward"):
            begins()
            time.sleep(3600)
        return self.linear(batch)


class SlowToWrite:
    def __reduce__(self) -> Any:
        begins()
        time.sleep(3600)
        return (int, ())


def hold_the_gil() -> None:
    """C code that never lets go of the interpreter: no thread of Python runs, and no handler of a signal."""
    begins()
    while True:
        ctypes.PyDLL(None).sleep(3600)


def wait_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    begins()
    lock.acquire()


def sleep_in_the_kernel() -> None:
    """State D: the parent of vfork() waits in the kernel until its child executes something or ends."""
    begins()
    if ctypes.CDLL(None).vfork() == 0:
        time.sleep(3600)


def after_step(optimizer: object, args: object, kwargs: object) -> None:
    if asked("hook"):
        begins()
        time.sleep(3600)


def save(model: torch.nn.Module, step: int) -> None:
    torch.save({"step": step, "model": model.state_dict()}, "ckpt/new.part")
    Path("ckpt/new.part").replace(f"ckpt/step{step:06}.pt")


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: torch.utils.data.DataLoader, step: int) -> str:
    for batch in loader:
        time.sleep(STEP_S)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        step += 1
        done = torch.tensor(float(CONTROL.joinpath("finish").exists()))
        dist.all_reduce(done, op=dist.ReduceOp.MAX)
        if done:
            return "finish"
        if RANK == 0 and step % SAVE_EVERY == 0:
            save(model, step)
        if asked("save"):
            torch.save({"step": step, "slow": SlowToWrite()}, f"slow{RANK}.pt")
        elif asked("gil"):
            hold_the_gil()
        elif asked("lock"):
            wait_for_a_lock()
        elif asked("kernel"):
            sleep_in_the_kernel()
        elif word := asked("leave", "leave for a barrier"):
            return word
    return ""


def end(word: str) -> None:
    if word == "leave for a barrier":
        begins()
        dist.barrier()
    elif word == "leave":
        begins()
        time.sleep(3600)
    elif asked("atexit"):
        atexit.register(last_words)
    elif asked("thread"):
        threading.Thread(target=last_words).start()


def last_words() -> None:
    begins()
    time.sleep(3600)


def main() -> None:
    dist.init_process_group("gloo")
    Path("ckpt").mkdir(exist_ok=True)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer.register_step_post_hook(after_step)
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=1)
    step = torch.load(sys.argv[1])["step"] if len(sys.argv) > 1 else 0
    if asked("before"):
        begins()
        time.sleep(3600)
    end(train(model, optimizer, loader, step))


main()
