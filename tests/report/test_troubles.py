"""Trouble with a disk stands in the story from its note until it is over, whoever it befalls, and on the status page as long."""

from __future__ import annotations

import pytest

from ftsup import events as ev
from ftsup.report.explaintext import text
from tests.report.leader import Leader
from tests.report.test_explain import tale_of

FULL = "seal: /c: No space left on device (full: make room)"


@pytest.fixture
def leader() -> Leader:
    made = Leader()
    made.grant()
    return made


def standing(leader: Leader) -> list[str]:
    return list(leader.story.troubles.values())


def test_it_stands_until_it_is_over(leader):
    leader.take(ev.Noted(text=FULL, trouble="keeper full"))
    leader.take(ev.Noted(node="n2", text="logs: no room", trouble="clerk full"))
    leader.take(ev.Noted(text="something else"))
    assert standing(leader) == [FULL, "n2: logs: no room"]
    leader.take(ev.Noted(text="seal: works again", trouble="keeper full", over=True))
    assert standing(leader) == ["n2: logs: no room"]
    leader.take(ev.Noted(node="n2", text="logs: works again", trouble="clerk full", over=True))
    assert standing(leader) == []
    assert leader.story.notes[-1] == "n2: logs: works again"


def test_whoever_begins_finds_out_anew(leader):
    for node in ("", "n1", "n2"):
        leader.take(ev.Noted(node=node, text="x", trouble="full"))
    leader.take(ev.NodeUp(node="n1", instance="another"))
    assert standing(leader) == ["x", "n2: x"]
    leader.take(ev.LeaderStarted(job="7", restarts=0, host="n1", pid=2, nodes=("n1", "n2")))
    assert standing(leader) == ["n2: x"]
    leader.grant(1)
    assert standing(leader) == []


def told(leader: Leader) -> list[str]:
    lines = "\n".join(text(tale_of(leader.lines), alone=False).splitlines()).replace("\n  ", " ").splitlines()
    return [line.split(" ", 2)[2] for line in lines if "Slurm does not answer" in line or "no room" in line]


def test_explain_says_each_kind_once_with_how_often_and_how_long(leader):
    away = ev.Noted(text="Slurm does not answer: scontrol show: timed out", trouble="slurm")
    leader.take(away)
    assert told(leader) == ["Slurm does not answer: scontrol show: timed out (not over yet)"]
    leader.after(60.0).take(ev.Noted(text="Slurm answers again", trouble="slurm", over=True))
    assert told(leader) == ["Slurm does not answer: scontrol show: timed out (1 min)"]
    leader.after(600.0).take(away)
    leader.take(ev.Noted(node="n2", text="logs: no room", trouble="clerk full"))
    leader.after(30.0).take(ev.NodeUp(node="n2", instance="another"))
    leader.take(ev.LeaderStarted(job="7", restarts=0, host="n1", pid=2, nodes=("n1", "n2")))
    leader.take(away)
    assert told(leader) == [
        "Slurm does not answer: scontrol show: timed out (3 times, 1 min 30 s in all, not over yet)",
        "n2: logs: no room (30 s)",
    ]
    leader.after(30.0).grant(1)
    assert told(leader)[0].endswith("(3 times, 1 min 30 s in all)")


def test_what_befalls_all_nodes_at_once_is_one_line(leader):
    for node in ("", "n1", "n2"):
        leader.take(ev.Noted(node=node, text="logs: no room", trouble="full"))
    leader.after(30.0).take(ev.Noted(text="works again", trouble="full", over=True))
    assert told(leader) == ["logs: no room (not over yet, 2 more of the run's supervisors say so)"]
