"""Slurm's text into our values, from what a real Slurm printed (texts/) and what sites put around it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftsup.errors import Unreadable
from ftsup.ports import JobState, NodeState, Partition
from ftsup.slurm import jobs
from ftsup.slurm.jobs import WarningSignal

BANNER = "*** Maintenance on Monday. JobState=FAILED ***\nscontrol: warning: old library\n"


def said(name: str) -> str:
    return (Path(__file__).parent / "texts" / name).read_text()


def altered(old: str, new: str) -> str:
    text = said("job-running.txt")
    assert old in text
    return text.replace(old, new)


def job_of(text: str) -> jobs.Job:
    return jobs.parse_jobs(text)[0]


def test_a_running_job():
    job = job_of(said("job-running.txt"))
    assert (job.state, job.completing, job.held, job.reason) == (JobState.RUNNING, False, False, "")
    assert (job.name, job.nodes, job.batch_host, job.num_nodes, job.excluded) == ("two words", ("n1", "n2"), "n1", 2, ("n4",))
    assert (job.limit_s, job.run_s, job.starts_in_s, job.restarts) == (26 * 3600.0, 1.0, None, 0)
    assert (job.exit_code, job.exit_signal, job.requeueable) == (0, None, True)


@pytest.mark.parametrize(
    "name, ends_in_s, preempted",
    [
        ("job-running.txt", 26 * 3600.0 - 1, False),
        ("job-preempted-running.txt", 16.0, True),  # 20 s of grace, 4 of them are over
        ("job-resumed.txt", 30 * 60.0 - 7, False),  # it ran 4 s, was suspended for 5, and ran 3 more
        ("job-suspended.txt", None, False),
        ("job-preempted-completing.txt", None, True),
        ("job-requeued-completing.txt", None, False),
    ],
)
def test_how_long_it_has_is_what_end_time_says(name, ends_in_s, preempted):
    job = job_of(said(name))
    assert (job.ends_in_s, job.preempted) == (ends_in_s, preempted)


@pytest.mark.parametrize("end, ends_in_s", [("2027-11-29T15:04:05", None), ("Unknown", None), ("2026-11-30T00:11:52", 20.0)])
def test_the_year_that_slurm_gives_a_job_without_a_limit_is_no_end(end, ends_in_s):
    text = (
        said("job-preempted-running.txt")
        .replace("TimeLimit=00:30:00", "TimeLimit=UNLIMITED")
        .replace("RunTime=00:00:07", "RunTime=00:00:03")
    )
    assert job_of(text.replace("EndTime=2026-11-30T00:11:52", f"EndTime={end}")).ends_in_s == ends_in_s


def test_completing_hides_the_base_state():
    job = job_of(said("job-completing.txt"))
    assert (job.state, job.completing, job.restarts, job.nodes) == (JobState.UNKNOWN, True, 1, ("n1",))  # n2 was done


def test_a_requeued_job_says_when_it_starts_by_slurms_own_clock():
    now = jobs.parse_as_of(said("config.txt"))
    job = jobs.parse_jobs(said("job-begintime.txt"), now=now)[0]
    assert (job.state, job.reason, job.nodes, job.batch_host) == (JobState.PENDING, "BeginTime", (), "")
    assert job.starts_in_s is not None
    assert 0 < job.starts_in_s <= 7


@pytest.mark.parametrize(
    "now, start, wait_s",
    [
        ("2026-11-29T14:00:00", "2026-11-29T14:02:01", 121),
        ("2026-11-29T14:00:00", "2026-11-29T13:00:00", 0),
        ("100", "130", 30),
        ("", "130", None),
        ("100", "Unknown", None),
        ("100", "2026-11-29T13:00:00", None),
    ],
)
def test_the_wait_is_a_difference_of_slurms_own_times(now, start, wait_s):
    text = altered("StartTime=", f"StartTime={start} Was=").replace("JobState=RUNNING", "JobState=PENDING")
    assert jobs.parse_jobs(text, now=now)[0].starts_in_s == wait_s


def test_tasks_of_an_array_have_the_ids_that_scontrol_takes():
    text = said("job-array.txt")
    ids = [job.job_id for job in jobs.parse_jobs(text)]
    array = ids[0].partition("_")[0]
    assert sorted(ids) == [f"{array}_1", f"{array}_2", f"{array}_3"]
    assert jobs.parse_job(text, wanted=f"{array}_2").state is JobState.RUNNING
    assert jobs.parse_job(text, wanted=array).job_id == ids[0]
    with pytest.raises(Unreadable):
        jobs.parse_job(text, wanted="7")


def test_an_array_task_is_found_by_its_own_number():
    text = altered("JobId=", "JobId=17 ArrayJobId=10 ArrayTaskId=7 Old=")
    assert jobs.parse_job(text, wanted="17").job_id == "10_7"


def test_a_pending_rest_of_an_array_keeps_the_arrays_id():
    assert job_of(altered("JobId=", "JobId=10 ArrayJobId=10 ArrayTaskId=3-9%2 Old=")).job_id == "10"


@pytest.mark.parametrize(
    "word, state, completing",
    [
        ("PENDING", JobState.PENDING, False),
        ("CONFIGURING", JobState.RUNNING, False),
        ("STAGE_OUT", JobState.UNKNOWN, True),
        ("REQUEUE_HOLD", JobState.PENDING, False),
        ("SPECIAL_EXIT", JobState.PENDING, False),
        ("PREEMPTED", JobState.PREEMPTED, False),
        ("OUT_OF_MEMORY", JobState.OUT_OF_MEMORY, False),
        ("EXPEDITING", JobState.UNKNOWN, False),
        ("GONE", JobState.UNKNOWN, False),
    ],
)
def test_foreign_words_become_ours(word, state, completing):
    job = job_of(altered("JobState=RUNNING", f"JobState={word}"))
    assert (job.state, job.completing) == (state, completing)


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "launch_failed_requeued_held", "job_requeued_in_held_state"])
def test_held_jobs(reason):
    assert job_of(altered("JobState=RUNNING Reason=None", f"JobState=PENDING Reason={reason}")).held


def test_exit_codes_and_signals():
    job = job_of(altered("ExitCode=0:0", "ExitCode=0:15"))
    assert (job.exit_code, job.exit_signal) == (0, 15)


def test_what_people_write_is_no_field():
    text = altered("JobName=two words", "JobName=x JobState=FAILED\nJobId=9\n  JobState=TIMEOUT")
    with pytest.raises(Unreadable):
        jobs.parse_job(text, wanted="1")
    text = altered("   Power=", "   Comment=Requeue=0 Restarts=9 JobState=FAILED\n   SubmitLine=sbatch JobState=FAILED\n   Power=")
    assert job_of(text) == job_of(said("job-running.txt"))
    text = altered("JobName=two words", "JobName=a\nJobState=FAILED Restarts=7")
    assert (job_of(text).state, job_of(text).restarts, job_of(text).name) == (JobState.RUNNING, 0, "a")
    text = altered("JobName=two words", "JobName=a\n   JobState=FAILED Restarts=7")
    assert (job_of(text).state, job_of(text).restarts) == (JobState.RUNNING, 0)


def test_a_banner_changes_nothing():
    text = said("job-running.txt")
    assert jobs.parse_jobs(BANNER + text + BANNER) == jobs.parse_jobs(text)
    assert jobs.parse_nodes(BANNER + said("nodes.txt")) == jobs.parse_nodes(said("nodes.txt"))
    assert jobs.parse_config(BANNER + said("config.txt")) == jobs.parse_config(said("config.txt"))


def test_a_setting_that_may_be_there_several_times_is_shown_by_its_number():
    text = said("config.txt").replace("Prolog   ", "Prolog[0]")
    assert jobs.parse_config(text.replace("Prolog[0]               = (null)", "Prolog[0]               = /etc/p"))["Prolog[0]"] == "/etc/p"


@pytest.mark.parametrize("text", ["", "\n\n", BANNER, "No jobs in the system", "<html>503</html>"])
def test_silence_is_unreadable(text):
    with pytest.raises(Unreadable):
        jobs.parse_job(text, wanted="1")
    with pytest.raises(Unreadable):
        jobs.parse_config(text)
    with pytest.raises(Unreadable):
        jobs.parse_submitted(text)


@pytest.mark.parametrize(
    "old, new",
    [
        ("JobState=RUNNING", "JobState="),
        ("Restarts=0", "Restarts=many"),
        ("RunTime=00:00:01", "RunTime=soon"),
        ("NodeList=n[1-2]", "NodeList=n[1-"),
        ("NumNodes=2", "NumNodes=?"),
        ("ExitCode=0:0", "ExitCode=x:y"),
    ],
)
def test_a_broken_field_is_unreadable(old, new):
    with pytest.raises(Unreadable):
        job_of(altered(old, new))


@given(st.text(max_size=200), st.integers(min_value=0))
def test_no_garbage_escapes(garbage, at):
    text = said("job-running.txt")
    cut = at % len(text)
    for broken in (garbage, text[:cut] + garbage + text[cut:], text[:cut]):
        try:
            found = jobs.parse_jobs(broken)
        except Unreadable:
            continue
        assert all(job.state is not JobState.GONE for job in found)


def test_times_that_slurm_cannot_tell():
    job = job_of(altered("RunTime=00:00:01", "RunTime=INVALID").replace("TimeLimit=1-02:00:00", "TimeLimit=UNLIMITED"))
    assert (job.run_s, job.limit_s) == (0.0, None)


def test_nodes():
    nodes = {node.name: node for node in jobs.parse_nodes(said("nodes.txt"))}
    assert list(nodes) == ["n1", "n2", "n3", "n4"]
    assert nodes["n1"].state is NodeState.UP
    assert (nodes["n4"].state, nodes["n4"].raw) == (NodeState.DRAINED, "IDLE+DRAIN")
    assert nodes["n4"].reason.startswith("bad gpu = 7 [root@")


@pytest.mark.parametrize(
    "raw, state",
    [
        ("IDLE", NodeState.UP),
        ("MIXED+PLANNED", NodeState.UP),
        ("ALLOCATED+COMPLETING", NodeState.UP),
        ("IDLE-", NodeState.UP),
        ("IDLE+RESERVED", NodeState.UP),
        ("IDLE+DYNAMIC_NORM", NodeState.UP),
        ("mixed+drain", NodeState.DRAINED),
        ("MIXED+MAINTENANCE", NodeState.DRAINED),
        ("ALLOCATED@", NodeState.DRAINED),
        ("IDLE+REBOOT_REQUESTED", NodeState.DRAINED),
        ("IDLE*", NodeState.DOWN),
        ("ALLOCATED*+DRAIN", NodeState.DOWN),
        ("DOWN+DRAIN", NodeState.DOWN),
        ("IDLE+NOT_RESPONDING", NodeState.DOWN),
        ("IDLE+CLOUD+POWERED_DOWN", NodeState.DOWN),
        ("UNKNOWN", NodeState.UNKNOWN),
        ("SOMETHING_NEW", NodeState.UNKNOWN),
        ("", NodeState.UNKNOWN),
    ],
)
def test_what_a_node_can_do(raw, state):
    assert jobs.node_state(raw) is state


def test_settings():
    settings = jobs.parse_config(said("config.txt"))
    assert (settings["KillWait"], settings["ProctrackType"]) == ("5 sec", "proctrack/linuxproc")
    assert jobs.config_s(settings["KillWait"]) == 5
    assert jobs.config_s("UNLIMITED") is None


@pytest.mark.parametrize("text, job", [("12\n", "12"), ("12;cluster-1\n", "12"), (BANNER + "345\n\nbye\n", "345")])
def test_the_id_of_a_submitted_job(text, job):
    assert jobs.parse_submitted(text) == job


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("5", 300),
        ("5:30", 330),
        ("1:02:03", 3723),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-12:30:05", 131405),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("Partition_Limit", None),
        ("N/A", None),
    ],
)
def test_durations(text, seconds):
    assert jobs.duration_s(text) == seconds


@pytest.mark.parametrize("text", ["soon", "1:2:3:4", "-5", "1-", "1.5", "٣"])
def test_what_is_no_duration(text):
    with pytest.raises(Unreadable):
        jobs.duration_s(text)


@given(st.integers(min_value=0, max_value=10**8))
def test_durations_read_back(seconds):
    assert jobs.duration_s(jobs.duration(seconds)) == seconds


@pytest.mark.parametrize(
    "option, meaning",
    [
        ("USR1", WarningSignal(number=10)),
        ("SIGUSR1@120", WarningSignal(number=10, lead_s=120)),
        ("B:usr2@30", WarningSignal(number=12, lead_s=30, batch=True)),
        ("BR:10", WarningSignal(number=10, batch=True)),
        ("R:TERM@5", WarningSignal(number=15, lead_s=5)),
    ],
)
def test_the_warning_signal(option, meaning):
    assert jobs.warning_signal(option) == meaning


@pytest.mark.parametrize("option", ["", "NOPE@60", "USR1@", "USR1@soon", "X:USR1", "999", "_IGN", "SIGSIGUSR1"])
def test_what_is_no_signal(option):
    with pytest.raises(ValueError, match="allowed is"):
        jobs.warning_signal(option)


def test_partitions_as_a_real_slurm_prints_them():
    (main,) = jobs.parse_partitions(said("partitions.txt"))
    assert main == Partition(name="main", default=True, up=True, nodes=("n1", "n2", "n3", "n4"), limit_s=None, preempt_mode="OFF")
    text = said("partitions.txt").replace("GraceTime=0", "GraceTime=20").replace("PreemptMode=OFF", "PreemptMode=REQUEUE")
    text = text.replace("MaxTime=UNLIMITED", "MaxTime=2-00:00:00").replace("AllowAccounts=ALL", "AllowAccounts=a,b")
    (changed,) = jobs.parse_partitions(BANNER + text.replace("State=UP", "State=DRAIN").replace("Default=YES", "Default=NO"))
    assert (changed.default, changed.up, changed.limit_s, changed.accounts) == (False, False, 172800.0, ("a", "b"))
    with pytest.raises(Unreadable, match="State"):
        jobs.parse_partitions("PartitionName=x\n   Nodes=n1\n\n")
    assert (changed.preempt_mode, changed.grace_s) == ("REQUEUE", 20.0)


@pytest.mark.parametrize(
    "gres, gpus",
    [
        ("(null)", 0),
        ("", 0),
        ("gpu:4", 4),
        ("gpu:a100:8(S:0-1)", 8),
        ("gpu:a100:4(S:0),gpu:v100:2(S:1)", 6),
        ("shard:32,gpu:h100_80gb:4,nvme:1", 4),
        ("mygpu:4", 0),
        ("gpu:many", 0),
    ],
)
def test_gpus_in_a_nodes_gres(gres, gpus):
    assert jobs.gpus_in(gres) == gpus
