"""When people are told what: on logs as leaders write them, also by one leader after another."""

from __future__ import annotations

import json
from functools import reduce

import pytest

from ftsup import events as ev
from ftsup.events import Line, VerdictKind
from ftsup.supervisor.notices import AT_ONCE, KEPT, Notices, due_t, follow, message
from tests.report.leader import Leader

EVERY_S = 600.0


class Story:
    """A log, and whoever tells what it says: each message goes out as soon as it may."""

    def __init__(self) -> None:
        self.t, self.notices, self.lines, self.told = 100.0, Notices(), [], []
        self.log(ev.LeaderStarted(job="7", restarts=0, host="n1", pid=1, nodes=("n1",)))

    def log(self, event: ev.LeaderEvent, *orders: ev.LeaderOrder) -> None:
        line = Line(n=len(self.lines) + 1, wall=f"at {self.t:g}", event=event, orders=orders)
        self.lines.append(line)
        self.notices = follow(self.notices, line)

    def news(self, kind: str, text: str = "something") -> Story:
        self.log(ev.Tick(t=self.t), ev.Notify(kind=kind, text=text))
        return self.go(0)

    def go(self, seconds: float, *, leaving: bool = False) -> Story:
        end_t = self.t + seconds
        while (due := due_t(self.notices, every_s=EVERY_S, leaving=leaving)) is not None and due <= end_t:
            self.t = max(self.t, due)
            self.told.append((self.t, message(self.notices, run="demo/1", job="7", path="/runs/my demo/1")))
            self.log(ev.Told(t=self.t, count=self.notices.count))
        self.t = end_t
        return self

    def texts(self) -> list[tuple[float, str]]:
        return [(t, said["text"]) for t, said in self.told]


def test_the_first_goes_at_once_and_the_next_after_a_while_as_one():
    story = Story().news("incident", "rank 3 hung").go(60).news("incident", "rank 4 hung").go(60).news("save", "no save").go(1000)
    assert story.texts() == [(100, "rank 3 hung"), (700, "no save (and 1 more since the last message: 1 of incident)")]
    story.news("incident", "rank 5 hung").go(1000)
    assert story.texts()[2:] == [(1300, "rank 5 hung")]


@pytest.mark.parametrize("kind", sorted(AT_ONCE))
def test_the_end_of_an_allocation_goes_at_once_with_what_was_held(kind):
    story = Story().news("incident", "a").go(10).news("incident", "b").news(kind, "the end")
    assert story.texts() == [(100, "a"), (110, "the end (and 1 more since the last message: 1 of incident)")]
    assert [news["text"] for news in story.told[1][1]["news"]] == ["b", "the end"]
    assert story.told[1][1]["kind"] == kind


def test_every_verdict_but_a_restart_ends_an_allocation():
    assert {kind.value for kind in VerdictKind} - AT_ONCE == {"restart"}


def test_a_leader_that_leaves_tells_what_it_held():
    story = Story().news("incident", "a").news("incident", "b").go(1, leaving=True)
    assert [text for _, text in story.texts()] == ["a", "b"]


def test_a_new_leader_repeats_nothing_and_forgets_nothing():
    story = Story().news("incident", "a").go(10).news("incident", "b").go(5)
    story.notices = reduce(follow, story.lines, Notices())
    story.log(ev.LeaderStarted(t=story.t, job="7", restarts=0, host="n1", pid=2, nodes=("n1",)))
    story.go(2000)
    assert story.texts() == [(100, "a"), (700, "b")]


def test_in_a_new_grant_the_clock_is_another_and_the_first_goes_at_once():
    story = Story().news("incident", "a").news("incident", "b")
    story.t = 5.0
    story.log(ev.LeaderStarted(t=story.t, job="7", restarts=1, host="n2", pid=1, nodes=("n2",)))
    story.go(1)
    assert story.texts() == [(100, "a"), (5, "b")]


def test_of_very_many_the_newest_are_told_and_the_others_counted():
    story = Story().news("incident", "first")
    for number in range(KEPT + 5):
        story.news("incident", f"number {number}")
    _, said = story.go(1000).told[1]
    assert (len(said["news"]), said["left_out"]) == (KEPT, 5)
    assert said["text"] == "number 24 (and 24 more since the last message: 19 of incident, 5 older)"
    assert said["news"][-1] == {"kind": "incident", "text": "number 24", "wall": "at 100"}


@pytest.mark.parametrize("kind", [*sorted(AT_ONCE), "incident", "no progress", "save", "storage", "checkpoint", "hang", "something new"])
def test_each_says_what_to_type(kind):
    (_, said), *_ = Story().news(kind).told
    assert {"kind", "text", "run", "job", "path", "hint", "command"} <= said.keys()
    assert said["command"].startswith("ftsup ")
    assert said["command"].endswith(" '/runs/my demo/1'")
    assert said["command"] in said["hint"]
    assert "{" not in said["hint"]
    assert json.loads(json.dumps(said)) == said


def test_a_real_leaders_incident_is_told():
    leader = Leader()
    leader.grant()
    leader.launch()
    leader.after(3).train(100)
    leader.after(5).hang()
    leader.after(1).end_attempt()
    notices = reduce(follow, leader.lines, Notices())
    assert [(news.kind, news.text) for news in notices.held] == [
        ("incident", "rank 3 on n2 stood still for 5.2 s (limit 5 s) at step 118: restart here")
    ]
