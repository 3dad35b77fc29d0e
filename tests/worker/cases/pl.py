"""Lightning as its users write it: trains, validates and saves. Only what looks on is ours."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from looking import Witness, beat, phase
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

evaluating = set()


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, _index):
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch, _index):
        evaluating.add(phase())
        self.log("loss", self.layer(batch[0]).square().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

    def on_save_checkpoint(self, checkpoint):
        checkpoint["witness"] = Witness()


def main():
    loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=2)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=2,
        callbacks=[ModelCheckpoint(dirpath=str(Path(sys.argv[1]) / "pl"), save_top_k=-1)],
    )
    trainer.fit(Model(), loader, loader)
    print(json.dumps({"steps": trainer.global_step, "beat": beat()[:8], "saves": Witness.seen, "evaluating": sorted(evaluating)}))


main()
