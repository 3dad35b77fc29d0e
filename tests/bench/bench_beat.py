"""What a beat costs: against a loop that does nothing (at most 1 us more), on a real optimizer step, and against NVRx's heartbeat;
and what the shim adds to the start of a script. Medians of 7 pairs, taken in turns; each the best of several windows.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ftsup.worker
from ftsup.worker import beatfile
from ftsup.worker.rank import Rank

PAIRS = 7
BEAT_LIMIT_US = 1.0
START_LIMIT_MS = 10.0
NVRX = ("nvidia-resiliency-ext==0.4.1", "nvidia-ml-py", "defusedxml")  # with what it imports; torch is ours

Thing = Callable[[], object]


class Optimizer:
    """Stands for an optimizer: the hook wants a weak reference to it."""


def took_us(thing: Thing, times: tuple[int, int]) -> float:
    """The best of so many windows of so many calls each: what others do on the machine is not our price."""
    windows, calls = times
    best = float("inf")
    for _ in range(windows):
        began = time.perf_counter()
        for _ in range(calls):
            thing()
        best = min(best, time.perf_counter() - began)
    return best / calls * 1e6


def pairs(one: Thing, other: Thing, times: tuple[int, int], more: tuple[int, int] | None = None) -> tuple[float, float, float]:
    """Medians of both, and of their difference pair by pair, in us."""
    taken = [(took_us(one, times), took_us(other, more or times)) for _ in range(PAIRS + 1)][1:]  # the first is warming up
    return (
        statistics.median(a for a, _ in taken),
        statistics.median(b for _, b in taken),
        statistics.median(b - a for a, b in taken),
    )


def joined(directory: Path) -> Rank:
    beatfile.create(directory / "beat.0")
    rank = Rank()
    rank.join(directory / "beat.0", pid=os.getpid(), started=1, base_step=0)
    return rank


def against_nothing(rank: Rank) -> float:
    hook, optimizer = rank.optimizer_stepped, Optimizer()
    base, beat, more = pairs(lambda: None, lambda: hook(optimizer, (), {}), (100, 1000))
    print(
        f"a beat of the hook        {beat:8.3f} us, {more:.3f} more than a call that does nothing ({base:.3f}); limit {BEAT_LIMIT_US:.1f}"
    )
    _, said, _ = pairs(lambda: None, lambda: rank.beat(step=5), (100, 1000))
    print(f"beat(step=...)            {said:8.3f} us")
    return more


def on_a_real_step(rank: Rank) -> None:
    import torch  # noqa: PLC0415
    from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415

    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    model(torch.ones(1, 8)).sum().backward()
    hook = rank.optimizer_stepped

    def with_hook() -> None:
        handle = register_optimizer_step_post_hook(hook)
        for _ in range(50):
            optimizer.step()
        handle.remove()

    def without() -> None:
        for _ in range(50):
            optimizer.step()

    base, hooked, more = (value / 50 for value in pairs(without, with_hook, (60, 1)))
    print(f"SGD.step with the hook    {hooked:8.3f} us, {more:+.3f} ({base:.3f} without; {hooked / base:.3f}x)")


def shim_start(directory: Path) -> bool:
    """With an empty script, and with one that imports what torch imports from the standard library anyway. Whether it takes too long."""
    missed = False
    shutil.copytree(Path(ftsup.worker.__file__).parent, directory / "lib" / "ftsup_worker", ignore=shutil.ignore_patterns("__pycache__"))
    ours = {"FTSUP_BEATS": str(directory), "FTSUP_OUT_DIR": str(directory), "FTSUP_SUPERVISOR": "2", "FTSUP_WARNING": "10"}
    env = {**os.environ, "PYTHONPATH": str(directory / "lib"), "RANK": "0", **ours}
    env.pop("PYTHONDONTWRITEBYTECODE", None)

    def cpu_ms(*argv: str) -> float:
        process = subprocess.Popen([sys.executable, *argv], cwd=directory, env=env)
        _, process.returncode, used = os.wait4(process.pid, 0)
        return (used.ru_utime + used.ru_stime) * 1000

    for name, text in (
        ("empty", ""),
        ("with torch's own imports", "import contextlib, ctypes, importlib.util, inspect, json, pathlib, re, typing"),
    ):
        (directory / "script.py").write_text(text)
        taken = [(cpu_ms("script.py"), cpu_ms("lib/ftsup_worker/__main__.py", "script.py")) for _ in range(60)]
        base, shim = (min(column) for column in zip(*taken, strict=True))  # taken in turns: what others do here is not our price
        more = shim - base
        print(
            f"the shim's start          {more:8.1f} ms of CPU more than plain Python ({shim:.1f} against {base:.1f}), script {name}; "
            f"limit {START_LIMIT_MS:.0f}"
        )
        missed = missed or more > START_LIMIT_MS
    return missed


def against_nvrx(directory: Path) -> None:
    """In a process of its own: NVRx starts a monitor process and wants the environment of a rank."""
    library = directory / "nvrx"
    argv = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(library), *NVRX]
    install = subprocess.run(argv, capture_output=True, text=True, check=False)
    if install.returncode != 0:
        print(f"NVRx's heartbeat          left out, it does not install here: {install.stderr.strip().splitlines()[-1:]}")
        return
    env = {**os.environ, "PYTHONPATH": f"{library}:{Path.cwd()}", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    run = subprocess.run([sys.executable, __file__, "--nvrx", str(directory)], env=env, capture_output=True, text=True, check=False)
    print(
        run.stdout.strip()
        if run.returncode == 0
        else f"NVRx's heartbeat          left out, it does not run here: {run.stderr.strip()[-200:]}"
    )


def nvrx(directory: Path) -> int:
    import multiprocessing  # noqa: PLC0415

    from nvidia_resiliency_ext.fault_tolerance import config, data, rank_monitor_client, rank_monitor_server  # noqa: PLC0415

    path = str(directory / "monitor.sock")
    os.environ[data.FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR] = path
    settings = config.FaultToleranceConfig()
    server = rank_monitor_server.RankMonitorServer.run_in_subprocess(settings, path, mp_ctx=multiprocessing.get_context("fork"))
    client = rank_monitor_client.RankMonitorClient()
    client.init_workload_monitoring()
    (directory / "beside").mkdir()
    hook, optimizer = joined(directory / "beside").optimizer_stepped, Optimizer()
    ours, theirs, _ = pairs(lambda: hook(optimizer, (), {}), client.send_heartbeat, (100, 1000), (10, 100))
    print(f"NVRx 0.4.1's heartbeat    {theirs:8.3f} us, {theirs / ours:.0f}x of ours ({ours:.3f}), and a monitor process a rank")
    client.shutdown_workload_monitoring()
    server.kill()
    return 0


def main() -> int:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        directory = Path(name)
        rank = joined(directory)
        missed = against_nothing(rank) > BEAT_LIMIT_US
        on_a_real_step(rank)
        missed = shim_start(directory) or missed
        against_nvrx(directory)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(nvrx(Path(sys.argv[2])) if sys.argv[1:2] == ["--nvrx"] else main())
