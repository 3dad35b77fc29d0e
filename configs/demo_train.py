"""A small GPT on characters, trained with DDP on the source of Python's standard library. Three lines in here know of ftsup.

It is written the way such scripts are written: torchrun starts it, it saves a checkpoint with torch.save every few steps (and when it
is asked to: those three lines), and `--resume FILE` goes on from one. A resumed run ends with the same weights as an undisturbed one, bit
for bit, at the same number of ranks and with OMP_NUM_THREADS=1; what that takes is said where it is done.

    torchrun --standalone --nproc-per-node 4 configs/demo_train.py --dir /tmp/demo
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

from ftsup.worker import asked, saved  # where ftsup is not installed: from ftsup_worker, which is there in every run

CONTEXT, WIDTH, HEADS, LAYERS, DROPOUT = 64, 96, 4, 3, 0.1
TEXT_LENGTH = 500_000


class Text(Dataset):
    """Pieces of text, each with the same piece one character later: what the model is to say."""

    def __init__(self) -> None:
        library = Path(sysconfig.get_paths()["stdlib"])
        text = ""
        for file in sorted(library.glob("*.py")):
            text += file.read_text(encoding="utf-8", errors="replace")
            if len(text) >= TEXT_LENGTH:
                break
        self.letters = sorted(set(text[:TEXT_LENGTH]))
        number = {letter: n for n, letter in enumerate(self.letters)}
        self.text = torch.tensor([number[letter] for letter in text[:TEXT_LENGTH]])

    def __len__(self) -> int:
        return (len(self.text) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        at = index * CONTEXT
        return self.text[at : at + CONTEXT], self.text[at + 1 : at + CONTEXT + 1]


class Order(Sampler):
    """Which pieces a rank reads at which step: a function of seed, step and rank, so it can begin anywhere."""

    def __init__(self, size: int, *, batch: int, seed: int, first_step: int, steps: int) -> None:
        self.size, self.batch, self.seed, self.first_step, self.steps = size, batch, seed, first_step, steps
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def __iter__(self) -> Iterator[list[int]]:
        share = self.batch * self.world
        per_epoch = self.size // share
        for step in range(self.first_step, self.steps):
            due_s = time.monotonic() + float(os.environ.get("DEMO_PACE", "0"))  # for the demo: no step is shorter
            strike(self.rank, step)
            epoch, place = divmod(step, per_epoch)
            shuffled = torch.randperm(self.size, generator=torch.Generator().manual_seed(self.seed + epoch))
            begin = place * share + self.rank * self.batch
            yield shuffled[begin : begin + self.batch].tolist()
            time.sleep(max(0.0, due_s - time.monotonic()))


class GPT(nn.Module):
    """Characters in, the next character's odds out."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letter = nn.Embedding(letters, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, DROPOUT, activation="gelu", batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, letters, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.letter(x) + self.place
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask, is_causal=True)
        return self.out(self.norm(hidden))


def strike(rank: int, step: int) -> None:
    """FAULT INJECTION, for the demo only: DEMO_STRIKE=rank:step:file makes that rank sleep an hour there, once (the file says so)."""
    victim, _, rest = os.environ.get("DEMO_STRIKE", "").partition(":")
    at, _, marker = rest.partition(":")
    if victim == str(rank) and at == str(step) and not Path(marker).exists():
        Path(marker).touch()
        time.sleep(3600)


def learning_rate(step: int, steps: int) -> float:
    """Twenty steps up, then down along a cosine."""
    return 2e-3 * min(1.0, (step + 1) / 20) * (0.55 + 0.45 * math.cos(math.pi * step / steps))


def write(path: Path, content: dict) -> None:
    """A file is there whole or not at all, also when this process is killed while it writes."""
    aside = path.with_name(f".{path.name}.tmp")
    with aside.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """All that the next step depends on, of all ranks, in one file. The data's place follows from the step."""
    mine = torch.get_rng_state()
    random = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(random, mine)
    if dist.get_rank() == 0:
        content = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": random}
        write(folder / f"step-{step:06d}.pt", content)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Back to where a checkpoint was taken; its step."""
    saved = torch.load(path, weights_only=True)
    if len(saved["random"]) != dist.get_world_size():
        raise SystemExit(f"{path} was saved by {len(saved['random'])} ranks, and these are {dist.get_world_size()}")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["random"][dist.get_rank()])
    return saved["step"]


def digest(model: nn.Module) -> str:
    """One line for all weights: equal only if every bit is."""
    total = hashlib.sha256()
    for name, weights in model.state_dict().items():
        total.update(name.encode() + weights.numpy().tobytes())
    return total.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="where checkpoints and the result go")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--batch", type=int, default=8, help="pieces of text a rank reads at a step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", type=Path, help="a checkpoint to go on from")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    args.dir.mkdir(parents=True, exist_ok=True)
    text = Text()
    torch.manual_seed(args.seed)  # the same first weights on all ranks
    model = GPT(len(text.letters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    parallel = DistributedDataParallel(model)
    # DDP rearranges its buckets after the first pass of a process. Without these two for nothing, the first step after a resume
    # would add up gradients in another order than an undisturbed run, and the last bits would differ.
    for _ in range(2):
        parallel(torch.zeros(1, CONTEXT, dtype=torch.long)).sum().backward()
    optimizer.zero_grad()
    torch.manual_seed(args.seed + 1 + rank)  # other dropout on each rank
    first = load(args.resume, model, optimizer) if args.resume else 0

    order = Order(len(text), batch=args.batch, seed=args.seed, first_step=first, steps=args.steps)
    # A DataLoader draws a number at its start: not from the random state that dropout uses.
    loader = DataLoader(text, batch_sampler=order, generator=torch.Generator())
    for step, (x, y) in enumerate(loader, start=first + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps)
        loss = functional.cross_entropy(parallel(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step % 10 == 0 or step == first + 1):
            print(f"step {step:4d} of {args.steps}  loss {loss.item():.4f}", flush=True)
        if asked() or step % args.every == 0:
            save(args.dir, step, model, optimizer)
            saved(step)

    if rank == 0:
        write(args.dir / "final.pt", model.state_dict())
        (args.dir / "final.json").write_text(json.dumps({"step": args.steps, "weights_sha256": digest(model)}) + "\n")
        print(f"weights {digest(model)}", flush=True)
    # A rank that ends while a thread of gloo still lets go of a tensor can abort (pytorch#179291): leave together.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
