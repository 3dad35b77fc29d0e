"""The programs of the mock Slurm by name, and the small executables that start them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ftsup.mockslurm import queue, recovery, salloc, sbatch, scontrol, srun
from ftsup.mockslurm.store import Store

Program = Callable[[Store, Sequence[str]], int]
PROGRAMS: dict[str, Program] = {
    "salloc": salloc.main,
    "sbatch": sbatch.main,
    "srun": srun.main,
    "scontrol": scontrol.main,
    "squeue": queue.squeue,
    "sinfo": queue.sinfo,
    "scancel": queue.scancel,
}


SHEBANG_MAX = 127
"""What every kernel reads of a first line."""


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
    """Make the directory of executables, which work with this interpreter and this ftsup wherever they are called."""
    for name in PROGRAMS:
        file = store.bin / name
        new = file.with_suffix(".new")
        new.write_text(_program(name, store), encoding="utf-8")
        new.chmod(0o700)
        new.replace(file)


def _program(name: str, store: Store) -> str:
    """Python at once where the kernel can start it so. Never dash between: it drops the functions that bash exports."""
    code = f"from ftsup.mockslurm.main import main; main({name!r}, {str(store.root)!r})"
    python, *rest = recovery.python_command(code)
    line = f"#!{python} -I\n"
    if len(line) <= SHEBANG_MAX and not any(letter.isspace() for letter in python):
        return f"{line}{rest[-1]}\n"
    return f'#!/bin/bash\nexec {shlex.join([python, *rest])} "$@"\n'
