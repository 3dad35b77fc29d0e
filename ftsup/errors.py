"""The tree of errors and the exit codes of our commands.

    FtsupError
      ConfigError        78   the configuration is wrong; `problems` holds every one of them
      SlurmError
        Unavailable      75   no answer (controller away, munge down, time-out): try again; says nothing about the job
          Unanswered     75   asked, and the answer was lost: it may have been done
        Refused           1   Slurm understood and said no
        Unreadable        1   an answer that we cannot read
      CheckpointError     1   Missing | Damaged | Busy
      LaunchError         1   the attempt could not be started
      RunError            1   the run directory is missing, foreign or broken
      RuleBroken         70   our own bug

A message says what happened, where, and what is allowed or what to do; the hint goes on a line of its own.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What our commands exit with."""

    OK = 0
    NO = 1
    USAGE = 2
    BUG = 70
    AGAIN = 75
    CONFIG = 78


class FtsupError(Exception):
    """Everything that ftsup raises for a person to read."""

    exit_code = Exit.NO

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ConfigError(FtsupError):
    """The configuration is wrong. One error carries all problems of a file, a line each."""

    exit_code = Exit.CONFIG


class SlurmError(FtsupError):
    """Something between us and Slurm."""


class Unavailable(SlurmError):
    """Slurm did not answer: says nothing about the job; worth another try."""

    exit_code = Exit.AGAIN


class Unanswered(Unavailable):
    """The request was on its way when the answer was lost: it may have been done. Look before another try."""


class Refused(SlurmError):
    """Slurm understood the request and said no."""


class Unreadable(SlurmError):
    """Slurm answered something that we cannot read."""


class CheckpointError(FtsupError):
    """Something with a checkpoint."""


class Missing(CheckpointError):
    """A file that a checkpoint needs is not there."""


class Damaged(CheckpointError):
    """Bytes of a checkpoint are not what they were."""


class Busy(CheckpointError):
    """Another live run owns the checkpoint directory."""


class LaunchError(FtsupError):
    """The attempt could not be started."""


class RunError(FtsupError):
    """The run directory is missing, foreign or broken."""


class RuleBroken(FtsupError):
    """Our own bug: an event that the machine has no rule for, or an invariant that does not hold."""

    exit_code = Exit.BUG
