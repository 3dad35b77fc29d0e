"""What sealing and verifying cost, against reading the same bytes and hashing them once: at most 1.3x CPU. A pick among 1,000 sealed
checkpoints of 64 files: under 1 s. A load of 2 GB that is verified first, against torch.load alone. And 2 GB sealed beside training on
all cores: its steps take at most 3 % longer. Medians of 7 pairs, taken in turns; where CPU is compared the bytes are in the page cache.

`make bench-checkpoint` takes some minutes, 10 GB of disk, and a machine that does nothing else.
"""

from __future__ import annotations

import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import xxhash

from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.entries import Entry, manifest_of
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.pick import Ask, State, pick
from ftsup.checkpoint.seal import Label, Outcome, Sign, seal
from ftsup.checkpoint.verify import verify

PAIRS = 7
SIZE_BYTES = 1 << 30
FILES = 4
LIMIT = 1.3
CHECKPOINTS, PARTS, PICK_LIMIT_S = 1000, 64, 1.0
LOAD_BYTES = 2_000_000_000
SLOWER_LIMIT = 1.03
TURN_S = 1.0


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ftsup-bench-") as folder:
        held = [hashing(Path(folder) / "hash"), picking(Path(folder) / "pick")]
        loading(Path(folder) / "load")
        held.append(beside_training(Path(folder) / "load"))
    return 0 if all(held) else 1


def hashing(folder: Path) -> bool:
    path = folder / "step1"
    path.mkdir(parents=True)
    some = os.urandom(16 << 20)
    for number in range(FILES):
        (path / f"part-{number}").write_bytes(some * (SIZE_BYTES // FILES // len(some)))
    os.sync()
    disk, home, entry = RealDisk(), Home(folder), Entry(name="step1", step=1)

    def sealing() -> None:
        assert seal(disk, home, entry, label=Label(), sign=Sign.ENDED, anew=True).outcome is Outcome.SEALED

    def verifying() -> None:
        assert not verify(disk, path, manifest_of(disk, home, "step1")).damages

    sealing()
    found = {name: against(lambda: plain(path), work) for name, work in (("seal", sealing), ("verify", verifying))}
    for name, (ratio, cpu_s, plain_s) in found.items():
        speed = f"{SIZE_BYTES / cpu_s / 1e9:.1f} GB/s of CPU"
        print(f"{name}: {ratio:.2f}x the CPU of reading and hashing ({cpu_s:.3f} s against {plain_s:.3f} s a GiB; {speed}), limit {LIMIT}x")
    return all(ratio <= LIMIT for ratio, _, _ in found.values())


def plain(path: Path) -> None:
    """The cheapest that reads and hashes: one buffer of the size that is fastest here, one digest."""
    buffer = memoryview(bytearray(1 << 20))
    for part in sorted(path.iterdir()):
        total = xxhash.xxh3_128()
        with part.open("rb", buffering=0) as file:
            while size := file.readinto(buffer):
                total.update(buffer[:size])
        total.hexdigest()


def against(base: Callable[[], None], work: Callable[[], None]) -> tuple[float, float, float]:
    """The median ratio of CPU seconds, and both medians."""
    pairs = [(cpu_s(base), cpu_s(work)) if number % 2 else (cpu_s(work), cpu_s(base))[::-1] for number in range(PAIRS)]
    ratio = statistics.median(after / before for before, after in pairs)
    return ratio, statistics.median(after for _, after in pairs), statistics.median(before for before, _ in pairs)


def cpu_s(work: Callable[[], None]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def picking(folder: Path) -> bool:
    disk, home = RealDisk(), Home(folder)
    for step in range(1, CHECKPOINTS + 1):
        path = folder / f"step-{step}"
        path.mkdir(parents=True)
        for part in range(PARTS):
            (path / f"part-{part}").write_bytes(b"%d" % step * 100)
        assert seal(disk, home, Entry(name=path.name, step=step), label=Label(), sign=Sign.ENDED).outcome is Outcome.SEALED
    times = []
    for _ in range(PAIRS):
        begin = time.perf_counter()
        picked = pick(disk, folder, Ask(pattern="step-*"))
        times.append(time.perf_counter() - begin)
        assert (picked.name, picked.seen[0].state) == (f"step-{CHECKPOINTS}", State.VERIFIED)
    took_s = statistics.median(times)
    print(f"pick among {CHECKPOINTS} sealed checkpoints of {PARTS} files: {took_s * 1000:.0f} ms, limit {PICK_LIMIT_S:.0f} s")
    return took_s < PICK_LIMIT_S


def loading(folder: Path) -> None:
    """What certainty costs a resume: verify, then torch.load, against torch.load alone, both from a cold cache."""
    path = two_gigabytes(folder)
    disk, home = RealDisk(), Home(folder)
    assert seal(disk, home, Entry(name=path.name, step=1), label=Label()).outcome is Outcome.SEALED

    def verified() -> None:
        assert not verify(disk, path, manifest_of(disk, home, path.name)).damages
        load(path)

    times: dict[str, list[float]] = {"torch.load": [], "verified": []}
    for number in range(PAIRS):
        works = {"torch.load": lambda: load(path), "verified": verified}
        for name in sorted(works, reverse=bool(number % 2)):
            chill(path)
            begin = time.perf_counter()
            works[name]()
            times[name].append(time.perf_counter() - begin)
    plain_s, verified_s = (statistics.median(times[name]) for name in ("torch.load", "verified"))
    ratio = statistics.median(after / before for before, after in zip(times["torch.load"], times["verified"], strict=True))
    print(
        f"verified load of {LOAD_BYTES / 1e9:.0f} GB: {verified_s:.2f} s, torch.load alone {plain_s:.2f} s, {ratio:.2f}x "
        "(cold: POSIX_FADV_DONTNEED on the whole file before each; a disk of the host below this machine may still have it)"
    )


def two_gigabytes(folder: Path) -> Path:
    import torch  # noqa: PLC0415 - most of this bench needs none

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "step-1.pt"
    if not path.exists():
        torch.save({f"layers.{number}.weight": torch.randn(LOAD_BYTES // 4 // 4) for number in range(4)}, path)
    return path


def load(path: Path) -> None:
    import torch  # noqa: PLC0415 - as above

    assert len(torch.load(path, weights_only=True)) == 4


def chill(path: Path) -> None:
    """Out of the page cache: what is on the disk already can be thrown out."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def warm(path: Path) -> None:
    """Into the page cache, where a checkpoint is that was just saved."""
    with path.open("rb", buffering=0) as file:
        while file.read(16 << 20):
            pass


def beside_training(folder: Path) -> bool:
    """The file is in the page cache, as one that was just saved.

    A pair is one seal: seconds in which the sealer works, and as many between them in which it is stopped.
    """
    path = two_gigabytes(folder)
    command = [sys.executable, "-m", "tests.bench.sealer", str(folder), path.name]
    train = trainer()
    ratios, alone_ms, seals_s = [], [], []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as sealer:
        assert sealer.stdin
        train(2.0)
        for _ in range(PAIRS):
            warm(path)
            sealer.stdin.write("seal\n")
            beside_s, alone_s, took_s = in_turns(train, sealer)
            ratios.append(beside_s / alone_s)
            alone_ms.append(alone_s * 1000)
            seals_s.append(took_s)
        sealer.stdin.close()
    ratio = statistics.median(ratios)
    print(
        f"sealing {LOAD_BYTES / 1e9:.0f} GB (just saved) beside training on all {os.cpu_count()} cores: steps take {ratio:.3f}x their time "
        f"({statistics.median(alone_ms):.1f} ms alone; a seal takes {statistics.median(seals_s):.1f} s; "
        f"pairs {min(ratios):.3f} to {max(ratios):.3f}), limit {SLOWER_LIMIT}x"
    )
    return ratio <= SLOWER_LIMIT


def in_turns(train: Callable[..., list[float]], sealer: subprocess.Popen[str]) -> tuple[float, float, float]:
    """Train until the sealer answers, and stop it every other second: the mean step beside it and alone, and how long the seal took."""
    beside: list[float] = []
    alone: list[float] = []
    while not answered(sealer):
        beside += train(TURN_S)
        sealer.send_signal(signal.SIGSTOP)
        alone += train(TURN_S)
        sealer.send_signal(signal.SIGCONT)
    assert sealer.stdout
    return statistics.mean(beside), statistics.mean(alone), float(sealer.stdout.readline())


def answered(sealer: subprocess.Popen[str]) -> bool:
    return bool(select.select([sealer.stdout], [], [], 0)[0])


def trainer() -> Callable[[float], list[float]]:
    """Trains for so many seconds; how long each step took."""
    import torch  # noqa: PLC0415 - as above

    torch.set_num_threads(os.cpu_count() or 1)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(256, 1024)

    def train(seconds: float) -> list[float]:
        steps: list[float] = []
        while sum(steps) < seconds:
            begin = time.perf_counter()
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            steps.append(time.perf_counter() - begin)
        return steps

    return train


if __name__ == "__main__":
    sys.exit(main())
