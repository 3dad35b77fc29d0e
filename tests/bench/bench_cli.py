"""How long commands take to start, against an interpreter that imports click, yaml and msgspec: at most twice as long."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 2.0
PAIRS = 7
BASE = [sys.executable, "-c", "import click, yaml, msgspec"]
COMMANDS = {
    "ftsup --help": ["--help"],
    "config check": ["config", "check", "configs/small.yaml"],
    "submit --dry-run": ["submit", "--dry-run", "--cluster", "mock", "configs/small.yaml"],
}


def took_s(argv: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(argv, cwd=ROOT, capture_output=True, check=True)
    return time.perf_counter() - began


def measure(argv: list[str]) -> tuple[float, float]:
    """Medians of the base and of the command, taken in turns so that a busy moment hits both."""
    took_s(BASE), took_s(argv)  # warm
    pairs = [(took_s(BASE), took_s(argv)) for _ in range(PAIRS)]
    return statistics.median(base for base, _ in pairs), statistics.median(command for _, command in pairs)


def main() -> int:
    missed = 0
    for name, args in COMMANDS.items():
        base_s, command_s = measure([sys.executable, "-m", "ftsup", *args])
        ratio = command_s / base_s
        missed += ratio > LIMIT
        print(f"{name:<18} {command_s * 1000:5.0f} ms, {ratio:.2f}x of an interpreter with click, yaml, msgspec ({base_s * 1000:.0f} ms)")
    print(f"limit: {LIMIT:.1f}x")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
