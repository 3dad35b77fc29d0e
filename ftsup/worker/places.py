"""Names that the supervisor and the ranks agree on: environment variables, file names of an attempt, the signal for stacks.

Names only, standard library only, Python >= 3.9: both sides import it, and it is copied beside the training code.
"""

from __future__ import annotations

import signal
from pathlib import Path

MARK = "FTSUP_MARK"
BEATS = "FTSUP_BEATS"
OUT_DIR = "FTSUP_OUT_DIR"
RESUME_FROM = "FTSUP_RESUME_FROM"
BASE_STEP = "FTSUP_BASE_STEP"
SUPERVISOR = "FTSUP_SUPERVISOR"
WARNING = "FTSUP_WARNING"

STACK_SIGNAL = signal.SIGRTMIN + 7
"""Makes a rank write the stacks of all its threads. Kills a process that has no handler for it: look at SigCgt first."""


def beat_path(beats: Path, rank: int) -> Path:
    """The rank's beat file."""
    return beats / f"beat.{rank}"


def exit_path(beats: Path, rank: int) -> Path:
    """The rank's exit record: there only if Python got to the end."""
    return beats / f"exit.{rank}.json"


def stacks_path(beats: Path, rank: int) -> Path:
    """Where faulthandler writes: on `STACK_SIGNAL`, and by itself on SIGSEGV, SIGFPE, SIGABRT, SIGBUS and SIGILL."""
    return beats / f"stacks.{rank}"


def out_path(out_dir: Path, rank: int) -> Path:
    """What the rank prints, stdout and stderr in one file."""
    return out_dir / f"out.{rank}"


def nccl_path(out_dir: Path, rank: int) -> Path:
    """What NCCL says on this rank at level WARN; a user who raised the level, or named a file, gets it where he wants it."""
    return out_dir / f"nccl.{rank}"
