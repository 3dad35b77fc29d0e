"""What the leader's machine remembers. Only `machine.step` makes new ones; everything in it follows from the event log."""

from __future__ import annotations

from enum import Enum

import msgspec

from ftsup.events import Ask, Ears, Epoch, Fault, Files, LeaderOrder, Left, Request, Verdict
from ftsup.policy.judge import History


class Stage(Enum):
    """Where an attempt, or the run, stands."""

    NEW = "new"
    """No leader has begun."""
    GATHER = "gather"
    """Waiting for every node supervisor's hello."""
    PICK = "pick"
    """Choosing the checkpoint."""
    PREPARE = "prepare"
    """node_setup, a look at the checkpoint, a port."""
    LAUNCH = "launch"
    """torchrun is being started."""
    RUN = "run"
    """It trains."""
    COLLECT = "collect"
    """Something broke: evidence first."""
    STOP = "stop"
    """Ending what is left of the attempt, with proof."""
    BACK_OFF = "back off"
    """Waiting before the next attempt."""
    CLOSE = "close"
    """The verdict ends this grant; decision.json is being written."""
    REQUEUE = "requeue"
    """Asking Slurm to requeue, until it shows."""
    TERMED = "termed"
    """Told to end, not by us: finding out why."""
    OVER = "over"
    """Decided and done."""


class Why(Enum):
    """What a save is for."""

    EVERY = "every"
    """checkpoint.every."""
    WARNING = "warning"
    """The time limit is near."""
    ASKED = "asked"
    """`ftsup stop`, `pause`, `requeue` or `restart`."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a person wants of the run, until it is done."""

    request: Request
    who: str
    from_step: int | None = None
    avoid: tuple[str, ...] = ()


class Save(msgspec.Struct, frozen=True, kw_only=True):
    """A save that is under way."""

    number: int
    why: Why
    epoch: Epoch
    stage: Ask = Ask.COUNT
    waiting: tuple[str, ...] = ()
    """Nodes whose answer the stage waits for."""
    since_t: float = 0.0
    deadline_t: float | None = None
    """While counting: when we give up waiting, or count again."""
    least: int | None = None
    most: int = 0
    ears: Ears = Ears.ASKS
    step_s: float = 0.0
    beats: int = 0
    """N."""
    tries: int = 0
    """Proposals that came too late."""
    steps: tuple[int | None, ...] = ()
    """What each node that is through has saved."""
    missed: tuple[int, ...] = ()


class Checkpoints(msgspec.Struct, frozen=True, kw_only=True):
    """What the run knows of its checkpoints, by their names below the directory."""

    name: str = ""
    """The one from which this attempt resumes."""
    files: Files | None = None
    """What every node has to see of it."""
    begun: bool = False
    """This attempt made a step."""
    loaded: str = ""
    """The last one from which an attempt made a step: it can be loaded."""
    suspects: tuple[str, ...] = ()
    """Whole, but attempts could not begin from them."""
    sealed: tuple[str, ...] = ()
    """The newest that were sealed in this run, newest last."""
    left: tuple[Left, ...] = ()
    """Those that a restart from an earlier step has left behind."""
    wish: Wish | None = None
    """The restart from an earlier step that the next pick serves."""


class Exclusions(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that the run keeps out (`history.avoided`): since when, and what Slurm knows of it. `exclusion` makes new ones."""

    lived_s: float = 0.0
    """How long the run has had its nodes, up to `grant_t`."""
    grant_t: float | None = None
    since_s: dict[str, float] = {}
    """Node -> how long the run had lived when it was kept out."""
    listed: tuple[str, ...] = ()
    """Those that Slurm's list was seen to hold, by us."""
    let_in: tuple[str, ...] = ()
    """Those for which there was no room: too few nodes would have remained."""
    expired: tuple[str, ...] = ()
    """Those whose time is over, and that Slurm's list still holds."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The leader's memory."""

    stage: Stage = Stage.NEW
    epoch: Epoch = Epoch(0, 0)
    job: str = ""
    restarts: int = -1
    nodes: tuple[str, ...] = ()
    """By node rank."""
    instances: dict[str, str] = {}
    """Node -> the supervisor process that last said hello."""
    via: dict[str, str] = {}
    """Node -> the leader's address that it used."""
    waiting: tuple[str, ...] = ()
    """Nodes whose answer the stage waits for."""
    deadline_t: float | None = None
    """When the stage gives up waiting."""

    path: str | None = None
    """The checkpoint of this attempt."""
    base_step: int | None = 0
    checkpoints: Checkpoints = Checkpoints()
    ended: bool = False
    """The attempt before this one ended by itself, and well."""
    address: str = ""
    port: int = 0

    over: tuple[str, ...] = ()
    """Nodes on which nothing of this attempt is left."""
    faults: tuple[Fault, ...] = ()
    """Of this attempt."""
    suspects: tuple[Fault, ...] = ()
    """Ranks that the evidence found outside of a collective before any limit of theirs was over."""
    returned: tuple[int, ...] = ()
    """Ranks that ended well in this attempt."""
    incident: int = 0
    """Number of the newest incident of the run."""
    silent: dict[str, int] = {}
    """Node -> how often in a row it was told to be silent."""
    held_s: float = 0.0
    """So long is waited for those who stand still, since all of them wait for storage, or for a rank that is busy."""
    busy: dict[str, float] = {}
    """Node -> the limit of what a rank of it is busy with (saving, evaluating), while others may be waiting for it."""
    busy_t: float | None = None
    """When the last of them was through."""
    told: bool = False
    """hang.mode is observe, and this hang was told."""

    continued: int = 0
    """How often the run was continued as another job."""
    best_step: int = -1
    """The highest step that any attempt is known to have reached."""
    stuck_t: float | None = None
    """Without progress until then, people are told; None: they were."""
    moved: bool = False
    """This attempt got past the best step of those before it."""
    unknown: bool = False
    """It beats, but its steps are not known: neither is its progress."""
    launched_t: float | None = None
    """When the newest launch was ordered, until its first step."""
    median_s: float = 0.0
    restart_s: float = 0.0
    history: History = History()

    save: Save | None = None
    saves: int = 0
    """Number of the newest save of the run."""
    save_t: float | None = None
    """When checkpoint.every is due, while it trains."""
    saved_step: int | None = None
    """What the newest save of the run has saved; None: not known."""
    partial: bool = False
    """Ranks that had agreed to it took no part to its end."""
    look_t: float | None = None
    """The warning's save is through: until when Slurm may say whether the end is near."""
    wish: Wish | None = None
    """What a person asked for, and is still to be done."""
    stopping: bool = False
    """The attempt ends for a person's restart: no incident."""

    verdict: Verdict | None = None
    """What ends this grant, or ended the run."""
    end_t: float | None = None
    """When we must ask for the requeue, so that it comes before the time limit."""
    ask_t: float | None = None
    """When Slurm is asked again how long we have: an admin may move the limit either way."""
    foreground: bool = False
    """A signal by hand to the leader alone is the wish of whoever started it."""
    forgotten: int = 0
    """So many times in a row Slurm said that it does not know our job."""
    end_checked: bool = False
    """Slurm was asked once more about the end, and `end_t` is due."""
    kill_wait_s: float | None = None
    unkillable_s: float | None = None
    warn_t: float | None = None
    """The warning's time by Slurm's EndTime: then it is as if the signal had come."""
    warn_checked: bool = False
    """Slurm was asked once more about the end, and `warn_t` is due."""
    warned: bool = False
    warned_t: float = 0.0
    """When the newest warning came: an answer to an older question says nothing about it."""
    end_known: bool = False
    """Slurm was asked since the warning when the end is, and has said it."""
    answered: bool = False
    """What the warning wanted saved is saved, or cannot be."""
    told_in: Stage | None = None
    """What it was doing when it was told to end."""
    told_t: float = 0.0
    """When it was told the last time: an answer to an older question says nothing about it."""
    preempted: bool = False
    """Its nodes are wanted for another job, which gives us some time: Slurm ends the job by itself, and may requeue it by itself."""
    taken: bool = False
    """Slurm itself has ended the job, nobody cancelled it: it only comes back if what has ended is requeued."""
    termed: tuple[str, ...] = ()
    """Nodes whose supervisors were told to end."""
    signalled: bool = False
    """The leader itself was told to end."""
    script: bool = False
    """The batch script was told to end, and handed it on to the leader."""
    alone: bool = False
    """The step has ended: no supervisor that was started with it is left."""
    again: bool = False
    """Whoever is missing was started once more."""
    away: bool = False
    """Slurm did not answer when it was last asked."""
    blind: bool = False
    """The step was started while Slurm did not answer. A controller that has just come back knows no nodes yet, and says anything (seen:
    "Memory required by task is not available"): what such a step ends with is nobody's fault."""
    tries: int = 0
    """Requests for the requeue so far."""
    refused: int = 0
    seen: bool = False
    """Slurm shows that the requeue is on its way."""
    avoid_set: bool = False
    chain: bool = False
    """Another job of this run follows, instead of a requeue."""
    exclusions: Exclusions = Exclusions()


class Out(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `step`: what is remembered, what is to be done, and when to come back without an event."""

    state: State
    orders: tuple[LeaderOrder, ...] = ()
    deadline_t: float | None = None
