"""Checkpoints as the real libraries write them, small; made once a test process, copied for each test.

`python samples.py FOLDER` makes those of torch alone (for another version of it), `make` all of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp


def state() -> dict:
    """What a training script saves: weights, an optimizer that has stepped, a step, a tensor without elements."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": 3,
        "half": torch.ones(5, dtype=torch.bfloat16),
        "none": torch.ones(0, 3),
    }


def make_torch(folder: Path) -> None:
    """The kinds that torch writes itself."""
    whole = state()
    torch.save(whole, folder / "zip.pt")
    torch.save({"w": torch.arange(6.0), "b": torch.ones(2), "none": torch.ones(0)}, folder / "small.pt")
    torch.save(whole, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    dcp.save(
        {"model": whole["model"], "none": torch.ones(0, 3), "step": 3, "tail": [torch.arange(4), "text"]}, checkpoint_id=folder / "dcp"
    )
    writer = dcp.FileSystemWriter(folder / "dcp-many", single_file_per_rank=False, thread_count=2)
    dcp.save({"model": whole["model"], "step": 3}, storage_writer=writer)


def make(folder: Path) -> None:
    """All kinds."""
    from safetensors.torch import save_file  # noqa: PLC0415 - another version of torch comes without
    from torch.distributed.checkpoint.filesystem import SerializationFormat  # noqa: PLC0415 - since 2.7

    make_torch(folder)
    weights = {"a.weight": torch.ones(10, 10), "a.bias": torch.zeros(5, dtype=torch.bfloat16), "empty": torch.ones(0, 3)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    writer = dcp.FileSystemWriter(folder / "dcp-safetensors", serialization_format=SerializationFormat.SAFETENSORS)
    dcp.save({"model": weights, "step": 3}, storage_writer=writer)
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state(), folder / "nocrc.pt")
    finally:
        torch.serialization.set_crc32_options(True)


def make_sharded(folder: Path) -> None:
    """A model of several shards with its index, by what transformers and accelerate write it with."""
    from huggingface_hub import save_torch_state_dict  # noqa: PLC0415 - takes a second

    folder.mkdir()
    weights = {f"layers.{number}.weight": torch.full((16, 16), float(number)) for number in range(9)}
    save_torch_state_dict(weights, folder, max_shard_size="4KB")


if __name__ == "__main__":
    make_torch(Path(sys.argv[1]))
