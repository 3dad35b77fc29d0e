"""A rank is killed, or hangs with a limit of 5 s: how long until the first step again, with its parts, beside NVRx's launcher.

One node, two ranks, the same DDP training (train.py), both started once and struck in turns; ours on the mock Slurm. Medians of 7
pairs, or of `BENCH_PAIRS`. Held when a hang is found within one tick of its limit, and the stop takes less than 0.5 s with its proof.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ftsup import events as ev
from tests.e2e.harness import Run, carrying, mock_site, until

TRAIN = Path(__file__).with_name("train.py")
NVRX = ("nvidia-resiliency-ext==0.4.1", "nvidia-ml-py", "defusedxml")  # with what it imports; torch is ours
PAIRS = int(os.environ.get("BENCH_PAIRS", "7"))
LIMIT_S = 5.0
TICK_S = 1.0
STOP_S = 0.5
RANKS = 2
SETTLE_S = 3.0
"""Training goes on so long before the next strike: steps to save, a step's time to learn."""
STAMPS = {
    "born": "ranks' processes",
    "script": "interpreter",
    "torch": "import torch",
    "group": "rendezvous",
    "model": "DDP()",
    "load": "load",
    "first step": "first step",
}
CONFIG = {
    "command": [str(TRAIN)],
    "workers_per_node": RANKS,
    "slurm": {"nodes": 1, "time": "12h"},
    "checkpoint": {"pattern": "step*.pt"},
    "hang": {"step": f"{LIMIT_S:g}s", "shutdown": "5min", "stopped": "10s"},
    "grace": "30s",
    "waits": {"tick": f"{TICK_S:g}s"},
    "env": {"OMP_NUM_THREADS": "1"},
}
GUARD = "of the stop, TERM to proof"
Parts = dict[str, float]


class Training:
    """One of the two: a folder in which the script runs and leaves its stamps."""

    def __init__(self, folder: Path, tell: Callable[[], str]) -> None:
        self.folder, self.tell = folder, tell

    def stamps(self) -> list[tuple[str, int, float, int]]:
        """What, rank, when, pid."""
        path = self.folder / "stamps.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [(line["what"], line["rank"], line["t"], line["pid"]) for line in lines]

    def trains(self, after: float = 0.0) -> Parts | None:
        """When the slower rank reached what in the newest attempt; None until it has done its first step, after this time."""
        newest = {(what, rank): t for what, rank, t, _ in self.stamps() if t > after}
        if not all(("first step", rank) in newest for rank in range(RANKS)):
            return None
        return {what: max(newest[what, rank] for rank in range(RANKS)) for what in STAMPS}

    def kill(self) -> float:
        """SIGKILL for the last rank; when."""
        pid = [pid for what, rank, _, pid in self.stamps() if (what, rank) == ("first step", RANKS - 1)][-1]
        os.kill(pid, signal.SIGKILL)
        return now()

    def hang(self) -> float:
        """The last rank sleeps; since when."""
        before = now()
        (self.folder / "hang").touch()
        return until(lambda: next((t for what, _, t, _ in self.stamps() if what == "hang" and t > before), 0.0))

    def survive(self, strike: Callable[[], float]) -> tuple[float, Parts]:
        """When it was struck, and when the ranks reached what afterwards."""
        until(lambda: (there := self.trains()) and now() - there["first step"] > SETTLE_S, what=self.tell)
        t = strike()
        return t, until(lambda: self.trains(t), what=self.tell)


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def from_stamps(struck_t: float, reached: Parts, begun_t: float) -> Parts:
    """How long each part took, from `begun_t` on; and all of it, from the strike."""
    times = [begun_t, *(reached[what] for what in STAMPS)]
    parts = {name: after - before for name, (before, after) in zip(STAMPS.values(), itertools.pairwise(times), strict=True)}
    return parts | {"in all": reached["first step"] - struck_t}


def from_log(run: Run, struck_t: float, reached: Parts) -> Parts:
    """The same with the leader's own parts."""

    def first(*kinds: type) -> float:
        return next(line.event.t for line in run.lines() if isinstance(line.event, kinds) and line.event.t > struck_t)

    took_s = next(event.took_s for event in run.events(ev.AttemptOver) if event.t > struck_t)
    names = ("detect", "evidence", "stop with proof", "decide, pick, prepare", "log safe, launch")
    kinds = ((ev.Stalled, ev.RankEnded), (ev.Collected,), (ev.AttemptOver,), (ev.Prepared,), (ev.Launched,))
    times = [struck_t, *(first(*kind) for kind in kinds)]
    parts = dict(zip(names, (after - before for before, after in itertools.pairwise(times)), strict=True))
    return parts | from_stamps(struck_t, reached, times[-1]) | {GUARD: took_s}


@contextlib.contextmanager
def ours(folder: Path) -> Iterator[tuple[Training, Run]]:
    """A run of ours on a mock Slurm."""
    folder.mkdir()
    with mock_site(folder, nodes=1, limit_unit_s=60) as site:
        run = site.submit(**CONFIG)
        yield Training(run.work, run.story), run


@contextlib.contextmanager
def theirs(folder: Path) -> Iterator[Training]:
    """NVRx's launcher, looking as often as we do; RuntimeError when it does not install here."""
    folder.mkdir()
    library = folder / "library"
    argv = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(library), *NVRX]
    install = subprocess.run(argv, capture_output=True, text=True, check=False)
    if install.returncode != 0:
        raise RuntimeError(f"it does not install here: {install.stderr.strip().splitlines()[-1:]}")
    launcher = "nvidia_resiliency_ext.fault_tolerance.launcher"
    words = {
        "nnodes": 1,
        "nproc-per-node": RANKS,
        "rdzv-backend": "c10d",
        "rdzv-endpoint": "127.0.0.1:0",
        "max-restarts": 1000,
        "ft-workload-check-interval": TICK_S,
        "ft-rank-heartbeat-timeout": LIMIT_S,
        "ft-initial-rank-heartbeat-timeout": 300,
        "ft-enable-nic-monitor": "false",
    }
    options = [f"--{name}={value}" for name, value in words.items()]
    mark = f"BENCH_NVRX={folder}"
    env = {**os.environ, "PYTHONPATH": str(library), "OMP_NUM_THREADS": "1", "BENCH_NVRX": str(folder), "PYTHONUNBUFFERED": "1"}
    out = folder / "out"
    with out.open("wb") as file:
        argv = [sys.executable, "-m", launcher, *options, str(TRAIN), "--nvrx"]
        process = subprocess.Popen(argv, cwd=folder, env=env, stdout=file, stderr=file, start_new_session=True)
    try:
        yield Training(folder, lambda: out.read_text(errors="replace")[-2000:])
    finally:
        for one in [process, *carrying(mark)]:
            one.kill()
        process.wait()


def table(title: str, mine: list[Parts], others: list[Parts]) -> None:
    """Medians."""
    print(f"{title}, medians of {len(mine)}{'':<20} ftsup  NVRx 0.4.1")
    for name in mine[0]:
        value = statistics.median(parts[name] for parts in mine)
        other = statistics.median(parts[name] for parts in others) if others and name in others[0] else None
        print(f"  {name:<40} {value:6.2f} s" + (f"  {other:6.2f} s" if other is not None else ""))
    if others:
        ratio = statistics.median(a["in all"] / b["in all"] for a, b in zip(mine, others, strict=True))
        print(
            f"  pair by pair, ours takes {ratio:.2f}x of theirs (whose first part is all that comes before ranks: detect, stop, rendezvous)"
        )


def compare(run: Run, mine: Training, other: Training | None, *, hang: bool) -> list[Parts]:
    """Strike both in turns; the parts of ours."""
    taken: tuple[list[Parts], list[Parts]] = ([], [])
    for _ in range(PAIRS):
        struck_t, reached = mine.survive(mine.hang if hang else mine.kill)
        taken[0].append(from_log(run, struck_t, reached))
        if other:
            struck_t, reached = other.survive(other.hang if hang else other.kill)
            taken[1].append(from_stamps(struck_t, reached, struck_t))
    table(f"a hang, limit {LIMIT_S:g} s" if hang else "a rank killed", *taken)
    return taken[0]


def measure(run: Run, mine: Training, other: Training | None) -> int:
    killed = compare(run, mine, other, hang=False)
    hung = compare(run, mine, other, hang=True)
    late_s = statistics.median(parts["detect"] for parts in hung) - LIMIT_S
    stop_s = statistics.median(parts["stop with proof"] for parts in killed + hung)
    print(f"a hang is found {late_s:.2f} s after its limit (at most {TICK_S:g}); stopped with proof in {stop_s:.2f} s (below {STOP_S})")
    return 1 if late_s > TICK_S or stop_s >= STOP_S else 0


def main() -> int:
    with tempfile.TemporaryDirectory() as name, ours(Path(name) / "ours") as (mine, run):
        load = os.getloadavg()[0]
        try:
            with theirs(Path(name) / "theirs") as other:
                missed = measure(run, mine, other)
        except RuntimeError as error:
            print(f"NVRx's launcher           left out: {error}")
            missed = measure(run, mine, None)
        print(f"load average {load:.1f} before, {os.getloadavg()[0]:.1f} after, on {os.cpu_count()} cores")
        (mine.folder / "finish").touch()
        run.until_over()
    return missed


if __name__ == "__main__":
    sys.exit(main())
