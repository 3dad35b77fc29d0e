"""How long commands take to start, against an interpreter that imports click, yaml and msgspec: at most twice as long.

Slurm's commands are stand-ins here that answer at once: what is measured is ftsup, not a controller or the mock (an interpreter each).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 2.0
TAB_LIMIT = 3.0
"""Such an interpreter takes some 60 ms, and 200 ms are still at once."""
PAIRS = 7
BASE = [sys.executable, "-c", "import click, yaml, msgspec"]
COMMANDS = {
    "ftsup --help": ["--help"],
    "config check": ["config", "check", "configs/small.yaml"],
    "submit --dry-run": ["submit", "--dry-run", "--cluster", "slurm", "configs/small.yaml"],
}
TABS = ("ftsup ", "ftsup status ", "ftsup checkpoints ", "ftsup demo --")
"""Lines at whose end a shell asks what to propose."""


def took_s(argv: list[str], env: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, check=True)
    return time.perf_counter() - began


def stand_ins(folder: Path) -> dict[str, str]:
    """An environment whose Slurm commands say yes."""
    for name in ("sbatch", "scontrol", "squeue", "sinfo", "scancel"):
        (folder / name).write_text("#!/bin/sh\nexit 0\n")
        (folder / name).chmod(0o755)
    mine = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # it would compile us at each start
    return {**mine, "PATH": f"{folder}:{os.environ['PATH']}"}


def tab(line: str) -> dict[str, str]:
    """How bash asks."""
    return {"_FTSUP_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}


def measure(argv: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Median ratio to the base, and the command's median time. Taken in turns, so that a busy moment hits both of a pair."""
    took_s(BASE, env), took_s(argv, env)  # warm
    pairs = [(took_s(BASE, env), took_s(argv, env)) for _ in range(PAIRS)]
    return statistics.median(command / base for base, command in pairs), statistics.median(command for _, command in pairs)


def main() -> int:
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        env = stand_ins(Path(folder))
        asked = [(name, args, {}, LIMIT) for name, args in COMMANDS.items()] + [
            (f"TAB after {line!r}", [], tab(line), TAB_LIMIT) for line in TABS
        ]
        for name, args, more, limit in asked:
            ratio, command_s = measure([sys.executable, "-m", "ftsup", *args], {**env, **more})
            missed += ratio > limit
            print(f"{name:<31} {command_s * 1000:5.0f} ms, {ratio:.2f}x of an interpreter with click, yaml, msgspec (limit {limit:.0f}x)")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
