"""Rates: what pauses, restarts and clocks do to them."""

from __future__ import annotations

import pytest

from ftsup.events import Epoch
from ftsup.report.pace import bars, course, on_the_wall, rate_per_min
from ftsup.report.story import Moment, Pace, Story

ONE, TWO = Epoch(1, 1), Epoch(1, 2)


def points(*pairs: tuple[float, int], epoch: Epoch = ONE, grant: int = 1) -> tuple[Pace, ...]:
    return tuple(Pace(epoch=epoch, at=Moment(t=t, grant=grant), step=step) for t, step in pairs)


def story(*pace: Pace) -> Story:
    return Story(epoch=pace[-1].epoch if pace else ONE, pace=pace)


def test_a_steady_run():
    assert rate_per_min(story(*points((0, 0), (60, 30), (120, 60)))) == 30


def test_a_save_an_evaluation_and_a_slow_minute_do_not_count():
    pauses = points((0, 0), (60, 30), (120, 60), (180, 60), (240, 60), (300, 62), (360, 92), (420, 122), (480, 152))
    assert rate_per_min(story(*pauses)) == 30


def test_it_is_of_this_attempt_and_of_now():
    before, after = points((0, 0), (60, 600), (120, 1200)), points((200, 100), (260, 110), epoch=TWO)
    assert rate_per_min(story(*before, *after)) == 10
    assert rate_per_min(story(*before, *points((200, 100), epoch=TWO))) is None
    assert rate_per_min(story()) is None


def test_what_the_leader_saw_last_is_the_newest_stretch():
    early = story(*points((0, 1)))
    assert rate_per_min(early, since_s=30, step_now=16) == 30
    assert rate_per_min(early, since_s=2, step_now=16) is None
    assert rate_per_min(early, since_s=30, step_now=1) is None


def test_the_course_puts_steps_where_they_were_made():
    track = points((0, 0), (60, 60), (120, 60), (180, 180))
    assert course(track, end_s=180, span_s=180, slots=3) == pytest.approx([60, 0, 120])
    assert course(track, end_s=180, span_s=60, slots=2) == pytest.approx([120, 120])
    assert course(track, end_s=1000, span_s=60, slots=2) == [0, 0]


def test_the_course_has_nothing_between_two_attempts_or_grants():
    track = (*points((0, 0), (60, 60)), *points((90, 10), (150, 70), epoch=TWO), *points((10, 99), epoch=TWO, grant=2))
    assert course(track, end_s=150, span_s=150, slots=5) == pytest.approx([60, 60, 0, 60, 60])


def test_bars_of_all_heights():
    assert bars([0, 1, 50, 99, 100], glyphs=" ▁▂▃▄▅▆▇█") == " ▁▄██"
    assert bars([0, 0], glyphs=" #") == "  "
    assert bars([], glyphs=" #") == ""


def test_points_by_the_wall_clock():
    point = Pace(epoch=ONE, at=Moment(t=5.0, grant=1, wall="2026-01-02T03:04:05+00:00"), step=7)
    assert on_the_wall(point).at.t == 1767323045
    assert on_the_wall(Pace(epoch=ONE, at=Moment(wall="soon"), step=7)) is None
