from __future__ import annotations

import contextlib

import msgspec
import pytest

from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.moves import sweep
from ftsup.checkpoint.owner import Life, Owner, claim, objection, read_owner, release
from ftsup.errors import Busy
from tests.checkpoint.disks import BrokenDisk, Killed, healthy, kills

DISK = RealDisk()
A = Owner(run="run-a", job="12", host="n1", found=("init.pt",))
B = Owner(run="run-b", job="13", host="n2")


def of(life):
    return lambda present: life


@pytest.mark.parametrize(
    "me,life,said",
    [
        (A, Life.ALIVE, ""),
        (A, Life.UNKNOWN, ""),
        (B, Life.OVER, ""),
        (B, Life.ALIVE, "the checkpoints belong to run run-a (job 12 on n1), which is alive"),
        (B, Life.UNKNOWN, "the checkpoints belong to run run-a (job 12 on n1), and nobody can say now whether it is over"),
    ],
)
def test_who_may_take_it(me, life, said):
    assert objection(A, me, life=life) == said


def test_the_first_run_owns_it_and_a_second_live_one_is_refused(tmp_path):
    home = Home(tmp_path)
    assert read_owner(DISK, home) is None
    assert claim(DISK, home, A, life=of(Life.ALIVE)).why == ""
    with pytest.raises(Busy, match=r"run-a \(job 12 on n1\), which is alive\nhint: .* or --force"):
        claim(DISK, home, B, life=of(Life.ALIVE))
    assert read_owner(DISK, home) == A


@pytest.mark.parametrize(
    "life,force,why",
    [
        (Life.OVER, False, "taken from run run-a, which is over"),
        (Life.ALIVE, True, "taken by force: the checkpoints belong to run run-a (job 12 on n1), which is alive"),
    ],
)
def test_a_dead_owner_s_directory_is_taken_and_a_live_one_s_by_force(life, force, why, tmp_path):
    home = Home(tmp_path)
    claim(DISK, home, A, life=of(Life.ALIVE))
    assert claim(DISK, home, B, life=of(life), force=force).why == why
    assert read_owner(DISK, home) == B
    assert list(home.trash.iterdir()) == []


def test_a_run_that_comes_back_keeps_what_it_found(tmp_path):
    home = Home(tmp_path)
    claim(DISK, home, A, life=of(Life.ALIVE))
    again = claim(DISK, home, Owner(run="run-a", job="99", found=("mine.pt",)), life=of(Life.ALIVE))
    assert (again.owner.job, again.owner.found) == ("99", ("init.pt",))
    assert read_owner(DISK, home) == again.owner


def test_an_owner_that_cannot_be_read_needs_force(tmp_path):
    home = Home(tmp_path)
    claim(DISK, home, A, life=of(Life.ALIVE))
    (home.owner / "owner.json").write_bytes(b"{")
    with pytest.raises(Busy, match=r"cannot be read.*\nhint: --force"):
        claim(DISK, home, B, life=of(Life.OVER))
    assert "cannot be read" in claim(DISK, home, B, life=of(Life.OVER), force=True).why
    assert read_owner(DISK, home) == B


def test_a_run_gives_back_only_what_is_its_own(tmp_path):
    home = Home(tmp_path)
    claim(DISK, home, A, life=of(Life.ALIVE))
    release(DISK, home, "run-b")
    assert read_owner(DISK, home) == A
    release(DISK, home, "run-a")
    assert read_owner(DISK, home) is None


@pytest.mark.parametrize("dead", [False, True], ids=["nobody's", "a dead run's"])
def test_of_two_at_once_one_gets_it_whatever_the_moment(dead, tmp_path):
    """B takes the directory between any two disk calls of A's claim: never do both believe that they have it."""

    def calls():
        disk = healthy()
        home = start(tmp_path / "count", dead)
        claim(disk, home, A, life=of(Life.OVER))
        return disk.calls

    for at in range(1, calls() + 1):
        home = start(tmp_path / str(at), dead)
        second = []

        def strike(number, name, path, *, at=at, home=home, second=second):
            if number == at:
                second.append(won(DISK, home, B))

        first = won(BrokenDisk(strike), home, A)
        owner = read_owner(DISK, home)
        assert owner is not None
        assert [first, *second].count(True) == 1, at
        assert (owner == A) is first, at


def won(disk, home, me):
    """The other one's job is over only if it is the old owner's."""
    try:
        claim(disk, home, me, life=lambda present: Life.OVER if present.run == "old" else Life.ALIVE)
    except Busy:
        return False
    return True


def start(folder, dead):
    folder.mkdir()
    if dead:
        claim(DISK, Home(folder), Owner(run="old"), life=of(Life.ALIVE))
    return Home(folder)


@pytest.mark.parametrize("torn", [False, True])
def test_killed_at_any_call_the_next_one_takes_it(torn, tmp_path):
    disk = healthy()
    claim(disk, start(tmp_path / "count", dead=True), A, life=of(Life.OVER))
    for at in range(1, disk.calls + 1):
        home = start(tmp_path / str(at), dead=True)
        with contextlib.suppress(Killed):
            claim(kills(at, torn=torn), home, A, life=of(Life.OVER))
        owner = read_owner(DISK, home)
        assert owner is None or owner.run in {"old", "run-a"}
        assert claim(DISK, home, A, life=of(Life.OVER)).owner.run == "run-a"
        sweep(DISK, home)
        assert list(home.trash.iterdir()) == []


def test_an_owner_travels_as_json():
    assert msgspec.json.decode(msgspec.json.encode(A), type=Owner) == A
