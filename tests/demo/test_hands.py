"""Each hand strikes what it is meant for, once it may, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftsup import events as ev
from ftsup.cli.demo_faults import Kind, Strike
from ftsup.cli.demo_hands import Hands, Now, Seat, flip, kill, kill_leader, slowest
from ftsup.events import Epoch, Line
from ftsup.monitors import procs
from ftsup.monitors.heartbeat import RankSight
from ftsup.report.story import Story
from ftsup.rundir import RunDir
from ftsup.worker.beatfile import Beat, Phase

EPOCH = Epoch(1, 2)


def sight(process: subprocess.Popen, *, started: int | None = None, step: int = 3) -> RankSight:
    found = procs.look(process.pid)
    beat = Beat(pid=process.pid, started=found.started if started is None else started, step=step, phase=Phase.STEP)
    return RankSight(rank=0, beat=beat)


def waiting(*words: str, **environ: str) -> subprocess.Popen:
    """A process that lives until it is killed."""
    return subprocess.Popen([sys.executable, "-c", "input()", *words], env={**os.environ, **environ}, stdin=subprocess.PIPE)


@pytest.fixture
def marked() -> Iterator[subprocess.Popen]:
    with waiting(FTSUP_MARK="demo/this-run/1/n1/1.2") as process:
        yield process
        process.kill()


# A rank -------------------------------------------------------------------------------------------------------------------


def test_the_rank_itself_is_killed(marked):
    assert kill(Seat(node="n1", sight=sight(marked)), mark="demo/this-run/")
    assert marked.wait() == -signal.SIGKILL


def test_no_process_of_another_run_is_killed_nor_one_that_took_over_the_pid(marked):
    assert not kill(Seat(node="n1", sight=sight(marked)), mark="demo/another-run/")
    assert not kill(Seat(node="n1", sight=sight(marked, started=1)), mark="demo/this-run/")
    assert marked.poll() is None


def test_the_slowest_rank_counts(marked):
    seats = {rank: Seat(node="n1", sight=sight(marked, step=step)) for rank, step in enumerate((5, 4, 6))}
    assert slowest(seats) == 4
    assert slowest(seats | {3: Seat(node="n2", sight=sight(marked, step=-1))}) == 0
    assert slowest({}) == 0


# The leader ---------------------------------------------------------------------------------------------------------------


def led_by(pid: int) -> list[Line]:
    """A log with a leader, and one before it."""
    started = [ev.LeaderStarted(job="7", restarts=0, host="n1", pid=one, nodes=("n1",)) for one in (1, pid)]
    return [Line(n=n, event=event) for n, event in enumerate([*started, ev.Tick()], 1)]


@pytest.mark.parametrize(
    "words, hit",
    [(("lead", "/r/demo/now"), True), (("lead", "/r/demo/then"), False), (("node", "/r/demo/now"), False)],
    ids=["it leads this run", "it leads another", "it is no leader"],
)
def test_only_the_leader_of_the_run_is_killed(words, hit):
    with waiting(*words) as process:
        assert kill_leader(led_by(process.pid), RunDir(Path("/somewhere/demo/now"))) is hit
        process.stdin.close()
        assert (process.wait() == -signal.SIGKILL) is hit


def test_there_may_be_no_leader():
    with waiting() as process:
        process.kill()
        process.wait()
    run = RunDir(Path("/r/demo/now"))
    assert not kill_leader([], run)
    assert not kill_leader(led_by(process.pid), run)


# A checkpoint -------------------------------------------------------------------------------------------------------------

_NUMBERS = count()


def checkpoint(path: Path, *, sizes: tuple[int, ...] = (5, 0, 300)) -> Path:
    """As torch.save lays it out: a pickle, then a record for each tensor, all of them stored."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"pickle")
        for number, size in enumerate(sizes):
            archive.writestr(f"archive/data/{number}", bytes([170]) * size)
        archive.writestr("archive/version", b"3\n")
    return path


@given(place=st.floats(0, 1, exclude_max=True), sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(sum))
def test_exactly_one_bit_of_a_tensor_flips(tmp_path_factory, place, sizes):
    path = checkpoint(tmp_path_factory.getbasetemp() / f"flip-{next(_NUMBERS)}.pt", sizes=tuple(sizes))
    before, facts = path.read_bytes(), path.stat()
    offset = flip(path, place=place)
    after = path.read_bytes()
    assert [n for n, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]] == [offset]
    assert before[offset] == 170
    assert (before[offset] ^ after[offset]).bit_count() == 1
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (facts.st_size, facts.st_mtime_ns)
    path.unlink()


def test_the_place_is_a_share_of_all_tensors(tmp_path):
    path = checkpoint(tmp_path / "step-000012.pt", sizes=(100, 100))
    first, middle, end = (flip(path, place=place) for place in (0.0, 0.5, 0.999))
    with zipfile.ZipFile(path) as archive:
        headers = [record.header_offset for record in archive.infolist() if "/data/" in record.filename]
    assert headers[0] < first < headers[1] < middle < end
    assert end - middle == 99


# The plan's next strikes --------------------------------------------------------------------------------------------------

KILL = Strike(kind=Kind.KILL, step=40, rank=0)
FLIP = Strike(kind=Kind.FLIP, step=40, place=0.5)


class Scene:
    """A rank, its checkpoints, and hands that wait for the moment."""

    def __init__(self, folder: Path, process: subprocess.Popen) -> None:
        self.folder, self.process = folder, process
        self.files = {step: checkpoint(folder / f"step-{step:06}.pt") for step in (24, 36)}
        self.clean = self.files[36].read_bytes()
        self.later: int | None = None
        """Where the rank is at a second look, if it is not where it was."""
        self.hands = Hands(RunDir(Path("/r/demo/this-run")), look=self.look, checkpoints=folder, every=12, warning_s=60.0, environ={})

    def look(self, _story: Story) -> dict[int, Seat]:
        """While it is held."""
        assert procs.look(self.process.pid).state is procs.State.STOPPED
        return self.seats if self.later is None else {0: Seat(node="n1", sight=sight(self.process, step=self.later))}

    def strike(self, *due: Strike, step: int = 41, sealed: tuple[int, ...] = (24, 36)):
        marks = tuple(ev.Sealed(epoch=EPOCH, name=f"step-{one:06}.pt", step=one) for one in sealed)
        story = Story(job="7", epoch=EPOCH, sealed=marks)
        self.seats = {0: Seat(node="n1", sight=sight(self.process, step=step))}
        return self.hands.strike(due, Now(story=story, seats=self.seats))

    @property
    def untouched(self) -> bool:
        return self.process.poll() is None and self.files[36].read_bytes() == self.clean


@pytest.fixture
def scene(tmp_path, marked) -> Scene:
    return Scene(tmp_path, marked)


def test_a_bit_flips_in_the_newest_sealed_checkpoint_as_the_rank_dies(scene):
    killed, flipped = scene.strike(KILL, FLIP)
    assert scene.process.wait() == -signal.SIGKILL
    assert (killed.strike, flipped.strike) == (KILL, FLIP)
    assert (killed.step, killed.epoch) == (41, EPOCH)
    assert (flipped.name, flipped.older) == ("step-000036.pt", "step-000024.pt")
    data = scene.files[36].read_bytes()
    assert data[flipped.offset] != scene.clean[flipped.offset]
    assert flipped.text == "a flipped bit in step-000036.pt"


@pytest.mark.parametrize(
    "how",
    [{"step": 39}, {"sealed": (24,)}, {"sealed": (36,)}, {"step": 47}],
    ids=["too early", "the newest is not sealed", "the one before is not", "the next one is about to be written"],
)
def test_until_then_nothing_is_touched(scene, how):
    assert scene.strike(KILL, FLIP, **how) == ()
    assert scene.untouched


def test_a_rank_that_has_gone_on_since_it_was_looked_at_is_let_go(scene):
    scene.later = 47
    assert scene.strike(KILL, FLIP) == ()
    assert scene.untouched
    assert procs.look(scene.process.pid).state is not procs.State.STOPPED
    scene.later = 46
    assert len(scene.strike(KILL, FLIP)) == 2


def test_one_checkpoint_alone_is_left_alone(scene):
    scene.files[24].unlink()
    assert scene.strike(KILL, FLIP) == ()
    assert scene.untouched


def test_without_a_bit_to_flip_no_seal_is_waited_for(scene):
    assert [one.strike for one in scene.strike(KILL, sealed=())] == [KILL]
    assert scene.process.wait() == -signal.SIGKILL
    assert scene.files[36].read_bytes() == scene.clean


def test_no_bit_flips_for_a_rank_that_is_gone_by_itself(scene):
    seen = sight(scene.process, step=41)
    scene.process.kill()
    scene.process.wait()
    sealed = tuple(ev.Sealed(epoch=EPOCH, name=f"step-{one:06}.pt", step=one) for one in (24, 36))
    now = Now(story=Story(job="7", epoch=EPOCH, sealed=sealed), seats={0: Seat(node="n1", sight=seen)})
    assert scene.hands.strike((KILL, FLIP), now) == ()
    assert scene.files[36].read_bytes() == scene.clean


@pytest.mark.parametrize("kind", [Kind.LEADER, Kind.WARNING])
def test_a_strike_that_does_not_come_about_is_none(scene, kind):
    """No leader in the log; no Slurm that answers."""
    assert scene.strike(Strike(kind=kind, step=40)) == ()
