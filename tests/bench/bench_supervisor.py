"""What supervision costs: CPU and memory of a node supervisor with its clerk beside 8 ranks, and of the leader with its clerk.

A real run on the mock Slurm, 8 ranks without torch that beat twenty times a second and print a line a second. Seconds of CPU are
those of the scheduler, over `BENCH_SECONDS` (60); memory is PSS, where a page that several processes share counts once in all. What
started and ended meanwhile (questions to Slurm) is shown apart, and so is the guard, which sleeps while the attempt runs.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import psutil

from ftsup import events as ev
from tests.e2e.harness import mock_site

RANKS = 8
SECONDS = float(os.environ.get("BENCH_SECONDS", "60"))
SETTLE_S = 10.0
CPU_LIMIT = 0.5
PSS_LIMIT_MIB = 80.0
CONFIG = {
    "command": [str(Path(__file__).with_name("beating.py"))],
    "workers_per_node": RANKS,
    "slurm": {"nodes": 1, "time": "12h"},
    "checkpoint": {"dir": "."},
    "hang": {"step": "60s", "shutdown": "5min", "stopped": "10s"},
    "waits": {"tick": "1s"},
}


def cpu_s(process: psutil.Process) -> float:
    """What all its threads have run, to the nanosecond."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def children_s(process: psutil.Process) -> float:
    """What its ended children have run."""
    times = process.cpu_times()
    return times.children_user + times.children_system


def pss_mib(process: psutil.Process) -> float:
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def switches(process: psutil.Process) -> int:
    """How often it woke up: its main thread's waits."""
    return process.num_ctx_switches().voluntary


def measure(groups: dict[str, dict[str, psutil.Process]]) -> int:
    everybody = [process for group in groups.values() for process in group.values()]

    def read() -> dict[int, tuple[float, float, int]]:
        return {one.pid: (cpu_s(one), children_s(one), switches(one)) for one in everybody}

    before, began = read(), time.monotonic()
    time.sleep(SECONDS)
    after, took_s = read(), time.monotonic() - began
    missed = 0
    for name, group in groups.items():
        cpu = pss = 0.0
        for part, process in group.items():
            own, helpers, woken = (b - a for a, b in zip(before[process.pid], after[process.pid], strict=True))
            share, memory = own / took_s * 100, pss_mib(process)
            print(
                f"  {name}'s {part:<10} {share:6.3f} % of a core, {memory:5.1f} MiB PSS, {woken / took_s:4.1f} waits a second"
                + (f"; its helpers {helpers / took_s * 100:.3f} %" if helpers else "")
            )
            if part != "guard":
                cpu, pss = cpu + share, pss + memory
        missed += cpu > CPU_LIMIT or pss > PSS_LIMIT_MIB
        print(f"{name} with its clerk: {cpu:.3f} % of a core (at most {CPU_LIMIT}), {pss:.1f} MiB PSS (at most {PSS_LIMIT_MIB:.0f})")
    return 1 if missed else 0


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, mock_site(Path(folder), nodes=1, limit_unit_s=60) as site:
        run = site.submit(**CONFIG)
        run.until_trains()
        leader, node = run.leader(), run.supervisor(run.events(ev.NodeUp)[0].node)
        (guard,) = [one for one in node.children() if "ftsup.supervisor.guard" in one.cmdline()]
        print(f"{RANKS} ranks, {SECONDS:g} s, load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        time.sleep(SETTLE_S)
        missed = measure(
            {
                "node supervisor": {"loop": node, "clerk": run.clerk(node), "guard": guard},
                "leader": {"loop": leader, "clerk": run.clerk(leader)},
            }
        )
        (run.work / "finish").touch()
        run.until_over()
    return missed


if __name__ == "__main__":
    sys.exit(main())
