"""Which faults a seed gives, and where."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftsup.cli.demo_faults import KINDS, Kind, Strike, Struck, choose, instant, passed_s

seeds = st.integers(min_value=0)
lengths = st.integers(100, 10_000)


@given(seed=seeds, steps=lengths, ranks=st.integers(1, 64))
def test_every_seed_gives_all_faults_in_their_order_with_progress_between_them(seed, steps, ranks):
    plan = choose(seed, steps=steps, ranks=ranks)
    assert tuple(strike.kind for strike in plan) == KINDS
    at = [0, *(strike.step for strike in plan if strike.kind is not Kind.FLIP), steps]
    assert all(later - earlier >= steps * 0.11 for earlier, later in pairwise(at))
    assert steps - at[-2] >= steps * 0.29, "the save because of the warning, the requeue and a resume have to come before the end"
    assert all(strike.rank is None or 0 <= strike.rank < ranks for strike in plan)
    assert [strike.kind for strike in plan if strike.rank is not None] == [Kind.SLEEP, Kind.KILL]
    assert plan == choose(seed, steps=steps, ranks=ranks)


@given(seed=seeds, kinds=st.sets(st.sampled_from(KINDS)))
def test_fewer_faults_strike_where_they_would_among_all(seed, kinds):
    """A bit is flipped for the resume after a kill: one comes with it."""
    plan = choose(seed, steps=120, ranks=4, kinds=kinds)
    wanted = kinds | ({Kind.KILL} if Kind.FLIP in kinds else set())
    assert plan == tuple(strike for strike in choose(seed, steps=120, ranks=4) if strike.kind in wanted)
    assert all(later.kind is Kind.FLIP for earlier, later in pairwise(plan) if earlier.kind is Kind.KILL and Kind.FLIP in kinds)


def test_seeds_move_the_faults():
    plans = [choose(seed, steps=120, ranks=4) for seed in range(40)]
    assert {plan[0].rank for plan in plans} == {plan[1].rank for plan in plans} == {0, 1, 2, 3}
    assert all(len({plan[n].step for plan in plans}) > 5 for n in (0, 1, 3, 4))
    assert len({plan[2].place for plan in plans}) == 40


def test_faults_are_called_by_their_names():
    texts = [strike.text for strike in choose(1, steps=120, ranks=1)]
    assert texts == ["time.sleep(3600) in rank 0", "kill -9 of rank 0", "a flipped bit", "kill -9 of the leader", "Slurm's warning"]
    strike = Strike(kind=Kind.FLIP, step=3)
    assert Struck(strike=strike, at=instant(0.0), step=3, name="step-000001.pt").text == "a flipped bit in step-000001.pt"


@pytest.mark.parametrize("end_s, expected", [(1003.5, 3.5), (1000.0, 0.0), (998.0, -2.0)])
def test_instants_are_compared_across_time_zones(end_s, expected):
    assert passed_s(instant(1000.0), instant(end_s)) == expected
    assert passed_s("1970-01-01T00:16:40.000+00:00", instant(end_s)) == expected
