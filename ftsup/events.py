"""The words: what can happen (events), what can be ordered, and what can be decided. Frozen, JSON both ways.

This file owns their shapes and their log form, and decides nothing. `t` is seconds on the clock of the machine that handles
the event (a report of a node is stamped when the leader reads it): no two clocks are ever compared. Unknown fields are
ignored when read, so that an older ftsup can read a newer log; a new meaning gets a new name.
"""

from __future__ import annotations

from enum import Enum
from typing import Union

import msgspec
from msgspec.structs import replace

SCHEMA = 1
"""Version of the event log and of the link's messages."""

__all__ = ["SCHEMA", "replace"]


class Epoch(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Which attempt of which grant: (number of the grant in the run, attempt in the grant), both from 1. Only grows."""

    grant: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.grant}.{self.attempt}"


class How(Enum):
    """How a rank came to its end or to a standstill."""

    RETURNED = "returned"
    """The script ran to its end (or sys.exit(0))."""
    SAVED = "saved"
    """It was asked to save, took that up, and left: no fault, whatever its exit code."""
    EXIT = "exit"
    """A non-zero exit code without an exception."""
    EXCEPTION = "exception"
    """A Python exception that is the script's own."""
    PEER = "peer"
    """An exception that says that another rank or the network went away: mostly a consequence."""
    SIGNAL = "signal"
    """Ended by a signal, or vanished without a record."""
    QUIET = "quiet"
    """No activity for longer than the phase's limit."""
    STORAGE = "storage"
    """Quiet, and in state D: waiting for a disk."""
    WAITING = "waiting"
    """Quiet, and its stack stands in a collective: it waits for others."""
    STOPPED = "stopped"
    """Process state T for longer than its limit."""
    NODE = "node"
    """Its node supervisor died or fell silent."""
    TORCHRUN = "torchrun"
    """torchrun itself ended or broke, with no rank to blame."""
    PORT = "port"
    """The rendezvous port was taken by somebody else."""
    SETUP = "setup"
    """node_setup, or the launch itself, failed."""
    HELLO = "hello"
    """The node never said hello."""
    UNKILLABLE = "unkillable"
    """Something of the attempt could not be killed (D state)."""
    WARNED = "warned"
    """Slurm's warning, or the time limit is near."""
    DEVICE = "device"
    """A GPU or a network card failed: the node's fault, not the script's."""
    DISK = "disk"
    """A file system said no (full, over quota, read-only, gone): not the script's fault."""


class Kind(Enum):
    """What sort of error a message tells of."""

    NCCL_TIMEOUT = "NCCL timeout"
    NCCL_ERROR = "NCCL error"
    """Remote, system or internal."""
    NETWORK = "network"
    GPU_MEMORY = "GPU memory"
    CUDA = "CUDA"
    """Any other error of CUDA, a GPU or its driver."""
    HOST_MEMORY = "host memory"
    FILES = "file system"
    USER = "user code"
    CONFIG = "configuration"


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank's or one node's end or standstill."""

    how: How
    node: str
    rank: int | None = None
    step: int | None = None
    phase: str = ""
    code: int | None = None
    signal: str = ""
    quiet_s: float = 0.0
    limit_s: float = 0.0
    error: str = ""
    """One line: `ValueError: x`, or what was seen."""
    where: str = ""
    """`train.py:41 in forward`, where it is known."""
    fingerprint: str = ""
    """Same traceback, same fingerprint (numbers and addresses of the message left out)."""
    order_ns: int = 0
    """Monotonic time on its own node: orders faults of one node only."""
    kind: Kind | None = None
    line: str = ""
    """The line of a file that told of it (capped)."""
    alive: bool = False
    """Only such words are known: the rank itself may still be there."""


class Ears(Enum):
    """Whether a script hears that a save is wanted, and how: from the worst to the best."""

    ENDED = "ended"
    """A rank has ended, or is about to."""
    NONE = "none"
    """A rank neither calls asked() nor handles the warning signal."""
    HANDLER = "handler"
    """Every rank listens, some by a handler of the warning signal only."""
    ASKS = "asks"
    """Every rank calls asked()."""


class Ask(Enum):
    """A word about a save, to the ranks of a node."""

    COUNT = "count"
    """Take back what is proposed, and say how far the ranks are."""
    PROPOSE = "propose"
    """Whoever sees this by the end of beat N agrees, and waits there for what follows."""
    COMMIT = "commit"
    """All have agreed: save after beat N."""
    ABORT = "abort"
    """Go on: nothing comes of it."""


# What happened ------------------------------------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Something that happened."""

    t: float = 0.0


class LeaderStarted(Event, frozen=True, kw_only=True):
    """A leader begins, or one takes over within the same grant (same job, same restarts)."""

    job: str
    restarts: int
    host: str
    pid: int
    nodes: tuple[str, ...]
    address: str = ""
    version: str = ""
    foreground: bool = False
    """A person started it, in an allocation of somebody's own (`ftsup run`)."""


class Tick(Event, frozen=True, kw_only=True):
    """Time passed. Only those that changed something are in the log."""


class Away(Event, frozen=True, kw_only=True):
    """We were not running for so long (stopped, suspended): what we saw before proves nothing about now."""

    away_s: float


class NodeUp(Event, frozen=True, kw_only=True):
    """A node supervisor said hello. `running`: the attempt whose ranks live there; `ended`: the last one proven gone."""

    node: str
    instance: str
    running: Epoch | None = None
    ended: Epoch | None = None
    version: str = ""
    via: str = ""
    """The leader's address that it used."""
    held: int = 0
    """A newly started supervisor found its predecessor, this pid, stopped, or well again: nothing is known against the ranks."""
    left: tuple[str, ...] = ()
    """What a predecessor left behind on the node and cannot be killed."""


class NodeSilent(Event, frozen=True, kw_only=True):
    """Nothing was heard from a node supervisor for longer than node_grace."""

    node: str
    quiet_s: float


class StartFailed(Event, frozen=True, kw_only=True):
    """A node supervisor could not be started."""

    node: str
    why: str


class StepEnded(Event, frozen=True, kw_only=True):
    """The srun of the node supervisors ended: none that is still missing will come. Its exit code means nothing."""

    text: str = ""
    """The last lines it printed."""
    unanswered: bool = False
    """Slurm did not answer it: that says nothing about the nodes."""


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint looks like from where it was picked, in few words: a node that sees the same has the same digest."""

    count: int
    size_bytes: int
    digest: str
    """Of every file's path and size."""


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that a restart from an earlier step has left behind."""

    name: str
    stamp: str
    """Of its files' sizes, times and places: another one means that it was written anew."""
    seal: str = ""
    """Of its manifest; empty: it had none."""


class Picking(Event, frozen=True, kw_only=True):
    """A checkpoint is being read back: so much of it since the last time that this was told."""

    epoch: Epoch
    size_bytes: int


class CheckpointPicked(Event, frozen=True, kw_only=True):
    """Where the next attempt resumes: None = from the beginning."""

    epoch: Epoch
    path: str | None = None
    step: int | None = None
    why: str = ""
    name: str = ""
    """Below the directory of the checkpoints; empty where an older ftsup wrote this."""
    files: Files | None = None
    took_s: float = 0.0
    left: tuple[Left, ...] | None = None
    """A person wanted an earlier one: these are left behind, until they are written anew. None: nobody did."""
    refused: str = ""
    """A person wanted an earlier one, and there is none: why. This is the newest."""


class PickFailed(Event, frozen=True, kw_only=True):
    """The checkpoint could not be chosen: the disk did not answer, or nothing there can be trusted."""

    epoch: Epoch
    why: str
    final: bool = False
    """Waiting mends nothing: all are damaged."""


class Sealed(Event, frozen=True, kw_only=True):
    """A checkpoint is whole, and every byte of it is in its manifest."""

    epoch: Epoch
    """The attempt that was then."""
    name: str
    step: int | None = None
    size_bytes: int = 0
    took_s: float = 0.0


class Quarantined(Event, frozen=True, kw_only=True):
    """A checkpoint is damaged and was set aside: renamed, never deleted."""

    name: str
    why: str
    path: str


class Pruned(Event, frozen=True, kw_only=True):
    """Checkpoints that ftsup sealed were removed: there are enough newer ones, and those were verified."""

    names: tuple[str, ...]
    size_bytes: int = 0


class CheckpointsTaken(Event, frozen=True, kw_only=True):
    """The directory of the checkpoints belongs to another run, which is alive."""

    why: str


class Prepared(Event, frozen=True, kw_only=True):
    """A node is ready to launch; the one with node rank 0 brings the address and a free port."""

    node: str
    epoch: Epoch
    address: str = ""
    port: int = 0


class Launched(Event, frozen=True, kw_only=True):
    """torchrun was started on a node."""

    node: str
    epoch: Epoch
    pid: int
    ranks: tuple[int, ...] = ()


class LaunchFailed(Event, frozen=True, kw_only=True):
    """A node could not prepare or launch."""

    node: str
    epoch: Epoch
    fault: Fault


class WatchedBy(Enum):
    """What shows that ranks live."""

    STEPS = "optimizer steps"
    BEAT = "beat()"
    BATCHES = "batches of its data loaders"
    """An optimizer that is none of torch's: its steps are not known."""
    OUTPUT = "log output"
    """A script without torch and without beat(), or launch: command: nothing else is known of it."""


class Progressed(Event, frozen=True, kw_only=True):
    """The node's ranks moved: the first beat of a phase worth telling, then about once a minute from node rank 0.

    `step` is None where the script's steps are unknown; `beats` is what ranks are compared by.
    """

    node: str
    epoch: Epoch
    phase: str
    step: int | None = None
    beats: int = 0
    by: WatchedBy | None = None
    """None: it starts up, or an older ftsup wrote this."""
    saving_s: float | None = None
    """Of the time since the node told this last: so much some rank was seen saving. None: an older ftsup wrote this."""


class Saved(Event, frozen=True, kw_only=True):
    """The training saved: the step the ranks reported."""

    node: str
    epoch: Epoch
    step: int


class Counted(Event, frozen=True, kw_only=True):
    """How far the ranks of a node are, and whether they would hear that a save is wanted."""

    node: str
    epoch: Epoch
    save: int
    least: int
    most: int
    """Beats of the rank with the fewest, and with the most."""
    ears: Ears
    """The worst of its ranks."""
    step_s: float = 0.0
    """What a step takes now; 0: not known."""


class Voted(Event, frozen=True, kw_only=True):
    """Every rank of a node agreed to save after beat `beats`; or (`ready` is false) one was past it, or did not wait for the others."""

    node: str
    epoch: Epoch
    save: int
    beats: int
    ready: bool


class SaveOver(Event, frozen=True, kw_only=True):
    """Every rank of a node that took the save up has gone on since, or has left."""

    node: str
    epoch: Epoch
    save: int
    step: int | None = None
    """What is saved now; None: the script's steps are not known."""
    missed: tuple[int, ...] = ()
    """Ranks that did not take part, although they had agreed."""


class Learned(Event, frozen=True, kw_only=True):
    """A limit that was measured, in force from now on."""

    node: str
    epoch: Epoch
    median_s: float


class Stalled(Event, frozen=True, kw_only=True):
    """Ranks of a node that stand still. All that stand still are listed, not only the first."""

    node: str
    epoch: Epoch
    faults: tuple[Fault, ...]


class Busy(Event, frozen=True, kw_only=True):
    """A rank saves or evaluates since long: others may have to wait for it, and may have its limit. 0: no more."""

    node: str
    epoch: Epoch
    phase: str = ""
    limit_s: float = 0.0


class Moving(Event, frozen=True, kw_only=True):
    """A node whose ranks stood still moves again."""

    node: str
    epoch: Epoch


class RankEnded(Event, frozen=True, kw_only=True):
    """A rank ended, well or badly."""

    node: str
    epoch: Epoch
    fault: Fault


class Reported(Event, frozen=True, kw_only=True):
    """A library, the kernel or torchelastic wrote of an error on a rank. `fatal`: it cannot go on, although it may still be there."""

    node: str
    epoch: Epoch
    fault: Fault
    fatal: bool


class Collected(Event, frozen=True, kw_only=True):
    """A node's evidence lies in the incident's folder, or why it does not."""

    node: str
    epoch: Epoch
    incident: int
    faults: tuple[Fault, ...] = ()
    """What the evidence adds: for a rank known to be quiet, the line it stands in."""
    missing: str = ""


class AttemptOver(Event, frozen=True, kw_only=True):
    """Nothing of the attempt is left on the node, or `left` says what cannot be killed."""

    node: str
    epoch: Epoch
    code: int | None
    """torchrun's; 0 means that every rank of the node ended well."""
    ended: tuple[Fault, ...] = ()
    left: tuple[str, ...] = ()
    took_s: float = 0.0
    step: int | None = None
    """What all ranks of the node had done; None: unknown."""


class Warned(Event, frozen=True, kw_only=True):
    """Slurm's warning signal arrived at a node supervisor, or at the leader on the batch host."""

    node: str


class Terminated(Event, frozen=True, kw_only=True):
    """A node supervisor was told to end (TERM), not by us; it ends its ranks."""

    node: str


class Signalled(Event, frozen=True, kw_only=True):
    """The leader was told to end (SIGTERM), or the batch script was, which hands it on as SIGHUP."""

    signal: str


class SlurmSaid(Event, frozen=True, kw_only=True):
    """Slurm's answer about our job."""

    state: str
    completing: bool = False
    restarts: int = 0
    left_s: float | None = None
    kill_wait_s: float | None = None
    unkillable_s: float | None = None
    requeueable: bool = True
    reason: str = ""
    preempted: bool = False
    """Its nodes are being taken, or were taken, for another job."""
    code: str = ""
    """How its batch script ended, as Slurm writes it (`0:9`); empty: it has not, or well."""
    unfit: tuple[str, ...] = ()
    """Nodes of ours that are drained or down, with Slurm's reason: asked for where the job is on its way back to the queue."""
    asked_t: float | None = None
    """When it was asked for, where that matters: a busy controller takes its time, and what happened meanwhile is not in it."""


class SlurmFailed(Event, frozen=True, kw_only=True):
    """A question or request to Slurm failed: says nothing about the job."""

    op: str
    kind: str
    why: str


class RequeueAsked(Event, frozen=True, kw_only=True):
    """Slurm took the request; believed only when the state shows it."""


class Superseded(Event, frozen=True, kw_only=True):
    """A later grant of the run leads in the run directory: ours is over, although nobody could tell us."""

    why: str


class Chained(Event, frozen=True, kw_only=True):
    """slurm.requeue is chain: a successor of the job is in the queue, and begins when this one has ended."""

    job: str


class AvoidSet(Event, frozen=True, kw_only=True):
    """The exclusion list holds our nodes: it was read back."""

    nodes: tuple[str, ...]
    let_in: tuple[str, ...] = ()
    """All but these: too few nodes would remain."""
    unsure: str = ""
    """Which wish of the job's decides which nodes can run it, and could not be judged."""


class Decided(Event, frozen=True, kw_only=True):
    """decision.json is on local disk (fsynced), and in the run directory if `mirrored`."""

    mirrored: bool


class Request(Enum):
    """What a person may ask of a run."""

    CANCEL = "cancel"
    STOP = "stop"
    PAUSE = "pause"
    REQUEUE = "requeue"
    RESTART = "restart"


class Asked(Event, frozen=True, kw_only=True):
    """A person asked for something."""

    request: Request
    who: str
    wall: str = ""
    """When, by the clock of where it was typed."""
    from_step: int | None = None
    """Restart from a checkpoint of this step at most."""
    avoid: tuple[str, ...] = ()
    """Requeue without these nodes."""
    id: str = ""
    """The request's own name: it is heard once, however often it is read."""


class Continued(Event, frozen=True, kw_only=True):
    """`ftsup submit --continue`: what follows is a new job of the same run; budgets and the hard cap start again."""

    n: int
    """Counts the continuations of the run, from 1."""
    who: str
    wall: str = ""
    changed: tuple[str, ...] = ()
    """Keys of the configuration that are not as they were."""


class Told(Event, frozen=True, kw_only=True):
    """notify.command gets all news that were held back until now: they are never told again."""

    count: int


class Noted(Event, frozen=True, kw_only=True):
    """Something for people to know; it changes nothing."""

    node: str = ""
    text: str
    trouble: str = ""
    """It is about trouble of this kind, which stands until it is told to be over."""
    over: bool = False


LeaderEvent = Union[  # noqa: UP007 - msgspec wants a Union at run time on 3.10
    LeaderStarted, Tick, Away, NodeUp, NodeSilent, StartFailed, StepEnded, Picking, CheckpointPicked, PickFailed, Sealed,
    Quarantined, Pruned, CheckpointsTaken, Prepared,
    Launched, LaunchFailed, Progressed, Saved, Counted, Voted, SaveOver, Learned, Busy, Stalled, Moving, RankEnded, Reported,
    Collected, AttemptOver, Warned, Terminated, Signalled, SlurmSaid, SlurmFailed, Superseded, RequeueAsked, Chained, AvoidSet, Decided,
    Asked, Continued, Noted, Told,
]  # fmt: skip


NodeEvent = Union[  # noqa: UP007
    NodeUp, Prepared, Launched, LaunchFailed, Progressed, Saved, Counted, Voted, SaveOver, Learned, Busy, Stalled, Moving, RankEnded,
    Reported, Collected, AttemptOver, Warned, Terminated, Noted,
]  # fmt: skip
"""What a node supervisor reports."""


# What is ordered ----------------------------------------------------------------------------------------------------------


class VerdictKind(Enum):
    """What follows."""

    RESTART = "restart"
    REQUEUE = "requeue"
    STOP = "stop"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    PAUSED = "paused"


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What follows, and the one sentence why."""

    kind: VerdictKind
    reason: str
    rule: str = ""
    avoid: tuple[str, ...] = ()
    delay_s: float = 0.0
    suspect: str = ""
    """The checkpoint that is passed over from now on."""


class Order(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Something to do. Every order answers with an event, also when it fails. Orders are idempotent by their epoch."""


class StartStep(Order, frozen=True, kw_only=True):
    """Start the node supervisors (srun) unless they run already."""


class StartNode(Order, frozen=True, kw_only=True):
    """Start the supervisor of one node again (srun --overlap)."""

    node: str


class PickCheckpoint(Order, frozen=True, kw_only=True):
    """Choose what the next attempt resumes from."""

    epoch: Epoch
    suspects: tuple[str, ...] = ()
    """Not these: whole, but attempts could not begin from them."""
    sealed: tuple[str, ...] = ()
    """Those of which a manifest has to be there."""
    ended: bool = False
    """The last attempt ended by itself, and well."""
    from_step: int | None = None
    """Of this step at most: a person wants it so."""
    left: tuple[Left, ...] = ()
    """Not these, unless they were written anew."""


class Prepare(Order, frozen=True, kw_only=True):
    """node_setup where it has not run in this grant; node rank 0 picks a port."""

    node: str
    epoch: Epoch
    node_rank: int
    path: str | None = None
    files: Files | None = None
    """What has to be seen there before the launch."""
    hint: str = ""
    """The address of the batch host by which another node reached the leader."""


class Launch(Order, frozen=True, kw_only=True):
    """Start torchrun."""

    node: str
    epoch: Epoch
    node_rank: int
    nodes: int
    address: str
    port: int
    path: str | None = None
    base_step: int | None = 0
    """Step of the checkpoint it resumes from; 0 from the beginning; None: unknown."""
    median_s: float = 0.0
    restart_s: float = 0.0
    """What was learned about this run: a step's median, the cost of a restart (0: nothing yet)."""
    kill_wait_s: float | None = None
    """The cluster's KillWait, where Slurm said it."""
    unkillable_s: float | None = None
    """Its UnkillableStepTimeout."""


class Collect(Order, frozen=True, kw_only=True):
    """Take evidence; at most so long."""

    node: str
    epoch: Epoch
    incident: int
    limit_s: float


class Stop(Order, frozen=True, kw_only=True):
    """End the attempt: TERM, after `grace_s` KILL, then proof."""

    node: str
    epoch: Epoch
    grace_s: float


class AskRanks(Order, frozen=True, kw_only=True):
    """A word about save number `save`. COUNT answers with Counted, PROPOSE with Voted, COMMIT with SaveOver, ABORT with nothing."""

    node: str
    epoch: Epoch
    save: int
    ask: Ask
    beats: int = 0
    """N."""
    handlers: bool = False
    """Ranks that never call asked() get their handler of the warning signal called."""


class Leave(Order, frozen=True, kw_only=True):
    """The node supervisor may go."""

    node: str


class GoOn(Order, frozen=True, kw_only=True):
    """The node supervisor was told to end, and there is time: its ranks train on."""

    node: str


class Unexplained(Order, frozen=True, kw_only=True):
    """We were told to end, and do not know why yet: leave word in the run directory, in case nobody says it before we are gone."""

    over: bool = False
    """It is known now: take that word back."""
    back: bool = False
    """And nothing ends us: the batch script, if it was told, forgets it."""


class AskSlurm(Order, frozen=True, kw_only=True):
    """What does Slurm say about our job?"""


class Decide(Order, frozen=True, kw_only=True):
    """Write decision.json: what bash does if we are gone. `done`: nothing is left to do but to exit with `code`."""

    verdict: Verdict
    code: int = 0
    done: bool = False
    chain: bool = False
    """Of a requeue: another job of the run is to follow, instead."""


class Requeue(Order, frozen=True, kw_only=True):
    """Ask Slurm to requeue the job (only once the log and the decision are safe)."""

    chain: bool = False
    """See to it that one successor is in the queue, instead."""
    ended: bool = False
    """Also if Slurm itself is ending it: it has said why, and nobody cancelled it."""


class Shown(Order, frozen=True, kw_only=True):
    """The requeue shows: nothing that lies in the run directory asks for it any more."""


class Avoid(Order, frozen=True, kw_only=True):
    """Put nodes on the job's exclusion list, as many as it can spare, and take others from it."""

    nodes: tuple[str, ...]
    drop: tuple[str, ...] = ()


class Incident(Order, frozen=True, kw_only=True):
    """Write or complete incident.json."""

    number: int
    epoch: Epoch
    root: Fault | None = None
    faults: tuple[Fault, ...] = ()
    verdict: Verdict | None = None


class Notify(Order, frozen=True, kw_only=True):
    """Tell a person: what kind of news, one sentence."""

    kind: str
    text: str


class Quit(Order, frozen=True, kw_only=True):
    """The leader ends."""

    code: int


LeaderOrder = Union[  # noqa: UP007
    StartStep, StartNode, PickCheckpoint, Prepare, Launch, AskRanks, Collect, Stop, GoOn, Leave, AskSlurm, Unexplained, Decide, Requeue,
    Shown, Avoid, Incident, Notify, Quit,
]  # fmt: skip
NodeOrder = Union[Prepare, Launch, AskRanks, Collect, Stop, GoOn, Leave]  # noqa: UP007
"""What a node supervisor is ordered to do."""


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of the event log: what happened, and what was ordered because of it."""

    n: int
    """Counts from 1 over the whole run, without a gap."""
    wall: str = ""
    """For people; the policy never sees it."""
    event: LeaderEvent
    orders: tuple[LeaderOrder, ...] = ()
    v: int = SCHEMA
