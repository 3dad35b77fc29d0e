"""The leader's side of the checkpoints, with a real keeper: what is asked when, and which events its answers become."""

from __future__ import annotations

import os
import select
import signal

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.entries import Entry
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.seal import Label, Outcome, Sign, seal
from ftsup.config import Config
from ftsup.events import Epoch, Verdict, VerdictKind
from ftsup.policy.state import Stage, State
from ftsup.supervisor.checkpoints import Checkpoints
from ftsup.supervisor.clock import BootClock
from ftsup.supervisor.keepwords import Me
from tests.supervisor.test_keeper import write

CLOCK = BootClock()
TRAINS = State(stage=Stage.RUN, epoch=Epoch(1, 1))
OVER = State(stage=Stage.OVER, epoch=Epoch(1, 1), verdict=Verdict(kind=VerdictKind.FINISHED, reason="training finished"))


class Desk:
    """A leader that does nothing else."""

    def __init__(self, folder, *, files_s=60.0, **settings):
        (folder / "c").mkdir()
        self.folder, self.now = folder / "c", 100.0
        config = Config(name="a", command=("train.py",), workdir=str(folder))
        config = replace(config, checkpoint=replace(config.checkpoint, **({"dir": "c", "pattern": "step*"} | settings)))
        config = replace(config, waits=replace(config.waits, files_s=files_s))
        self.ours = Checkpoints(config, Me(run="a/1", job="7"), now=self.now)

    def wait(self, kind, *, state=TRAINS, **time):
        """Turns of a loop until an event of this kind; what came by then."""
        end, found = CLOCK.now() + 20, []
        while not any(isinstance(event, kind) for event in found):
            assert CLOCK.now() < end, found
            self.turn(state, **time)
            found += [event for events in self.ours.take(self.now) for event in events]
        return found

    def settle(self):
        """Turns until a pass has found nothing more: the next look is poll away. The keeper runs when nobody else wants to."""
        end = CLOCK.now() + 20
        while self.ours.deadline_t() is not None or self.asks():
            assert CLOCK.now() < end
            self.turn()
            self.ours.take(self.now)

    def asks(self):
        self.ours.look(TRAINS, self.now)
        return self.ours.deadline_t() is not None

    def keeper_pid(self):
        return self.ours._keeper.pid  # noqa: SLF001 - one of an earlier test may still be dying

    def turn(self, state=TRAINS, *, dt=0.02, still=False):
        """`still`: time passes only while the keeper says something."""
        self.ours.look(state, self.now)
        poller = select.poll()
        for fd in self.ours.sources():
            poller.register(fd, select.POLLIN)
        came = poller.poll(20)
        self.now += dt if came or not still else 0.0

    def pick(self, **more):
        found = self.ours.pick(ev.PickCheckpoint(epoch=Epoch(1, 2), **more), self.now)
        return found or self.wait((ev.CheckpointPicked, ev.PickFailed, ev.CheckpointsTaken), state=State())


@pytest.fixture
def desk(tmp_path):
    made = Desk(tmp_path)
    yield made
    made.ours.close()


def test_without_a_directory_there_is_nothing_to_ask(tmp_path):
    desk = Desk(tmp_path, dir="")
    (picked,) = desk.pick()
    assert (picked.path, picked.why) == (None, "checkpoint.dir is not set: from the beginning")
    desk.ours.look(TRAINS, desk.now)
    assert desk.ours.sources() == []
    assert desk.ours.over


def test_sealed_while_it_trains_and_only_then(desk):
    write(desk.folder, 10)
    for stage in Stage:
        if stage is not Stage.RUN:
            desk.ours.look(State(stage=stage), desk.now)
    desk.ours.look(replace(TRAINS, launched_t=1.0), desk.now)
    assert desk.ours.deadline_t() is None, "nothing is asked"
    (sealed,) = desk.wait(ev.Sealed)
    assert (sealed.name, sealed.step, sealed.epoch) == ("step010.safetensors", 10, Epoch(1, 1))


def test_a_save_that_is_seen_is_looked_at_at_once(desk):
    write(desk.folder, 10)
    desk.wait(ev.Sealed)
    desk.settle()
    write(desk.folder, 20)
    begun = desk.now
    desk.ours.saved()
    assert desk.wait(ev.Sealed)[-1].name == "step020.safetensors"
    assert desk.now - begun < 30.0


def test_a_save_of_which_only_the_phase_was_seen_is_looked_for_when_it_is_over(desk):
    write(desk.folder, 10)
    desk.wait(ev.Sealed)
    desk.settle()
    for phases in ({"step"}, {"step", "checkpoint"}, {"checkpoint"}):
        desk.ours.saving(phases)
    write(desk.folder, 20)
    for _ in range(20):
        desk.turn()
        assert desk.ours.take(desk.now) == [], "the next look is poll away"
    begun = desk.now
    desk.ours.saving({"step"})
    assert desk.wait(ev.Sealed)[-1].name == "step020.safetensors"
    assert desk.now - begun < 10.0


def test_an_incident_ends_the_sealing_and_the_pick_is_done_by_another_process(desk):
    write(desk.folder, 10, size=3_000_000)
    slow = Checkpoints(
        replace(desk.ours._config, checkpoint=replace(desk.ours._config.checkpoint, seal_rate_bytes=1000)),  # noqa: SLF001
        Me(run="a/1", job="7"),
        now=desk.now,
    )
    desk.ours.close()
    desk.ours = slow
    desk.turn()
    desk.ours.hush()
    found = desk.pick()
    assert [type(event).__name__ for event in found] == ["Sealed", "CheckpointPicked"]
    assert found[-1].name == "step010.safetensors"


def test_damaged_ones_are_told_before_what_was_picked(desk):
    write(desk.folder, 10)
    path = write(desk.folder, 20)
    while len(list((desk.folder / ".ftsup" / "sealed").glob("*"))) < 2 if (desk.folder / ".ftsup" / "sealed").exists() else True:
        desk.wait(ev.Sealed)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    found = desk.pick(sealed=("step010.safetensors", "step020.safetensors"))
    assert [type(event).__name__ for event in found] == ["Quarantined", "CheckpointPicked"]
    assert (found[0].name, found[1].name) == ("step020.safetensors", "step010.safetensors")
    path = desk.folder / "step010.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    (failed,) = desk.pick()
    assert failed.final
    assert "1 of the 1 checkpoints" in failed.why


def test_a_suspect_is_passed_over(desk):
    write(desk.folder, 10)
    write(desk.folder, 20)
    assert desk.pick()[-1].name == "step020.safetensors"
    assert desk.pick(suspects=("step020.safetensors",))[-1].name == "step010.safetensors"


def test_a_run_that_is_over_seals_what_it_wrote_last_and_lets_go(desk):
    folder = desk.folder / "step10"
    folder.mkdir()
    (folder / "data").write_bytes(b"abc")
    (noted,) = desk.wait(ev.Noted)
    assert "step10 is not sealed" in noted.text
    desk.ours.finish(OVER, desk.now)
    assert [event.name for event in desk.wait(ev.Sealed, state=OVER)] == ["step10"]
    end = CLOCK.now() + 20
    while not desk.ours.over:
        assert CLOCK.now() < end
        desk.turn(OVER)
        desk.ours.take(desk.now)
    assert not (desk.folder / ".ftsup" / "owner").exists()


def test_the_end_is_not_held_for_more_than_so_many_as_are_kept(desk):
    for step in (10, 20, 30, 40, 50):
        (desk.folder / f"step{step}").mkdir()
        (desk.folder / f"step{step}" / "data").write_bytes(b"abc")
    desk.wait(ev.Noted)
    desk.ours.finish(OVER, desk.now)
    sealed, end = [], CLOCK.now() + 20
    while not desk.ours.over:
        assert CLOCK.now() < end
        desk.turn(OVER)
        sealed += [event.name for events in desk.ours.take(desk.now) for event in events if isinstance(event, ev.Sealed)]
    assert sealed == ["step50", "step40", "step30"]
    assert not (desk.folder / ".ftsup" / "owner").exists()


def test_why_a_kind_cannot_be_sealed_is_said_once_however_many_there_are(desk):
    for step in (10, 20, 30):
        (desk.folder / f"step{step}").mkdir()
        (desk.folder / f"step{step}" / "data").write_bytes(b"abc")
    found = desk.wait(ev.Noted)
    assert ["is not sealed" in event.text for event in found] == [True]


def test_older_ones_are_removed_where_that_is_wished(tmp_path):
    desk = Desk(tmp_path, prune=True, keep=1)
    desk.pick()
    for step in (10, 20):
        write(desk.folder, step)
    pruned = desk.wait(ev.Pruned)[-1]
    assert pruned.names == ("step010.safetensors",)
    assert pruned.size_bytes > 2000
    desk.ours.close()


def test_the_end_is_not_held_for_a_last_checkpoint_of_which_nothing_can_be_read(desk):
    write(desk.folder, 10)
    desk.ours.finish(OVER, desk.now)
    os.kill(desk.keeper_pid(), signal.SIGSTOP)
    begun = desk.now
    (noted,) = desk.wait(ev.Noted, state=OVER, dt=1.0)
    assert noted.text.startswith("the last checkpoint may not be sealed: nothing was read for 30 s")
    assert desk.ours.over
    assert 30 <= desk.now - begun < 32
    assert desk.ours.sources() == []
    assert desk.ours.deadline_t() is None


@pytest.mark.parametrize("dt,heard", [(100.0, True), (0.02, False)])
def test_a_pick_that_takes_long_is_heard_of_now_and_then(tmp_path, dt, heard):
    """It waits for a file that is not seen, and gives a sign each second of real time; how much of ours that is, is the test's affair."""
    desk = Desk(tmp_path, files_s=3.0)
    (desk.folder / "step20").mkdir()
    for name in ("a", "b"):
        (desk.folder / "step20" / name).write_bytes(b"abc")
    entry = Entry(name="step20", step=20)
    assert seal(RealDisk(), Home(desk.folder), entry, label=Label(), sign=Sign.SAID).outcome is Outcome.SEALED
    (desk.folder / "step20" / "b").unlink()
    write(desk.folder, 10)
    desk.ours.pick(ev.PickCheckpoint(epoch=Epoch(1, 2)), desk.now)
    found = desk.wait((ev.CheckpointPicked, ev.PickFailed), state=State(), dt=dt, still=True)
    assert [type(event) for event in found if not isinstance(event, ev.Picking)] == [ev.Quarantined, ev.Sealed, ev.CheckpointPicked]
    assert any(isinstance(event, ev.Picking) for event in found) is heard
    assert all(event.epoch == Epoch(1, 2) for event in found if isinstance(event, ev.Picking))
    desk.ours.close()
