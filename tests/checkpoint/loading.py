"""Loads what was picked as anybody would: plain torch, in a process in which there is no ftsup. `python -I loading.py`: a path a line in,
a digest of all that it holds a line out. The same digest of what is about to be saved is `digest`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata


def digest(state) -> str:
    """Of names, shapes and bytes."""
    sums = hashlib.sha256()
    for name, value in sorted(flat(state)):
        said = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        sums.update(f"{name} {said}\n".encode())
        if isinstance(value, torch.Tensor):
            sums.update(value.contiguous().view(torch.uint8).numpy().tobytes())
    return sums.hexdigest()


def flat(state, prefix=""):
    for name, value in state.items():
        yield from flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]


def load(path: Path):
    if path.is_file():
        return torch.load(path, weights_only=True)
    known = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    state = {
        name: torch.empty(what.size, dtype=what.properties.dtype) if isinstance(what, TensorStorageMetadata) else None
        for name, what in known.items()
    }
    dcp.load(state, checkpoint_id=path)
    return state


if __name__ == "__main__":
    for line in sys.stdin:
        try:
            answer = digest(load(Path(json.loads(line))))
        except Exception as error:  # noqa: BLE001 - the test says what could not be loaded
            answer = f"{type(error).__name__}: {error}"
        assert not any(name.split(".")[0] == "ftsup" for name in sys.modules)
        print(json.dumps(answer), flush=True)
