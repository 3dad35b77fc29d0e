"""`make bench`: runs every bench_*.py of this folder in turn, each in a process of its own, and says which of them missed its figure.

A bench prints its own lines and exits 0 when its figures hold. Names on the command line choose: `make bench ARGS=beat`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main(wanted: list[str]) -> int:
    names = sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))
    chosen = [name for name in names if not wanted or name.removeprefix("bench_") in wanted]
    if unknown := {*wanted} - {name.removeprefix("bench_") for name in names}:
        print(f"no such bench: {', '.join(sorted(unknown))}; there is {', '.join(names)}", file=sys.stderr)
        return 2
    missed = [name for name in chosen if run(name) != 0]
    print(f"benches: {len(chosen) - len(missed)} held, {len(missed)} missed{': ' if missed else ''}{', '.join(missed)}")
    return 1 if missed else 0


def run(name: str) -> int:
    print(f"== {name.removeprefix('bench_')}", flush=True)
    return subprocess.run([sys.executable, "-m", f"tests.bench.{name}"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
