"""The hands that do what the demo's plan says: where the ranks are, and how each fault strikes.

Only at processes and files of the demo's own run; every hand answers whether it struck, and looks before it does. What becomes of it is
read from the run's log by others (demo_proof.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from ftsup import events as ev
from ftsup import proc
from ftsup.cli.demo_faults import Kind, Strike, Struck, instant
from ftsup.errors import SlurmError
from ftsup.events import Line
from ftsup.monitors import procs
from ftsup.monitors.heartbeat import RankSight, sights
from ftsup.report.story import Story
from ftsup.rundir import LocalDir, RunDir
from ftsup.slurm.commands import Commands

SLURM_S = 60.0
HOLD_S = 1.0
"""For a signal to arrive."""
LATE = 2
"""So many steps before its next checkpoint no rank is killed: one that is written meanwhile would be the newest, and unsealed."""


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """A rank as the demo sees it."""

    node: str
    sight: RankSight


def ranks_now(story: Story, *, base: Path, run_id: str) -> dict[int, Seat]:
    """Every rank of the running attempt: this machine holds all nodes, so all beats can be read."""
    if story.epoch is None:
        return {}
    seats = {}
    for node in story.nodes:
        for rank, sight in sights(LocalDir(base, run_id, story.job, node).beats(str(story.epoch))).items():
            seats[rank] = Seat(node=node, sight=sight)
    return dict(sorted(seats.items()))


def slowest(seats: Mapping[int, Seat]) -> int:
    """The step that all ranks have made."""
    return min((seat.sight.step or 0 for seat in seats.values()), default=0)


# One hand a fault ---------------------------------------------------------------------------------------------------------


def kill(seat: Seat, *, mark: str) -> bool:
    """SIGKILL for exactly this rank, if it carries the run's mark; False when it is gone already."""
    process = _process(seat, mark)
    return process is not None and procs.strike(process, signal.SIGKILL)


def _process(seat: Seat, mark: str) -> procs.Process | None:
    exact = (seat.sight.pid, seat.sight.started)
    return next((process for process in procs.marked(mark) if (process.pid, process.started) == exact), None)


@contextlib.contextmanager
def held(process: procs.Process) -> Iterator[bool]:
    """It stands still meanwhile, and so do all other ranks at their next step; False: it does not."""
    until_s = time.monotonic() + HOLD_S
    stands = procs.strike(process, signal.SIGSTOP)
    while stands and procs.state_of(process.pid, started=process.started) is not procs.State.STOPPED:
        stands = time.monotonic() < until_s
        time.sleep(0.001)
    try:
        yield stands
    finally:
        procs.strike(process, signal.SIGCONT)


def kill_leader(lines: Sequence[Line], run: RunDir) -> bool:
    """SIGKILL for the leader that the log names, if its command line says that it leads this run."""
    started = next((line.event for line in reversed(lines) if isinstance(line.event, ev.LeaderStarted)), None)
    process = procs.look(started.pid) if started else None
    if process is None:
        return False
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    ours = b"lead" in words and any(Path(os.fsdecode(word)).name == run.root.name for word in words)
    return ours and procs.strike(process, signal.SIGKILL)


def flip(path: Path, *, place: float) -> int:
    """Turn one bit of the tensors in a torch.save file; where its byte lies. As when a disk does it: size and time stay as they were."""
    spans = list(_tensors(path))
    number, bit = divmod(int(place * 8 * sum(map(len, spans))), 8)
    for span in spans:
        if number < len(span):
            break
        number -= len(span)
    offset, facts = span[number], path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    return offset


def _tensors(path: Path) -> Iterator[range]:
    """The bytes of each tensor: a record of the zip that torch.save writes, behind a header with two lengths at its end."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for record in archive.infolist():
            if "/data/" in record.filename and record.file_size:
                file.seek(record.header_offset)
                header = file.read(30)
                begin = record.header_offset + len(header) + sum(struct.unpack("<HH", header[-4:]))
                yield range(begin, begin + record.file_size)


def limit(job: str, *, left_s: float | None, environ: Mapping[str, str]) -> bool:
    """Move the job's time limit to so far from now; None: far away. As an admin can."""
    try:
        limit_s = 86400 if left_s is None else int(Commands(environ=environ).show(job).run_s + left_s)
    except SlurmError:
        return False
    text = f"{limit_s // 3600}:{limit_s // 60 % 60:02}:{limit_s % 60:02}"
    return proc.run(["scontrol", "update", f"JobId={job}", f"TimeLimit={text}"], env=environ, deadline_s=SLURM_S).ok


# A plan's next strikes ----------------------------------------------------------------------------------------------------


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """How the run stands now."""

    story: Story
    lines: Sequence[Line] = ()
    seats: Mapping[int, Seat] = {}

    @property
    def step(self) -> int:
        """That all ranks have made."""
        return slowest(self.seats)


Look = Callable[[Story], Mapping[int, Seat]]
"""Where the ranks are now."""


class Hands:
    """All of them, for one run."""

    def __init__(self, run: RunDir, *, look: Look, checkpoints: Path, every: int, warning_s: float, environ: Mapping[str, str]) -> None:
        self._run, self._look, self._checkpoints, self._every = run, look, checkpoints, every
        self._warning_s, self._environ = warning_s, environ

    def strike(self, due: Sequence[Strike], now: Now) -> tuple[Struck, ...]:
        """Strike the first of them, and what belongs to it; nothing where it cannot be now."""
        strike = due[0]
        if now.step < strike.step:
            return ()
        if strike.kind is Kind.KILL:
            return self._kill(strike, due[1] if len(due) > 1 and due[1].kind is Kind.FLIP else None, now)
        struck = _struck(strike, now)
        hit = kill_leader(now.lines, self._run) if strike.kind is Kind.LEADER else self._warn(now)
        return (struck,) if hit else ()

    def _kill(self, strike: Strike, bit: Strike | None, now: Now) -> tuple[Struck, ...]:
        """A rank, and with it a bit of what the others are about to resume from."""
        seat, mark = now.seats[strike.rank or 0], f"{self._run.id}/"
        if bit is None:
            struck = _struck(strike, now)
            return (struck,) if kill(seat, mark=mark) else ()
        process = _process(seat, mark) if self._newest(now) else None
        if process is None:
            return ()
        with held(process) as stands:  # until it is dead nobody saves anything newer, however slow we are
            now = msgspec.structs.replace(now, seats=self._look(now.story))
            newest = self._newest(now) if stands else None
            if newest is None:
                return ()
            name, older = newest
            killed, flipped = _struck(strike, now), _struck(bit, now)
            offset = flip(self._checkpoints / name, place=bit.place)
            hit = procs.strike(process, signal.SIGKILL)
        return (killed, msgspec.structs.replace(flipped, name=name, offset=offset, older=older)) if hit else ()

    def _newest(self, now: Now) -> tuple[str, str] | None:
        """The newest checkpoint and the one before, if both are sealed and the next is some steps away."""
        names = sorted((path.name for path in self._checkpoints.glob("step-*.pt")), reverse=True)[:2]
        sealed = {one.name: one.step or 0 for one in now.story.sealed}
        if len(names) < 2 or not sealed.keys() >= set(names) or now.step > sealed[names[0]] + self._every - LATE:  # noqa: PLR2004 - two
            return None
        return names[0], names[1]

    def _warn(self, now: Now) -> bool:
        """Slurm warns by itself when the limit is so near."""
        return limit(now.story.job, left_s=self._warning_s, environ=self._environ)


def _struck(strike: Strike, now: Now) -> Struck:
    return Struck(strike=strike, at=instant(time.time()), step=now.step, epoch=now.story.epoch)
