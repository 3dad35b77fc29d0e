"""What a story and a page tell of a run that people steer: answers, what is left behind, a pause, a continuation."""

from __future__ import annotations

import msgspec
import pytest

from ftsup import events as ev
from ftsup.config import Config, to_json
from ftsup.report.ledger import keep
from ftsup.report.page import page
from ftsup.report.runs import read
from ftsup.report.story import Stage
from ftsup.rundir import RunDir
from tests.report.leader import BEGAN, Leader


@pytest.fixture
def leader() -> Leader:
    one = Leader()
    one.grant()
    one.launch()
    one.after(20).train(100)
    return one


@pytest.fixture
def run(tmp_path) -> RunDir:
    made = RunDir(tmp_path / "demo" / "20260102-030405-00aa")
    made.root.mkdir(parents=True)
    made.config_json.write_bytes(to_json(Config(name="demo", command=("x",))))
    made.jobs.write_text("7\n")
    return made


def seen(run: RunDir, leader: Leader):
    run.events.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in leader.lines))
    return read(run)


def test_each_request_has_its_answer_and_what_is_told_later_is_news(leader):
    leader.take(ev.Asked(request=ev.Request.RESTART, who="ada"))
    leader.take(ev.Asked(request=ev.Request.REQUEUE, who="bob", avoid=("n9",)))
    first, second = leader.story.wishes
    assert (first.request, first.answer[:36]) == ("restart", "ada asked for a restart: the ranks s")
    assert second.answer == "bob asked for a requeue without n9: refused: n9: not among the nodes of this job: n1, n2"
    leader.after(31).take(ev.Tick())
    assert leader.story.wishes == (first, second)
    assert leader.story.notes[-1].startswith("a restart for ada, nothing could be saved on request")


def test_what_is_left_behind_is_not_what_a_restart_begins_with(leader):
    for step in (60, 80):
        leader.take(ev.Sealed(epoch=leader.epoch, name=f"step{step}", step=step))
    leader.take(ev.Asked(request=ev.Request.RESTART, who="ada", from_step=70))
    for node in ("n1", "n2"):
        leader.take(ev.AttemptOver(node=node, epoch=leader.epoch, code=-15))
    leader.take(ev.Tick())
    left = (ev.Left(name="step80", stamp="1"),)
    leader.take(ev.CheckpointPicked(epoch=leader.epoch, path="/c/step60", name="step60", step=60, left=left))
    assert [seal.name for seal in leader.story.sealed] == ["step60"]
    assert leader.story.notes[-1].endswith("from step60, of step 60; left behind until they are written anew: step80")
    assert leader.story.incidents == ()


def test_a_continuation_waits_for_its_leader_and_then_the_story_goes_on(leader, run):
    leader.take(ev.Asked(request=ev.Request.PAUSE, who="ada"))
    leader.after(31).take(ev.Tick())
    leader.take(ev.Decided(mirrored=True))
    assert (seen(run, leader).story.stage, seen(run, leader).job) == (Stage.PAUSED, "7")
    run.continued.write_text('{"n": 1, "who": "ada"}')
    run.jobs.write_text("7\n8\n")
    view = seen(run, leader)
    facts = page(view, now=BEGAN)
    assert (view.story.stage, view.story.verdict, facts.job, facts.stage, facts.reason) == (Stage.WAITING, None, "8", Stage.WAITING, "")
    leader.take(ev.Continued(n=1, who="ada"))
    leader.take(ev.LeaderStarted(job="8", restarts=0, host="n1", pid=1, nodes=("n1", "n2")))
    story = seen(run, leader).story
    assert (story.stage, story.job, story.grants, story.continued, story.incidents) == (Stage.STARTING, "8", 2, 1, ())
    assert "continued by ada" in story.notes


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"n": "1"}', "\udcff"])
def test_a_word_of_a_continuation_that_cannot_be_read_is_none(leader, run, text):
    run.continued.write_bytes(text.encode(errors="surrogateescape"))
    assert seen(run, leader).story.stage is Stage.TRAINING


def test_a_mark_of_a_pause_counts_where_no_leader_speaks(leader, run):
    run.paused.write_text("x\n")
    assert page(read(run), now=BEGAN).stage is Stage.PAUSED
    assert "ftsup submit --continue" in page(read(run), now=BEGAN).next or page(read(run), now=BEGAN).stage.over
    assert page(seen(run, leader), now=BEGAN).stage is Stage.TRAINING


def test_who_goes_back_to_a_later_step_begins_with_it_again(leader):
    for step in (60, 80):
        leader.take(ev.Sealed(epoch=leader.epoch, name=f"step{step}", step=step))
    left = (ev.Left(name="step80", stamp="1"),)
    leader.take(ev.CheckpointPicked(epoch=leader.epoch, path="/c/step60", name="step60", step=60, left=left))
    leader.take(ev.CheckpointPicked(epoch=leader.epoch, path="/c/step80", name="step80", step=80, left=()))
    assert [(seal.name, seal.step) for seal in leader.story.sealed] == [("step60", 60), ("step80", 80)]


def test_the_time_of_a_pause_is_no_part_of_the_run(leader):
    leader.take(ev.Asked(request=ev.Request.PAUSE, who="ada"))
    leader.after(31).take(ev.Tick())
    leader.take(ev.Decided(mirrored=True))
    spent_s = keep(leader.lines).whole_s
    leader.after(3600).take(ev.Continued(n=1, who="ada"))
    leader.take(ev.LeaderStarted(job="8", restarts=0, host="n1", pid=1, nodes=("n1", "n2")))
    ledger = keep(leader.lines)
    assert (round(ledger.idle_s), round(ledger.whole_s - spent_s)) == (3600, 0)
