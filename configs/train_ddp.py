"""A plain DDP training that can go on where it stopped: what ftsup likes a script to do, to copy from. No ftsup is needed to run it.

torchrun --standalone --nproc-per-node 2 configs/train_ddp.py --dir checkpoints
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

try:
    from ftsup_worker import asked, saved  # there in every run of ftsup
except ImportError:

    def asked() -> bool:
        return False

    def saved(step: int) -> None:
        """Nobody asked."""


WIDTH = 64


def batch(step: int, rank: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A function of step and rank: a training that goes on reads what it would have read."""
    source = torch.Generator().manual_seed(step * 1000 + rank)
    x = torch.randn(size, WIDTH, generator=source)
    return x.to(device), x.sum(dim=1, keepdim=True).sin().to(device)


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One file a checkpoint, there whole or not at all: written aside, brought to the disk, renamed."""
    if dist.get_rank() == 0:
        aside = folder / f".step-{step}.tmp"
        with aside.open("wb") as file:
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(folder / f"step-{step}.pt")
    saved(step)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Back to where the checkpoint was taken; its step."""
    found = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    return int(found["step"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("checkpoints"), help="where checkpoints go")
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=500, help="steps between checkpoints")
    parser.add_argument("--batch", type=int, default=256)
    args = parser.parse_args()

    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    args.dir.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)  # the same first weights on every rank
    model = nn.Sequential(nn.Linear(WIDTH, 512), nn.GELU(), nn.Linear(512, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = load(args.resume, model, optimizer, device) if args.resume else 0
    print(f"from step {first}", flush=True)
    parallel = DistributedDataParallel(model)

    for step in range(first + 1, args.steps + 1):
        x, y = batch(step, dist.get_rank(), args.batch, device)
        loss = nn.functional.mse_loss(parallel(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        # asked() is called at every step on every rank, so that it is never skipped by the `or`.
        wanted = asked()
        if wanted or step % args.every == 0 or step == args.steps:
            save(args.dir, step, model, optimizer)

    print(f"done at step {args.steps}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
