"""`make bench`: runs every bench_*.py of this folder in turn, each in a process of its own, and says which of them missed its figure.

A bench prints its own lines and exits 0 when its figures hold. Names on the command line choose: `make bench ARGS=beat`. Those that take
minutes or gigabytes run only when they are named.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMED_ONLY = {"checkpoint"}


def main(wanted: list[str]) -> int:
    names = sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))
    chosen = [name for name in names if short(name) in (wanted or {*map(short, names)} - NAMED_ONLY)]
    if unknown := {*wanted} - {*map(short, names)}:
        print(f"no such bench: {', '.join(sorted(unknown))}; there is {', '.join(names)}", file=sys.stderr)
        return 2
    missed = [name for name in chosen if run(name) != 0]
    print(f"benches: {len(chosen) - len(missed)} held, {len(missed)} missed{': ' if missed else ''}{', '.join(missed)}")
    return 1 if missed else 0


def short(name: str) -> str:
    return name.removeprefix("bench_")


def run(name: str) -> int:
    print(f"== {short(name)}", flush=True)
    return subprocess.run([sys.executable, "-m", f"tests.bench.{name}"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
