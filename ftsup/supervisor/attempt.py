"""One attempt on this node as it can be seen: its ranks' beats, processes and exit records, and what torchrun says of them.

It looks and remembers; when, and what follows, is `node`'s and the policy's. Nothing here waits: all of it lies in node-local memory.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec
import zmq

from ftsup import events as ev
from ftsup.events import Fault, How
from ftsup.monitors import exits, faults, heartbeat, procs
from ftsup.policy.reports import Report
from ftsup.policy.watch import step_of
from ftsup.supervisor import launch
from ftsup.supervisor.reports import Reports
from ftsup.supervisor.wire import Counter
from ftsup.worker import beatfile
from ftsup.worker.beatfile import Beat

ERR_CAP = 256 * 1024
WORDS = {
    ev.Ask.COUNT: beatfile.Word.ABORT,
    ev.Ask.PROPOSE: beatfile.Word.PROPOSED,
    ev.Ask.COMMIT: beatfile.Word.COMMIT,
    ev.Ask.ABORT: beatfile.Word.ABORT,
}


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at all ranks showed."""

    sights: dict[int, heartbeat.RankSight]
    ended: tuple[Fault, ...]
    """Ranks of whose end nobody has been told."""
    silent: bool
    """A rank has gone without a record."""


class Attempt:
    """One attempt of one node, from before its start until nothing of it is left. Register `fds()`: a rank that dies wakes the loop."""

    def __init__(self, order: ev.Launch, *, node: str, ranks: tuple[int, ...], beats: Path, out: Path) -> None:
        """`ranks`: their numbers; `beats`, `out`: where beat files and exit records, and what is printed, lie."""
        self.order, self.node, self.ranks, self.beats, self.out = order, node, ranks, beats, out
        self.torchrun: int | None = None
        """Its process id, once it runs."""
        self.vanished: dict[int, faults.Unsaid] = {}
        """Ranks that are gone without a word."""
        self._handles: dict[int, int] = {}
        """Rank -> handle on its process."""
        self._told: set[int] = set()
        """Ranks whose end was told."""
        self._reports = Reports(out, node=node, ranks=ranks)

    def fds(self) -> list[int]:
        """Readable when their rank has ended."""
        return list(self._handles.values())

    def died(self) -> bool:
        """Whether a rank has ended since the last look."""
        return any(_readable(fd) for fd in self._handles.values())

    def close(self) -> None:
        """Let go of the processes. What was seen of them stays."""
        for fd in self._handles.values():
            os.close(fd)
        self._handles = {}
        self.torchrun = None

    # Looking --------------------------------------------------------------------------------------------------------------

    def look(self, since_s: float) -> Look:
        """All ranks once; an end is told once. `since_s`: how much of the time since the last look torchrun could have used."""
        seen = self.sights()
        self._hold(seen)
        records = exits.records(self.beats)
        silent = {rank for rank, sight in seen.items() if _gone(sight)} - records.keys() - self._told
        err = self._torchrun_said() if silent else ""
        ended = faults.ends(records, exits.rank_exits(err), node=self.node, ranks=self.ranks)
        self.vanished = self._unsaid(silent - {fault.rank for fault in ended}, since_s)
        closed = exits.closed(err)
        failed = {rank for rank in self.vanished if closed and seen[rank].pid not in closed}  # the others need up to 30 s to end
        hows = {rank: How.SIGNAL if rank in failed else one.how() for rank, one in self.vanished.items()}
        unsaid = [Fault(how=how, node=self.node, rank=rank, code=0 if how is How.RETURNED else None) for rank, how in hows.items() if how]
        new = tuple(fault for fault in (*ended, *unsaid) if fault.rank not in self._told)
        self._told |= {fault.rank for fault in new if fault.rank is not None}
        return Look(sights=seen, ended=new, silent=bool(silent))

    def sights(self) -> dict[int, heartbeat.RankSight]:
        """The ranks that have a beat file, by their number."""
        return heartbeat.sights(self.beats, out=self.out)

    def command(self) -> dict[int, heartbeat.RankSight]:
        """`launch: command` has no ranks that we know: what was started, as if it were one."""
        process = procs.look(self.torchrun) if self.torchrun else None
        return {0: heartbeat.command(process, out=self.out)} if process else {}

    def read_beats(self) -> dict[int, Beat]:
        """The beats alone."""
        found = {rank: beatfile.read(path) for rank, path in heartbeat.beat_files(self.beats).items()}
        return {rank: beat for rank, beat in found.items() if beat is not None}

    def hear(self, now: float, *, final: bool) -> tuple[Report, ...]:
        """What logs and error files newly say; `final`: somebody who wrote there has ended."""
        return self._reports.look(now, final=final)

    def explained(self, ends: tuple[Fault, ...]) -> tuple[Fault, ...]:
        """The same with what was written of why."""
        return self._reports.explain(ends)

    def counters(self) -> list[Counter]:
        """How far each rank is, for the leader."""
        return [
            Counter(
                rank=rank,
                step=-1 if sight.step is None else sight.step,
                beats=sight.beats,
                activity=sight.activity,
                phase=sight.phase.name.lower(),
                asks=bool(sight.beat.flags & beatfile.Flag.ASKS),
            )
            for rank, sight in heartbeat.sights(self.beats).items()
        ]

    # Its end --------------------------------------------------------------------------------------------------------------

    def ended(self, code: int) -> tuple[Fault, ...]:
        """How its ranks ended, now that torchrun has ended with this code (a signal is negative); or why it never came to ranks."""
        err = self._torchrun_said()
        if code != 0 and exits.port_taken(err):
            return (Fault(how=How.PORT, node=self.node, code=code),)
        ended = faults.ends(exits.records(self.beats), exits.rank_exits(err), node=self.node, ranks=self.ranks)
        if code != 0 and not ended:
            fault = launch.start_fault(self.node, code, err)
            return (fault,) if fault else ()
        return ended

    def killed(self, code: int) -> str:
        """What the kernel killed for memory, where torchrun itself ended by SIGKILL; else empty."""
        return self._reports.killed() if code == -signal.SIGKILL else ""

    def reached(self) -> int | None:
        """The step that all ranks of the node had done at the end."""
        steps = [step_of(sight.beat, self.order.base_step) for sight in heartbeat.sights(self.beats).values() if sight.pid]
        known = [step for step in steps if step is not None]
        return min(known) if known and len(known) == len(steps) else None

    def owes(self) -> bool:
        """Whether torchrun has something left to tell when its ranks are gone: how one vanished."""
        err, records = self._torchrun_said(), exits.records(self.beats)
        gone = {sight.pid for rank, sight in heartbeat.sights(self.beats).items() if _gone(sight) and rank not in records}
        return not gone <= exits.closed(err) | {one.pid for one in exits.rank_exits(err)}

    # Telling ranks --------------------------------------------------------------------------------------------------------

    def ask(self, order: ev.AskRanks) -> None:
        """Write the word where each rank hears it; one whose file is gone has no need of it."""
        for path in heartbeat.beat_files(self.beats).values():
            with contextlib.suppress(OSError):
                beatfile.ask(path, beats=order.beats, word=WORDS[order.ask], handlers=order.handlers)

    def pass_on(self, number: signal.Signals) -> None:
        """A signal, to those ranks that catch it."""
        for sight in heartbeat.sights(self.beats).values():
            process = procs.look(sight.pid) if sight.pid else None
            if process is not None and process.started == sight.started and procs.catches(sight.pid, number):
                procs.strike(process, number)

    # Parts ----------------------------------------------------------------------------------------------------------------

    def _hold(self, seen: dict[int, heartbeat.RankSight]) -> None:
        for rank, sight in seen.items():
            if rank not in self._handles and sight.pid and not _gone(sight) and rank not in self._told:
                with contextlib.suppress(OSError):
                    self._handles[rank] = os.pidfd_open(sight.pid)
        for rank in [rank for rank, fd in self._handles.items() if rank in self._told or _readable(fd)]:
            os.close(self._handles.pop(rank))

    def _unsaid(self, ranks: AbstractSet[int], since_s: float) -> dict[int, faults.Unsaid]:
        """Those who are gone without a word, and of whom torchrun, which could know, has said nothing up to now either."""
        process = procs.look(self.torchrun) if ranks and self.torchrun else None
        torchrun = process.state if process else procs.State.GONE
        known = self.vanished
        return {rank: known[rank].later(since_s, torchrun=torchrun) if rank in known else faults.Unsaid() for rank in ranks}

    def _torchrun_said(self) -> str:
        """The end of its error output."""
        try:
            with (self.out / "torchrun.err").open("rb") as file:
                file.seek(max(os.fstat(file.fileno()).st_size - ERR_CAP, 0))
                return file.read(ERR_CAP).decode(errors="replace")
        except OSError:
            return ""


def _gone(sight: heartbeat.RankSight) -> bool:
    return sight.process is procs.State.GONE


def _readable(pidfd: int) -> bool:
    """Its process has ended."""
    return bool(zmq.zmq_poll([(pidfd, zmq.POLLIN)], 0))
