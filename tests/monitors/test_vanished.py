"""A rank that is gone without a word, and torchrun, which would say so at once if it had failed, and could speak."""

from __future__ import annotations

import pytest

from ftsup.events import How
from ftsup.monitors.faults import Unsaid
from ftsup.monitors.procs import State

RUNS, STOPPED, DISK, GONE = State.RUNNING, State.STOPPED, State.DISK, State.GONE


@pytest.mark.parametrize(
    "torchrun, how",
    [
        ([], None),
        ([RUNS] * 4, None),
        ([RUNS] * 5, How.RETURNED),
        ([RUNS] * 4 + [DISK], None),
        ([RUNS] * 4 + [DISK, RUNS], How.RETURNED),
        ([RUNS] * 2 + [STOPPED] * 4 + [RUNS] * 2, None),
        ([STOPPED] * 4 + [RUNS] + [STOPPED] * 4, None),
        ([STOPPED] * 5, How.SIGNAL),
        ([GONE] * 5, How.SIGNAL),
    ],
    ids=lambda value: "-".join(one.name[0] for one in value) if isinstance(value, list) else None,
)
def test_it_returned_where_torchrun_could_have_said_otherwise_for_long_enough(torchrun: list[State], how: How | None) -> None:
    rank = Unsaid()
    for state in torchrun:
        rank = rank.later(1.0, torchrun=state)
    assert rank.how() is how
