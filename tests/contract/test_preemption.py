"""The contract of preemption, where processes run: what a job shows and hears whose nodes a better one gets.

All four kinds at once, since Slurm takes its time; a job of a still better partition makes it look whether a grace is over.
"""

from __future__ import annotations

import time

import pytest

from ftsup.mockslurm import control as mockslurm
from ftsup.ports import Job, JobState
from ftsup.slurm import jobs
from tests.contract.conftest import MOCK, REAL
from tests.contract.rigs import SRUN, LiveRig, MockRig
from tests.realslurm.fixtures import GRACE_S, LESSER, site_cluster

__all__ = ["site_cluster"]

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("preemption")]

WITHIN_S = 60.0
HEARS = f"""#!/bin/bash
hear() {{ trap "echo $1-$2 >> heard-$SLURM_JOB_ID" "$2"; }}
export -f hear
trap 'echo batch-TERM >> heard-$SLURM_JOB_ID; until [ -e end-$SLURM_JOB_ID ]; do sleep 0.1; done' TERM
setsid {SRUN} -N1 -n1 bash -c '
  hear task CONT; hear task TERM
  echo >> ready-$SLURM_JOB_ID
  until [ -e end-$SLURM_JOB_ID ]; do sleep 0.1; done' &
until [ -e end-$SLURM_JOB_ID ]; do sleep 0.1; done
"""
MOCK_GRACE_S = 2 * GRACE_S
"""A look has to fall into it, and a command of the mock is a Python that starts: seconds on a crowded machine."""
MOCKED = {name: {"preempt": mode, "grace_s": float(grace_s and MOCK_GRACE_S)} for name, (_, mode, grace_s) in LESSER.items()}
BETTER = {"high": {"tier": 10}, "higher": {"tier": 20}}
Seen = tuple[JobState, bool, bool, int]
"""State, completing, preempted, restarts."""
RUNS: Seen = (JobState.RUNNING, False, False, 0)
WARNED: Seen = (JobState.RUNNING, False, True, 0)
LEAVES: Seen = (JobState.UNKNOWN, True, False, 1)
WAITS: Seen = (JobState.PENDING, False, False, 1)
ENDS: Seen = (JobState.UNKNOWN, True, True, 0)
ENDED: Seen = (JobState.PREEMPTED, False, True, 0)


@pytest.fixture(params=[MOCK, REAL])
def preempting(request, tmp_path):
    """A world with partitions whose jobs are preempted, and with better ones."""
    if request.param == "mock":
        nodes = {"nodes": 8, "prefix": "n", "partitions": {**MOCKED, **BETTER}}
        env = mockslurm.create(tmp_path / "mock", kill_wait_s=30, begin_wait_s=30, **nodes)
        rig: LiveRig = MockRig(tmp_path, env, proctrack="linuxproc")
    else:
        made = request.getfixturevalue("site_cluster")
        rig = LiveRig(made.work("preemption"), made.commands(), proctrack="linuxproc")
    yield rig
    rig.close()
    if request.param == "mock":
        assert mockslurm.stop(tmp_path / "mock")


def better(rig: LiveRig, name: str, *, partition: str) -> None:
    rig.submit(
        f"--partition={partition}", f"--nodelist={LESSER[name][0]}", "--exclusive", "--output=/dev/null", text="#!/bin/bash\nsleep 2\n"
    )


class Watched:
    """One job, looked at again and again."""

    def __init__(self, rig: LiveRig, name: str) -> None:
        self.rig, self.name = rig, name
        self.job = rig.submit("-N1", f"--partition={name}", f"--nodelist={LESSER[name][0]}", "--requeue", text=HEARS)
        self.seen: list[Seen] = []
        self.warned: list[tuple[Job, set[str]]] = []
        """While its grace runs: what is shown, and what was heard before that."""
        self.pressed = False

    def look(self, job: Job, heard: set[str]) -> bool:
        """False: nothing more is to be seen; what waited may begin again before the others have come so far."""
        if self.seen and self.seen[-1] in {WAITS, ENDED}:
            return False
        now = (job.state, job.completing, job.preempted, job.restarts)
        if now not in self.seen[-1:]:
            self.seen.append(now)
        if job.completing and "batch-TERM" in heard:
            self.rig.finish(self.job)
        if now == WARNED:
            self.warned.append((job, heard))
            if job.ends_in_s == 0 and not self.pressed:
                self.pressed = True
                better(self.rig, self.name, partition="higher")
        return now not in {WAITS, ENDED}


def looked(rig: LiveRig, watched: list[Watched]) -> bool:
    """All at one look: on a slow machine each command takes its time. False: nothing more is to be seen."""
    heard = {one.job: set(rig.heard(one.job)) for one in watched}
    shown = {job.job_id: job for job in jobs.parse_jobs(rig.run("scontrol", "show", "job"))}
    found = [one.look(shown[one.job], heard[one.job]) for one in watched]
    return any(found)


def test_what_a_preempted_job_shows_and_hears(preempting):
    rig, grace_s = preempting, MOCK_GRACE_S if isinstance(preempting, MockRig) else GRACE_S
    watched = [Watched(rig, name) for name in LESSER]
    for one in watched:
        rig.wait_for(lambda one=one: rig.read(f"ready-{one.job}"))
    assert looked(rig, watched)
    for one in sorted(watched, key=lambda one: LESSER[one.name][2]):
        better(rig, one.name, partition="high")
        looked(rig, watched)
    until = time.monotonic() + WITHIN_S
    while looked(rig, watched):
        assert time.monotonic() < until, {one.name: one.seen for one in watched}
        time.sleep(0.1)
    assert {one.name: one.seen for one in watched} == {
        "low": [RUNS, LEAVES, WAITS],
        "lowgrace": [RUNS, WARNED, LEAVES, WAITS],
        "lowcancel": [RUNS, ENDS, ENDED],
        "lowcancelgrace": [RUNS, WARNED, ENDS, ENDED],
    }
    for one in watched:
        assert set(rig.heard(one.job)) == {"task-CONT", "task-TERM", "batch-TERM"}
        # Slurm's times are whole seconds: a grace may seem to be one longer.
        assert all(job.ends_in_s is not None and job.ends_in_s <= grace_s + 1 for job, _ in one.warned)
        assert all(heard <= {"task-CONT", "task-TERM"} for _, heard in one.warned), "the batch script is told when it ends, and no sooner"
        assert not one.warned or one.warned[-1][1] == {"task-CONT", "task-TERM"}
