"""SaveWhenAsked in HF Trainer and in Lightning: real ones, unchanged, on one rank and on two; under both names of our package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftsup.worker.beatfile import Flag
from tests.worker.node import Node

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(200),
    pytest.mark.skipif(sys.version_info < (3, 10), reason="the frameworks need a newer Python"),
]

HF = """
import sys, time
from pathlib import Path
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from ftsup.worker.huggingface import SaveWhenAsked
torch.set_num_threads(1)

class Config(PretrainedConfig):
    model_type = "tiny"

class Model(PreTrainedModel):
    config_class = Config
    def __init__(self, config):
        super().__init__(config)
        self.layer = nn.Linear(4, 1)
        self.post_init()
    def forward(self, x, labels=None):
        time.sleep(0.003)
        return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}

class Soon(SaveWhenAsked):
    "Ends a few steps after the save."
    last = 10**9
    def on_save(self, args, state, control, **kwargs):
        print("saved", state.global_step, flush=True)
        self.last = state.global_step + 5
        return super().on_save(args, state, control, **kwargs)
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step >= self.last:
            control.should_training_stop = True
        return super().on_step_end(args, state, control, **kwargs)

torch.manual_seed(0)
data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(64)]
arguments = TrainingArguments(
    output_dir="ckpt", per_device_train_batch_size=1, gradient_accumulation_steps=2, max_steps=100_000, save_strategy="no",
    use_cpu=True, report_to=[], disable_tqdm=True, logging_strategy="no",
)
Trainer(model=Model(Config()), args=arguments, train_dataset=data, callbacks=[Soon()]).train()
"""
LIGHTNING = """
import os, time, warnings
warnings.simplefilter("ignore")
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from lightning.pytorch.callbacks import ModelCheckpoint
from ftsup_worker.lightning import SaveWhenAsked
torch.set_num_threads(1)

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
    def training_step(self, batch, _index):
        time.sleep(0.003)
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

class Soon(lightning.Callback):
    last = 10**9
    def on_save_checkpoint(self, trainer, module, checkpoint):
        if self.last == 10**9:
            print("saved", trainer.global_step, flush=True)
            self.last = trainer.global_step + 5
    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step >= self.last:
            trainer.should_stop = True

trainer = lightning.Trainer(
    max_epochs=1000, accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), logger=False, enable_progress_bar=False,
    enable_model_summary=False, accumulate_grad_batches=2,
    callbacks=[ModelCheckpoint(dirpath="ckpt", save_top_k=0), Soon(), SaveWhenAsked()],
)
trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=2))
"""


@pytest.fixture
def started(bench, request: pytest.FixtureRequest) -> Iterator[Node]:
    script, ranks = request.param
    with Node(bench, script, ranks=ranks) as node:
        yield node


CASES = [
    pytest.param((HF, 1), "checkpoint-{}/model.safetensors", id="hf-1"),
    pytest.param((HF, 2), "checkpoint-{}/model.safetensors", id="hf-2", marks=pytest.mark.drill),
    pytest.param((LIGHTNING, 1), "step={}.ckpt", id="lightning-1"),
    pytest.param((LIGHTNING, 2), "step={}.ckpt", id="lightning-2", marks=pytest.mark.drill),
]


@pytest.mark.parametrize("started,saved", CASES, indirect=["started"])
def test_a_checkpoint_of_the_framework_at_the_asked_step_on_every_rank(started: Node, saved: str):
    started.until(lambda beats: all(beat.beats > 3 and beat.flags & Flag.ASKS for beat in beats))
    n = started.save(handlers=False)
    code, err = started.end()
    assert code == 0, (err, started.said())
    assert [f"saved {n}" in out.splitlines() for out in started.said()] == [True] * started.ranks, started.said()
    assert Path(started.bench.home, "work", "ckpt", saved.format(n)).exists()
    assert [beat.saved_step for beat in started.beats] == [n, -1][: started.ranks]
    assert all(beat.flags & Flag.TOOK for beat in started.beats)
