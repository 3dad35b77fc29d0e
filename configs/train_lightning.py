"""Lightning under torchrun: the number of nodes comes from torchrun, the checkpoint from ftsup.

torchrun --standalone --nproc-per-node 2 configs/train_lightning.py --dir checkpoints
"""

from __future__ import annotations

import argparse
import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

try:
    from ftsup_worker.lightning import SaveWhenAsked

    callbacks: list[lightning.Callback] = [SaveWhenAsked()]  # saves at the same step on every rank when ftsup asks
except ImportError:  # not in a run of ftsup
    callbacks = []

WIDTH = 64


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 512), nn.GELU(), nn.Linear(512, 1))

    def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
        (x,) = batch
        return nn.functional.mse_loss(self.net(x), x.sum(dim=1, keepdim=True).sin())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def on_train_start(self) -> None:
        print(f"from step {self.global_step}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", default="checkpoints", help="where checkpoints go")
    parser.add_argument("--ckpt_path", help="a checkpoint to go on from")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=500, help="steps between checkpoints")
    parser.add_argument("--batch", type=int, default=256)
    args = parser.parse_args()

    lightning.seed_everything(1)
    keeping = ModelCheckpoint(dirpath=args.dir, filename="{step}", every_n_train_steps=args.every, save_top_k=-1)
    trainer = lightning.Trainer(
        max_steps=args.steps,
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),  # torchrun's: what ftsup was given as slurm.nodes
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        accelerator="auto",
        strategy="ddp",
        logger=False,
        enable_progress_bar=False,  # a bar a rank makes logs that nobody reads
        callbacks=[keeping, *callbacks],
    )
    data = TensorDataset(torch.randn(100_000, WIDTH))
    trainer.fit(Model(), DataLoader(data, batch_size=args.batch, shuffle=True), ckpt_path=args.ckpt_path)
    print(f"done at step {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
