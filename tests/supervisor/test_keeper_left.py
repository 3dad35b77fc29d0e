"""A restart from an earlier step, with a real keeper on real files: what it takes, and what becomes of the checkpoints beyond."""

from __future__ import annotations

import os

import pytest

from ftsup.checkpoint.home import Home
from ftsup.events import Epoch, Left
from tests.supervisor.test_keeper import Room, write

BACK = Epoch(1, 3)


@pytest.fixture
def room(tmp_path):
    (tmp_path / "c").mkdir()
    made = Room(tmp_path / "c")
    for step in (10, 20, 30):
        write(made.folder, step)
    made.seal_all()
    yield made
    made.desk.clerk.close()


def name(step: int) -> str:
    return f"step{step:03}.safetensors"


def steps(left: tuple[Left, ...]) -> list[str]:
    return [one.name for one in left]


def test_the_newest_of_that_step_at_most_is_verified_and_the_others_are_left_behind_where_they_are(room):
    chosen = room.pick(epoch=BACK, from_step=15)
    assert (chosen.name, chosen.step, chosen.refused) == (name(10), 10, "")
    assert steps(chosen.left) == [name(20), name(30)]
    assert f"passed over: {name(30)}: left behind by a restart from an earlier step; {name(20)}: left behind" in chosen.why
    assert sorted(path.name for path in room.folder.glob("step*")) == [name(10), name(20), name(30)]
    assert not (room.folder / ".ftsup" / "quarantine").exists()


def test_a_damaged_one_of_that_step_is_set_aside_and_the_one_before_it_taken(room):
    room.folder.joinpath(name(20)).write_bytes(b"x")
    chosen = room.pick(epoch=BACK, from_step=25)
    assert (chosen.name, [one.name for one in chosen.aside], steps(chosen.left)) == (name(10), [name(20)], [name(30)])


def test_without_one_of_that_step_it_is_refused_and_the_newest_taken(room):
    chosen = room.pick(epoch=BACK, from_step=9)
    assert (chosen.name, chosen.left) == (name(30), None)
    assert chosen.refused == "no checkpoint of step 9 at most can be resumed from"
    room.folder.joinpath(name(10)).write_bytes(b"x")
    chosen = room.pick(epoch=BACK, from_step=15)
    assert (chosen.name, chosen.left, chosen.aside) == (name(30), None, ())
    assert chosen.refused.startswith("no checkpoint of step 15 at most can be resumed from: 1 of the 3 checkpoints in")
    chosen = room.pick(epoch=BACK, from_step=15, suspects=(name(10),), sealed=())
    assert chosen.name == name(30)
    assert "can be resumed from: " in chosen.refused


def test_what_is_left_behind_is_passed_over_until_it_is_written_anew(room):
    left = room.pick(epoch=BACK, from_step=15).left
    assert room.pick(epoch=BACK, left=left).name == name(10)
    os.utime(room.folder / name(20))
    assert room.pick(epoch=BACK, left=left).name == name(20)
    write(room.folder, 30, fill=1)
    chosen = room.pick(epoch=BACK, left=left)
    assert (chosen.name, chosen.left) == (name(30), None)


def test_when_only_what_is_left_behind_is_there_nothing_is_taken(room):
    left = room.pick(epoch=BACK, from_step=15).left
    room.folder.joinpath(name(10)).unlink()
    chosen = room.pick(epoch=BACK, left=left)
    assert (chosen.path, chosen.left) == (None, None)
    assert "left behind by a restart from an earlier step" in chosen.why


def test_one_that_was_left_behind_may_be_wanted_again(room):
    left = room.pick(epoch=BACK, from_step=15).left
    chosen = room.pick(epoch=BACK, left=left, from_step=20)
    assert (chosen.name, steps(chosen.left)) == (name(20), [name(30)])


def test_a_rolling_one_is_left_behind_as_well(room):
    (room.folder / name(30)).rename(room.folder / "last.safetensors")
    chosen = room.pick(epoch=BACK, from_step=15, pattern="*.safetensors")
    assert (chosen.name, steps(chosen.left)) == (name(10), ["last.safetensors", name(20)])


def test_what_is_left_behind_is_not_sealed_late_and_what_is_new_is(room):
    write(room.folder, 40)
    left = room.pick(epoch=BACK, from_step=15).left
    write(room.folder, 12)
    passes = room.seal_all(epoch=BACK, left=left)
    assert [one.sealed.name for one in passes if one.sealed] == [name(12)]
    write(room.folder, 40, fill=1)
    assert [one.sealed.name for one in room.seal_all(epoch=BACK, left=left) if one.sealed] == [name(40)]


def test_retention_counts_the_new_branch_only_and_removes_nothing_of_the_old(room):
    """By their steps the abandoned ones are the newest: counted so, everything new would go at once."""
    left = room.pick(epoch=BACK, from_step=15).left
    for step in (11, 12, 13, 14):
        write(room.folder, step)
    passes = room.seal_all(epoch=BACK, left=left, keep=2, needed=(name(10),), found=())
    removed = sorted(name for one in passes for name in one.removed)
    assert removed == [name(11), name(12)]
    assert sorted(path.name for path in room.folder.glob("step*")) == [name(step) for step in (10, 13, 14, 20, 30)]
    assert Home(room.folder).manifest(name(30)).exists()
