"""What comes next, stage by stage, as the leader's machine goes through them."""

from __future__ import annotations

import pytest

from ftsup import events as ev
from ftsup.policy.outlook import Outlook
from ftsup.ports import Job, JobState
from ftsup.report.ahead import gone, over, queue, under_way
from ftsup.report.page import page
from ftsup.report.runs import Now
from ftsup.report.story import Saving, Stage
from tests.report.leader import BEGAN, NODES, Leader
from tests.report.scenes import seen, wall


def ahead(leader: Leader) -> str:
    return page(seen(leader), now=wall(leader)).next


def test_from_the_first_leader_to_training():
    leader = Leader()
    leader.take(ev.LeaderStarted(job="7", restarts=0, host="n1", pid=1, nodes=NODES))
    said = [ahead(leader)]
    for node in NODES:
        leader.take(ev.NodeUp(node=node, instance=node))
    said.append(ahead(leader))
    leader.take(ev.CheckpointPicked(epoch=leader.epoch))
    leader.take(ev.Prepared(node="n1", epoch=leader.epoch, address="n1", port=1))
    said.append(ahead(leader))
    leader.take(ev.Prepared(node="n2", epoch=leader.epoch))
    said.append(ahead(leader))
    for node in NODES:
        leader.take(ev.Launched(node=node, epoch=leader.epoch, pid=1))
    said.append(ahead(leader))
    leader.after(3).train(1)
    said.append(ahead(leader))
    assert said == [
        "waits for the node supervisor on n1, n2",
        "the checkpoint for attempt 1.1 is being chosen and read back",
        "n2 get ready",
        "torchrun is being started on n1, n2",
        "the ranks of attempt 1.1 start",
        "a save is asked for in 30 min",
    ]


def now_at(**ahead_s: float) -> Now:
    return Now(wall=BEGAN.isoformat(), stage="run", epoch="1.1", ahead=Outlook(**ahead_s))


@pytest.mark.parametrize(
    "now, said",
    [
        (now_at(save_s=720), "a save is asked for in 12 min"),
        (now_at(save_s=45.4), "a save is asked for in 45 s"),
        (now_at(save_s=0.2), "a save is asked for now"),
        (now_at(end_s=41280), "requeue before the time limit at 14:32"),
        (now_at(end_s=86400 + 41280), "requeue before the time limit at 2026-01-03 14:32"),
        (now_at(end_s=1e300), "requeue before the time limit some day"),
        (now_at(), "training goes on to its end"),
    ],
)
def test_what_is_due(now, said):
    assert under_way(now, saving=None, epoch="1.1", trains=True, at=BEGAN) == said


def test_a_save_under_way_takes_the_place_of_the_next_one():
    assert under_way(now_at(save_s=9), saving=Saving(number=1), epoch="1.1", trains=True, at=BEGAN) == "a save is asked for"


def test_a_word_of_a_newer_leader_is_no_trouble():
    assert under_way(Now(stage="dance", epoch="1.1"), saving=None, epoch="1.1", trains=False, at=BEGAN) == "the ranks of attempt 1.1 start"


def job(state: JobState, **more: object) -> Job:
    return Job(job_id="7", state=state, **more)


@pytest.mark.parametrize(
    "found, said, follows",
    [
        (
            job(JobState.PENDING, reason="Priority", starts_in_s=600),
            "job 7 is pending (Priority), starts in about 10 min",
            "it goes on when",
        ),
        (job(JobState.PENDING, reason="JobHeldUser"), "job 7 is pending (JobHeldUser)", "somebody has to release it: scontrol release 7"),
        (
            job(JobState.PENDING, reason="launch_failed_requeued_held"),
            "job 7 is pending (launch_failed_requeued_held)",
            "it is held: ftsup watch releases it, and so does scontrol release 7",
        ),
        (
            job(JobState.PENDING, reason="JobHoldMaxRequeue"),
            "job 7 is pending (JobHoldMaxRequeue)",
            "nothing by itself: its launches failed too often; ftsup submit --continue a goes on in another job",
        ),
        (job(JobState.RUNNING), "job 7 is running", "slurm-7.out"),
        (job(JobState.SUSPENDED), "job 7 is suspended", "it depends on Slurm"),
        (job(JobState.UNKNOWN), "job 7 is unknown", "Slurm's answer is missing"),
        (job(JobState.FAILED), "job 7 ended (FAILED)", "ftsup submit --continue a"),
        (job(JobState.GONE), "job 7 is not known to Slurm any more", "ftsup explain a"),
    ],
)
def test_a_job_that_says_nothing_itself(found, said, follows):
    assert queue(found) == said
    assert follows in gone(found, name="a", begun=True, asked=True)


def test_a_job_that_never_began_has_nothing_to_explain():
    assert gone(job(JobState.FAILED), name="a", begun=False, asked=True) == "nothing by itself; slurm-*.out in the run directory says why"


def test_every_end_has_a_sentence():
    for stage in Stage:
        if stage.over:
            assert over(stage, name="a")


def test_a_view_from_before_the_newest_attempt_is_not_taken_for_it():
    old = Now(stage="stop", epoch="1.1", ahead=Outlook(waiting=("n1",)))
    assert under_way(old, saving=None, epoch="1.2", trains=False, at=BEGAN) == "the ranks of attempt 1.2 start"
    assert under_way(old, saving=None, epoch="1.1", trains=False, at=BEGAN) == "what is left of the attempt is being ended on n1"
