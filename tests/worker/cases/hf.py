"""HF Trainer as its users write it: trains, evaluates and saves. Only what looks on is ours."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from looking import Witness, beat, phase
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

evaluating = set()


class Config(PretrainedConfig):
    model_type = "tiny"


class Model(PreTrainedModel):
    config_class = Config

    def __init__(self, config):
        super().__init__(config)
        self.layer = nn.Linear(4, 1)
        self.post_init()

    def forward(self, x, labels=None):
        if not self.training:
            evaluating.add(phase())
        answer = self.layer(x)
        return {"loss": (answer.squeeze(-1) - labels).square().mean(), "logits": answer}


class Arguments(TrainingArguments):
    def __getstate__(self):
        Witness.seen.append((phase(), beat().writing))
        return self.__dict__


def main():
    torch.manual_seed(0)
    data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(32)]
    arguments = Arguments(
        output_dir=str(Path(sys.argv[1]) / "hf"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=10,
        save_steps=5,
        eval_strategy="steps",
        eval_steps=5,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = Trainer(model=Model(Config()), args=arguments, train_dataset=data, eval_dataset=data)
    Witness.seen.clear()
    trainer.train()
    now = beat()
    print(json.dumps({"steps": trainer.state.global_step, "beat": now[:8], "saves": Witness.seen, "evaluating": sorted(evaluating)}))


main()
