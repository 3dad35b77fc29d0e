"""Whose steps are the script's: optimizers that take turns, those that do not, and none of torch's."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftsup.worker import beatfile
from ftsup.worker.beatfile import Beat, Flag, Phase
from ftsup.worker.rank import Rank


class Optimizer:
    """Anything that can be stepped."""


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    beatfile.create(tmp_path / "beat.0")
    one = Rank()
    one.join(tmp_path / "beat.0", pid=1, started=2, base_step=100)
    one.reach(Phase.INIT)
    return one


def said(tmp_path: Path) -> Beat:
    beat = beatfile.read(tmp_path / "beat.0")
    assert beat is not None
    return beat


def step(rank: Rank, optimizers: dict[str, Optimizer], order: str) -> None:
    for name in order:
        rank.optimizer_stepped(optimizers.setdefault(name, Optimizer()))


@pytest.mark.parametrize(
    "order,done",
    [
        ("aaaa", 4),
        ("abababab", 4),
        ("abcdabcdabcd", 3),
        ("acbabcacb", 3),  # whichever of the others comes first
        ("aaaababab", 6),  # one is trained alone at first
        ("aaaaabaaaaab", None),
        ("abbbbbabbbbb", None),
        ("aaabbb", None),  # one after the other: the first is not gone
        ("ababaab", None),  # one skips
        ("abcabac", None),
    ],
)
def test_steps_are_the_firsts_as_long_as_all_take_turns(rank: Rank, tmp_path: Path, order: str, done: int | None) -> None:
    step(rank, {}, order)
    beat = said(tmp_path)
    assert beat.beats == len(order)
    assert beat.step == (-1 if done is None else 100 + done)
    assert (Flag.UNSURE in beat.flags) is (done is None)


def test_what_was_lost_stays_lost_until_the_script_says_it(rank: Rank, tmp_path: Path) -> None:
    optimizers: dict[str, Optimizer] = {}
    step(rank, optimizers, "aaabbb" + "ababab")
    assert said(tmp_path).step == -1
    rank.beat(step=7)
    step(rank, optimizers, "ab")
    beat = said(tmp_path)
    assert (beat.step, beat.flags) == (7, Flag.COUNTS)


def test_batches_without_an_optimizer_make_steps_unknown_until_one_is_built(rank: Rank, tmp_path: Path) -> None:
    rank.batch_taken_without_optimizer()
    rank.batch_taken_without_optimizer()
    assert (said(tmp_path).step, said(tmp_path).flags) == (-1, Flag.UNSURE)
    rank.optimizer_built()
    assert (said(tmp_path).step, said(tmp_path).flags, said(tmp_path).phase) == (100, Flag(0), Phase.FIRST_STEP)
    step(rank, {}, "aa")
    assert said(tmp_path).step == 102


def test_an_optimizer_whose_making_was_not_seen_counts_from_its_first_step(rank: Rank, tmp_path: Path) -> None:
    rank.batch_taken_without_optimizer()
    step(rank, {}, "aa")
    assert (said(tmp_path).step, said(tmp_path).flags) == (102, Flag(0))


def test_a_script_that_counts_needs_no_optimizer(rank: Rank, tmp_path: Path) -> None:
    rank.beat(step=5)
    rank.batch_taken_without_optimizer()
    assert (said(tmp_path).step, said(tmp_path).flags) == (5, Flag.COUNTS)
