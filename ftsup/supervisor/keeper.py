"""The process that touches the directory of the checkpoints: picks, seals, verifies, removes. One a run, beside its leader.

`python -m ftsup.supervisor.keeper SOCKET SPEC`, started by clerk.py and asked as the clerk is. It tells how many bytes it has read, so that
its supervisor knows a big checkpoint from a disk that hangs; it may be killed at any moment. Once it has sealed it is nice for good.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil

from ftsup.checkpoint import keep as keeping
from ftsup.checkpoint import seal as sealing
from ftsup.checkpoint.attempts import Began, Pending, pending
from ftsup.checkpoint.behind import left_after, still_left
from ftsup.checkpoint.disk import Pace, RealDisk
from ftsup.checkpoint.entries import entries, manifest_of
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.owner import release
from ftsup.checkpoint.pick import Ask, Picked, pick
from ftsup.checkpoint.readback import ReadBack, remember, seal_of
from ftsup.checkpoint.same import files_of
from ftsup.checkpoint.seal import Label, Outcome, Sign
from ftsup.checkpoint.trouble import told
from ftsup.checkpoint.verify import verify
from ftsup.errors import CheckpointError, Damaged
from ftsup.events import Epoch, Left
from ftsup.supervisor.clerkwork import answer, serve, settle
from ftsup.supervisor.clock import BootClock
from ftsup.supervisor.keepwords import Aside, Chosen, Me, Pass, PickAsk, SealAsk, Taken
from ftsup.supervisor.owning import names, own

NICEST = 19
TELL_S = 1.0
SAID = frozenset({Outcome.CHANGED, Outcome.DAMAGED, Outcome.UNKNOWN})
"""What came of a seal that people should know; the others only mean: not yet."""


class Earlier(NamedTuple):
    """What became of a person's wish to go back."""

    picked: Picked | None = None
    left: tuple[Left, ...] | None = None
    refused: str = ""


class Keeper:
    """What the process can do; each answers a JSON value or raises OSError or FtsupError."""

    def __init__(self, tell: Callable[[int], None], clock: BootClock) -> None:
        self._tell, self._clock = tell, clock
        self._nice = False
        self._began: Began | None = None
        """What the attempt found that this process has picked for."""
        self._looks: dict[str, tuple[str, float]] = {}
        """By checkpoint without a seal: its files, and since when they are as they are."""

    def table(self) -> dict[str, Callable[..., Any]]:
        """By name."""
        return {"pick": self.pick, "seal": self.seal, "release": self.release}

    def pick(self, *, ask: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """Which checkpoint the next attempt resumes from."""
        return msgspec.to_builtins(self._pick(msgspec.convert(ask, PickAsk)))

    def seal(self, *, ask: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """Seal the newest one that is whole and not sealed; else see to what is kept."""
        return msgspec.to_builtins(self._seal(msgspec.convert(ask, SealAsk)))

    def release(self, *, folder: str, run: str) -> None:
        """The run is over."""
        release(RealDisk(), Home(Path(folder)), run)

    # Picking --------------------------------------------------------------------------------------------------------------

    def _pick(self, ask: PickAsk) -> Chosen:
        disk, home, begun_t = RealDisk(each=self._tell), Home(Path(ask.folder)), self._clock.now()
        found: tuple[str, ...] | None = names(disk, home, ask.pattern)
        note = ""
        try:
            taken, mine = own(disk, home, ask.me, found=found or ())
            found = mine.found if mine else found
        except OSError as error:  # a disk that takes no mark keeps nobody from resuming
            taken, found, note = "", None, f"nobody can see that the checkpoints are this run's: {told(error, worked_before=ask.worked)}"
        if taken:
            return Chosen(taken=taken)
        still = still_left(disk, home, ask.left)
        wanted = Ask(
            pattern=ask.pattern,
            complete=ask.complete,
            avoid=frozenset(ask.suspects),
            left=still,
            sealed=frozenset(ask.sealed) - {one.name for one in ask.left if one.name not in still},
            label=self._label(ask.me, Epoch(ask.epoch.grant, ask.epoch.attempt - 1)),
            epoch=ask.epoch,
            ended=ask.ended,
        )
        try:
            earlier = self._pick_earlier(disk, home, ask, wanted)
            left, refused, picked = earlier.left, earlier.refused, earlier.picked or self._pick_one(disk, home, ask, wanted)
        except Damaged as error:
            return Chosen(broken=f"{error.message}; {error.hint}" if error.hint else error.message)
        aside = tuple(Aside(name=one.name, why=one.why, path=one.moved_to) for one in picked.seen if one.moved_to)
        took_s = round(self._clock.now() - begun_t, 3)
        return Chosen(
            path=picked.path,
            name=picked.name,
            step=picked.step,
            why=picked.why,
            files=files_of(disk, Path(picked.path)) if picked.path else None,
            took_s=took_s,
            aside=aside,
            sealed=_sealed_now(disk, home, picked, ask, wall=wanted.label.wall, took_s=took_s),
            found=found,
            left=left,
            refused=refused,
            note=note,
        )

    def _pick_one(self, disk: RealDisk, home: Home, ask: PickAsk, wanted: Ask) -> Picked:
        return pick(disk, home.folder, wanted, again=Patience(ask.files_s, self._clock, self._tell), noted=self._note)

    def _pick_earlier(self, disk: RealDisk, home: Home, ask: PickAsk, wanted: Ask) -> Earlier:
        """The newest of the step that a person wants at most."""
        if ask.from_step is None:
            return Earlier()
        there = entries(disk, home, pattern=ask.pattern)
        left = left_after(disk, home, there, step=ask.from_step)
        none = f"no checkpoint of step {ask.from_step} at most can be resumed from"
        if len(left) == len(there):
            return Earlier(refused=none)
        try:
            picked = self._pick_one(disk, home, ask, msgspec.structs.replace(wanted, left=frozenset(one.name for one in left)))
        except Damaged as error:
            return Earlier(refused=f"{none}: {error.message}")
        return Earlier(picked=picked, left=left) if picked.path else Earlier(refused=f"{none}: {picked.why}")

    def _label(self, me: Me, epoch: Epoch) -> Label:
        return Label(epoch=epoch, writer=me.run, wall=self._clock.wall())

    # Sealing --------------------------------------------------------------------------------------------------------------

    def _seal(self, ask: SealAsk) -> Pass:
        self._be_nice()
        pace = Pace(ask.rate_bytes, now=self._clock.now, sleep=self._doze) if ask.rate_bytes else None

        def each(size_bytes: int) -> None:
            self._tell(size_bytes)
            if pace is not None:
                pace.spend(size_bytes)

        disk, home = RealDisk(each=each), Home(Path(ask.folder))
        there = names(disk, home, ask.pattern)
        if not there:
            return Pass()
        taken, mine = own(disk, home, ask.me, found=there if ask.found is None else ask.found)
        if taken or mine is None:
            return Pass(taken=taken)
        said: dict[str, str] = {}
        left = still_left(disk, home, ask.left)
        for one in pending(disk, home, pattern=ask.pattern, epoch=ask.epoch, began=self._began, ended=ask.ended):
            if one.entry.name in left:
                continue
            begun_t, entry = self._clock.now(), one.entry
            sign = one.sign if self._quiet(one, ask.quiet_s) or one.sign is not Sign.NEWER else Sign.NONE
            done = sealing.seal(disk, home, entry, label=self._label(ask.me, ask.epoch), marker=ask.complete, sign=sign)
            if done.outcome is Outcome.SEALED:
                took_s = round(self._clock.now() - begun_t, 3)
                return Pass(sealed=Taken(name=entry.name, step=entry.step, size_bytes=done.size_bytes, took_s=took_s), said=said)
            if done.outcome in SAID:
                said[entry.name] = done.why
        return self._keep(disk, home, ask, said=said, found=mine.found, left=left)

    def _note(self, began: Began) -> None:
        self._began = began

    def _quiet(self, one: Pending, quiet_s: float) -> bool:
        """Unchanged since a look so long ago."""
        now = self._clock.now()
        files, since_t = self._looks.get(one.entry.name, ("", now))
        if files != one.files:
            since_t = now
        self._looks[one.entry.name] = (one.files, since_t)
        return now - since_t >= quiet_s

    def _keep(
        self, disk: RealDisk, home: Home, ask: SealAsk, *, said: dict[str, str], found: tuple[str, ...], left: frozenset[str]
    ) -> Pass:
        """Never before newer ones are verified: what would let an older one go is read back first."""
        needed = {*ask.needed, *found}
        keeping.forget_lost(disk, home, pattern=ask.pattern)
        if not ask.keep:
            return Pass(said=said)
        every = keeping.items(disk, home, pattern=ask.pattern, writer=ask.me.run, verified=ask.verified)
        items = [item for item in every if item.name not in left]  # those are no newer ones, whatever their steps say
        whole = [item for item in items if item.sealed and item.name not in ask.damaged]
        hopeful = [msgspec.structs.replace(item, verified=item in whole) for item in items]
        if not keeping.removable(hopeful, keep=ask.keep, needed=needed):
            return Pass(said=said)
        for item in whole[: ask.keep]:
            if not item.verified:
                return self._verify(disk, home, item.name, said)
        names = [item.name for item in keeping.removable(items, keep=ask.keep, needed=needed)]
        removed = keeping.prune(disk, home, names)
        if removed.held:
            said[removed.held[0]] = "an NFS client holds on to it; it goes later"
        return Pass(removed=removed.names, removed_bytes=removed.size_bytes, said=said)

    def _verify(self, disk: RealDisk, home: Home, name: str, said: dict[str, str]) -> Pass:
        try:
            manifest = manifest_of(disk, home, name)
        except CheckpointError as error:
            return Pass(damaged=(name, error.message), said=said)
        if manifest is None:
            return Pass(damaged=(name, "its manifest is gone"), said=said)
        found = verify(disk, home.checkpoint(name), manifest, stay_cached=False)
        damage = str(found.damages[0]) if found.damages else ""
        with contextlib.suppress(OSError):  # for people who look
            remember(disk, home, {name: ReadBack(wall=self._clock.wall(), seal=seal_of(manifest), damage=damage)})
        return Pass(damaged=(name, damage), said=said) if damage else Pass(verified=name, said=said)

    def _be_nice(self) -> None:
        """Training comes first. There is no way back: whoever picks is another process."""
        if not self._nice:
            os.setpriority(os.PRIO_PROCESS, 0, NICEST)
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # one that is only nice still takes a rank's turn after a sleep
            psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
            self._nice = True

    def _doze(self, seconds: float) -> None:
        """However low the rate is: we live."""
        while seconds > 0:
            self._clock.sleep(min(seconds, TELL_S))
            seconds -= TELL_S
            self._tell(0)


class Patience:
    """Waits for files that a slow NFS does not show yet; asked whether to look once more."""

    def __init__(self, limit_s: float, clock: BootClock, tell: Callable[[int], None]) -> None:
        self._until_t, self._clock, self._tell = clock.now() + limit_s, clock, tell

    def __call__(self) -> bool:
        """Whether there is time left; then some of it is gone."""
        if self._clock.now() >= self._until_t:
            return False
        self._tell(0)
        self._clock.sleep(TELL_S)
        return True


class Telling:
    """Progress of the request in hand, once a second at most."""

    def __init__(self, talk: socket.socket, clock: BootClock) -> None:
        self._talk, self._clock = talk, clock
        self._number, self._bytes, self._told_t = 0, 0, clock.now()

    def begin(self, number: int) -> None:
        """Another request."""
        self._number, self._bytes, self._told_t = number, 0, self._clock.now()

    def __call__(self, size_bytes: int) -> None:
        """So many bytes more."""
        self._bytes += size_bytes
        now = self._clock.now()
        if now - self._told_t >= TELL_S:
            self._told_t = now
            self._talk.sendall(json.dumps({"n": self._number, "bytes": self._bytes}).encode() + b"\n")


def _sealed_now(disk: RealDisk, home: Home, picked: Picked, ask: PickAsk, *, wall: str, took_s: float) -> tuple[Taken, ...]:
    """What the pick has sealed, and what was sealed without that the run heard of it."""
    good = [one.name for one in picked.seen if one.good]
    found = [(name, manifest_of(disk, home, name)) for name in good]
    return tuple(
        Taken(name=name, step=manifest.step, size_bytes=manifest.size_bytes, took_s=took_s if manifest.wall == wall else 0.0)
        for name, manifest in found
        if manifest is not None and (manifest.wall == wall or name not in ask.sealed)
    )


def main(arguments: list[str]) -> None:
    """Work until the supervisor is gone."""
    talk = settle(arguments, name=b"ftsup-keeper")
    if talk is None:
        return
    clock = BootClock()
    telling = Telling(talk, clock)
    table = Keeper(telling, clock).table()

    def work(request: dict[str, Any]) -> dict[str, Any]:
        telling.begin(request["n"])
        return answer(table, request, worked_before=request["with"].get("ask", {}).get("worked", True))

    serve(talk, work)


if __name__ == "__main__":
    main(sys.argv[1:])
