"""What the node supervisor's machine remembers, what happens to it (`Happening`), and what it does (`Act`).

What happens here stays in memory; what matters to the run is told to the leader as an event of `ftsup.events`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from ftsup import events as ev
from ftsup.events import Epoch, Fault, WatchedBy
from ftsup.policy import reports as reporting
from ftsup.policy.reports import Report
from ftsup.policy.votes import Votes
from ftsup.policy.watch import Sight, Watch
from ftsup.worker.beatfile import Beat, Phase


class Stage(Enum):
    """Where the attempt stands on this node."""

    IDLE = "idle"
    SETUP = "setup"
    LOOK = "look"
    """At the checkpoint, as this node sees it."""
    READY = "ready"
    RUNNING = "running"
    ENDING = "ending"


# What happens, and what is done -------------------------------------------------------------------------------------------


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened on the node; `t` on the node's clock."""

    t: float


class Ordered(Happening, frozen=True, kw_only=True):
    """The leader ordered something."""

    order: ev.NodeOrder


class Looked(Happening, frozen=True, kw_only=True):
    """One look at all ranks of the attempt."""

    sights: Mapping[int, Sight]


class Glanced(Happening, frozen=True, kw_only=True):
    """One look at the beats alone, while a save is open."""

    beats: Mapping[int, Beat]


class WasAway(Happening, frozen=True, kw_only=True):
    """The supervisor was not running for a while."""


class SetupEnded(Happening, frozen=True, kw_only=True):
    """node_setup is through; `why` says why not."""

    why: str = ""


class FilesSeen(Happening, frozen=True, kw_only=True):
    """The checkpoint is here as it was picked; `why` says why not, when the wait for it is over."""

    epoch: Epoch
    why: str = ""


class PortFound(Happening, frozen=True, kw_only=True):
    """Where the ranks will meet."""

    address: str
    port: int


class Started(Happening, frozen=True, kw_only=True):
    """torchrun runs."""

    pid: int
    ranks: tuple[int, ...]


class NotStarted(Happening, frozen=True, kw_only=True):
    """torchrun could not be started."""

    fault: Fault


class RanksEnded(Happening, frozen=True, kw_only=True):
    """Ranks that were seen to end since the last look."""

    faults: tuple[Fault, ...]


class Heard(Happening, frozen=True, kw_only=True):
    """What logs and error files newly say."""

    reports: tuple[Report, ...]


class ChildEnded(Happening, frozen=True, kw_only=True):
    """torchrun ended."""

    code: int
    signal: str = ""
    """What ended it, if a signal did."""
    killed: str = ""
    """What the kernel killed for memory meanwhile."""
    ended: tuple[Fault, ...] = ()
    """All that is known of its ranks' ends."""


class Gone(Happening, frozen=True, kw_only=True):
    """The attempt was ended, with proof; `left` cannot be killed."""

    left: tuple[str, ...] = ()
    took_s: float = 0.0
    step: int | None = None
    """What all ranks of the node had done; None: unknown."""


class Gathered(Happening, frozen=True, kw_only=True):
    """Evidence was taken."""

    incident: int
    faults: tuple[Fault, ...] = ()
    missing: str = ""


class Signal(Happening, frozen=True, kw_only=True):
    """A signal came: the warning, or TERM."""

    warning: bool


class Waited(Happening, frozen=True, kw_only=True):
    """`told_until_t` is over."""


class LeaderQuiet(Happening, frozen=True, kw_only=True):
    """Nothing was heard from a leader for lead_grace."""


class BatchHost(Happening, frozen=True, kw_only=True):
    """What Slurm says of the batch host: alive, gone, or None for no answer."""

    alive: bool | None


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do on the node."""


class Tell(Act, frozen=True, kw_only=True):
    """Tell the leader."""

    event: ev.NodeEvent


class RunSetup(Act, frozen=True, kw_only=True):
    """Run node_setup."""


class LookAt(Act, frozen=True, kw_only=True):
    """See whether what ranks need is here: the run directory, for which one waits, and the checkpoint's files, for which a while."""

    epoch: Epoch
    path: str | None = None
    files: ev.Files | None = None


class FindPort(Act, frozen=True, kw_only=True):
    """Find an address of this node and a free port."""

    hint: str = ""


class StartChild(Act, frozen=True, kw_only=True):
    """Start torchrun."""

    order: ev.Launch


class TellRanks(Act, frozen=True, kw_only=True):
    """Write a word about a save where the ranks read it."""

    order: ev.AskRanks


class Gather(Act, frozen=True, kw_only=True):
    """Take evidence of the attempt."""

    epoch: Epoch
    incident: int
    limit_s: float


class ForwardWarning(Act, frozen=True, kw_only=True):
    """Pass the warning signal on to each rank that has a handler for it."""


class EndChild(Act, frozen=True, kw_only=True):
    """End the attempt with all that belongs to it."""

    grace_s: float


class AskBatchHost(Act, frozen=True, kw_only=True):
    """Ask Slurm whether the batch host lives."""


class RequeueAlone(Act, frozen=True, kw_only=True):
    """Ask Slurm to requeue the job, after a wait."""

    delay_s: float


class Exit(Act, frozen=True, kw_only=True):
    """The node supervisor ends."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The node's memory."""

    node: str
    index: int = 0
    """Place in the job's list of nodes."""
    stage: Stage = Stage.IDLE
    epoch: Epoch = Epoch(0, 0)
    node_rank: int = 0
    hint: str = ""
    path: str | None = None
    files: ev.Files | None = None
    """What has to be seen there before the launch."""
    setup_done: bool = False
    setup_runs: bool = False
    kill_wait_s: float | None = None
    """The cluster's, from the newest launch."""
    watch: Watch = Watch()
    ranks: tuple[int, ...] = ()
    save: Votes | None = None
    """The newest save of the attempt."""
    forwarded: bool = False
    """The ranks of this attempt got the warning signal itself."""
    code: int | None = None
    ended: tuple[Fault, ...] = ()
    over: ev.AttemptOver | None = None
    """The end of the newest attempt, told again when asked again."""
    told: tuple[tuple[Phase | None, WatchedBy | None], ...] = ()
    """What was told of this attempt: phases, and what it is watched by; the newest last."""
    told_t: float | None = None
    """When progress was last told."""
    doubts: tuple[reporting.Doubt, ...] = ()
    """Reports that are fatal if their rank now stands still."""
    heard: frozenset[tuple[int | None, str]] = frozenset()
    """Rank and signature of what was told: once is enough."""
    alone_t: float | None = None
    """Since when torchrun lives without any rank."""
    alone_told: bool = False
    next: ev.NodeOrder | None = None
    """An order for a newer attempt, which came while this one lived: it waits for the end."""
    term_t: float | None = None
    """When we were told to end, while the leader may still say that there is time."""
    leaving: bool = False
    lost: bool = False
    """The batch host is gone, and a requeue was asked for."""


Change = tuple[State, tuple[Act, ...]]
