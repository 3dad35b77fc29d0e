"""logs -f against all that printed lines: random output, brought by the real writer, restarts, requeues, a disk that lags and breaks."""

from __future__ import annotations

import resource
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from ftsup.cli.logs import logs
from ftsup.report.tails import OURS
from ftsup.rundir import RunDir
from ftsup.supervisor.ranklogs import Caps, bring
from tests.cli.living import World, finish
from tests.report.leader import Leader

NODES = ("n1", "n2")
GARBAGE = b"\r\0\x1b\xff\xe2\x82[rank 7] step"


class Attempt:
    """What ranks of one attempt on one node print, and how much of it lies in the run directory."""

    def __init__(self, world: Disk, epoch: str, node: str) -> None:
        self.name, self.random, self.caps = f"{epoch} {node}", world.random, world.caps
        self.out = world.home / "local" / node / epoch
        self.out.mkdir(parents=True)
        self.target = world.truth.log(epoch, node)
        self.alive = True
        self.said: list[int] = []
        """By rank, the numbers of its lines."""

    def speak(self) -> None:
        """A rank prints some lines and a half; the name of each stands at its end, behind whatever it did to the cursor."""
        rank = self.random.randrange(3)
        with (self.out / f"out.{rank}").open("ab") as file:
            for _ in range(self.random.choice((0, 1, 1, 5, 60))):
                noise = bytes(self.random.choices(GARBAGE, k=self.random.randrange(30)))
                file.write(noise + f" #{self.name} {len(self.said)}\n".encode())
                self.said.append(rank)
            file.write(b"half" if self.random.random() < 0.2 else b"")

    def bring(self) -> bool:
        """A round of the clerk, which may break at any byte; whether there is more."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        if self.random.random() < 0.2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.random.randrange(4000, 9000), hard))
        try:
            return bring(self.out, self.target, final=not self.alive, caps=self.caps)
        except OSError:
            return True
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def parts(head: Path) -> list[Path]:
    """A log in its order."""
    found = sorted((int(path.suffix[1:]), path) for path in head.parent.glob(f"{head.name}.*"))
    return [path for path in (head, *(path for _, path in found)) if path.exists()]


class Disk:
    """A run directory as it is, and another as somebody on another machine sees it."""

    def __init__(self, home: Path, seen: RunDir, random: Random, caps: Caps) -> None:
        self.home, self.seen, self.random, self.caps = home, seen, random, caps
        self.truth = RunDir(home / "truth")
        self.truth.root.mkdir()
        self.grant, self.number = 1, 0
        self.attempts: list[Attempt] = []
        self.known: dict[Path, int] = {}

    def restart(self) -> None:
        """The next attempt; its predecessor's output may not be brought yet."""
        self.number += 1
        if self.random.random() < 0.3:
            self.grant, self.number = self.grant + 1, 1
        for one in self.attempts:
            one.alive = False
        self.attempts += [Attempt(self, f"{self.grant}.{self.number}", node) for node in NODES]

    def step(self) -> None:
        """A moment of the run."""
        if not self.attempts or self.random.random() < 0.1:
            self.restart()
        for one in self.attempts:
            if one.alive and self.random.random() < 0.7:
                one.speak()
            if self.random.random() < 0.5:
                one.bring()
        self.show()

    def show(self, *, all_of_it: bool = False) -> None:
        """Files appear late, grow late, and may be longer than what is known of them. Whoever sees one part sees those before it whole."""
        for one in self.attempts:
            for path in parts(one.target):
                if not all_of_it and self.random.random() < 0.3:
                    break
                data, there = path.read_bytes(), self.seen.root / path.relative_to(self.truth.root)
                size = len(data) if all_of_it else self.random.randint(min(self.known.get(path, 0), len(data)), len(data))
                blank = len(data) - size if self.random.random() < 0.3 else 0
                self.known[path] = size
                there.parent.mkdir(parents=True, exist_ok=True)
                there.write_bytes(data[:size] + bytes(blank))
                if size < len(data):
                    break
        for there in self.seen.root.glob("logs/*/*"):
            if not (self.truth.root / there.relative_to(self.seen.root)).exists():
                there.unlink()

    def settle(self) -> None:
        """The run is over; its last lines are brought and seen."""
        for one in self.attempts:
            one.alive = False
            while one.bring():
                pass
        self.show(all_of_it=True)


def followed(tmp_path: Path, seed: int, caps: Caps, *, moments: int) -> tuple[Disk, list[bytes]]:
    """A whole story; what `logs -f --all` printed."""
    world, leader, random = World(tmp_path), Leader(), Random(seed)
    leader.grant()
    leader.launch()
    run = world.run(leader=leader)
    disk = Disk(tmp_path, run, random, caps)
    left = iter(range(moments))

    def sleep() -> None:
        moment = next(left, None)
        if moment is not None:
            disk.step()
        elif not leader.state.verdict:
            finish(leader)
            world.run(leader=leader)
        else:
            disk.settle()

    world.asleep = sleep
    return disk, world.type(logs, "-f", "--all").stdout_bytes.splitlines()


def named(lines: list[bytes], name: str) -> list[tuple[int, bytes]]:
    """The lines of one attempt and node, and their numbers."""
    found = ((line.rpartition(b" #")[2], line) for line in lines)
    return [(int(tag.split()[2]), line) for tag, line in found if tag.startswith(f"{name} ".encode())]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_followed_is_what_was_printed(tmp_path, seed):
    disk, shown = followed(tmp_path, seed, Caps(), moments=60)
    shown = [line.partition(b": ")[2] for line in shown]
    written = [part.read_bytes().splitlines() for one in disk.attempts for part in parts(one.target)]
    assert Counter(shown) == Counter(line for lines in written for line in lines)
    for one in disk.attempts:
        lines = named(shown, one.name)
        assert lines == named(one.target.read_bytes().splitlines() if one.target.exists() else [], one.name)
        for rank in range(3):
            mine = [number for number, line in lines if line.startswith(b"[rank %d] " % rank)]
            assert mine == [number for number, who in enumerate(one.said) if who == rank]
    assert len(shown) > 500
    assert len(disk.attempts) >= 4


@pytest.mark.parametrize("seed", range(3))
def test_of_what_outgrows_its_cap_nothing_comes_twice_and_what_is_missing_is_said(tmp_path, seed):
    disk, shown = followed(tmp_path, seed, Caps(head_bytes=2000, tail_bytes=1500, local_bytes=3000), moments=80)
    gaps = 0
    for one in disk.attempts:
        mine = [line.partition(b": ")[2] for line in shown]
        numbers = [number for number, _ in named(mine, one.name)]
        assert len(set(numbers)) == len(numbers)
        for rank in range(3):
            of_rank = [number for number, line in named(mine, one.name) if line.startswith(b"[rank %d] " % rank)]
            assert of_rank == sorted(of_rank)
        kept = [line for part in parts(one.target) for line in part.read_bytes().splitlines()]
        assert {number for number, _ in named(kept, one.name)} <= set(numbers)
        gaps += len(numbers) < len(one.said)
    said = sum(OURS in line or b" bytes left out" in line for line in shown)
    assert 0 < gaps <= said
