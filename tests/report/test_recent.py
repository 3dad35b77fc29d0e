"""What a story keeps of the recent past: points of a pace, seals with their time, what is left of the grant, what people asked for."""

from __future__ import annotations

import pytest

from ftsup import events as ev
from ftsup.events import Epoch
from tests.report.leader import NODES, Leader


@pytest.fixture
def leader() -> Leader:
    one = Leader()
    one.grant()
    one.launch()
    return one


def test_the_pace_has_a_point_a_minute_and_no_crowd_where_all_nodes_tell_their_first_step(leader):
    for node in NODES:
        leader.after(0.5).take(ev.Progressed(node=node, epoch=leader.epoch, phase="step", step=1, beats=1, by=ev.WatchedBy.STEPS))
    leader.after(60).train(61)
    leader.after(60).train(121)
    assert [(point.at.t, point.step) for point in leader.story.pace] == [(0.5, 1), (61.0, 61), (121.0, 121)]
    leader.hang(at=121)
    leader.end_attempt()
    leader.launch(checkpoint=100)
    leader.train(101)
    assert (leader.story.pace[-1].epoch, leader.story.pace[-1].step) == (Epoch(1, 2), 101)


def test_the_pace_is_bounded(leader):
    for n in range(200):
        leader.after(60).train(n)
    assert [leader.story.pace[0].step, leader.story.pace[-1].step, len(leader.story.pace)] == [140, 199, 60]


def test_a_seal_remembers_when(leader):
    leader.after(90).take(ev.Sealed(epoch=leader.epoch, name="step60", step=60, size_bytes=7))
    (seal,) = leader.story.sealed
    assert (seal.name, seal.step, seal.size_bytes, seal.at.t, seal.at.wall) == ("step60", 60, 7, 90.0, leader.lines[-1].wall)


def test_what_is_left_of_the_grant_is_known_until_the_next_one(leader):
    leader.after(30).take(ev.SlurmSaid(state="RUNNING", left_s=3600.0))
    assert (leader.story.left_s, leader.story.left_at.t) == (3600.0, 30.0)
    leader.take(ev.SlurmSaid(state="PENDING", left_s=100.0))
    assert leader.story.left_s == 3600.0
    leader.grant(1)
    assert (leader.story.left_s, leader.story.left_at) == (None, None)


def test_what_people_asked_for(leader):
    leader.after(5).take(ev.Asked(request=ev.Request.STOP, who="ada"))
    (wish,) = leader.story.wishes
    assert (wish.request, wish.who, wish.at.t) == ("stop", "ada", 5.0)
