"""The port by commands, against a runner that answers from a script: what is run, and what failures mean."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ftsup.errors import Refused, SlurmError, Unanswered, Unavailable, Unreadable
from ftsup.ports import JobState
from ftsup.proc import Done
from ftsup.slurm import jobs
from ftsup.slurm.commands import NO_ANSWER, Commands, backoff_s, failure, retried

TEXTS = Path(__file__).parent / "texts"
RUNNING = (TEXTS / "job-running.txt").read_text()
WAITING = (TEXTS / "job-begintime.txt").read_text()
CONFIG = (TEXTS / "config.txt").read_text()
ENVIRON = {
    "PATH": "/bin",
    "SLURM_CONF": "/etc/slurm.conf",
    "SLURM_JOB_ID": "7",
    "SBATCH_ACCOUNT": "x",
    "SRUN_DEBUG": "1",
    "SECRET": "hunter2",
}


class Scripted:
    """Answers one command after the other."""

    def __init__(self, *answers: dict[str, object]) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[str, ...]] = []
        self.envs: list[dict[str, str]] = []

    def __call__(self, argv, *, deadline_s, env=None):
        assert deadline_s > 0
        self.calls.append(tuple(argv))
        self.envs.append(dict(env))
        return Done(argv=tuple(argv), **{"code": 0, **self.answers.pop(0)})


def asked(*answers):
    runner = Scripted(*answers)
    return runner, Commands(environ=ENVIRON, run=runner)


def excluding(text: str, nodes: str) -> str:
    return text.replace("ExcNodeList=n4", f"ExcNodeList={nodes}")


def test_submit_names_the_script_last_and_hides_the_environment():
    runner, slurm = asked({"out": "12\n"})
    assert slurm.submit(Path("/run/job.sh"), args=["-N2"]) == "12"
    assert runner.calls == [("sbatch", "--parsable", "-N2", "/run/job.sh")]
    assert runner.envs == [{"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SECRET": "hunter2"}]


def test_submit_scrubs_the_environment_it_is_given():
    runner, slurm = asked({"out": "12\n"})
    slurm.submit(Path("/run/job.sh"), env={"SBATCH_PARTITION": "x", "SLURM_CONF": "c", "A": "b"})
    assert runner.envs == [{"SLURM_CONF": "c", "A": "b"}]


def test_test_only_returns_the_sentence():
    runner, slurm = asked({"err": "sbatch: Job 5 to start at 2026-11-29T14:45:53 using 1 processors on nodes n1 in partition main\n"})
    assert slurm.submit(Path("/run/job.sh"), test_only=True).startswith("Job 5 to start at")
    assert "--parsable" not in runner.calls[0]


def test_show_asks_for_slurms_time_while_the_job_waits_or_runs():
    runner, slurm = asked({"out": RUNNING.replace("JobState=RUNNING", "JobState=COMPLETED")})
    slurm.show("366903")
    assert runner.calls == [("scontrol", "show", "job", "366903")]
    runner, slurm = asked({"out": WAITING}, {"out": CONFIG})
    assert slurm.show("366903").starts_in_s is not None
    assert {env["SLURM_TIME_FORMAT"] for env in runner.envs} == {"%s"}


@pytest.mark.parametrize("ran", ["00:00:05", "01:00:05", "INVALID"])
def test_how_long_it_has_is_told_by_slurms_clock_and_not_by_this_hosts(ran):
    """scontrol counts RunTime by its own host's clock (seen: an hour more, or INVALID, where that is an hour off)."""
    now = int(jobs.parse_as_of(CONFIG))
    text = re.sub("RunTime=[^ ]+", f"RunTime={ran}", RUNNING)
    text = re.sub("StartTime=[^ ]+", f"StartTime={now - 5}", re.sub("EndTime=[^ ]+", f"EndTime={now + 595}", text))
    _, slurm = asked({"out": text}, {"out": CONFIG})
    assert slurm.show("366903").ends_in_s == 595


@pytest.mark.parametrize("err", ["slurm_load_jobs error: Invalid job id specified\n", "Invalid job id specified", "Job 9_3 not found\n"])
def test_only_slurms_own_words_mean_gone(err):
    runner, slurm = asked({"code": 1, "err": err}, {"code": 1, "err": "Slurm accounting storage is disabled\n"})
    assert slurm.show("9_3").state is JobState.GONE
    assert [argv[0] for argv in runner.calls] == ["scontrol", "sacct"]


@pytest.mark.parametrize(
    "answer, error",
    [
        ({"code": 1, "err": "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"}, Unavailable),
        ({"code": 1, "err": "Invalid job id specified\nscontrol: error: Munge encode failed: Failed to access"}, Unavailable),
        ({"code": 1, "err": "site wrapper: Invalid job id specified, or so"}, Refused),
        ({"code": 1, "err": ""}, Unreadable),
        ({"code": 0, "out": ""}, Unreadable),
        ({"code": 0, "out": "No jobs in the system"}, Unreadable),
        ({"code": None, "why": "timed out after 30 s"}, Unavailable),
        ({"code": None, "why": "scontrol: No such file or directory"}, Unavailable),
        ({"code": -9}, Unavailable),
    ],
)
def test_anything_else_is_never_gone(answer, error):
    _, slurm = asked(answer)
    with pytest.raises(error):
        slurm.show("9")


def test_every_word_of_no_answer_is_found_in_a_sentence():
    for words, hint in NO_ANSWER:
        error = failure(Done(argv=("scontrol", "show", "job", "1"), code=1, err=f"scontrol: error: {words.upper()} here"))
        assert (type(error), error.hint) == (Unavailable, hint)


def test_a_command_that_was_cut_short_names_both_that_may_be_away():
    late = failure(Done(argv=("squeue",), code=None, why="timed out after 30 s"))  # without munge a command tries for 50 s in silence
    assert (late.message, "(slurmctld) or munge does not answer" in late.hint) == ("squeue: timed out after 30 s", True)


def test_test_only_puts_nothing_into_the_queue_whatever_became_of_its_answer():
    _, slurm = asked({"code": None, "why": "timed out after 30 s"})
    with pytest.raises(Unavailable) as caught:
        slurm.submit(Path("/run/job.sh"), test_only=True)
    assert not isinstance(caught.value, Unanswered)


def test_what_an_update_says_when_nobody_answers():
    _, slurm = asked({"code": 1, "err": "Unexpected message received for job 12\n"})
    with pytest.raises(Unavailable, match="slurmctld"):
        slurm.requeue("12")


def test_a_refusal_carries_slurms_words():
    _, slurm = asked({"code": 1, "err": "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Bad\n"})
    with pytest.raises(Refused, match="invalid partition specified: x; Batch job submission failed: Bad") as caught:
        slurm.submit(Path("/run/job.sh"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "outcome, lost",
    [
        ({"code": None, "why": "timed out after 30 s"}, True),
        ({"code": -9}, True),
        ({"code": 1, "err": "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"}, True),
        ({"code": 1, "err": "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received"}, True),
        ({"code": 1, "err": "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"}, False),
        ({"code": 1, "err": "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"}, False),
        ({"code": None, "why": "sbatch: No such file or directory"}, False),
    ],
)
def test_a_submission_whose_answer_was_lost_is_told_from_one_that_never_was(outcome, lost):
    _, slurm = asked(outcome)
    with pytest.raises(Unavailable) as caught:
        slurm.submit(Path("/run/job.sh"))
    assert isinstance(caught.value, Unanswered) is lost
    assert caught.value.exit_code == 75


def test_a_missing_command_says_what_to_do():
    error = failure(Done(argv=("sbatch",), code=None, why="sbatch: No such file or directory"))
    assert "hint: Slurm's commands are not on PATH" in str(error)


def test_requeue_is_always_the_one_that_revives_nothing():
    runner, slurm = asked({})
    slurm.requeue("12_3")
    assert runner.calls == [("scontrol", "requeue", "incomplete", "12_3")]


@pytest.mark.parametrize("job_id", ["", "-1", "12 13", "12;x", "--help", "1_", "١٢"])
def test_what_is_no_job_id_reaches_no_command(job_id):
    runner, slurm = asked()
    for call in (slurm.show, slurm.requeue, slurm.cancel, slurm.release, slurm.start_now, lambda job: slurm.avoid(job, ["n1"])):
        with pytest.raises(Refused):
            call(job_id)
    assert runner.calls == []


@pytest.mark.parametrize("name", ["", "-x", "n1,n2", "n 1", "n1=2", "ALL;"])
def test_what_is_no_node_reaches_no_command(name):
    runner, slurm = asked()
    with pytest.raises(Refused):
        slurm.nodes([name])
    assert runner.calls == []


def test_cancel_does_not_mind_what_is_over():
    for err in ("scancel: error: Kill job error on job id 9: Invalid job id specified", "Job/step already completing or completed"):
        _, slurm = asked({"code": 1, "err": err})
        slurm.cancel("9")
    _, slurm = asked({"code": 1, "err": "scancel: error: Kill job error on job id 9: Access/permission denied"})
    with pytest.raises(Refused):
        slurm.cancel("9")


def test_avoid_reads_merges_writes_and_reads_back():
    runner, slurm = asked({"out": RUNNING}, {}, {"out": excluding(RUNNING, "n[1,3-4]")})
    slurm.avoid("366903", ["n1", "n3"])
    assert runner.calls[1] == ("scontrol", "update", "JobId=366903", "ExcNodeList=n[1,3-4]")


def test_avoid_writes_nothing_that_is_there_already():
    runner, slurm = asked({"out": RUNNING})
    slurm.avoid("366903", ["n4"])
    assert len(runner.calls) == 1


def test_avoid_believes_what_it_reads_back():
    _, slurm = asked({"out": RUNNING}, {}, {"out": RUNNING})
    with pytest.raises(Refused, match="lacks n3"):
        slurm.avoid("366903", ["n3"])


def test_start_now_waits_for_the_end_and_never_says_now():
    completing = (TEXTS / "job-completing.txt").read_text()
    runner, slurm = asked({"out": completing}, {"out": RUNNING}, {})
    with pytest.raises(Refused, match="hint: ask again"):
        slurm.start_now("366903")
    slurm.start_now("366903")
    assert runner.calls[2] == ("scontrol", "update", "JobId=366903", "StartTime=now+3")


def test_nodes_are_asked_for_in_one_argument():
    runner, slurm = asked({"out": (TEXTS / "nodes.txt").read_text()})
    assert len(slurm.nodes(["n1", "n2", "n3", "n4"])) == 4
    assert runner.calls == [("scontrol", "show", "node", "n[1-4]")]


def test_retries_double_their_pause_and_end():
    pauses: list[float] = []

    def call():
        raise Unavailable("away")

    with pytest.raises(Unavailable):
        retried(call, sleep=pauses.append, tries=5, first_s=2, most_s=10)
    assert pauses == [2, 4, 8, 10]
    assert backoff_s(10**6) == 30


def test_retries_stop_at_an_answer():
    outcomes: list[SlurmError | str] = [Unavailable("away"), "here"]

    def call():
        outcome = outcomes.pop(0)
        if isinstance(outcome, SlurmError):
            raise outcome
        return outcome

    assert retried(call, sleep=lambda _: None) == "here"
    outcomes.append(Refused("no"))
    with pytest.raises(Refused):
        retried(call, sleep=lambda _: None)
