"""What being watched costs real training: on an optimizer step, on a batch of a DataLoader, on a save; at most 0.5 us for a step and its
batch together. Medians of 7 pairs, with and without what is hung on torch, taken in turns; each the best of several windows.
"""

from __future__ import annotations

import io
import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader as loaders

from ftsup.worker import wraps
from ftsup.worker.beatfile import Phase
from ftsup.worker.rank import Rank
from tests.bench.bench_beat import joined

EACH = 20
"""Steps, batches or saves in one window: short ones, of which some are disturbed by nobody."""
WINDOWS = 300
PAIRS = 7
LIMIT_US = 0.5

Switch = Callable[[], Callable[[], object]]
"""Hangs something on torch; what it gives takes it away again."""


def on_a_step(rank: Rank) -> float:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    model(torch.ones(1, 8)).sum().backward()
    return say("SGD.step", optimizer.step, lambda: optimizers.register_optimizer_step_post_hook(rank.optimizer_stepped).remove)


def on_a_batch(rank: Rank) -> float:
    kind = loaders._BaseDataLoaderIter  # noqa: SLF001 - as the hook does
    wraps.batches(rank, loaders, wraps.Background(rank))
    look_on = kind._num_yielded  # noqa: SLF001

    def watch() -> Callable[[], object]:
        kind._num_yielded = look_on  # noqa: SLF001
        return lambda: delattr(kind, "_num_yielded")

    delattr(kind, "_num_yielded")
    batches = iter(torch.utils.data.DataLoader(Endless(), batch_size=None))
    batches._num_yielded = batches._ftsup_num_yielded = 0  # noqa: SLF001 - it is with us and without us in turns
    return say("a batch of a DataLoader", batches.__next__, watch)


class Endless(torch.utils.data.IterableDataset):
    """As cheap as batches get."""

    def __iter__(self) -> Iterator[int]:
        return itertools.repeat(1)


def on_a_save(rank: Rank) -> float:
    state, buffer = torch.nn.Linear(8, 8).state_dict(), io.BytesIO()
    plain = torch.save

    def watch() -> Callable[[], object]:
        wraps.saves("save")(rank, torch.serialization, wraps.Background(rank))
        return lambda: [setattr(module, "save", plain) for module in (torch, torch.serialization)]

    return say("torch.save into memory", lambda: torch.save(state, buffer), watch)


def say(name: str, thing: Callable[[], object], watch: Switch) -> float:
    """Medians of both, and of their difference, pair by pair; the windows of a pair are taken in turns."""
    taken = [pair(thing, watch) for _ in range(PAIRS + 1)][1:]  # the first is warming up
    base, hooked = (statistics.median(one[side] for one in taken) for side in (0, 1))
    more = statistics.median(b - a for a, b in taken)
    print(f"{name:<26}{hooked:8.3f} us, {more:+.3f} ({base:.3f} without; {hooked / base:.3f}x)")
    return more


def pair(thing: Callable[[], object], watch: Switch) -> tuple[float, float]:
    plain = watched = math.inf
    for _ in range(WINDOWS):
        plain = min(plain, window_us(thing))
        leave = watch()
        watched = min(watched, window_us(thing))
        leave()
    return plain, watched


def window_us(thing: Callable[[], object]) -> float:
    began = time.perf_counter()
    for _ in range(EACH):
        thing()
    return (time.perf_counter() - began) / EACH * 1e6


def main() -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        rank = joined(Path(name))
        rank.reach(Phase.STEP)
        more = on_a_step(rank) + on_a_batch(rank)
        on_a_save(rank)
    print(f"a step and its batch      {more:+.3f} us; limit {LIMIT_US:.1f}")
    return int(more > LIMIT_US)


if __name__ == "__main__":
    sys.exit(main())
