"""Accelerate, with its own checkpoints (save_state, load_state).

accelerate launch --num_processes 2 configs/train_accelerate.py --dir checkpoints
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

WIDTH = 64


class Place:
    """Where the training is, as Accelerate saves it beside model and optimizer."""

    step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, found: dict[str, int]) -> None:
        self.step = found["step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("checkpoints"), help="where checkpoints go")
    parser.add_argument("--resume_from_checkpoint", type=Path, help="a checkpoint to go on from")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=500, help="steps between checkpoints")
    parser.add_argument("--batch", type=int, default=256)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(WIDTH, 512), nn.GELU(), nn.Linear(512, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    place = Place()
    accelerator.register_for_checkpointing(place)
    if args.resume_from_checkpoint:
        accelerator.load_state(str(args.resume_from_checkpoint))
    print(f"from step {place.step}", flush=True)

    while place.step < args.steps:
        place.step += 1
        source = torch.Generator().manual_seed(place.step * 1000 + accelerator.process_index)
        x = torch.randn(args.batch, WIDTH, generator=source).to(accelerator.device)
        loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True).sin())
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        if place.step % 100 == 0:
            accelerator.print(f"step {place.step} loss {loss.item():.4f}", flush=True)
        if place.step % args.every == 0 or place.step == args.steps:
            folder = args.dir / f"step-{place.step}"
            accelerator.save_state(str(folder))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                (folder / "complete").touch()  # written last: save_state has no such file of its own

    print(f"done at step {place.step}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
