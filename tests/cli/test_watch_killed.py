"""`ftsup watch` killed at every moment of what it does; and two of them side by side, where no lock keeps them apart."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from random import Random

import msgspec
import pytest
from click.testing import CliRunner

from ftsup.cli.minder import Minder
from ftsup.cli.ports import Ports
from ftsup.cli.watch import watch
from ftsup.cli.watchlock import Memory
from ftsup.policy.spool import Spool
from ftsup.ports import JobState
from ftsup.rundir import RunDir
from ftsup.slurm.fake import FakeSlurm, Record
from tests.cli.living import World

MINUTE_S = 60.0
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class KilledError(BaseException):
    """By SIGKILL."""


@dataclass
class Moments:
    """Counts what a process does to the world, and ends it before one of these."""

    left: int | None = None
    folder: Path = Path("/")

    def come(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KilledError

    def heard(self, event: str, args: tuple[object, ...]) -> None:
        """An audit hook: Python offers no way to take one out again."""
        if self.left is None or event not in {"open", "os.remove", "os.mkdir"} or not str(args[0]).startswith(f"{self.folder}/"):
            return
        if event != "open" or (isinstance(args[2], int) and args[2] & WRITES):
            self.come()


@pytest.fixture(scope="module")
def moments() -> Moments:
    one = Moments()
    sys.addaudithook(one.heard)
    return one


class Stepped:
    """Each call of Slurm's, and its answer, is a moment."""

    def __init__(self, slurm: FakeSlurm, step: Callable[[], None]) -> None:
        self._slurm, self._step = slurm, step

    def __getattr__(self, name: str) -> object:
        def call(*args: object, **more: object) -> object:
            self._step()
            found = getattr(self._slurm, name)(*args, **more)
            self._step()
            return found

        return call


def fakes(**what: float) -> FakeSlurm:
    return FakeSlurm(ids=count(7), **what)  # type: ignore[arg-type] # 7 is the job that the leader's log is of


def spooled(world: World, leader: object) -> RunDir:
    """A run whose leader decided to requeue its job, and is not there any more."""
    script = world.home / "ftsup-runs" / "demo" / "20260102-030405-00aa" / "job.sbatch"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/bash\n")
    job = world.slurm.submit(script)
    world.slurm.advance(1)
    run = world.run(jobs=f"{job}\n", leader=leader)  # type: ignore[arg-type]
    run.requeue.write_bytes(msgspec.json.encode(Spool(job=job, restarts=0, reason="rank 3 hung")))
    return run


def look(world: World, ports: Ports) -> None:
    result = CliRunner().invoke(watch, ["--once"], obj=ports, standalone_mode=False)
    if result.exception:
        raise result.exception


def later(world: World, seconds: float = MINUTE_S) -> None:
    world.now += timedelta(seconds=seconds)
    world.slurm.advance(seconds)


def of_it(slurm: FakeSlurm) -> list[Record]:
    return [record for record in slurm.jobs.values() if record.state is not JobState.CANCELLED]


def ended(slurm: FakeSlurm) -> None:
    slurm.finish("7", exit_code=1)


def running(_slurm: FakeSlurm) -> None:
    """The requeue itself is to be carried out."""


@pytest.mark.parametrize("before", [ended, running])
def test_killed_at_every_moment_and_looking_again_it_does_it_once(tmp_path: Path, leader: object, moments: Moments, before) -> None:
    for killed_at in range(100):
        world = World(tmp_path / str(killed_at))
        world.slurm = fakes()
        run = spooled(world, leader)
        before(world.slurm)
        look(world, world.ports())
        later(world)
        moments.left, moments.folder = killed_at, run.root
        ports = replace(world.ports(), slurm=lambda _, world=world: Stepped(world.slurm, moments.come))
        killed = True
        with suppress(KilledError):
            look(world, ports)
            killed = False
        moments.left = None
        for _ in range(8):
            later(world, 30.0)
            look(world, world.ports())
        found = of_it(world.slurm)
        if before is ended:
            _, follows = found
            assert (follows.words, run.jobs.read_text().split()) == (("7",), ["7", follows.job_id]), killed_at
        else:
            assert [record.restarts for record in found] == [1], killed_at
        if not killed:
            break
    assert not killed
    assert killed_at > 8, "the moments of it"


# Two at once --------------------------------------------------------------------------------------------------------------


class Turns:
    """Two that go on in turns: each until its next moment."""

    def __init__(self, works: list[Callable[[Callable[[], None]], None]]) -> None:
        self.over = [False] * len(works)
        self._go, self._paused = [threading.Semaphore(0) for _ in works], threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._run, args=(n, work)) for n, work in enumerate(works)]
        for thread in self._threads:
            thread.start()
            self._paused.acquire()

    def _run(self, n: int, work: Callable[[Callable[[], None]], None]) -> None:
        try:
            work(lambda: self._moment(n))
        finally:
            self.over[n] = True
            self._paused.release()

    def _moment(self, n: int) -> None:
        self._paused.release()
        self._go[n].acquire()

    def step(self, n: int) -> None:
        if not self.over[n]:
            self._go[n].release()
            self._paused.acquire()

    def end(self) -> None:
        for thread in self._threads:
            thread.join()


@contextmanager
def begun(world: World, minders: list[Memory]) -> Iterator[Turns]:
    """One look of each, side by side, neither of which heeds the other's lock."""

    def work(memory: Memory) -> Callable[[Callable[[], None]], None]:
        def looks(moment: Callable[[], None]) -> None:
            def now() -> object:
                moment()
                return world.now

            ports = replace(world.ports(), slurm=lambda _: Stepped(world.slurm, moment), now=now)
            Minder(ports=ports, runs_dir=world.home / "ftsup-runs", memory=memory, start_now=False, acts=True).look()

        return looks

    turns = Turns([work(memory) for memory in minders])
    yield turns
    turns.end()


def held(slurm: FakeSlurm) -> None:
    slurm.jobs["7"].held, slurm.jobs["7"].why, slurm.jobs["7"].state = True, "launch failed requeued held", JobState.PENDING


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("before", [ended, running, held])
def test_two_that_share_no_lock_double_nothing(tmp_path: Path, leader: object, seed: int, before) -> None:
    """Two login nodes, and a disk on which each sees only its own locks. A requeued job runs again before the slower one has acted."""
    draw = Random(seed)
    world = World(tmp_path)
    world.slurm = fakes(begin_wait_s=0.2, completing_s=0.2)
    releases: list[str] = []
    release = world.slurm.release
    world.slurm.release = lambda job: (releases.append(job), release(job))  # type: ignore[method-assign]
    run = spooled(world, leader)
    memories = [Memory(), Memory()]
    for memory in memories:
        Minder(ports=world.ports(), runs_dir=world.home / "ftsup-runs", memory=memory, start_now=False, acts=True).look()
    before(world.slurm)
    later(world)
    for _ in range(4):
        with begun(world, memories) as turns:
            while not all(turns.over):
                turns.step(draw.choice([0, 1]))
                if draw.random() < 0.3:
                    world.slurm.advance(1.0)
        later(world, 20.0)
    found = of_it(world.slurm)
    if before is ended:
        assert [record.words for record in found] == [(), ("7",)]
        assert run.jobs.read_text().split()[1:] in ([found[1].job_id], [found[1].job_id] * 2)
    elif before is running:
        assert [(record.job_id, record.restarts) for record in found] == [("7", 1)]
    else:
        assert releases == ["7"]
