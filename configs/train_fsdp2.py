"""FSDP2 with torch.distributed.checkpoint: each rank writes its own shards, and a checkpoint is a folder.

torchrun --standalone --nproc-per-node 2 configs/train_fsdp2.py --dir checkpoints
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

try:
    from ftsup_worker import asked, saved  # there in every run of ftsup
except ImportError:

    def asked() -> bool:
        return False

    def saved(step: int) -> None:
        """Nobody asked."""


WIDTH, LAYERS = 64, 4


class Training(Stateful):
    """Model, optimizer and step, as DCP saves and loads them: sharded, in place, for any number of ranks."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, found: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
        self.step = found["step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("checkpoints"), help="where checkpoints go")
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=500, help="steps between checkpoints")
    parser.add_argument("--batch", type=int, default=256)
    args = parser.parse_args()

    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    kind = "cuda" if gpu else "cpu"
    dist.init_process_group("nccl" if gpu else "gloo")
    mesh = init_device_mesh(kind, (dist.get_world_size(),))
    torch.manual_seed(1)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)], nn.Linear(WIDTH, 1)).to(kind)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    training = Training(model, optimizer)
    if args.resume:
        dcp.load({"training": training}, checkpoint_id=args.resume)
    print(f"from step {training.step}", flush=True)

    while training.step < args.steps:
        training.step += 1
        source = torch.Generator().manual_seed(training.step * 1000 + dist.get_rank())
        x = torch.randn(args.batch, WIDTH, generator=source).to(kind)
        loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True).sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if training.step % 100 == 0 and dist.get_rank() == 0:
            print(f"step {training.step} loss {loss.item():.4f}", flush=True)
        wanted = asked()  # at every step, on every rank
        if wanted or training.step % args.every == 0 or training.step == args.steps:
            # DCP writes .metadata last: ftsup takes no folder without it, nor one whose shards are shorter than it says.
            dcp.save({"training": training}, checkpoint_id=args.dir / f"step-{training.step}")
            saved(training.step)

    print(f"done at step {args.steps}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
