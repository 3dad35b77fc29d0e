"""The story of a log that the leader's own machine made: what it says of faults, times, steps and verdicts."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Epoch, Fault, How, Line, VerdictKind
from ftsup.report.story import Stage, Story, between_s, fold, tell
from tests.report.leader import NODES, Leader


@pytest.fixture
def leader() -> Leader:
    one = Leader()
    one.grant()
    one.launch()
    one.after(3).train(1)
    one.take(ev.Saved(node="n1", epoch=one.epoch, step=100))
    return one


def test_a_run_that_trains(leader):
    story = leader.story
    assert (story.stage, story.epoch, story.step, story.saved_step) == (Stage.TRAINING, Epoch(1, 1), 1, 100)
    assert (story.job, story.nodes, story.grants, story.attempts) == ("7", NODES, 1, 1)
    assert story.incidents == ()


def test_a_hang_from_its_first_sign_to_training_again(leader):
    leader.after(60).hang()
    assert leader.story.stage is Stage.RECOVERING
    assert "rank 3 on n2" in leader.story.incidents[0].fault
    leader.after(1).end_attempt()
    leader.after(2).launch(checkpoint=100)
    assert leader.story.incidents[0].back_s is None
    leader.after(3).train(101)
    (incident,) = leader.story.incidents
    assert leader.story.stage is Stage.TRAINING
    assert (incident.number, incident.epoch, incident.root.rank, incident.root.node) == (1, Epoch(1, 1), 3, "n2")
    assert "rank 3 on n2 stood still" in incident.fault
    assert incident.detected_s == 5.2
    assert incident.back_s == pytest.approx(5.2 + 6)
    assert incident.replayed == 18
    assert replace(incident, at_step=None).replayed is None
    assert incident.verdict.kind is VerdictKind.RESTART
    assert (leader.story.epoch, leader.story.attempts, leader.story.step) == (Epoch(1, 2), 2, 101)


def test_a_death_is_seen_at_once_and_all_ranks_steps_count(leader):
    leader.train(150)
    leader.take(ev.RankEnded(node="n1", epoch=leader.epoch, fault=Fault(how=How.SIGNAL, node="n1", rank=0, step=149, signal="SIGKILL")))
    leader.end_attempt()
    leader.after(4).launch(checkpoint=140)
    leader.after(1).train(141)
    (incident,) = leader.story.incidents
    assert (incident.detected_s, incident.back_s, incident.replayed) == (0.0, 5.0, 10)


def test_two_incidents_before_training_again_are_closed_together_and_replay_nothing_twice(leader):
    leader.hang(at=120)
    leader.end_attempt()
    leader.launch(checkpoint=100)
    leader.after(1).take(
        ev.RankEnded(node="n1", epoch=leader.epoch, fault=Fault(how=How.EXCEPTION, node="n1", rank=1, error="OSError: x", phase="init"))
    )
    leader.end_attempt()
    leader.after(20).take(ev.Tick())
    leader.launch(checkpoint=100)
    leader.after(1).train(101)
    first, second = leader.story.incidents
    assert (first.replayed, second.replayed) == (20, 0)
    assert first.back == second.back


def test_a_requeue_is_measured_over_two_hosts_by_the_wall_clock(leader):
    leader.after(10).train(130)
    leader.take(ev.Signalled(signal="SIGTERM"))
    leader.after(2).take(ev.SlurmSaid(state="PENDING", restarts=1))
    assert leader.story.stage is Stage.REQUEUED
    leader.grant(1, waited_s=120)
    assert leader.story.stage is Stage.RECOVERING
    leader.launch(checkpoint=100)
    leader.after(8).train(101)
    (incident,) = leader.story.incidents
    assert (incident.number, incident.root, incident.fault) == (0, None, "the job was requeued")
    assert incident.verdict.kind is VerdictKind.REQUEUE
    assert incident.back_s == pytest.approx(2 + 120 + 8)
    assert incident.replayed == 30
    assert (leader.story.grants, leader.story.epoch, leader.story.restarts) == (2, Epoch(2, 1), 1)


def test_a_grant_that_ended_without_a_word_is_an_incident_too(leader):
    leader.train(130)
    leader.grant(1, waited_s=50)
    leader.launch(checkpoint=100)
    leader.after(8).train(101)
    (incident,) = leader.story.incidents
    assert (incident.number, incident.verdict, incident.detected_s) == (0, None, None)
    assert (incident.back_s, incident.replayed) == (pytest.approx(58), 30)


def test_a_new_leader_in_the_same_grant_changes_nothing(leader):
    before = leader.story
    leader.take(ev.LeaderStarted(job="7", restarts=0, host="n1", pid=2, nodes=NODES))
    after = leader.story
    assert (after.stage, after.incidents, after.grants, after.epoch) == (before.stage, (), 1, before.epoch)


def test_finished_and_started_again_by_a_stray_requeue(leader):
    for node in NODES:
        leader.take(ev.AttemptOver(node=node, epoch=leader.epoch, code=0))
    assert leader.story.stage is Stage.FINISHED
    leader.take(ev.Decided(mirrored=True))
    leader.take(ev.LeaderStarted(job="7", restarts=1, host="n1", pid=1, nodes=NODES))
    assert (leader.story.stage, leader.story.incidents) == (Stage.FINISHED, ())


def test_cancelled(leader):
    leader.take(ev.Asked(request=ev.Request.CANCEL, who="me"))
    assert leader.story.stage is Stage.CANCELLED
    assert "me" in leader.story.verdict.reason


def test_unknown_steps_stay_unknown(leader):
    leader.hang()
    leader.end_attempt()
    leader.take(ev.CheckpointPicked(epoch=leader.epoch, path="/c/last", step=None))
    for node in NODES:
        leader.take(ev.Prepared(node=node, epoch=leader.epoch, address="n1", port=1))
    leader.take(ev.Launched(node="n1", epoch=leader.epoch, pid=1))
    leader.take(ev.Launched(node="n2", epoch=leader.epoch, pid=1))
    leader.take(ev.Progressed(node="n1", epoch=leader.epoch, phase="step", step=None, beats=5))
    assert leader.story.incidents[0].replayed is None
    assert leader.story.step is None


def test_words_that_may_mean_nothing_are_told_and_are_no_incident(leader):
    fault = Fault(how=How.PEER, node="n1", rank=0, error="InfiniBand: port error of mlx5_1:1", line="x", alive=True)
    leader.take(ev.Reported(node="n1", epoch=leader.epoch, fault=fault, fatal=False))
    assert leader.story.notes[-1] == "rank 0 on n1: InfiniBand: port error of mlx5_1:1"
    assert leader.story.incidents == ()


def test_the_story_follows_a_log_line_by_line_and_survives_json(leader):
    leader.hang()
    leader.end_attempt()
    story = Story()
    for line in leader.lines:
        story = fold(story, msgspec.json.decode(msgspec.json.encode(line), type=Line))
    assert story == leader.story
    assert msgspec.json.decode(msgspec.json.encode(story), type=Story) == story


def test_an_empty_log_waits():
    assert tell([]).stage is Stage.WAITING


def test_a_wall_clock_that_was_set_back_or_cannot_be_read_gives_no_nonsense(leader):
    last = leader.story.last
    assert between_s(replace(last, grant=1), replace(last, grant=2, wall="2020-01-01T00:00:00+00:00")) == 0.0
    assert between_s(replace(last, grant=1), replace(last, grant=2, wall="soon")) is None


def test_the_end_of_an_attempt_tells_its_last_step() -> None:
    """Progress is told once a minute only: what was replayed is known from the end of the attempt."""
    epoch = ev.Epoch(1, 1)
    launch = ev.Launch(node="n1", epoch=epoch, node_rank=0, nodes=1, address="a", port=1)
    lines = [
        Line(n=1, event=ev.LeaderStarted(job="1", restarts=0, host="n1", pid=1, nodes=("n1",)), orders=(launch,)),
        Line(n=2, event=ev.Progressed(t=1.0, node="n1", epoch=epoch, phase="step", step=70)),
        Line(n=3, event=ev.Signalled(t=5.0, signal="SIGTERM")),
        Line(n=4, event=ev.AttemptOver(t=6.0, node="n1", epoch=epoch, code=None, step=82)),
        Line(n=5, event=ev.LeaderStarted(job="1", restarts=1, host="n1", pid=1, nodes=("n1",))),
    ]
    assert tell(lines).incidents[0].at_step == 82


def test_a_save_on_request_is_seen_from_the_proposal_to_its_end(leader):
    leader.take(ev.Warned(node="n1"))
    seen = [str(leader.story.saving)]
    for node in NODES:
        leader.take(ev.Counted(node=node, epoch=leader.epoch, save=1, least=5, most=6, ears=ev.Ears.ASKS, step_s=1.0))
    seen.append(str(leader.story.saving))
    (beats,) = {order.beats for order in leader.lines[-1].orders}
    for node in NODES:
        leader.take(ev.Voted(node=node, epoch=leader.epoch, save=1, beats=beats, ready=True))
    seen.append(str(leader.story.saving))
    leader.take(ev.SaveOver(node="n1", epoch=leader.epoch, save=1, step=107))
    seen.append(str(leader.story.saving))
    leader.take(ev.SaveOver(node="n2", epoch=leader.epoch, save=1, step=107))
    seen.append(str(leader.story.saving))
    assert seen == ["None", "a save is asked for", "saving on request on n1, n2", "saving on request on n2", "None"]
    assert leader.story.saved_step == 107


def test_a_save_that_an_incident_has_overtaken_is_not_under_way(leader):
    leader.take(ev.Warned(node="n1"))
    for node in NODES:
        leader.take(ev.Counted(node=node, epoch=leader.epoch, save=1, least=5, most=6, ears=ev.Ears.ASKS, step_s=1.0))
    assert leader.story.saving is not None
    leader.hang()
    assert leader.story.saving is None


def test_told_to_end_and_nobody_said_why_is_said(leader):
    leader.take(ev.Signalled(signal="SIGTERM"))
    assert leader.story.unexplained
    leader.grant(restarts=1)
    assert not leader.story.unexplained
    assert leader.story.incidents[-1].fault == "the job was told to end (SIGTERM), and Slurm did not say why"
    leader.launch()
    leader.take(ev.Signalled(signal="SIGTERM"))
    leader.take(ev.SlurmSaid(state="CANCELLED"))
    assert (leader.story.unexplained, leader.story.stage) == (False, Stage.CANCELLED)
