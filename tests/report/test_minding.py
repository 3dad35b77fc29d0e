"""What `ftsup watch` does about a run: each row of its table, and its limits."""

from __future__ import annotations

import msgspec
import pytest

from ftsup.policy.spool import Spool
from ftsup.policy.told import Unexplained
from ftsup.ports import Job, JobState
from ftsup.report.minding import FORGETS_S, IN_VAIN, LEFT_S, LIMITS, SILENT_S, SLURMS_OWN, Deed, Do, Finding, Seen, decide, is_new

SPOOL = Spool(job="7", restarts=0, reason="rank 3 hung")
ENDED = [JobState.FAILED, JobState.TIMEOUT, JobState.NODE_FAIL, JobState.PREEMPTED, JobState.BOOT_FAIL, JobState.OUT_OF_MEMORY]
EVERY_JOB = [
    *(Job(job_id="7", state=state, reason=reason) for state in JobState for reason in ("", "launch failed requeued held", "BeginTime")),
    Job(job_id="7", state=JobState.UNKNOWN, completing=True),
    Job(job_id="7", state=JobState.RUNNING, batch_host="n1", nodes=("n2",), restarts=2),
]


def seen(**what) -> Seen:
    return Seen(**({"name": "demo", "job": "7", "begun": True} | what))


def job(state: JobState = JobState.RUNNING, **what) -> Job:
    return Job(job_id="7", state=state, **what)


def pending(reason: str, **what) -> Job:
    return job(JobState.PENDING, reason=reason, **what)


def found(run: Seen, row: Job | None, **how) -> Finding:
    return decide(run, row, now_s=1000.0, **how)


def deed(do: Do, *, at_s: float, about: str = "", **what) -> Deed:
    return Deed(**({"wall": "", "at_s": at_s, "do": do, "about": about, "job": "7", "restarts": 0, "text": ""} | what))


# What nobody wants --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [None, *EVERY_JOB], ids=str)
@pytest.mark.parametrize("spool", [None, SPOOL])
def test_a_run_that_is_over_is_left_alone_whatever_slurm_says(row, spool):
    for start_now in (False, True):
        assert found(seen(over=True, spool=spool, quiet_s=1e6), row, start_now=start_now).do is Do.NOTHING


@pytest.mark.parametrize("row", [None, *EVERY_JOB], ids=str)
@pytest.mark.parametrize("unwanted", ["cancelled", "paused"])
def test_what_was_cancelled_or_paused_is_at_most_cancelled_again(row, unwanted):
    for quiet_s in (0.0, 1e6):
        assert found(seen(unwanted=unwanted, spool=SPOOL, quiet_s=quiet_s), row, start_now=True).do in {Do.NOTHING, Do.CANCEL}


@pytest.mark.parametrize(
    "row, quiet_s, do",
    [
        (pending("Priority"), 0.0, Do.CANCEL),
        (pending("JobHoldMaxRequeue"), 0.0, Do.CANCEL),
        (job(), 0.0, Do.NOTHING),  # its leader ends it
        (job(), SILENT_S, Do.CANCEL),
        (job(JobState.UNKNOWN, completing=True), SILENT_S, Do.NOTHING),
        (job(JobState.CANCELLED), SILENT_S, Do.NOTHING),
        (None, SILENT_S, Do.NOTHING),
    ],
)
def test_a_cancel_that_did_not_get_through(row, quiet_s, do):
    assert found(seen(unwanted="cancelled", quiet_s=quiet_s), row).do is do


def test_a_run_that_was_never_submitted():
    assert found(seen(job=""), None).do is Do.NOTHING


# A spooled requeue --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row, do",
    [
        (job(), Do.REQUEUE),
        (job(JobState.SUSPENDED), Do.REQUEUE),
        (job(JobState.UNKNOWN, completing=True), Do.NOTHING),
        (job(JobState.UNKNOWN), Do.NOTHING),
        (pending("BeginTime", restarts=1), Do.NOTHING),
        (job(restarts=1), Do.NOTHING),  # it was done
        (job(JobState.CANCELLED), Do.SAY),
        (job(JobState.COMPLETED), Do.SAY),
        (None, Do.SAY),
        *((job(state), Do.SUCCEED) for state in ENDED),
    ],
)
def test_a_spooled_requeue_is_carried_out_once_nothing_moves(row, do):
    assert found(seen(spool=SPOOL, quiet_s=LEFT_S), row).do is do
    early = found(seen(spool=SPOOL), row)
    assert early.do is Do.NOTHING
    assert ("rank 3 hung" in early.text) == (do in {Do.REQUEUE, Do.SUCCEED} or row is None)


def test_a_spooled_successor_waits_longer_while_a_leader_may_be_at_it():
    chain = msgspec.structs.replace(SPOOL, chain=True)
    assert found(seen(spool=chain, quiet_s=LEFT_S), job()).do is Do.NOTHING
    assert found(seen(spool=chain, quiet_s=SILENT_S), job()).do is Do.SUCCEED
    assert found(seen(spool=chain, quiet_s=LEFT_S), job(JobState.TIMEOUT)).do is Do.SUCCEED


@pytest.mark.parametrize("spooled", [None, job(), *map(job, ENDED)], ids=str)
def test_a_successor_that_our_own_record_knows_is_enough_whatever_slurm_has_forgotten(spooled):
    for spool in (SPOOL, msgspec.structs.replace(SPOOL, chain=True), msgspec.structs.replace(SPOOL, job="7_3")):
        run = seen(job="8", spool=spool, quiet_s=1e6)
        waits = Job(job_id="8", state=JobState.PENDING, reason="Dependency")
        assert found(run, waits, spooled=spooled).do is Do.NOTHING
        for row in (None, *(Job(job_id="8", state=state) for state in (JobState.CANCELLED, JobState.COMPLETED, JobState.FAILED))):
            assert found(run, row, spooled=spooled).do is Do.SAY


def test_a_spool_of_a_newer_job_than_the_record_has_is_carried_out():
    """The list of the jobs could not be written, and neither could the log."""
    spool = msgspec.structs.replace(SPOOL, job="8")
    ended = Job(job_id="8", state=JobState.TIMEOUT)
    assert found(seen(spool=spool, quiet_s=LEFT_S), job(JobState.FAILED), spooled=ended).do is Do.SUCCEED
    assert found(seen(spool=spool, quiet_s=LEFT_S), None).do is Do.SAY


def test_a_successor_that_may_have_been_submitted_so_long_ago_that_slurm_has_forgotten_it_is_not_submitted_again():
    """Watch was killed between sbatch and its record."""
    run, row = seen(spool=SPOOL, quiet_s=1e6, deeds=(deed(Do.SUCCEED, at_s=0.0),)), job(JobState.FAILED)
    assert decide(run, row, now_s=FORGETS_S - 1).do is Do.SUCCEED, "it would be found"
    said = decide(run, row, now_s=FORGETS_S)
    assert (said.do, said.about) == (Do.SAY, "spooled begun")
    assert "that was begun 4 min ago, and nobody wrote down what came of it" in said.text
    refused = msgspec.structs.replace(run, deeds=(*run.deeds, deed(Do.SUCCEED, at_s=0.0, failed="Slurm was away")))
    assert decide(refused, row, now_s=FORGETS_S).do is Do.SUCCEED
    for_another = msgspec.structs.replace(run, deeds=(deed(Do.SUCCEED, at_s=0.0, job="6"),))
    assert decide(for_another, row, now_s=FORGETS_S).do is Do.SUCCEED


def test_jobs_that_slurm_ends_one_after_the_other_are_not_followed_for_ever():
    deeds = tuple(deed(Do.SUCCEED, at_s=600.0 * n, job=str(n)) for n in range(5))
    run = seen(deeds=deeds, quiet_s=LEFT_S)
    assert decide(msgspec.structs.replace(run, deeds=deeds[:4]), job(JobState.NODE_FAIL), now_s=6000.0).do is Do.SUCCEED
    said = decide(run, job(JobState.NODE_FAIL), now_s=6000.0)
    assert (said.do, said.about) == (Do.SAY, "unexplained given up")


# Its job is over ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row, about, hint",
    [
        (None, "gone", "ftsup submit --continue demo goes on"),
        (job(JobState.GONE), "gone", "ftsup explain demo"),
        (job(JobState.CANCELLED), "cancelled in Slurm", "ftsup submit --continue demo goes on"),
        *(
            (job(state), "ended", "ftsup submit --continue demo goes on")
            for state in (*ENDED, JobState.COMPLETED)
            if state not in SLURMS_OWN
        ),
    ],
)
def test_a_job_that_ended_without_a_word_is_told_and_never_brought_back(row, about, hint):
    said = found(seen(quiet_s=LEFT_S), row, start_now=True)
    assert (said.do, said.about) == (Do.SAY, about)
    assert hint in said.hint
    assert found(seen(), row).do is Do.NOTHING  # the last lines may be on their way


@pytest.mark.parametrize("state", [JobState.PREEMPTED, JobState.NODE_FAIL, JobState.BOOT_FAIL])
def test_what_slurm_itself_has_ended_and_nobody_explained_has_one_successor(state):
    told = Unexplained(job="7", restarts=0)
    assert found(seen(told=told, quiet_s=LEFT_S), job(state)).do is Do.SUCCEED
    assert found(seen(told=told), job(state)).do is Do.NOTHING
    unled = seen(told=told, begun=False, quiet_s=LEFT_S)
    assert found(unled, job(state)).do is Do.SUCCEED
    assert found(unled, job(state, restarts=1)).do is Do.SAY  # of another grant
    assert found(msgspec.structs.replace(unled, told=msgspec.structs.replace(told, job="6")), job(state)).do is Do.SAY
    assert found(seen(told=told, comes_back=False, quiet_s=LEFT_S), job(state)).do is Do.SAY


@pytest.mark.parametrize("state", [JobState.PREEMPTED, JobState.NODE_FAIL, JobState.BOOT_FAIL])
def test_what_slurm_itself_has_ended_with_its_leader_has_one_successor_where_it_may(state):
    """The batch host was lost, or killed the leader at once."""
    assert found(seen(quiet_s=LEFT_S), job(state)).do is Do.SUCCEED
    assert found(seen(), job(state)).do is Do.NOTHING
    assert found(seen(quiet_s=LEFT_S, begun=False), job(state)).do is Do.SAY  # no leader has ever led it
    assert found(seen(quiet_s=LEFT_S, comes_back=False), job(state)).do is Do.SAY  # slurm.requeue: off


@pytest.mark.parametrize("row", [None, *(row for row in EVERY_JOB if row.state not in SLURMS_OWN)], ids=str)
def test_what_was_told_to_end_and_may_have_been_somebodys_wish_is_not_brought_back(row):
    plain, told = seen(quiet_s=1e6), seen(told=Unexplained(job="7", restarts=0), quiet_s=1e6)
    assert found(told, row, start_now=True) == found(plain, row, start_now=True)
    assert found(told, row).do is not Do.SUCCEED


# It waits -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["launch failed requeued held", "launch_failed_requeued_held"])
def test_a_failed_launch_is_released(reason):
    assert found(seen(), pending(reason)).do is Do.RELEASE


@pytest.mark.parametrize(
    "reason, about, text, hint",
    [
        ("JobHoldMaxRequeue", "max requeue", "only an admin may release it", "ftsup submit --continue demo goes on in another job"),
        ("JobHeldUser", "held", "somebody holds its job 7", "scontrol release 7"),
        ("JobHeldAdmin", "held", "an administrator holds its job 7", "the site can say why"),
        ("job requeued in held state", "held", "Slurm holds its job 7", "scontrol release 7"),
        ("DependencyNeverSatisfied", "waits: dependencyneversatisfied", "depends on a job", "ftsup pause demo && ftsup submit"),
        ("BadConstraints", "waits: badconstraints", "too few are left", "scontrol update JobId=7 ExcNodeList="),
        ("ReqNodeNotAvail, UnavailableNodes:n3", "waits: reqnodenotavail", "down, drained or reserved", "sinfo -R"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "waits: nodesrequiredforjobaredown",
            "needs more nodes than are up",
            "sinfo -R",
        ),
        ("QOSMaxWallDurationPerJobLimit", "waits: perjob", "allows one job", "--set slurm.nodes=N"),
        ("AssocMaxNodePerJobLimit", "waits: perjob", "allows one job", "ftsup submit --continue demo"),
    ],
)
def test_what_waits_for_a_person_is_told_with_what_to_do(reason, about, text, hint):
    said = found(seen(), pending(reason), start_now=True)
    assert (said.do, said.about) == (Do.SAY, about)
    assert text in said.text
    assert hint in said.hint
    assert found(seen(), pending(reason.replace(" ", "_"))) == found(seen(), pending(reason)) or "held" in reason


@pytest.mark.parametrize("words, what, hint", IN_VAIN)
def test_every_reason_of_the_table_is_met(words, what, hint):
    said = found(seen(), pending(words))
    assert (said.do, said.about) == (Do.SAY, f"waits: {words}")
    assert what in said.text
    assert said.hint
    assert "JOB" not in said.hint.replace("JobId", "")
    assert "RUN" not in said.hint


@pytest.mark.parametrize(
    "reason", ["", "None", "Priority", "Resources", "Dependency", "BeginTime", "QOSGrpNodeLimit", "Reservation", "Licenses"]
)
def test_what_waits_its_turn_is_left_alone(reason):
    assert found(seen(quiet_s=1e6), pending(reason)).do is Do.NOTHING


@pytest.mark.parametrize(
    "row, do",
    [
        (pending("BeginTime", restarts=1), Do.START),
        (pending("BeginTime", restarts=1, starts_in_s=120.0), Do.START),
        (pending("BeginTime", restarts=1, starts_in_s=3.0), Do.NOTHING),
        (pending("BeginTime", restarts=1, starts_in_s=7200.0), Do.NOTHING),  # somebody's own time
        (pending("BeginTime"), Do.NOTHING),  # its first begin is its owner's
        (pending("Priority", restarts=1), Do.NOTHING),
        (job(JobState.UNKNOWN, completing=True, restarts=1), Do.NOTHING),
        (job(restarts=1), Do.NOTHING),
    ],
)
def test_the_wait_after_a_requeue_is_ended_only_where_that_is_wanted(row, do):
    assert found(seen(), row, start_now=True).do is do
    assert found(seen(), row).do is Do.NOTHING


# It runs ------------------------------------------------------------------------------------------------------------------


def test_a_silent_run_is_told_and_nothing_is_done():
    row = job(batch_host="n1", nodes=("n1", "n2"))
    assert found(seen(quiet_s=SILENT_S - 1), row).do is Do.NOTHING
    said = found(seen(quiet_s=SILENT_S), row)
    assert (said.do, said.about) == (Do.SAY, "silent")
    assert "running on n1, and nothing has moved in its directory for 5 min: its leader is gone or cannot write there" in said.text
    assert "if nothing of it lives on n1, scontrol requeue incomplete 7" in said.hint
    assert "no leader has begun" in found(seen(quiet_s=SILENT_S, begun=False), job()).text


def test_a_lost_batch_host_is_certain():
    row = job(batch_host="n1", nodes=("n2",))
    assert found(seen(quiet_s=LEFT_S - 1), row).do is Do.NOTHING
    assert (found(seen(quiet_s=LEFT_S), row).do, found(seen(quiet_s=LEFT_S), row).about) == (Do.REQUEUE, "batch host lost")


@pytest.mark.parametrize("row", [job(JobState.SUSPENDED), job(JobState.UNKNOWN), job(JobState.UNKNOWN, completing=True)])
def test_what_is_suspended_completing_or_unknown_is_left_alone(row):
    assert found(seen(quiet_s=1e6), row).do is Do.NOTHING


# Limits -------------------------------------------------------------------------------------------------------------------


ACTIONS = {
    Do.REQUEUE: (seen(spool=SPOOL, quiet_s=1e6), job()),
    Do.SUCCEED: (seen(spool=SPOOL, quiet_s=1e6), job(JobState.FAILED)),
    Do.RELEASE: (seen(), pending("launch failed requeued held")),
    Do.START: (seen(), pending("BeginTime", restarts=1)),
    Do.CANCEL: (seen(unwanted="paused"), pending("Priority")),
}


@pytest.mark.parametrize("do", LIMITS)
def test_each_action_waits_longer_each_time_and_ends(do):
    run, row = ACTIONS[do]
    limit, deeds, now_s = LIMITS[do], [], 1e6
    for n in range(limit.tries):
        tried = decide(msgspec.structs.replace(run, deeds=tuple(deeds)), row, now_s=now_s, start_now=True)
        assert tried.do is do
        deeds += [deed(do, at_s=now_s), deed(do, at_s=now_s, failed="Slurm was away")]
        wait_s = min(limit.first_s * 2**n, limit.most_s)
        if n + 1 < limit.tries:
            early = decide(msgspec.structs.replace(run, deeds=tuple(deeds)), row, now_s=now_s + wait_s - 1, start_now=True)
            assert (early.do, early.about) == (Do.NOTHING, tried.about)
            assert "done again in 1.0 s" in early.text
        now_s += wait_s
    last = decide(msgspec.structs.replace(run, deeds=tuple(deeds)), row, now_s=now_s, start_now=True)
    assert (last.do, last.about) == (Do.SAY, f"{tried.about} given up")
    assert f"done {limit.tries} times within a day" in last.text
    assert "ftsup submit --continue demo" in last.hint
    next_day = decide(msgspec.structs.replace(run, deeds=tuple(deeds)), row, now_s=now_s + 86400, start_now=True)
    assert next_day.do is do


def test_what_failed_counts_once_and_a_clock_that_was_set_back_only_delays():
    run, row = ACTIONS[Do.RELEASE]
    deeds = (deed(Do.RELEASE, at_s=1000.0), deed(Do.RELEASE, at_s=1000.0, failed="Slurm was away"))
    run = msgspec.structs.replace(run, deeds=deeds)
    assert decide(run, row, now_s=1121.0).do is Do.RELEASE
    assert decide(run, row, now_s=-2600.0).do is Do.NOTHING
    other = msgspec.structs.replace(run, deeds=tuple(msgspec.structs.replace(one, job="6") for one in deeds))
    assert decide(other, row, now_s=1001.0).do is Do.RELEASE


def test_what_is_said_is_new_once_a_grant():
    run, row = seen(), pending("JobHeldUser")
    said = found(run, row)
    assert is_new(said, run, row)
    told = msgspec.structs.replace(run, deeds=(deed(Do.SAY, at_s=0.0, about="held"),))
    assert not is_new(said, told, row)
    assert is_new(said, told, msgspec.structs.replace(row, restarts=1))
    assert is_new(found(told, pending("BadConstraints")), told, row)
    assert is_new(said, seen(job="8", deeds=told.deeds), row)
    assert is_new(found(seen(quiet_s=LEFT_S), None), seen(), None)
