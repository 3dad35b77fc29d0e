"""The status page from runs that the leader's machine led: short when all is well, the worst first when not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Fault, How
from ftsup.report.page import Page, page
from ftsup.report.pagetext import in_short, text
from ftsup.report.words import ended
from tests.report.leader import NODES
from tests.report.scenes import seen, trained, wall


def facts_of(leader) -> Page:
    return page(seen(leader), now=wall(leader))


def shown(leader) -> list[str]:
    return text(facts_of(leader), now=wall(leader)).splitlines()


def test_a_healthy_run_is_six_lines():
    assert shown(trained()) == [
        "demo/20260102-030405-00aa: training",
        "  next: a save is asked for in 30 min; requeue before the time limit at 13:03",
        "  step 484, 60 steps/min",
        "  sealed step420, 0 s ago; 64 steps (1 min 4 s) would be lost now",
        "  job 7, attempt 1.1, on n1, n2; 9 h 52 min of the grant left",
        "  budgets left: attempts 199 of 200, the others full",
    ]


def test_an_open_incident_comes_first_and_what_follows_is_said():
    leader = trained()
    leader.after(9).hang(at=484)
    assert shown(leader)[:4] == [
        "demo/20260102-030405-00aa: recovering",
        "  incident 1, 0 s ago, attempt 1.1: rank 3 on n2 stood still for 5.2 s (limit 5",
        "    s) at step 484; found after 5.2 s; not back at work",
        "  next: evidence is being taken on n1, n2",
    ]
    leader.end_attempt()
    assert "  next: the checkpoint for attempt 1.2 is being chosen and read back" in shown(leader)
    assert "  budgets left: hangs 2 of 3, attempts 198 of 200, the others full" in shown(leader)


def test_a_healthy_run_with_a_past_fits_ten_lines_without_the_incidents_and_tells_the_newest_three():
    leader = trained()
    for number in range(5):
        step = 1000 + 100 * number
        leader.after(60).train(step)
        fault = Fault(how=How.EXIT, node="n1", rank=1, step=step, code=3)
        leader.take(ev.RankEnded(node="n1", epoch=leader.epoch, fault=fault))
        leader.end_attempt()
        leader.launch(checkpoint=step)
        leader.after(5).train(step + 1)
    lines = shown(leader)
    told = [line.strip() for line in lines if line.startswith("    ") and not line.startswith("     ")]
    assert [line.partition(",")[0] for line in told] == [
        "incident 5",
        "incident 4",
        "incident 3",
        "2 older: ftsup explain demo/20260102-030405-00aa",
    ]
    assert "  5 incidents, 6 attempts in 1 grant; the newest 3:" in lines
    assert len(facts_of(leader).incidents) == 5


def test_what_is_in_the_back_off_and_when_the_next_attempt_begins():
    leader = trained()
    for _ in range(2):
        leader.after(1).take(
            ev.RankEnded(node="n1", epoch=leader.epoch, fault=Fault(how=How.EXIT, node="n1", rank=1, code=3, phase="init"))
        )
        leader.end_attempt()
        if leader.state.stage.value == "pick":
            leader.launch(checkpoint=420)
    assert any("next: the next attempt begins in 1" in line and "(back-off)" in line for line in shown(leader))


def test_a_run_that_is_over_says_what_can_be_typed():
    leader = trained()
    for node in NODES:
        leader.take(ev.AttemptOver(node=node, epoch=leader.epoch, code=0))
    assert shown(leader) == [
        "demo/20260102-030405-00aa: finished",
        "  training finished",
        "  next: nothing: it is done",
        "  step 481",
        "  sealed step420, 0 s ago",
        "  job 7, attempt 1.1, on n1, n2",
    ]
    stopped = trained()
    stopped.take(ev.CheckpointsTaken(why="another run writes there"))
    assert any("ftsup submit --continue" in line for line in shown(stopped))


def test_what_people_asked_for_is_there_until_it_is_over():
    leader = trained()
    leader.take(ev.Asked(request=ev.Request.STOP, who="ada"))
    leader.after(4)
    assert "  4 s ago: ada asked for a stop: the ranks save first, where the script can," in shown(leader)


def test_what_is_lost_is_counted_in_time_only_where_the_rate_is_known():
    leader = trained(minutes=1)
    facts = page(replace(seen(leader), now=None), now=wall(leader))
    assert (facts.rate_per_min, facts.at_risk_s) == (None, None)
    assert "step 420" not in in_short(facts)


@pytest.mark.parametrize("seconds, silent", [(50, False), (70, True)])
def test_a_silent_leader_has_no_rate(seconds, silent):
    leader = trained()
    view = seen(leader)
    facts = page(view, now=wall(leader.after(seconds)))
    assert (facts.rate_per_min is None) is silent
    assert ("it depends on Slurm" in facts.next) is silent
    assert any("said nothing" in line for line in text(facts, now=wall(leader)).splitlines()) is silent


@pytest.mark.parametrize(
    "how, why, said",
    [
        ("stopped", "stopped by ada, saved step 80", "stopped by ada, saved step 80"),
        ("stopped", "the same error twice", "stopped (the same error twice)"),
        ("cancelled", "", "cancelled"),
    ],
)
def test_how_it_ended_is_said_once(how, why, said):
    assert ended(how, why) == said
