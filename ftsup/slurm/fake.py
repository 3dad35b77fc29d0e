"""The Slurm port in memory, for tests of ftsup and of its users: nothing runs, and time passes only when told.

It keeps the contract suite's rules, which a real Slurm's behaviour wrote (`tests/contract/`). A job's end is told with
`finish`; everything else (waiting, completing, the time limit, requeues) follows from `advance`.

    slurm = FakeSlurm()
    job = slurm.submit(Path("job.sh"), args=["-N2"])
    slurm.advance(1)
    slurm.finish(job, exit_code=3)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from math import inf
from pathlib import Path

from msgspec.structs import replace

from ftsup.errors import Refused, Unavailable
from ftsup.ports import Found, Job, JobState, Node, NodeState, Partition
from ftsup.slurm.commands import SOON_S, scrubbed
from ftsup.slurm.hostlist import compress, expand
from ftsup.slurm.jobs import FINISHED, duration_s
from ftsup.slurm.queue import words_of

_LETTERS = {"N": "nodes", "J": "job-name", "t": "time", "x": "exclude", "H": "hold", "p": "partition", "w": "nodelist"}
_FLAGS = {"hold", "requeue", "no-requeue"}
_NAMES = {"nodes", "job-name", "time", "exclude", "partition", "nodelist", "dependency", "array", *_FLAGS}


def array_tasks(spec: str) -> list[int]:
    """The tasks of `--array=0-6:2,9%2`; all of them may run at once here."""
    found: set[int] = set()
    for part in filter(None, spec.partition("%")[0].split(",")):
        span, _, stride = part.partition(":")
        first, _, last = span.partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(stride or 1)))
    return sorted(found)


@dataclass(kw_only=True)
class Record:
    """What the fake knows about one job. Times are on the fake's clock."""

    job_id: str
    name: str
    num_nodes: int
    limit_s: float | None
    requeueable: bool
    eligible_s: float
    env: dict[str, str]
    script: str = ""
    words: tuple[str, ...] = ()
    """What the script was given."""
    after: tuple[str, ...] = ()
    """Jobs that have to be over before."""
    excluded: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    state: JobState = JobState.PENDING
    held: bool = False
    why: str = ""
    """Slurm's reason while it waits, where a test wants another one."""
    restarts: int = 0
    nodes: tuple[str, ...] = ()
    started_s: float = 0.0
    ended_s: float = 0.0
    completing_until_s: float | None = None
    preempt_s: float | None = None
    """A preemption with grace: when the job is ended."""
    preempted: bool = False
    comes_back: bool = True
    """The partition's PreemptMode is REQUEUE, and not CANCEL."""
    exit_code: int = 0
    exit_signal: int | None = None

    @property
    def completing(self) -> bool:
        """Its processes are ending."""
        return self.completing_until_s is not None


@dataclass(kw_only=True)
class FakeSlurm:
    """`ports.Slurm`. Set the fields as the test needs them, at any time."""

    names: Sequence[str] = ("n1", "n2", "n3", "n4")
    start_delay_s: float = 0.5
    completing_s: float = 1.0
    """How long a job's processes take to end."""
    begin_wait_s: float = 121.0
    """How long a requeued job waits (reason BeginTime)."""
    settings: dict[str, str] = field(
        default_factory=lambda: {
            "KillWait": "30 sec",
            "ProctrackType": "proctrack/cgroup",
            "SlurmdTimeout": "300 sec",
            "UnkillableStepTimeout": "60 sec",
        }
    )
    away: bool = False
    """The controller answers nobody."""
    refuse_requeues: int = 0
    """How many of the next requeues are refused."""
    now_s: float = 0.0
    jobs: dict[str, Record] = field(default_factory=dict)
    node_states: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Slurm's word and the reason for each node that is not IDLE."""
    partition_list: Sequence[Partition] = ()
    """Empty: there is one, main, with all nodes."""
    gpus: int = 0
    """Of each node."""
    shows_words: bool = True
    """What a script was given is to be seen; not since Slurm 24.11."""
    ids: Iterable[int] = field(default_factory=lambda: itertools.count(1))
    """Of the jobs to come."""

    # What a test does.

    def advance(self, seconds: float) -> None:
        """Let time pass, and everything happen that is due until then, in order."""
        until = self.now_s + seconds
        while due := sorted(when for when in self._instants() if self.now_s < when <= until):
            self.now_s = due[0]
            self._settle()
        self.now_s = until
        self._settle()

    def finish(self, job_id: str, *, exit_code: int = 0, signal: int | None = None) -> None:
        """The script of a running job ends."""
        record = self.jobs[job_id]
        assert record.state is JobState.RUNNING, record
        record.exit_code, record.exit_signal = exit_code, signal
        self._end(record, JobState.FAILED if exit_code or signal else JobState.COMPLETED, takes_s=0.0)

    def hold(self, job_id: str) -> None:
        """What `scontrol hold` does."""
        self.jobs[job_id].held = True

    def preempt(self, job_id: str, *, grace_s: float = 0.0, requeue: bool = True) -> None:
        """Another job takes its nodes after so long; requeued, or (PreemptMode=CANCEL) ended for good."""
        record = self.jobs[job_id]
        assert record.state is JobState.RUNNING, record
        record.preempted, record.preempt_s, record.comes_back = True, self.now_s + grace_s, requeue
        self._settle()

    def forget(self, job_id: str) -> None:
        """Slurm remembers finished jobs for MinJobAge only."""
        del self.jobs[job_id]

    # The port.

    def submit(
        self,
        script: Path,
        *,
        args: Sequence[str] = (),
        words: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        test_only: bool = False,
    ) -> str:
        """Reads the few options that it knows from `args` and the script's #SBATCH lines; others change nothing."""
        self._answers()
        options = self._options(script, args)
        count = int(options.get("nodes", "1").split("-")[0])
        excluded = expand(options.get("exclude", ""))
        if options.get("partition", "main") != "main":
            raise Refused("sbatch: Batch job submission failed: Invalid partition name specified")
        if not set(excluded) <= set(self.names):
            raise Refused("sbatch: Batch job submission failed: Invalid node name specified")
        if test_only:
            if count > len(self.names) - len(excluded):
                raise Refused("sbatch: allocation failure: Requested node configuration is not available")
            return f"Job 1 to start at {self.now_s:g} using {count} processors on nodes {compress(self.names[:count])} in partition main"
        number = str(next(iter(self.ids)))
        tasks = [f"{number}_{task}" for task in array_tasks(options.get("array", ""))]
        for job_id in tasks or [number]:
            self.jobs[job_id] = replaced(self._record(job_id, script, options, env or {}), words=tuple(words))
        return number

    def _record(self, job_id: str, script: Path, options: Mapping[str, str], env: Mapping[str, str]) -> Record:
        return Record(
            job_id=job_id,
            name=options.get("job-name", getattr(script, "name", "")),
            num_nodes=int(options.get("nodes", "1").split("-")[0]),
            limit_s=duration_s(options.get("time", "UNLIMITED")),
            requeueable="no-requeue" not in options,
            held="hold" in options,
            excluded=expand(options.get("exclude", "")),
            wanted=expand(options.get("nodelist", "")),
            eligible_s=self.now_s + self.start_delay_s,
            env=scrubbed(env),
            script=str(script),
            after=tuple(options.get("dependency", "").split(":")[1:]),
        )

    def show(self, job_id: str) -> Job:
        """COMPLETING hides the base state, as in a real Slurm's text."""
        self._answers()
        record = self.jobs.get(job_id)
        if record is None:
            return Job(job_id=job_id, state=JobState.GONE)
        active = record.state is JobState.RUNNING
        waits = record.eligible_s > self.now_s and record.restarts > 0
        reason = record.why or ("JobHeldUser" if record.held else "BeginTime" if waits else "")
        pending = record.state is JobState.PENDING and not record.completing
        return Job(
            job_id=job_id,
            state=JobState.UNKNOWN if record.completing else record.state,
            completing=record.completing,
            reason=reason if pending else "",
            restarts=record.restarts,
            nodes=record.nodes,
            excluded=record.excluded,
            batch_host=record.nodes[0] if record.nodes else "",
            num_nodes=record.num_nodes,
            run_s=(self.now_s if active else record.ended_s) - record.started_s if record.nodes and not pending else 0.0,
            limit_s=record.limit_s,
            ends_in_s=self._end_s(record) - self.now_s if active and not record.completing and self._end_s(record) < inf else None,
            preempted=record.preempted,
            starts_in_s=max(0.0, record.eligible_s - self.now_s) if pending and waits and not record.held else None,
            exit_code=record.exit_code,
            exit_signal=record.exit_signal,
            requeueable=record.requeueable,
            name=record.name,
            partition="main",
        )

    def queue(self) -> list[Job]:
        """As squeue shows them."""
        told = {"starts_in_s": None, "ends_in_s": None, "preempted": False}
        left_out = told | {"excluded": (), "exit_code": None, "exit_signal": None, "requeueable": True}
        return [replace(self.show(job_id), **left_out) for job_id in self.jobs]

    def requeue(self, job_id: str, *, ended: bool = False) -> None:
        """`scontrol requeue incomplete`, or without that word."""
        record = self._known(job_id)
        if self.refuse_requeues > 0:
            self.refuse_requeues -= 1
            raise Refused(f"scontrol requeue incomplete: Access/permission denied for job {job_id}")
        if record.state is not JobState.RUNNING and not ended:
            return
        if not record.requeueable:
            raise Refused(f"scontrol requeue incomplete: Requested operation is presently disabled for job {job_id}")
        if record.state is JobState.PENDING:
            raise Refused(f"scontrol requeue: Job is pending execution for job {job_id}")
        self._requeue(record)

    def cancel(self, job_id: str) -> None:
        """A pending job is over at once; a job being requeued does not come back."""
        self._answers()
        for record in [record for name, record in self.jobs.items() if job_id in {name, name.partition("_")[0]}]:
            self._cancel(record)

    def _cancel(self, record: Record) -> None:
        if record.state in FINISHED:
            return
        if record.state is JobState.RUNNING:
            record.exit_signal = 15
            self._end(record, JobState.CANCELLED, takes_s=self.completing_s)
        else:
            record.state = JobState.CANCELLED

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        """As `node_states` says, else IDLE."""
        self._answers()
        for name in names:
            if name not in self.names:
                raise Refused(f"scontrol show node: Node {name} not found")
        return [self._node(name) for name in names or self.names]

    def partitions(self) -> list[Partition]:
        """`partition_list`."""
        self._answers()
        return list(self.partition_list) or [Partition(name="main", default=True, nodes=tuple(self.names))]

    def avoid(self, job_id: str, nodes: Sequence[str], *, drop: Sequence[str] = ()) -> None:
        """Merged with what the job avoids already."""
        record = self._pending(job_id)
        for name in nodes:
            if name not in self.names:
                raise Refused(f"scontrol update: Invalid node name specified for job {job_id}")
        record.excluded = tuple(dict.fromkeys(name for name in (*record.excluded, *nodes) if name in nodes or name not in drop))

    def find(self, script: Path) -> list[Found]:
        """By the path that was submitted."""
        self._answers()
        found = []
        for record in self.jobs.values():
            words = words_of(" ".join((record.script, *(record.words if self.shows_words else ()))), script)
            if words is not None:
                waits = record.after if record.state is JobState.PENDING and self._waits(record) else ()
                found.append(Found(job_id=record.job_id.replace("_", ""), words=words if self.shows_words else waits))
        return found

    def config(self) -> dict[str, str]:
        """`settings`."""
        self._answers()
        return dict(self.settings)

    def release(self, job_id: str) -> None:
        """Of a running job: nothing happens."""
        record = self._known(job_id)
        if record.state in FINISHED:
            raise Refused(f"scontrol release: Job has already finished for job {job_id}")
        if "MaxRequeue" in record.why:
            raise Refused(f"scontrol release: Access/permission denied for job {job_id}")
        record.held, record.why = False, ""

    def start_now(self, job_id: str) -> None:
        """Refused while COMPLETING."""
        record = self._pending(job_id)
        if record.completing:
            raise Refused(f"job {job_id} is still ending on its nodes")
        record.eligible_s = self.now_s + SOON_S

    # How it works.

    def _answers(self) -> None:
        if self.away:
            raise Unavailable("Unable to contact slurm controller (connect failure)")

    def _known(self, job_id: str) -> Record:
        self._answers()
        if job_id not in self.jobs:
            raise Refused(f"Invalid job id specified for job {job_id}")
        return self.jobs[job_id]

    def _pending(self, job_id: str) -> Record:
        record = self._known(job_id)
        if record.state in FINISHED:
            raise Refused(f"scontrol update: Job has already finished for job {job_id}")
        if record.state is not JobState.PENDING:
            raise Refused(f"scontrol update: Job is no longer pending execution for job {job_id}")
        return record

    def _node(self, name: str) -> Node:
        raw, reason = self.node_states.get(name, ("IDLE", ""))
        state = NodeState.DOWN if "DOWN" in raw else NodeState.DRAINED if "DRAIN" in raw else NodeState.UP
        return Node(name=name, state=state, raw=raw, reason=reason, gpus=self.gpus, cpus=8)

    def _end(self, record: Record, state: JobState, *, takes_s: float) -> None:
        record.state = state
        record.ended_s = self.now_s
        record.completing_until_s = self.now_s + takes_s
        self._settle()

    def _requeue(self, record: Record) -> None:
        record.restarts += 1
        record.preempted, record.preempt_s = False, None
        if record.completing:
            record.state = JobState.PENDING
        else:
            self._end(record, JobState.PENDING, takes_s=self.completing_s if record.state is JobState.RUNNING else 0.0)

    @staticmethod
    def _end_s(record: Record) -> float:
        """EndTime."""
        limit_s = inf if record.limit_s is None else record.started_s + record.limit_s
        return limit_s if record.preempt_s is None else min(limit_s, record.preempt_s)

    def _instants(self) -> Iterable[float]:
        for record in self.jobs.values():
            if record.completing_until_s is not None:
                yield record.completing_until_s
            elif record.state is JobState.PENDING:
                yield record.eligible_s
            elif record.state is JobState.RUNNING and self._end_s(record) < inf:
                yield self._end_s(record)

    def _settle(self) -> None:
        """Do what is due now."""
        for record in self.jobs.values():
            if record.completing_until_s is not None and record.completing_until_s <= self.now_s:
                record.completing_until_s = None
                if record.state is JobState.PENDING:
                    record.nodes, record.eligible_s = (), self.now_s + self.begin_wait_s
            if record.state is JobState.RUNNING and record.preempt_s is not None and record.preempt_s <= self.now_s:
                self._take(record)
            if record.state is JobState.RUNNING and record.limit_s is not None and record.started_s + record.limit_s <= self.now_s:
                record.state, record.ended_s, record.exit_signal = JobState.TIMEOUT, self.now_s, 15
                record.completing_until_s = self.now_s + self.completing_s
            if record.state is JobState.PENDING and not record.completing and not record.held and record.eligible_s <= self.now_s:
                self._start(record)

    def _take(self, record: Record) -> None:
        if record.comes_back and record.requeueable:
            self._requeue(record)
        else:
            record.preempt_s, record.exit_signal = None, 15
            self._end(record, JobState.PREEMPTED, takes_s=self.completing_s)

    def _waits(self, record: Record) -> bool:
        """For a job that has not ended."""
        return any(job in self.jobs and (self.jobs[job].state not in FINISHED or self.jobs[job].completing) for job in record.after)

    def _start(self, record: Record) -> None:
        if self._waits(record):
            record.eligible_s = self.now_s + 1.0
            return
        free = [name for name in self.names if name not in record.excluded and self._node(name).state is NodeState.UP]
        free.sort(key=lambda name: name not in record.wanted)
        if len(free) >= record.num_nodes and set(record.wanted) <= set(free):
            record.state, record.nodes, record.started_s = JobState.RUNNING, tuple(free[: record.num_nodes]), self.now_s
            record.exit_code, record.exit_signal = 0, None
            record.preempted, record.preempt_s = False, None

    @staticmethod
    def _options(script: Path, args: Sequence[str]) -> dict[str, str]:
        try:
            text = script.read_text()
        except OSError as error:
            raise Refused(f"sbatch: Unable to open file {script}") from error
        if not text.startswith("#!"):
            raise Refused("sbatch: This does not look like a batch script")
        lines = [line.split(maxsplit=1)[1].strip() for line in text.splitlines() if line.startswith("#SBATCH ")]
        options: dict[str, str] = {}
        words = iter([*itertools.chain.from_iterable(line.replace("=", " ", 1).split(maxsplit=1) for line in lines), *args])
        for word in (word for word in words if word.startswith("-")):
            name, _, value = word[2:].partition("=") if word.startswith("--") else (_LETTERS.get(word[1:2], ""), "", word[2:])
            if name in _NAMES:
                options[name] = value or ("" if name in _FLAGS else next(words, ""))
        return options
