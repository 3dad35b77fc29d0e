"""What sealing and verifying cost, against reading the same bytes and hashing them once: at most 1.3x CPU. And a pick among 1,000 sealed
checkpoints of 64 files: under 1 s. Medians of 7 pairs, taken in turns; the bytes lie in the page cache, so that CPU is what is compared.
"""

from __future__ import annotations

import os
import statistics
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


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="ftsup-bench-") as folder:
        held = [hashing(Path(folder) / "hash"), picking(Path(folder) / "pick")]
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


if __name__ == "__main__":
    sys.exit(main())
