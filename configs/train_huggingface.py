"""HF Trainer, a small GPT-2 from scratch on made-up tokens: two lines make it go on where it stopped and save when ftsup asks.

torchrun --standalone --nproc-per-node 2 configs/train_huggingface.py --output_dir out --max_steps 200
"""

from __future__ import annotations

import os
import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments

try:
    from ftsup_worker.huggingface import SaveWhenAsked

    callbacks = [SaveWhenAsked()]  # saves at the same step on every rank when ftsup asks: the first line
except ImportError:  # not in a run of ftsup
    callbacks = []

VOCABULARY, LENGTH = 128, 32


class Counting(Dataset):
    """Tokens that count upwards from anywhere."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(LENGTH) + index) % VOCABULARY
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    words = (
        sys.argv[1:] if torch.cuda.is_available() else [*sys.argv[1:], "--use_cpu", "true"]
    )  # else ranks on CPUs would not find each other
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(words)
    size = {"n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **size))
    trainer = Trainer(model=model, args=arguments, train_dataset=Counting(), callbacks=callbacks)
    # The second line: the checkpoint that ftsup verified. `True` would be Trainer's own choice, the newest, whole or not.
    trainer.train(resume_from_checkpoint=os.environ.get("FTSUP_RESUME_FROM") or None)
    print(f"done at step {trainer.state.global_step}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
