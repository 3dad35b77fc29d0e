"""A look-up that failed, that is empty, or that came late is "unknown" for every operation: never gone, clean, finished or done."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftsup.errors import Refused, Unanswered, Unavailable, Unreadable
from ftsup.ports import JobState
from ftsup.proc import Done
from ftsup.slurm.commands import Commands, failure
from tests.slurm.recordings import VERSIONS, Answering, done, failures, text

OPERATIONS = {
    "submit": lambda slurm: slurm.submit(Path("/run/job.sh")),
    "show": lambda slurm: slurm.show("12"),
    "requeue": lambda slurm: slurm.requeue("12"),
    "cancel": lambda slurm: slurm.cancel("12"),
    "nodes": lambda slurm: slurm.nodes(),
    "named nodes": lambda slurm: slurm.nodes(["n1"]),
    "partitions": lambda slurm: slurm.partitions(),
    "avoid": lambda slurm: slurm.avoid("12", ["n1"]),
    "config": lambda slurm: slurm.config(),
    "release": lambda slurm: slurm.release("12"),
    "start_now": lambda slurm: slurm.start_now("12"),
}
SILENT = {"requeue", "cancel", "release"}
"""Slurm prints nothing when these are done: who wants to know looks afterwards."""
NO_ANSWERS = {
    "late": {"code": None, "why": "timed out after 30 s"},
    "killed": {"code": -9},
    "half, then killed": {"code": -15, "out": "JobId=12 JobName=x\n   JobState=COMPLETED"},
    "not there": {"code": None, "why": "scontrol: No such file or directory"},
    "without a word": {"code": 1},
    "empty": {"code": 0},
    "a banner": {"code": 0, "out": "*** maintenance ***\n"},
    "a web page": {"code": 0, "out": "<html>503 JobState=COMPLETED</html>\n"},
    "half": {"code": 0, "out": "JobId=12 JobName=x\n   UserId=a(1)\n   JobState=COMPLETED Reason=None\n"},
    "nothing there": {"code": 0, "out": "No jobs in the system\n"},
}


def slurm(runner: Answering) -> Commands:
    return Commands(environ={"PATH": "/bin"}, run=runner)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", NO_ANSWERS)
def test_no_answer_is_unknown(operation, kind):
    outcome = NO_ANSWERS[kind]
    asked = slurm(Answering(Done(argv=("x",), **outcome)))
    if operation in SILENT and outcome["code"] == 0:
        assert OPERATIONS[operation](asked) is None
        return
    with pytest.raises((Unavailable, Unreadable)):
        OPERATIONS[operation](asked)


OF_COMMANDS = {"show", "requeue", "cancel", "nodes", "partitions", "avoid", "release", "submit"}
RECORDED = [(version, each) for version in VERSIONS for each in failures(version) if each["what"].rpartition(" ")[2] in OF_COMMANDS]


@pytest.mark.parametrize("version, said", RECORDED, ids=lambda value: value if isinstance(value, str) else value["what"])
def test_what_slurm_said_when_it_could_not_answer(version, said):
    """Recorded: munge is away or has another key, the controller is away, there is no configuration."""
    world, _, operation = said["what"].partition(": ")
    if world == "unknown":
        return  # answers: below
    error = failure(done(said))
    assert isinstance(error, Unavailable), error
    assert error.hint
    with pytest.raises(Unavailable) as caught:
        OPERATIONS[operation](slurm(Answering(done(said))))
    if operation == "submit":  # over the wire or not, by Slurm's words
        assert isinstance(caught.value, Unanswered) is (world == "munge with another key")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("operation", sorted(OF_COMMANDS - {"show", "cancel"}))
def test_what_slurm_said_about_what_it_does_not_know(version, operation):
    said = next(each for each in failures(version) if each["what"] == f"unknown: {operation}")
    assert isinstance(failure(done(said)), Refused)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_slurm_refuses(version):
    refused = [each for each in failures(version) if each["what"].startswith("refused: ") and "silent" not in each["what"]]
    assert len(refused) == 3
    for each in refused:
        assert isinstance(failure(done(each)), Refused), each


# A job that Slurm has forgotten ----------------------------------------------------------------------------------------------


def forgotten(version: str, sacct: Done) -> Commands:
    unknown = {each["what"]: done(each) for each in failures(version)}["unknown: show"]
    return slurm(Answering(scontrol=unknown, sacct=sacct))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_forgotten_job_is_looked_up_in_accounting(version):
    row = "12|12|TIMEOUT|0:0|2|3600|60|n[1-2]|train\n"
    job = forgotten(version, Done(argv=("sacct",), code=0, out=row)).show("12")
    assert (job.state, job.nodes, job.limit_s, job.lives) == (JobState.TIMEOUT, ("n1", "n2"), 3600.0, False)


@pytest.mark.parametrize("version", VERSIONS)
def test_without_accounting_it_is_gone(version):
    disabled = {each["what"]: done(each) for each in failures(version)}["unknown: sacct"]
    for outcome in (disabled, *(Done(argv=("sacct",), **outcome) for outcome in NO_ANSWERS.values())):
        assert forgotten(version, outcome).show("12").state is JobState.GONE


@pytest.mark.parametrize("version", VERSIONS)
def test_accounting_never_says_what_a_look_up_that_failed_could_not(version):
    row = Done(argv=("sacct",), code=0, out="12|12|COMPLETED|0:0|2|3600|60|n[1-2]|train\n")
    for world in ("munge away", "munge with another key", "controller away"):
        failed = next(done(each) for each in failures(version) if each["what"] == f"{world}: show")
        runner = Answering(scontrol=failed, sacct=row)
        with pytest.raises(Unavailable):
            slurm(runner).show("12")
        assert [argv[0] for argv in runner.calls] == ["scontrol"]


@pytest.mark.parametrize("version", VERSIONS)
def test_nodes_that_were_asked_for_and_not_printed_are_unknown(version):
    printed = Done(argv=("scontrol",), code=0, out=text(version, "nodes.txt"))
    assert len(slurm(Answering(printed)).nodes(["n1", "n4"])) == 4
    with pytest.raises(Unreadable, match="n7"):
        slurm(Answering(printed)).nodes(["n1", "n7"])
