"""One squeue as values: rows of a real Slurm 22.05, what sites print around them, and what is no answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftsup.errors import Unavailable, Unreadable
from ftsup.ports import JobState, is_newer
from ftsup.proc import Done
from ftsup.slurm import queue
from ftsup.slurm.commands import Commands
from ftsup.slurm.queue import parse_commands, parse_queue

ROWS = """\
330590|FAILED|JobLaunchFailure|0|1|n1|0:01|10:00|n1|a name | with bars|
330591|PENDING|launch failed requeued held|3|1|n/a|0:00|10:00||s.sh|
369810|REQUEUE_HOLD|JobHoldMaxRequeue|5|1|n/a|0:00|UNLIMITED||s.sh|
387330|RUNNING|None|0|1|n1|1-00:00:27|10:00|n2|no-kill|
552780|PENDING|ReqNodeNotAvail, UnavailableNodes:n3|0|1-4|n/a|0:00|10:00||s.sh|
552783_2|PENDING|BeginTime|0|1|n/a|0:00|10:00||s.sh|
553431|COMPLETING|None|9|2|n1|0:08|10:00|n[1-2]|s.sh|
"""


def test_rows_become_jobs():
    jobs = {job.job_id: job for job in parse_queue(ROWS)}
    assert jobs["330590"].name == "a name | with bars"
    assert (jobs["330590"].state, jobs["330590"].batch_host, jobs["330590"].limit_s) == (JobState.FAILED, "n1", 600)
    assert [job_id for job_id, job in jobs.items() if job.held] == ["330591", "369810"]
    assert (jobs["369810"].state, jobs["369810"].restarts, jobs["369810"].limit_s) == (JobState.PENDING, 5, None)
    assert (jobs["387330"].nodes, jobs["387330"].batch_host, jobs["387330"].run_s) == (("n2",), "n1", 86427)
    assert (jobs["552780"].num_nodes, jobs["552780"].reason) == (1, "ReqNodeNotAvail, UnavailableNodes:n3")
    assert jobs["552783_2"].reason == "BeginTime"
    assert (jobs["553431"].completing, jobs["553431"].state, jobs["553431"].nodes) == (True, JobState.UNKNOWN, ("n1", "n2"))


def test_what_a_site_prints_around_it_is_no_job():
    assert [job.job_id for job in parse_queue(f"Welcome to the cluster\n\n{ROWS}see you | soon\n")] == [
        line.partition("|")[0] for line in ROWS.splitlines()
    ]
    assert parse_queue("") == []


@pytest.mark.parametrize("row", ["12|RUNNING|None|0|1", "12||None|0|1|n1|0:01|1:00|n1|x|", "12|RUNNING|None|many|1|n1|0:01|1:00|n1|x|"])
def test_half_a_row_is_no_answer(row):
    with pytest.raises(Unreadable, match="squeue printed a row"):
        parse_queue(row)


def asked(code: int, out: str, err: str = "") -> Commands:
    return Commands(environ={}, run=lambda argv, **_how: Done(argv=tuple(argv), code=code, out=out, err=err, why=""))


def test_it_is_one_question_about_ones_own_jobs():
    calls = []

    def run(argv, **_how):
        calls.append(argv)
        return Done(argv=tuple(argv), code=0, out=ROWS, err="", why="")

    assert len(Commands(environ={}, run=run).queue()) == 7
    assert calls == [list(queue.ARGV)]
    assert "--me" in calls[0]


def test_silence_says_nothing_about_any_job():
    with pytest.raises(Unavailable):
        asked(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)").queue()


def test_who_follows_whom_is_in_the_words_of_old_versions_and_in_what_a_job_of_newer_ones_waits_for():
    text = """
77|(null)|/home/u/runs/a/1/job.sbatch
91|afterany:77(unfulfilled)|/home/u/runs/a/1/job.sbatch 77
92|afterany:77_3(unfulfilled)|/mnt/u/runs/a/1/job.sbatch
93|afterany:77(unfulfilled),afterok:5(unfulfilled)|/home/u/runs/a/1/job.sbatch
94|(null)|/home/u/runs/a/1/job.sbatch 77 and more
95|(null)|/home/u/runs/a/1/job.sbatch.old
96|(null)|a | b
maintenance on Monday
"""
    found = {one.job_id: one.words for one in parse_commands(text, script=Path("/home/u/runs/a/1/job.sbatch"))}
    assert found == {"77": (), "91": ("77",), "92": ("77_3",), "93": (), "94": ("77", "and", "more")}


def test_the_oldest_comes_first_also_where_slurm_has_begun_to_count_again():
    text = "".join(f"{number}|(null)|/home/u/runs/a/1/job.sbatch\n" for number in (2, 67043327, 1, 67043320))
    found = [one.job_id for one in parse_commands(text, script=Path("/home/u/runs/a/1/job.sbatch"))]
    assert found == ["67043320", "67043327", "1", "2"]


@pytest.mark.parametrize(
    "older, newer", [(1, 2), (999, 1000), (67043327, 1), (67043327, 5000), (60000000, 3), (0, 1), (0, 40000000), (0, 67043327)]
)
def test_which_job_is_the_newer_one(older: int, newer: int):
    """0 is no job."""
    assert is_newer(newer, older)
    assert not is_newer(older, newer)
    assert not is_newer(newer, newer)
    assert not is_newer(older, older)
