"""The numbers that the policy uses, each default once, with its reason. Nothing here decides.

A field `x_s` is the configuration key `x` (a duration with its unit); the descriptions become the comments of
`configs/full.yaml`, the JSON Schema and `ftsup rules`.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta

from ftsup.worker.beatfile import Phase

Duration = Annotated[float, Meta(ge=0, extra={"unit": "duration"})]
Positive = Annotated[float, Meta(gt=0, extra={"unit": "duration"})]
Count = Annotated[int, Meta(ge=0)]


def key_name(field: str) -> str:
    """The configuration key of a field: its unit is in the value there, and in the name here."""
    return field.removesuffix("_s").removesuffix("_bytes")


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=key_name):
    """A part of the configuration."""


class HangMode(Enum):
    """What a hang leads to."""

    ACT = "act"
    OBSERVE = "observe"


class Hang(Section, frozen=True, kw_only=True):
    """How long a rank may show no activity, by phase. Longer is a hang."""

    mode: Annotated[HangMode, Meta(description="act: kill what hangs and restart; observe: tell, and do nothing")] = HangMode.ACT
    start_s: Annotated[Positive, Meta(description="from launch to the script's first line: interpreters on a cold file system")] = 600.0
    import_s: Annotated[Positive, Meta(description="importing torch and the rest: thousands of small files on NFS")] = 600.0
    init_s: Annotated[Positive, Meta(description="process groups, model, data-set index: may be built by rank 0 alone")] = 1800.0
    first_step_s: Annotated[Positive, Meta(description="the first step compiles and connects NCCL: minutes, then seconds")] = 1800.0
    step_s: Annotated[
        Positive | None,
        Meta(
            description="between two beats of training; left out: the largest of step_floor, step_factor x median step, cost of a "
            "restart; and first_step's until some steps were measured"
        ),
    ] = None
    step_floor_s: Annotated[
        Positive, Meta(description="restarting 4,000 GPUs because a disk paused for a minute costs more than it saves")
    ] = 120.0
    step_factor: Annotated[float, Meta(ge=1, description="times the median step")] = 20.0
    evaluation_s: Annotated[Positive, Meta(description="evaluation beats through its data loader; this is one quiet stretch of it")] = (
        1800.0
    )
    checkpoint_s: Annotated[Positive, Meta(description="inside torch.save or DCP's save: a full file system can take long")] = 1800.0
    shutdown_s: Annotated[Positive, Meta(description="from the script's last line to the end of its process")] = 300.0
    reported_s: Annotated[
        Positive,
        Meta(description="a rank that got an error of NCCL or of its network in training, and stands still since; at least 5 steps"),
    ] = 15.0
    output_s: Annotated[
        Positive,
        Meta(
            description="between two lines of the log, where nothing else tells: scripts without torch and beat(), and launch: command"
            " from its first line on; some print a line an epoch"
        ),
    ] = 1800.0
    stopped_s: Annotated[Positive, Meta(description="a process in state T (stopped) cannot come back by itself")] = 10.0
    storage_s: Annotated[
        Positive, Meta(description="all ranks waiting for storage at once is not a hang: told, and waited for so long")
    ] = 3600.0

    def limit_s(self, phase: Phase, *, median_s: float = 0.0, restart_s: float = 0.0) -> float:
        """The limit in force for a phase, given the measured median step and cost of a restart (0: not measured)."""
        learned_s = max(self.step_floor_s, self.step_factor * median_s, restart_s, 0.0 if median_s else self.first_step_s)
        return {
            Phase.START: self.start_s,
            Phase.IMPORT: self.import_s,
            Phase.INIT: self.init_s,
            Phase.FIRST_STEP: self.first_step_s,
            Phase.STEP: learned_s if self.step_s is None else self.step_s,
            Phase.EVALUATION: self.evaluation_s,
            Phase.CHECKPOINT: self.checkpoint_s,
            Phase.SHUTDOWN: self.shutdown_s,
            Phase.EXITED: self.shutdown_s,
        }[phase]


class Budgets(Section, frozen=True, kw_only=True):
    """How often what may happen. Attempts *without progress* are counted; progress refills all but the hard cap."""

    errors: Annotated[Count, Meta(description="attempts ended by the training's own errors, without progress")] = 3
    hangs: Annotated[Count, Meta(description="attempts ended by hangs, without progress")] = 3
    crashes: Annotated[Count, Meta(description="attempts ended by signals (SIGSEGV, SIGKILL, out of memory), without progress")] = 4
    starts: Annotated[Count, Meta(description="launches that never came to training (set-up, rendezvous, a dead supervisor)")] = 4
    ports: Annotated[Count, Meta(description="launches in a row that found their port taken: at once again, on another port")] = 5
    refusals: Annotated[Count, Meta(description="how often Slurm may refuse a requeue before the run stops")] = 3
    leaders: Annotated[
        int, Meta(ge=1, description="deaths of the leader without progress before the batch script stops starting it in place")
    ] = 3
    requeues: Annotated[
        Count,
        Meta(
            description="requeues without progress, the leader's and (counted apart) the batch script's: each may wait hours in the queue"
        ),
    ] = 5
    hard_cap: Annotated[int, Meta(ge=1, description="attempts of a run in all, whatever their progress; never refills")] = 200
    back_off_s: Annotated[
        Duration, Meta(description="wait before the second restart without progress; doubles; the first waits for nothing")
    ] = 10.0
    back_off_max_s: Annotated[Duration, Meta(description="the longest such wait")] = 600.0
    jitter: Annotated[float, Meta(ge=0, le=1, description="share of the wait that is random: one disk event hits 30 jobs at once")] = 0.25
    same_node: Annotated[
        int, Meta(ge=2, description="faults in a row on one node, at different steps, before it is avoided; of several nodes")
    ] = 3
    avoid_max: Annotated[Count, Meta(description="nodes that a run keeps out at most")] = 8
    avoid_for_s: Annotated[Duration, Meta(description="how long a node is kept out, counted while the run has its nodes; 0: for good")] = (
        86400.0
    )


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """All numbers of the two machines."""

    hang: Hang = Hang()
    policy: Budgets = Budgets()
    grace_s: float = 30.0
    lead_grace_s: float = 120.0
    node_grace_s: float = 30.0
    evidence_s: float = 15.0
    hello_s: float = 300.0
    setup_s: float = 1800.0
    pick_s: float = 300.0
    late_s: float = 5.0
    beats_s: float = 60.0
    ask_s: float = 300.0
    no_progress_s: float = 3600.0
    """0: nobody is told."""
    every_s: float = 1800.0
    """0: saves are asked for only when there is a reason."""
    plain: bool = False
    """Ranks get the warning signal itself, whenever it arrives."""
    warning_s: float = 120.0
    kill_wait_s: float = 30.0
    short_kill_wait_s: float = 5.0
    """Where Slurm has not said its KillWait, ranks are killed as if it were the usual one, and told to end as if it were short."""
    kill_margin_s: float = 2.0
    end_margin_s: float = 15.0
    stagger_s: float = 20.0
    staggers: int = 6
    can_requeue: bool = True
    chain: bool = False
    """Another job follows, instead of a requeue."""
    workers_per_node: int = 1
    watched: bool = True
    """Ranks have beats (launch: torchrun); else progress is unknown."""
