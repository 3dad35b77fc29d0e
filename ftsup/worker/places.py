"""Names that the supervisor and the ranks agree on: environment variables, file names of an attempt, the signal for stacks.

Names only, standard library only, Python >= 3.9: both sides import it, and it is copied beside the training code. A folder may be a Path
or a str: pathlib would cost the start of a rank 10 ms.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # without importing typing, as dear as pathlib
if TYPE_CHECKING:
    from pathlib import Path
    from typing import TypeVar

    Place = TypeVar("Place", str, Path)

MARK = "FTSUP_MARK"
BEATS = "FTSUP_BEATS"
OUT_DIR = "FTSUP_OUT_DIR"
RESUME_FROM = "FTSUP_RESUME_FROM"
BASE_STEP = "FTSUP_BASE_STEP"
SUPERVISOR = "FTSUP_SUPERVISOR"
WARNING = "FTSUP_WARNING"

STACK_SIGNAL = 41
"""Makes a rank write the stacks of all its threads: glibc's SIGRTMIN + 7, as a number because a container's libc may count from another
one. Kills a process that has no handler for it: look at SigCgt first."""


def beat_path(beats: Place, rank: int) -> Place:
    """The rank's beat file."""
    return _below(beats, f"beat.{rank}")


def exit_path(beats: Place, rank: int) -> Place:
    """The rank's exit record: there only if Python got to the end."""
    return _below(beats, f"exit.{rank}.json")


def stacks_path(beats: Place, rank: int) -> Place:
    """Where faulthandler writes: on `STACK_SIGNAL`, and by itself on SIGSEGV, SIGFPE, SIGABRT, SIGBUS and SIGILL."""
    return _below(beats, f"stacks.{rank}")


def out_path(out_dir: Place, rank: int) -> Place:
    """What the rank prints, stdout and stderr in one file."""
    return _below(out_dir, f"out.{rank}")


def nccl_path(out_dir: Place, rank: int) -> Place:
    """What NCCL says on this rank at level WARN; a user who raised the level, or named a file, gets it where he wants it."""
    return _below(out_dir, f"nccl.{rank}")


def flight_prefix(out_dir: Place) -> Place:
    """What torch's flight recorder puts before a rank's number, to have the file that it leaves when a collective is late."""
    return _below(out_dir, "flight.")


def _below(folder: Place, name: str) -> Place:
    return type(folder)(os.path.join(folder, name))
