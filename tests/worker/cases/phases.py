"""Loaders, evaluations and saves as plain torch writes them; what was seen of each is printed as JSON."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import pickle
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from looking import Witness, beat, phase
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.datapipes.iter import IterableWrapper

warnings.simplefilter("ignore")
PLACE = Path(sys.argv[1])
seen = {}


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(float(index))


class Stream(IterableDataset):
    def __iter__(self):
        return (torch.tensor(float(number)) for number in range(8))


class Loader(DataLoader):
    """A subclass, as frameworks make them."""


class Broken(Numbers):
    def __getitem__(self, index):
        raise ValueError("this sample is broken")


def lives(loader, *, rounds=1):
    """Signs of life for batches that were taken."""
    before, taken = beat().activity, 0
    for _ in range(rounds):
        for _batch in loader:
            taken += 1
    return beat().activity - before, taken


def start_up():
    buffer = io.BytesIO()
    torch.save(torch.ones(3), buffer)
    buffer.seek(0)
    torch.load(buffer)
    return phase()


def loaders():
    persistent = DataLoader(Numbers(), num_workers=2, persistent_workers=True)
    return {
        "plain": lives(DataLoader(Numbers())),
        "workers": lives(DataLoader(Numbers(), num_workers=2)),
        "persistent": lives(persistent, rounds=2),
        "iterable": lives(DataLoader(Stream(), num_workers=2)),
        "subclass": lives(Loader(Numbers(), batch_size=2)),
        "pipe": lives(DataLoader(IterableWrapper(range(8)))),
    }


def evaluation(optimizer):
    train, test = DataLoader(Numbers()), DataLoader(Numbers())
    found = [phase()]
    optimizer.step()
    found.append(phase())
    with torch.no_grad():
        for _ in test:
            found.append(phase())
            break
    found.append(phase())  # what follows the loop, metrics say, still belongs to it
    for _ in train:
        found.append(phase())
        break
    with torch.inference_mode():
        next(iter(test))
    found.append(phase())
    optimizer.step()
    found.append(phase())
    return found


def evaluation_before_training(optimizer):
    """Lightning's sanity check."""
    del optimizer
    with torch.no_grad():
        next(iter(DataLoader(Numbers())))
    found = [phase()]
    next(iter(DataLoader(Numbers())))
    return [*found, phase()]


class Raises:
    def __reduce__(self):
        raise ValueError(f"in {phase()}")


def saves(net):
    Witness.seen.clear()
    found = {}
    torch.save(Witness(), io.BytesIO())
    found["main"], found["after"] = Witness.seen[-1], phase()
    thread = threading.Thread(target=torch.save, args=(Witness(), io.BytesIO()))
    thread.start()
    thread.join()
    found["thread"], found["after thread"] = Witness.seen[-1], (phase(), beat().writing)
    with contextlib.suppress(ValueError):
        torch.save(Raises(), io.BytesIO())
    found["after error"] = phase()
    dcp.save({"net": net.state_dict(), "w": Witness()}, checkpoint_id=str(PLACE / "dcp"))
    found["dcp"], found["after dcp"] = Witness.seen[-1], phase()
    life = beat().activity
    future = dcp.async_save({"net": net.state_dict(), "w": Slow()}, checkpoint_id=str(PLACE / "async"))
    found["async"] = (phase(), beat().writing > 0)
    GO.set()
    future.result()
    until(lambda: beat().writing == 0)
    found["after async"] = (phase(), beat().writing, beat().activity > life)
    state = {"net": net.state_dict(), "w": 0}
    dcp.load(state, checkpoint_id=str(PLACE / "dcp"))
    return found


GO = threading.Event()


class Slow:
    """Waits to be written until it has been looked at."""

    def __reduce__(self):
        if threading.current_thread() is not threading.main_thread():
            GO.wait(20)
        return (Slow, ())

    def __deepcopy__(self, memo):
        return self


def until(there):
    end = time.monotonic() + 20
    while not there() and time.monotonic() < end:
        time.sleep(0.005)


def invisible():
    """What a script may find out about torch is as it was."""
    try:
        next(iter(DataLoader(Broken())))
    except ValueError:
        frames = traceback.format_exc()
    try:
        torch.save(Raises(), io.BytesIO())
    except ValueError:
        saving = traceback.format_exc()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = DataLoader(Short())
        len(loader)
        for _ in loader:
            pass
    return {
        "one function": torch.save is torch.serialization.save and dcp.save is dcp.state_dict_saver.save,
        "pickles": pickle.loads(pickle.dumps(torch.save)) is torch.save,  # noqa: S301 - our own
        "signature": list(inspect.signature(torch.save).parameters)[:2],
        "name": (torch.save.__module__, torch.save.__qualname__, dcp.async_save.__name__),
        "loader pickles": pickle.loads(pickle.dumps(DataLoader([1, 2]))).dataset,  # noqa: S301
        "frames of a loader": frames.count("ftsup_worker"),
        "frames of a save": saving.count("ftsup_worker"),
        "warnings": ["ftsup_worker" in one.filename for one in caught],
    }


class Short(IterableDataset):
    def __len__(self):
        return 1

    def __iter__(self):
        return iter([1, 2])


def compiled():
    """torch.compile sees the wraps from inside a function that it compiles."""
    net = nn.Linear(4, 4)

    @torch.compile(backend="eager")
    def train(loader, buffer):
        total = torch.zeros(1)
        for batch in loader:
            total = total + net(batch.expand(4)).sum()
        torch.save(net.state_dict(), buffer)
        return total * 2

    buffer = io.BytesIO()
    life = beat().activity
    answer = train(DataLoader(Numbers()), buffer)
    buffer.seek(0)
    expected = sum(net(batch.expand(4)).sum() for batch in DataLoader(Numbers())) * 2
    same = torch.allclose(answer, expected, atol=1e-4) and torch.equal(torch.load(buffer)["weight"], net.weight)
    return same, beat().activity > life


def in_a_fork(net):
    """A child that was forked while training is no rank, whatever it does."""
    before = beat()
    child = os.fork()
    if child == 0:
        lives(DataLoader(Numbers()))
        torch.save(net.state_dict(), io.BytesIO())
        os._exit(0)
    os.waitpid(child, 0)
    return beat() == before


def main():
    seen["start-up"] = start_up()
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen["evaluation before training"] = evaluation_before_training(optimizer)
    seen["loaders"] = loaders()
    seen["evaluation"] = evaluation(optimizer)
    seen["fork"] = in_a_fork(net)
    seen["saves"] = saves(net)
    seen["invisible"] = invisible()
    seen["compiled"] = compiled()
    print(json.dumps(seen))


main()
