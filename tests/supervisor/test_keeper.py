"""A real keeper process on real files; time is passed in, waiting is polling its socket, bounded."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import msgspec
import psutil
import pytest

from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.owner import Life, Owner, alive
from ftsup.checkpoint.readback import read_backs
from ftsup.events import Epoch
from ftsup.slurm.commands import Commands
from ftsup.supervisor.clerk import Clerk, ClerkFailed
from ftsup.supervisor.keepwords import Chosen, Me, Pass, PickAsk, SealAsk
from tests.supervisor.test_clerk import Desk

ME = Me(run="a/1", job="7", host="n1")
A_MOMENT_S = 1e-6
"""Shorter than it is from one look to the next, however fast the machine."""
RUNNING = (Path(__file__).parents[1] / "slurm" / "texts" / "job-running.txt").read_text()


def write(folder, step, *, size=2000, fill=0):
    """A whole safetensors file."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path = folder / f"step{step:03}.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes([fill]) * size)
    return path


class Room:
    """A directory of checkpoints and a keeper of it."""

    def __init__(self, folder):
        self.folder, self.desk = folder, Desk()
        self.desk.clerk.close()
        self.desk.clerk = Clerk(now=self.desk.now, module="ftsup.supervisor.keeper")
        self.verified, self.damaged = set(), set()
        self.progress = []

    def _ask(self, what, ask, kind):
        self.desk.clerk.ask(
            what,
            now=self.desk.now,
            limit_s=100.0,
            then=lambda answer: (what, answer),
            each=self.progress.append,
            ask=msgspec.to_builtins(ask),
        )
        self.desk.until(lambda: any(isinstance(answer, tuple) for answer in self.desk.answers))
        answer = next(answer[1] for answer in self.desk.answers if isinstance(answer, tuple))
        self.desk.answers.clear()
        return answer if isinstance(answer, ClerkFailed) else msgspec.convert(answer, kind)

    def seal(self, **more):
        ask = {"epoch": Epoch(1, 1), "me": ME, "pattern": "step*", "verified": tuple(self.verified), "damaged": tuple(self.damaged)} | more
        done = self._ask("seal", SealAsk(folder=str(self.folder), **ask), Pass)
        self.verified |= {done.verified} - {""}
        self.damaged |= set(done.damaged[:1])
        return done

    def seal_all(self, **more):
        passes = [self.seal(**more)]
        while passes[-1].again:
            passes.append(self.seal(**more))
        return passes

    def pick(self, **more):
        ask = {"epoch": Epoch(1, 2), "me": ME, "pattern": "step*"} | more
        return self._ask("pick", PickAsk(folder=str(self.folder), **ask), Chosen)


@pytest.fixture
def room(tmp_path):
    (tmp_path / "c").mkdir()
    made = Room(tmp_path / "c")
    yield made
    made.desk.clerk.close()


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """A Slurm that says what the test wants."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "scontrol"
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")

    def says(out, *, err="", code=0):
        (tmp_path / "out").write_text(out)
        program.write_text(
            f"#!/bin/sh\nfor job; do :; done\nsed s/JobId=366903/JobId=$job/ {tmp_path}/out\necho '{err}' >&2\nexit {code}\n"
        )
        program.chmod(0o755)

    return says


def test_the_newest_is_sealed_first_and_each_once(room):
    for step in (10, 20):
        write(room.folder, step)
    assert [done.sealed and done.sealed.name for done in room.seal_all(found=())] == ["step020.safetensors", "step010.safetensors", None]
    chosen = room.pick()
    assert (chosen.name, chosen.step, chosen.found) == ("step020.safetensors", 20, ())
    assert chosen.files is not None
    assert chosen.files.count == 1
    assert [one.name for one in chosen.sealed] == ["step020.safetensors"]
    assert room.pick(sealed=("step020.safetensors",)).sealed == ()


def test_a_sealer_is_nice_and_one_that_picks_is_not(room):
    write(room.folder, 10)
    room.pick()
    process = psutil.Process(room.desk.clerk.pid)
    assert process.nice() == psutil.Process().nice()
    room.seal()
    assert process.nice() == 19
    assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
    assert process.ionice().ioclass == psutil.IOPRIO_CLASS_IDLE
    room.desk.clerk.renew()
    assert room.desk.clerk.pid != process.pid
    assert room.pick().name == "step010.safetensors"


def test_what_was_asked_of_a_process_that_is_renewed_is_forgotten(room):
    write(room.folder, 10, size=3_000_000)
    ask = SealAsk(folder=str(room.folder), pattern="step*", epoch=Epoch(1, 1), me=ME, rate_bytes=1000)
    room.desk.clerk.ask("seal", now=room.desk.now, limit_s=100.0, then=lambda answer: ("seal", answer), ask=msgspec.to_builtins(ask))
    room.desk.until(lambda: psutil.Process(room.desk.clerk.pid).nice() == 19)
    room.desk.clerk.renew()
    assert room.pick().name == "step010.safetensors"
    assert room.desk.clerk.notes() == []


def test_the_rate_holds_and_progress_is_told_meanwhile(room):
    """6 MiB at 2 MB/s, a second of it credited: more than two, in which the supervisor hears that nothing hangs."""
    write(room.folder, 10, size=6 << 20)
    done = room.seal(rate_bytes=2_000_000)
    assert done.sealed.took_s >= 2.0
    assert room.progress
    assert all(0 < size < 7 << 20 for size in room.progress)
    assert room.desk.clerk.deadline_t() is None


def test_an_empty_directory_is_not_touched(room):
    """Some scripts take whatever is in it for a sign that they have run before."""
    assert room.pick().path is None
    assert room.seal() == Pass()
    assert list(room.folder.iterdir()) == []
    assert room.pick(me=ME).found == ()
    room.folder.rmdir()
    assert room.pick().why.endswith("from the beginning")
    assert not room.folder.exists()


def test_a_run_that_is_alive_keeps_its_directory(room, scontrol):
    scontrol(RUNNING)
    write(room.folder, 10)
    room.seal()
    other = Me(run="b/1", job="8", host="n2")
    room.desk.clerk.renew()  # hears of this Slurm
    assert "belong to run a/1 (job 7 on n1), which is alive" in room.pick(me=other).taken
    assert "checkpoint.force" in room.seal(me=other).taken
    scontrol("", err="slurm_load_jobs error: Unable to contact slurm controller (connect failure)", code=1)
    failed = room.pick(me=other)
    assert isinstance(failed, ClerkFailed), "nobody knows: worth another try"
    assert "nobody can say now" in failed.why
    scontrol(RUNNING)
    assert room.pick(me=msgspec.structs.replace(other, force=True)).name == "step010.safetensors"
    assert "belong to run b/1" in room.pick().taken


def test_a_run_that_is_over_leaves_its_directory(room, scontrol):
    write(room.folder, 10)
    room.seal()
    scontrol(RUNNING.replace("RUNNING", "COMPLETED"))
    room.desk.clerk.renew()
    chosen = room.pick(me=Me(run="b/1", job="8"))
    assert (chosen.taken, chosen.name, chosen.found) == ("", "step010.safetensors", ("step010.safetensors",))


@pytest.mark.parametrize(
    "out,err,code,life",
    [
        (RUNNING, "", 0, Life.ALIVE),
        (RUNNING.replace("RUNNING", "PENDING"), "", 0, Life.ALIVE),
        (RUNNING.replace("RUNNING", "COMPLETED"), "", 0, Life.OVER),
        ("", "slurm_load_jobs error: Invalid job id specified", 1, Life.UNKNOWN),  # was it ever this cluster's?
        ("", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", 1, Life.UNKNOWN),
    ],
)
def test_slurm_says_whether_an_owner_lives(scontrol, out, err, code, life):
    scontrol(out, err=err, code=code)
    assert alive(Owner(run="a/1", job="7"), Commands(environ=dict(os.environ))) is life


def test_a_successor_in_the_queue_is_a_life_too(scontrol, tmp_path):
    scontrol(RUNNING)
    (tmp_path / "jobs").write_text("7\n8\n")
    assert alive(Owner(run="a/1", job="7", folder=str(tmp_path)), Commands(environ=dict(os.environ))) is Life.ALIVE


def test_older_ones_go_once_newer_ones_are_verified_and_inputs_stay(room):
    write(room.folder, 1)
    assert room.pick().found == ("step001.safetensors",)
    for step in (10, 20, 30, 40):
        write(room.folder, step)
    passes = room.seal_all(keep=2, found=())
    assert [done.removed for done in passes if done.removed] == [("step010.safetensors", "step020.safetensors")] or [
        set(done.removed) for done in passes if done.removed
    ] == [{"step010.safetensors", "step020.safetensors"}]
    assert [done.verified for done in passes if done.verified] == ["step040.safetensors", "step030.safetensors"]
    backs = read_backs(RealDisk(), Home(room.folder))
    assert {name: bool(back.wall) and not back.damage for name, back in backs.items()} == {
        "step040.safetensors": True,
        "step030.safetensors": True,
    }
    there = sorted(path.name for path in room.folder.glob("step*"))
    assert there == ["step001.safetensors", "step030.safetensors", "step040.safetensors"]


def test_nothing_goes_while_a_newer_one_is_damaged_and_what_is_needed_stays(room):
    for step in (10, 20, 30):
        write(room.folder, step)
    room.seal_all(found=())
    path = room.folder / "step030.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    passes = room.seal_all(keep=1, needed=("step010.safetensors",))
    passes += room.seal_all(keep=1, needed=("step010.safetensors",))
    assert [done.damaged[0] for done in passes if done.damaged] == ["step030.safetensors"]
    assert "step030.safetensors" in {name for done in passes for name in done.said}
    assert read_backs(RealDisk(), Home(room.folder))["step030.safetensors"].damage.startswith("the file, block 0")
    assert not any(done.removed for done in passes)
    assert len(list(room.folder.glob("step*"))) == 3


def test_all_damaged_is_no_reason_to_try_again(room):
    for step in (10, 20):
        write(room.folder, step)
    room.seal_all()
    for path in room.folder.glob("step*"):
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    chosen = room.pick()
    assert "2 of the 2 checkpoints" in chosen.broken
    assert chosen.path is None
    assert len(list(room.folder.glob("step*"))) == 2


def test_a_disk_that_takes_no_mark_keeps_nobody_from_resuming(room):
    write(room.folder, 10)
    (room.folder / ".ftsup").mkdir()
    (room.folder / ".ftsup" / "owner").write_text("somebody else's file")
    chosen = room.pick()
    assert chosen.name == "step010.safetensors"
    assert "nobody can see that the checkpoints are this run's" in chosen.note
    assert chosen.found is None


def test_the_run_is_over_and_the_directory_is_anybodys(room):
    write(room.folder, 10)
    room.seal()
    assert (Home(room.folder).owner / "owner.json").exists()
    room.desk.ask("release", folder=str(room.folder), run="b/1")
    room.desk.answer()
    assert (Home(room.folder).owner / "owner.json").exists()
    room.desk.ask("release", folder=str(room.folder), run="a/1")
    room.desk.answer()
    assert not Home(room.folder).owner.exists()


def test_a_newer_one_speaks_for_one_only_if_that_was_quiet_from_one_look_to_the_next(room):
    """A writer beside the training, which goes on: two looks, and it has not moved between them."""
    for step in (10, 20):
        (room.folder / f"step{step}").mkdir()
        (room.folder / f"step{step}" / "data").write_bytes(b"abc")
    assert room.seal(quiet_s=1000.0).sealed is None
    (room.folder / "step10" / "data").write_bytes(b"abcdef")
    assert room.seal(quiet_s=A_MOMENT_S).sealed is None, "it moved"
    assert room.seal(quiet_s=A_MOMENT_S).sealed.name == "step10"


def test_what_a_dead_attempt_left_is_not_sealed_beside_the_next_one(room):
    (room.folder / "step10").mkdir()
    (room.folder / "step10" / "data").write_bytes(b"torn")
    assert room.pick(epoch=Epoch(1, 2)).path is None
    for step in (20, 30):
        (room.folder / f"step{step}").mkdir()
        (room.folder / f"step{step}" / "data").write_bytes(b"abc")
    first, second = room.seal(epoch=Epoch(1, 2)), room.seal(epoch=Epoch(1, 2))
    assert (first.sealed.name, second.sealed) == ("step20", None)
    assert set(second.said) == {"step30", "step10"}
    assert room.seal(epoch=Epoch(1, 2), ended=True).sealed.name == "step30"
    assert room.seal(epoch=Epoch(1, 2), ended=True).sealed is None


def test_a_sealer_knows_what_its_process_has_picked_for_although_the_disk_took_no_note(room):
    assert room.pick(epoch=Epoch(1, 3)).path is None
    for step in (20, 30):
        (room.folder / f"step{step}").mkdir()
        (room.folder / f"step{step}" / "data").write_bytes(b"abc")
    assert room.seal(epoch=Epoch(1, 3)).sealed.name == "step20"


def test_a_last_one_that_nothing_says_is_whole_is_sealed_by_the_end_of_its_attempt(room):
    for step in (10, 20):
        (room.folder / f"step{step}").mkdir()
        (room.folder / f"step{step}" / "data").write_bytes(b"abc")
    first, second = room.seal(), room.seal()
    assert (first.sealed.name, second.sealed) == ("step10", None)
    assert "nothing says that it is whole" in second.said["step20"]
    assert room.seal(ended=True).sealed.name == "step20"
