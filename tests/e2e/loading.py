"""DDP on gloo with data loaders that fork and that spawn; saves at SIGUSR1, by a handler that it sets on its top level.

`workers=`: how many processes each loader has. With `control/leave` it leaves then, with code 4. `called`: a line for each call of the
handler: pid, rank, step. `loaders`: a line for each worker process of a data loader that began: its pid, how it was started, its rank.
`control/finish` ends it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ftsup_worker import saved
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

RANK = os.environ["RANK"]
WORKERS = int(next(word.removeprefix("workers=") for word in sys.argv if word.startswith("workers=")))
STEP = 0


def note(name: str, *words: object) -> None:
    """One write, so that lines of several processes stay whole."""
    with Path(name).open("ab", buffering=0) as file:
        file.write((" ".join(map(str, words)) + "\n").encode())


def save(_number: int, _frame: object) -> None:
    note("called", os.getpid(), RANK, STEP)
    if RANK == "0":
        Path("ckpt").mkdir(exist_ok=True)
        torch.save({"step": STEP}, f"ckpt/step{STEP:06}.pt")
    saved(STEP)
    if Path("control/leave").exists():
        sys.exit(4)


signal.signal(signal.SIGUSR1, save)


class Numbers(Dataset):
    """Read by worker processes."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.told = False

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> torch.Tensor:
        if not self.told:
            note("loaders", os.getpid(), self.method, RANK)
            self.told = True
        return torch.full((4,), float(index % 7))


def main() -> None:
    global STEP  # noqa: PLW0603 - as such scripts are written
    dist.init_process_group("gloo")
    if "--resume" in sys.argv:
        STEP = torch.load(sys.argv[-1])["step"]
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loaders = [
        DataLoader(Numbers(method), batch_size=2, num_workers=WORKERS, multiprocessing_context=method) for method in ("fork", "spawn")
    ]
    for one, other in zip(*loaders, strict=True):
        time.sleep(0.05)
        optimizer.zero_grad()
        model(one + other).sum().backward()
        optimizer.step()
        STEP += 1
        done = torch.tensor(float(Path("control/finish").exists()))
        dist.all_reduce(done, op=dist.ReduceOp.MAX)
        if done:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
