"""The programs of the mock Slurm by name, and the small executables that start them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ftsup.mockslurm import queue, recovery, sbatch, scontrol, srun
from ftsup.mockslurm.store import Store

Program = Callable[[Store, Sequence[str]], int]
PROGRAMS: dict[str, Program] = {
    "sbatch": sbatch.main,
    "srun": srun.main,
    "scontrol": scontrol.main,
    "squeue": queue.squeue,
    "sinfo": queue.sinfo,
    "scancel": queue.scancel,
}


def main(name: str, root: str) -> None:
    """Run one of them with this process's arguments; the state directory is the one its executable lies in."""
    os.environ[recovery.STATE] = root
    try:
        code = PROGRAMS[name](Store(Path(root)), sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(1)
    except KeyboardInterrupt:
        os._exit(130)
    raise SystemExit(code)


def write_programs(store: Store) -> None:
    """Make the directory of executables. A shell line each: interpreters in deep directories do not fit into a `#!` line."""
    for name in PROGRAMS:
        command = recovery.python_command(f"from ftsup.mockslurm.main import main; main({name!r}, {str(store.root)!r})")
        file = store.bin / name
        new = file.with_suffix(".new")
        new.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
        new.chmod(0o700)
        new.replace(file)
