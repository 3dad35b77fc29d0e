"""The shapes through which the flows reach the world: Clock, Disk, Slurm, and what Slurm says about jobs and nodes.

Shapes only: no behaviour, and nothing here knows a process, a file or a command. Real ones live in the rooms of layer 3 and
in `supervisor/`; the in-memory ones in `ftsup/slurm/fake.py` and `tests/world.py` (which do not inherit these, so that a
forgotten method is an error and not None).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import BinaryIO, Protocol

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


JOB_IDS = 1 << 26
"""So many a cluster has at most."""
_LIVES = frozenset({JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN})


def job_number(job_id: str) -> int:
    """What tells which of a run's jobs is the newer one (`is_newer`): of an array's task that of the array; 0 for what is no job id."""
    head = job_id.partition("_")[0]
    return int(head) if head.isdecimal() else 0


def is_newer(number: int, other: int) -> bool:
    """Whether Slurm took the job of this number after the other one. A 0 is no job, and older than any.

    After MaxJobId (67,043,327 unless a site lowers it) Slurm begins again at FirstJobId: of two jobs of one run, more than half
    of all ids apart, the lower one is the newer. Not seen where a site wraps its ids below that half.
    """
    return number != 0 and (other == 0 or 0 < (number - other) % JOB_IDS < JOB_IDS // 2)


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
    """Time limit; None: unlimited or unknown."""
    ends_in_s: float | None = None
    """For a running job: how long until its EndTime, which an admin or a preemption with grace may move; None: no end, or not known."""
    preempted: bool = False
    """This grant is being taken, or was taken, for another job (Slurm's PreemptTime). Not said any more of one that was requeued for it."""
    starts_in_s: float | None = None
    """For a pending job: how long until its StartTime (BeginTime wait), when Slurm says."""
    exit_code: int | None = None
    exit_signal: int | None = None
    requeueable: bool = True
    name: str = ""
    partition: str = ""
    """Several with commas while it waits."""
    constraint: str = ""
    """--constraint, as Slurm prints it."""
    gres: str = ""
    """What it wants of each node beside CPUs and memory: `gres:gpu:4`."""
    required: tuple[str, ...] = ()
    """--nodelist."""
    unclear: str = ""
    """Another wish that decides which nodes can run it, in Slurm's words: a reservation, GPUs for all of the job."""

    @property
    def held(self) -> bool:
        """Pending until somebody releases it; JobHoldMaxRequeue says it otherwise than the rest."""
        return self.state is JobState.PENDING and any(word in self.reason.lower() for word in ("held", "jobhold"))

    @property
    def lives(self) -> bool:
        """Slurm still has it in its hands: it waits, runs, or is on its way back to the queue for all we know."""
        return self.completing or self.state in _LIVES


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
    gpus: int = 0
    cpus: int = 0
    features: tuple[str, ...] = ()
    gres: str = ""
    """Slurm's words: `gpu:a100:4(S:0-1),shard:16`."""


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """What Slurm says about one partition."""

    name: str
    default: bool = False
    up: bool = True
    nodes: tuple[str, ...] = ()
    limit_s: float | None = None
    """The longest that a job may run; None: no limit."""
    accounts: tuple[str, ...] = ()
    """Only these may use it; none named: all."""
    preempt_mode: str = ""
    """Slurm's words: OFF, REQUEUE, CANCEL, SUSPEND, GANG,SUSPEND."""
    grace_s: float = 0.0
    """From the SIGTERM of a preemption to its end."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A job of ours, found by the file that it was submitted from."""

    job_id: str
    """A plain number, also of an array's task."""
    words: tuple[str, ...] = ()
    """What the script was given. Since 24.11 Slurm does not show it: then, while it waits for one other job alone, that job."""


class Slurm(Protocol):
    """All that ftsup asks of Slurm. Every call may raise Unavailable, Refused or Unreadable, and nothing else.

    `submit` raises Unanswered (an Unavailable) where the job may be in the queue all the same.

    Calls block (bounded by a deadline inside); a supervisor's loop therefore runs them in a child process.
    """

    def submit(
        self,
        script: Path,
        *,
        args: Sequence[str] = (),
        words: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        test_only: bool = False,
    ) -> str:
        """Submit a batch script file; the job id. `args` go to sbatch before the script, `words` to the script itself. `env`: the
        whole environment of sbatch (default: ours, with SBATCH_*, SLURM_*, SRUN_* scrubbed either way; SLURM_CONF stays). `test_only`:
        ask whether it would be accepted; returns Slurm's sentence.
        """

    def show(self, job_id: str) -> Job:
        """The job as it is now, or as accounting says that it ended; GONE when Slurm answers that it does not know it (any more)."""

    def queue(self) -> list[Job]:
        """Every job of this user in one question, ended ones too while Slurm remembers them. Without `starts_in_s`,
        `ends_in_s`, `preempted`, `excluded`, exit codes and `requeueable`, which only `show` tells.
        """

    def requeue(self, job_id: str, *, ended: bool = False) -> None:
        """Ask to requeue, only if it is running (`incomplete`). A 0 proves nothing: believe `show` afterwards.

        `ended`: also what Slurm is ending or has ended by itself. That brings back *whatever* has ended, cancelled or finished: only for
        a job that Slurm has just said to be preempted, or over its time limit.
        """

    def cancel(self, job_id: str) -> None:
        """scancel. Of a job that is already over: nothing happens."""

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        """The named nodes, or all."""

    def partitions(self) -> list[Partition]:
        """All that this user may see."""

    def avoid(self, job_id: str, nodes: Sequence[str], *, drop: Sequence[str] = ()) -> None:
        """Add nodes to the job's exclusion list, and take `drop` out of it: read, merge, write, read back. Refused while the job runs."""

    def find(self, script: Path) -> list[Found]:
        """Our jobs that were submitted from this file, as far as Slurm remembers them, oldest first. A file is known by its name and
        those of the two folders that it is in: where the disk is mounted may differ between two hosts.
        """

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


class What(Enum):
    """What stands behind a name, links followed."""

    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"
    """A pipe, a socket, a device, a link that leads nowhere."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What stat says, links followed. Two equal ones some time apart: nobody wrote in between, as far as a disk can tell."""

    what: What
    size_bytes: int
    mtime_ns: int
    inode: int


class Disk(Protocol):
    """All that the checkpoint room asks of a disk. Every call may raise OSError, and block as long as the disk does."""

    def look(self, path: Path) -> Facts | None:
        """What stands there; None: nothing does."""

    def names(self, folder: Path) -> dict[str, What]:
        """What the folder holds, sorted; no file is touched. FileNotFoundError or NotADirectoryError when it is no folder."""

    def open(self, path: Path) -> BinaryIO:
        """For reading, buffered, seekable."""

    def pieces(self, path: Path, *, size_bytes: int, stay_cached: bool) -> Iterator[memoryview]:
        """The whole file from its beginning, in pieces, all but the last `size_bytes` long; each lives until the next one.
        `stay_cached` false: what was not in the page cache before is not there afterwards.
        """

    def write_new(self, path: Path, data: bytes) -> None:
        """Make a file that is not there yet, and bring its bytes to the disk. FileExistsError when it is."""

    def rename(self, old: Path, new: Path) -> None:
        """Atomic. A file replaces a file; a folder only nothing, or an empty folder (ENOTEMPTY otherwise)."""

    def sync(self, path: Path) -> None:
        """Bring a file's bytes, or a folder's names, to the disk, whoever wrote them here."""

    def mkdir(self, folder: Path) -> None:
        """Make one folder that is not there yet; whoever may read the one above may read it."""

    def unlink(self, path: Path) -> None:
        """Remove a file or a link."""

    def rmdir(self, folder: Path) -> None:
        """Remove an empty folder."""
