"""The words of the mock Slurm: settings, faults, nodes, jobs, steps, and the world that holds them all.

Plain data that goes to the state file and back; the rules are in `rules`. Unlike ftsup's other values these structs are
mutable: a command loads the world under the lock, changes it, and the whole of it replaces the old one.
All instants are `time.time()` of this machine.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from ftsup.ports import JobState

BATCH = -5
"""The step id of the batch script, as Slurm numbers it."""


class Proctrack(Enum):
    """How processes are found when a signal is sent."""

    CGROUP = "cgroup"
    """Signals reach only the tasks themselves; SIGKILL reaches everything."""
    LINUXPROC = "linuxproc"
    """Every signal reaches every descendant; what lost its parents is not found."""


class PreemptMode(Enum):
    """What happens to a job whose nodes a job of a better partition wants."""

    OFF = "OFF"
    REQUEUE = "REQUEUE"
    CANCEL = "CANCEL"


class PartitionRec(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A partition beside the first one; each has all nodes."""

    tier: int = 1
    """PriorityTier: a higher one's jobs come first, and may preempt."""
    preempt: PreemptMode = PreemptMode.OFF
    grace_s: float = 0.0


class Settings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a site configures. The defaults are Slurm's own."""

    proctrack: Proctrack = Proctrack.CGROUP
    kill_wait_s: float = 30.0
    """From SIGTERM to SIGKILL."""
    begin_wait_s: float = 121.0
    """How long a requeued job waits (reason BeginTime): the credential's lifetime plus a second."""
    signal_early_s: float = 30.0
    """How much earlier than asked for the warning signal may come; here it always does."""
    limit_unit_s: float = 60.0
    """Time limits are rounded up to whole units; Slurm's is a minute, a test's may be a second."""
    away_delay_s: float = 9.0
    """How long a command tries before it says that the controller does not answer."""
    min_job_age_s: float = 300.0
    """How long a finished job is remembered."""
    unkillable_step_timeout_s: float = 60.0
    cluster_name: str = "mock"
    partition: str = "main"
    partitions: dict[str, PartitionRec] = {}
    """More than the first one."""
    send_user_signal: bool = False
    """A preemption with grace sends the warning signal that the job asked for, instead of SIGTERM."""


class Faults(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Faults that were ordered and are not used up."""

    away_until: float = 0.0
    """The controller answers nobody until then."""
    refuse_requeues: int = 0
    """How many of the next requeues are refused."""


class Ident(msgspec.Struct, frozen=True, kw_only=True):
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start: int


class NodeRec(msgspec.Struct, kw_only=True):
    """One virtual node; `down` and `drain` are what an admin or a fault made of it."""

    name: str
    down: bool = False
    drain: bool = False
    reason: str = ""
    reason_at: float = 0.0


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """A signal on its way to a job's processes."""

    number: int
    batch: bool = False
    """To the batch shell itself."""
    steps: bool = True
    """To the steps."""
    full: bool = False
    """To the batch script and its children: its process group, and no step."""
    step: int | None = None
    """To this step only."""
    everybody: bool = False
    """To every process of the job, however processes are tracked."""


class StepState(Enum):
    """Where a step is on its way."""

    WAITING = "WAITING"
    """Asked for by srun."""
    BUSY = "BUSY"
    """Asked for, but its nodes are busy with another step."""
    RUNNING = "RUNNING"
    DONE = "DONE"


class StepRec(msgspec.Struct, kw_only=True):
    """One step of a running job. What it runs lies in its own file, because that holds an environment."""

    step: int
    nodes: list[str]
    overlap: bool = False
    no_kill: bool = False
    state: StepState = StepState.WAITING
    stepds: dict[str, Ident] = {}


class ArrayRec(msgspec.Struct, frozen=True, kw_only=True):
    """Which task of which array a job is."""

    job: int
    task: int
    most: int = 0
    """So many of its tasks may run at once; 0: all."""
    tasks: list[int] = []


class JobRec(msgspec.Struct, kw_only=True):
    """One job, from sbatch until it is forgotten."""

    job: int
    name: str
    num_nodes: int
    partition: str = ""
    submit_at: float
    eligible_at: float
    options: dict[str, str] = {}
    interactive: bool = False
    """salloc's: what it runs is a child of salloc, not of a node; Slurm requeues no such job."""
    script: str = ""
    words: list[str] = []
    """What the script was given."""
    workdir: str = ""
    stdout: str = ""
    stderr: str = ""
    append: bool = False
    tasks_per_node: int = 1
    limit_s: float | None = None
    requeue: bool = True
    no_kill: bool = False
    excluded: list[str] = []
    required: list[str] = []
    array: ArrayRec | None = None
    after: list[tuple[str, str]] = []
    """What it waits for: `afterany`, and a job as people name it."""
    warn_signal: int = 0
    warn_s: float = 0.0
    warn_batch: bool = False

    state: JobState = JobState.PENDING
    completing: bool = False
    held: bool = False
    reason: str = "None"
    restarts: int = 0
    grant: int = 0
    """How many times it was given nodes."""
    launched: int = 0
    """The grant whose batch script was started."""
    nodes: list[str] = []
    accrue_at: float = 0.0
    start_at: float = 0.0
    end_at: float = 0.0
    warned: bool = False
    preempt_at: float = 0.0
    """When its nodes were wanted for another job."""
    suspend_at: float = 0.0
    """When it was suspended, or went on after that, the last time."""
    ran_s: float = 0.0
    """How long it had run then."""
    exit_status: int = 0
    """As wait() gives it."""
    kill_note: str = ""
    """Why its processes are being ended, in slurmstepd's words."""
    signals: list[Signal] = []
    steps: list[StepRec] = []
    next_step: int = 0
    runner: Ident | None = None

    @property
    def batch_host(self) -> str:
        """The node of the batch script."""
        return self.nodes[0] if self.nodes else ""

    @property
    def active(self) -> bool:
        """It holds nodes."""
        return self.completing or self.state in {JobState.RUNNING, JobState.SUSPENDED}

    @property
    def over(self) -> bool:
        """Nothing will happen to it any more, unless somebody requeues it."""
        return not self.completing and self.state not in {JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED}


class World(msgspec.Struct, kw_only=True):
    """Everything that the mock knows."""

    settings: Settings = msgspec.field(default_factory=Settings)
    faults: Faults = msgspec.field(default_factory=Faults)
    nodes: dict[str, NodeRec] = {}
    jobs: dict[int, JobRec] = {}
    next_job: int = 1
    limits: dict[int, int] = {}
    """Soft limits of whoever made it, which are those of its nodes: a job with --propagate=NONE gets them."""
    booted_at: float = 0.0


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What one step runs on every node, and how: the order that a stepd gets."""

    job: int
    step: int
    argv: list[str]
    env: dict[str, str]
    cwd: str
    nodes: list[str]
    tasks: list[int]
    """How many on each node."""
    stdout: str = ""
    """A file name with its patterns; empty: through srun."""
    stderr: str = ""
    append: bool = True
    umask: int = 0o022
    client: str = ""
    """Where srun listens."""
    kill_wait_s: float = 30.0
    cgroup: bool = True
