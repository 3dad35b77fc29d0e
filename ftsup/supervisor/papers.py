"""What a leader leaves for others to read: small files on its local disk, and by its clerk in the run directory.

For bash: decision, progress, keepout. For the next leader: port, spool. For nodes: the address. For `ftsup watch`: spool, unexplained.
For people: status.json, incident.json, the batch script's output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from ftsup import events as ev
from ftsup.events import LeaderEvent
from ftsup.policy.judge import describe
from ftsup.policy.outlook import Outlook
from ftsup.policy.state import State
from ftsup.policy.told import Unexplained
from ftsup.ports import Clock
from ftsup.rundir import RunDir
from ftsup.supervisor import requeueing
from ftsup.supervisor.clerk import Clerk, nothing
from ftsup.supervisor.files import write_whole
from ftsup.supervisor.wire import Counter

SHARED_S = 60.0
"""The most that a file in the run directory waits for its disk."""
SOON_S = 30.0
"""The same for what is told anew soon, or is of no use later."""
TOLD_S = 2.0
"""The same where Slurm told us to end: KillWait runs."""


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Where this leader runs, as Slurm's environment says."""

    job: str
    restarts: int
    host: str
    nodes: tuple[str, ...]
    environ: dict[str, str]
    foreground: bool = False
    """In an allocation of somebody's own: what the terminal's signals say, a person says."""


class Papers:
    """The files of one leader."""

    def __init__(self, grant: Grant, *, clerk: Clerk[list[LeaderEvent]], clock: Clock, run: RunDir, folder: Path) -> None:
        self.grant, self.clerk, self.clock, self.run_dir, self.folder = grant, clerk, clock, run, folder
        self.saying = 0
        """How many lines are on their way to the batch script's output."""

    # On the local disk ----------------------------------------------------------------------------------------------------

    def _keep(self, name: str, data: bytes) -> None:
        """A small file; a disk that is full for a while must not end us."""
        try:
            write_whole(self.folder / name, data)
        except OSError as error:
            self.say(f"{self.folder / name} cannot be written: {error.strerror}")

    def progress(self, best_step: int) -> None:
        """For bash, which counts our deaths without progress."""
        self._keep("progress", f"{best_step}\n".encode())

    def one_too_many(self, elder: str) -> None:
        """The decision of a job that another one of its run makes needless."""
        self._for_bash("decision", requeueing.one_too_many(elder))

    def kept_out(self) -> None:
        """Slurm keeps the nodes out: bash has nothing left to do about it."""
        self._for_bash("keepout", b"")

    def _for_bash(self, name: str, data: bytes) -> None:
        self._keep(f"{name}.{self.grant.restarts}.json", data)

    # In the run directory -------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """For the batch script's output, which lies on the shared disk: writing there may hang, so the clerk does it."""

        def said(_answer: object) -> list[LeaderEvent]:
            self.saying -= 1
            return []

        self.saying += 1
        self.clerk.ask("say", now=self.clock.now(), limit_s=SOON_S, then=said, text=text)

    def list_job(self, job: str) -> None:
        """Among those of the run."""
        self.clerk.ask("add_line", now=self.clock.now(), limit_s=SHARED_S, then=nothing, path=str(self.run_dir.jobs), line=job)

    def port(self, port: int, addresses: Sequence[str]) -> None:
        """For our successor, and for nodes that hear nothing: a stranger may have the port that they know."""
        self._keep(f"port.{self.grant.restarts}", str(port).encode())
        self._write(self.run_dir.leader, msgspec.json.encode(addresses))

    def status(self, state: State, counters: Mapping[str, Sequence[Counter]], *, ahead: Outlook) -> None:
        """status.json: where the run is, and how far its ranks are."""
        ranks = {
            one.rank: {"step": one.step, "beats": one.beats, "phase": one.phase, "node": node}
            for node, found in counters.items()
            for one in found
        }
        now = {"wall": self.clock.wall(), "stage": state.stage.value, "epoch": str(state.epoch), "ahead": ahead, "ranks": ranks}
        self._write(self.run_dir.status, msgspec.json.encode(now), limit_s=SOON_S)

    def incident(self, order: ev.Incident) -> None:
        """incident.json."""
        story = {
            "incident": order.number,
            "epoch": str(order.epoch),
            "wall": self.clock.wall(),
            "root": order.root,
            "sentence": describe(order.root) if order.root else "",
            "faults": order.faults,
            "verdict": order.verdict,
        }
        data = msgspec.json.format(msgspec.json.encode(story), indent=1)
        self._write(self.run_dir.incident(order.number) / "incident.json", data)

    def unexplained(self, why: str) -> None:
        """Somebody tells us to end, and Slurm does not say who: `ftsup watch` finds out."""
        word = Unexplained(job=self.grant.job, restarts=self.grant.restarts, wall=self.clock.wall(), why=why)
        self._write(self.run_dir.unexplained, msgspec.json.encode(word), limit_s=TOLD_S)

    def explained(self) -> None:
        """Now it is known."""
        self._remove(self.run_dir.unexplained)

    def decide(self, order: ev.Decide, state: State, *, limit_s: float, then: Callable[[object], list[LeaderEvent]]) -> None:
        """decision.json, and what whoever comes after us is to carry out, before anything is asked."""
        data = requeueing.decision(order, state)
        self._for_bash("decision", data)
        self._for_bash("keepout", requeueing.second_chance(order, state))
        left = requeueing.spool(order, state)
        if left is None:
            self.unspool()
        else:
            self._write(self.run_dir.requeue, msgspec.json.encode(left))
        self._write(self.run_dir.decision(self.grant.job, self.grant.restarts), data, limit_s=limit_s, then=then)

    def unspool(self) -> None:
        """Nothing is left to carry out."""
        self._remove(self.run_dir.requeue)

    def _write(self, path: Path, data: bytes, *, limit_s: float = SHARED_S, then: Callable[[object], list[LeaderEvent]] = nothing) -> None:
        self.clerk.ask("write", now=self.clock.now(), limit_s=limit_s, then=then, path=str(path), text=data.decode())

    def _remove(self, path: Path) -> None:
        self.clerk.ask("remove", now=self.clock.now(), limit_s=SHARED_S, then=nothing, path=str(path))
