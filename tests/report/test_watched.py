"""What a report makes of training that tells no phase, or no steps."""

from __future__ import annotations

import pytest

from ftsup import events as ev
from ftsup.events import WatchedBy
from ftsup.report.story import Stage
from tests.report.leader import Leader


@pytest.fixture
def leader() -> Leader:
    one = Leader()
    one.grant()
    one.launch()
    return one


def progress(leader: Leader, **what: object) -> None:
    leader.take(ev.Progressed(node="n1", epoch=leader.epoch, **{"phase": "start", **what}))


@pytest.mark.parametrize("by", [WatchedBy.OUTPUT, WatchedBy.BATCHES])
def test_what_is_still_so_after_a_minute_is_training(leader, by) -> None:
    leader.after(5)
    progress(leader, by=by)
    assert (leader.story.stage, leader.story.step, leader.story.by) == (Stage.STARTING, None, by)
    leader.after(60)
    progress(leader, by=by)
    assert (leader.story.stage, leader.story.phase, leader.story.step) == (Stage.TRAINING, "", None)


def test_a_script_that_prints_before_it_imports_torch_does_not_train_yet(leader) -> None:
    progress(leader, by=WatchedBy.OUTPUT)
    leader.after(1)
    progress(leader, phase="import")
    assert (leader.story.stage, leader.story.phase, leader.story.by) == (Stage.STARTING, "import", None)
    leader.after(5)
    progress(leader, phase="step", step=1, beats=1, by=WatchedBy.STEPS)
    assert (leader.story.stage, leader.story.step) == (Stage.TRAINING, 1)


def test_the_way_back_is_counted_from_the_first_line_of_output(leader) -> None:
    progress(leader, by=WatchedBy.OUTPUT)
    leader.after(60)
    progress(leader, by=WatchedBy.OUTPUT)
    leader.after(60).hang()
    leader.after(1).end_attempt()
    leader.after(2).launch()
    leader.after(3)
    progress(leader, by=WatchedBy.OUTPUT)
    assert leader.story.incidents[0].back_s is None
    leader.after(60)
    progress(leader, by=WatchedBy.OUTPUT)
    incident = leader.story.incidents[0]
    assert incident.back_s == pytest.approx((incident.detected_s or 0) + 6)


def test_steps_that_turn_out_to_be_unknown_are_not_shown(leader) -> None:
    progress(leader, phase="step", step=6, beats=6, by=WatchedBy.STEPS)
    assert leader.story.step == 6
    progress(leader, phase="step", step=None, beats=600, by=WatchedBy.STEPS)
    assert leader.story.step is None
