"""A script for two ranks: many ways to train in turn, each a function that says how many steps and beats there were.

Each way has a beat file of its own, so that one import of torch serves them all. What was found is written as JSON; the test compares.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from ftsup_worker import beatfile, counters
from ftsup_worker.rank import THIS
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.data import DataLoader, TensorDataset

STEPS = 6
RANK = int(os.environ["RANK"])
PLACE = Path(sys.argv[1])
WAYS = {}
TOGETHER = {}
"""Those that want both ranks; the others are walked by rank 0 alone."""


def way(function):
    WAYS[function.__name__] = function
    return function


def together(function):
    TOGETHER[function.__name__] = function
    return function


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))


def descend(optimizer, net, *, steps=STEPS, accumulate=1):
    for _ in range(steps):
        for _ in range(accumulate):
            net(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return steps


def every_optimizer():
    """All of torch's own, as far as they train on a CPU."""
    for name in sorted(vars(torch.optim)):
        kind = getattr(torch.optim, name)
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer:
            yield name, kind


def of_kind(kind, **options):
    def train():
        net = model()
        parameters = [p for p in net.parameters() if kind.__name__ != "Muon" or p.ndim == 2]
        optimizer = kind(parameters, lr=0.01, **options)
        if kind is torch.optim.LBFGS:
            for _ in range(STEPS):
                optimizer.step(lambda: closure(optimizer, net))
            return STEPS
        if kind is torch.optim.SparseAdam:
            table = nn.Embedding(8, 8, sparse=True)
            optimizer = kind(table.parameters(), lr=0.01)
            for _ in range(STEPS):
                optimizer.zero_grad()
                table(torch.arange(4)).sum().backward()
                optimizer.step()
            return STEPS
        return descend(optimizer, net)

    return train


def closure(optimizer, net):
    optimizer.zero_grad()
    loss = net(torch.ones(4, 8)).square().mean()
    loss.backward()
    return loss


@way
def accumulation():
    net = model()
    return descend(torch.optim.AdamW(net.parameters()), net, accumulate=4)


@way
def own_step():
    class Own(torch.optim.Optimizer):
        def step(self):
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter.sub_(parameter.grad, alpha=0.1)

    net = model()
    return descend(Own(net.parameters(), {}), net)


@way
def own_step_and_that_of_its_parent():
    class Own(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    torch.optim.SGD(model().parameters(), lr=0.1)
    net = model()
    return descend(Own(net.parameters(), lr=0.1), net)


@way
def own_step_and_later_its_parent():
    class Parent(torch.optim.Optimizer):
        def step(self):
            pass

    class Own(Parent):
        def step(self):
            super().step()

    net = model()
    optimizer = Own(net.parameters(), {})
    steps = descend(optimizer, net)
    Parent(model().parameters(), {})
    return steps + descend(optimizer, net)


@way
def compiled_step():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(STEPS):
        net(torch.randn(4, 8)).square().mean().backward()
        step()
        optimizer.zero_grad()
    return STEPS


@way
def compiled_training():
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())

    @torch.compile(backend="eager")
    def train(batch):
        net(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(STEPS):
        train(torch.randn(4, 8))
    return STEPS


@together
def ddp():
    net = nn.parallel.DistributedDataParallel(model())
    return descend(torch.optim.AdamW(net.parameters()), net)


@together
def ddp_without_sync():
    net = nn.parallel.DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(STEPS):
        with net.no_sync():
            net(torch.randn(4, 8)).square().mean().backward()
        net(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    return STEPS


@together
def fsdp2():
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(net)
    return descend(torch.optim.AdamW(net.parameters()), net)


@together
def zero():
    net = nn.parallel.DistributedDataParallel(model())
    return descend(ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=0.01), net)


@way
def gan():
    one, two = model(), model()
    first, second = torch.optim.Adam(one.parameters()), torch.optim.Adam(two.parameters())
    for _ in range(STEPS):
        descend(first, one, steps=1)
        descend(second, two, steps=1)
    return STEPS


@way
def gan_with_five_critic_steps():
    one, two = model(), model()
    critic, generator = torch.optim.Adam(one.parameters()), torch.optim.Adam(two.parameters())
    for _ in range(STEPS):
        descend(critic, one, steps=5)
        descend(generator, two, steps=1)
    return STEPS


@way
def one_optimizer_and_then_another():
    one, two = model(), model()
    first, second = torch.optim.Adam(one.parameters()), torch.optim.Adam(two.parameters())
    return descend(first, one) + descend(second, two)


@way
def in_backward():
    net = model()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(STEPS):
        net(torch.randn(4, 8)).square().mean().backward()
    return STEPS


def scaled(*, fused):
    """Half of the steps overflow. What torch counts as a step is the truth: a fused optimizer is called, and skips by itself."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), fused=fused)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(STEPS):
        scaler.scale(net(torch.randn(4, 8) * (float("inf") if step % 2 else 1)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return STEPS if fused else STEPS // 2


@way
def scaler_skips():
    return scaled(fused=False)


@way
def scaler_and_fused():
    return scaled(fused=True)


@way
def without_an_optimizer_of_torch():
    net = model()
    for (batch,) in DataLoader(TensorDataset(torch.randn(STEPS, 8))):
        net(batch).square().mean().backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)
                parameter.grad = None
    return STEPS


@way
def a_batch_before_the_optimizer():
    loader = DataLoader(TensorDataset(torch.randn(4, 8)))
    next(iter(loader))
    net = model()
    return descend(torch.optim.SGD(net.parameters(), lr=0.1), net)


def measure(name, train):
    """One way as a rank of its own: the hooks know THIS rank, so it begins anew."""
    path = PLACE / f"{name}.{RANK}"
    beatfile.create(path)
    writer = THIS.writer
    THIS.__init__()
    THIS.writer = writer
    writer._use(bytearray(counters.empty()))  # noqa: SLF001 - one process has one writer, and here many ranks
    THIS.join(path, pid=os.getpid(), started=1, base_step=100)
    THIS.reach(beatfile.Phase.INIT)
    gc.collect()
    try:
        steps = train()
    except Exception as error:  # noqa: BLE001 - the test says which way cannot be walked, and why
        return {"error": repr(error)}
    beat = beatfile.read(path)
    return {"steps": steps, "said": beat.step - 100 if beat.step >= 0 else None, "beats": beat.beats, "phase": beat.phase.name}


def main():
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{PLACE / 'meeting'}", rank=RANK, world_size=2)
    ways = {f"{name}_{style}": of_kind(kind, **{style: True}) for name, kind in every_optimizer() for style in styles(kind)}
    ways |= {name: of_kind(kind) for name, kind in every_optimizer()}
    found = {name: measure(name, train) for name, train in {**(ways | WAYS if RANK == 0 else {}), **TOGETHER}.items()}
    (PLACE / f"found.{RANK}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def styles(kind):
    return [style for style in ("foreach", "fused") if style in inspect.signature(kind).parameters and kind is not torch.optim.SparseAdam]


main()
