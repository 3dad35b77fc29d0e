"""The contract of time limits and of the warning before them. Slurm counts in minutes, so these come last and are slow."""

from __future__ import annotations

import pytest

from ftsup.ports import JobState
from tests.contract.rigs import over

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def ended(tracked, limits, request, who: str):
    """The rig and the job of that kind, once it is over."""
    rig, job = limits.jobs[request.node.callspec.params["tracked"]][who]
    return rig, job, rig.until(job, over, within_s=rig.limit_s)


@pytest.mark.parametrize("who", ["steps", "batch"])
def test_a_time_limit_ends_the_job_and_nobody_requeues_it(tracked, limits, request, who):
    _, _, end = ended(tracked, limits, request, who)
    assert (end.state, end.restarts, end.requeueable) == (JobState.TIMEOUT, 0, True)
    assert end.limit_s is not None
    assert end.run_s >= end.limit_s


def test_the_warning_reaches_the_steps_and_not_the_batch_shell(tracked, limits, request):
    rig, job, _ = ended(tracked, limits, request, "steps")
    heard = {who: count for who, count in rig.heard(job).items() if who.endswith("USR1")}
    everyone = {"task-USR1": 2, "child-USR1": 2, "session-USR1": 2}
    assert heard == (everyone if tracked.proctrack == "linuxproc" else {"task-USR1": 2})


def test_the_warning_with_b_reaches_the_batch_shell_and_nobody_else(tracked, limits, request):
    rig, job, _ = ended(tracked, limits, request, "batch")
    assert {who: count for who, count in rig.heard(job).items() if who.endswith("USR1")} == {"batch-USR1": 1}


@pytest.mark.parametrize("who", ["steps", "batch"])
def test_the_warning_comes_before_the_end(tracked, limits, request, who):
    rig, job, _ = ended(tracked, limits, request, who)
    heard = rig.read(f"heard-{job}")
    assert "batch-TERM" in heard
    assert heard.index("batch-TERM") > min(heard.index(word) for word in set(heard) if word.endswith("USR1"))
