"""What the fake world is made of: ranks, nodes, and what strikes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ftsup import events as ev
from ftsup.events import Fault
from ftsup.policy import nodestate
from ftsup.policy.watch import Process
from ftsup.worker.beatfile import Beat, Flag, Phase

HOLD_S = 30.0
"""As the worker's: the most that a rank waits after beat N for a word that does not come."""
FLAGS = {"deaf": Flag(0), "plain": Flag(0), "asks": Flag.ASKS, "goes on": Flag.HANDLES, "exits": Flag.HANDLES}


@dataclass
class Rank:
    """One rank: steps once a second in step with all others, until something strikes it.

    `script`: deaf, asks (calls asked(), saves and goes on), goes on or exits (its handler of the warning saves, and does so), plain
    (its handler saves and exits, when the signal itself arrives).
    """

    rank: int
    node: str
    script: str = "deaf"
    beats: int = 0
    step_t: float = 0.0
    """When its next step is through, at the earliest."""
    life: int = 0
    phase: Phase = Phase.INIT
    process: Process = Process.RUNNING
    hangs: bool = False
    fault: Fault | None = None
    word: ev.AskRanks | None = None
    ack: int = 0
    took: bool = False
    held_t: float | None = None
    gave_up: int = 0
    """The N for which it waited too long."""
    saving_t: float | None = None
    """Until when it saves."""

    @property
    def alive(self) -> bool:
        return self.process is not Process.GONE

    @property
    def busy(self) -> bool:
        """It makes no step now, and is well."""
        return self.held_t is not None or self.saving_t is not None

    def beat(self) -> Beat:
        """What its beat file says."""
        flags = FLAGS[self.script] if self.beats else Flag(0)
        return Beat(
            pid=1,
            activity=self.life + self.beats,
            beats=self.beats,
            phase=self.phase,
            ack=self.ack,
            flags=flags | Flag.TOOK if self.took else flags,
        )


@dataclass
class Node:
    """One node and its supervisor."""

    name: str
    state: nodestate.State | None = None
    instance: str = ""
    stopped: bool = False
    gone: bool = False
    """The node says nothing and starts nothing."""
    torchrun_hangs: bool = False
    ranks: list[Rank] = field(default_factory=list)
    inbox: list[tuple[float, ev.NodeOrder]] = field(default_factory=list)
    outbox: list[tuple[float, Any]] = field(default_factory=list)
    delay_s: float = 0.0
    """Of the link, each way."""
    looked_t: float = -1e9
    heard_t: float = 0.0
    silent_t: float = -1e9


@dataclass
class Strike:
    """Something that strikes once (or each time) a rank has done a step."""

    what: str
    rank: int
    step: int
    times: int = 1
    error: str = "ValueError: no"
