"""The shapes through which the flows reach the world: Clock, Slurm, and what Slurm says about jobs and nodes.

Shapes only: no behaviour, and nothing here knows a process, a file or a command. Real ones live in the rooms of layer 3 and
in `supervisor/`; the in-memory ones in `ftsup/slurm/fake.py` and `tests/world.py` (which do not inherit these, so that a
forgotten method is an error and not None).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Protocol

import msgspec


class JobState(Enum):
    """Base state of a job, Slurm's own words. COMPLETING is `Job.completing`, beside UNKNOWN."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    GONE = "GONE"
    """Slurm answered, and does not know the job (any more): never said of a look-up that failed."""
    UNKNOWN = "UNKNOWN"
    """Slurm answered a word that we do not know, or COMPLETING, which hides whether the job ends or is being requeued."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What Slurm says about one job. Times are durations from Slurm's own clock; no clock of ours is compared with them."""

    job_id: str
    """As `scontrol` takes it: `123`, or `120_7` for an array task."""
    state: JobState
    completing: bool = False
    reason: str = ""
    restarts: int = 0
    nodes: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    batch_host: str = ""
    num_nodes: int = 0
    run_s: float = 0.0
    limit_s: float | None = None
    """Time limit; None: unlimited or unknown. `limit_s - run_s` is what is left (an admin may move it)."""
    starts_in_s: float | None = None
    """For a pending job: how long until its StartTime (BeginTime wait), when Slurm says."""
    exit_code: int | None = None
    exit_signal: int | None = None
    requeueable: bool = True
    name: str = ""

    @property
    def held(self) -> bool:
        """Pending until somebody releases it."""
        return self.state is JobState.PENDING and "held" in self.reason.lower()


class NodeState(Enum):
    """What a node can do for us."""

    UP = "UP"
    """idle, mixed, allocated, completing: it runs jobs."""
    DRAINED = "DRAINED"
    """drain(ing), or reserved for maintenance: running jobs go on, no new ones."""
    DOWN = "DOWN"
    """down, not responding, failed, powered off."""
    UNKNOWN = "UNKNOWN"


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """What Slurm says about one node; `raw` is Slurm's own word, `reason` the admin's sentence."""

    name: str
    state: NodeState
    raw: str = ""
    reason: str = ""


class Slurm(Protocol):
    """All that ftsup asks of Slurm. Every call may raise Unavailable, Refused or Unreadable, and nothing else.

    Calls block (bounded by a deadline inside); a supervisor's loop therefore runs them in a child process.
    """

    def submit(self, script: Path, *, args: Sequence[str] = (), env: Mapping[str, str] | None = None, test_only: bool = False) -> str:
        """Submit a batch script file; the job id. `args` go to sbatch before the script. `env`: the whole environment
        of sbatch (default: ours, with SBATCH_*, SLURM_*, SRUN_* scrubbed either way; SLURM_CONF stays). `test_only`: ask
        whether it would be accepted; returns Slurm's sentence.
        """

    def show(self, job_id: str) -> Job:
        """The job as it is now; state GONE when Slurm answers that it does not know it."""

    def requeue(self, job_id: str) -> None:
        """Ask to requeue, only if it is running (`incomplete`). A 0 proves nothing: believe `show` afterwards."""

    def cancel(self, job_id: str) -> None:
        """scancel. Of a job that is already over: nothing happens."""

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        """The named nodes, or all."""

    def avoid(self, job_id: str, nodes: Sequence[str]) -> None:
        """Add nodes to the job's exclusion list: read, merge, write, read back. Refused while the job runs."""

    def config(self) -> dict[str, str]:
        """`scontrol show config` as it is printed, keys as Slurm spells them (`KillWait`: `5 sec`)."""

    def release(self, job_id: str) -> None:
        """Release a held job."""

    def start_now(self, job_id: str) -> None:
        """End the BeginTime wait of a requeued job that is pending: it starts in a few seconds. Not with `now`: a node that ended
        the job in this very second would refuse it, and it would be FAILED for good. Refused while it is COMPLETING.
        """


class Clock(Protocol):
    """Seconds on a clock that only goes forward and counts suspended time; and the wall time, for people only."""

    def now(self) -> float:
        """Seconds; only differences mean anything, only within one boot of one host."""

    def wall(self) -> str:
        """ISO 8601 with offset, to the millisecond."""
