"""Ranks break in every way; the run goes on from its newest checkpoint, and finishes."""

from __future__ import annotations

import json
import re
import resource

import pytest

from ftsup.events import CheckpointPicked, Epoch, How, RankEnded, VerdictKind
from ftsup.ports import JobState

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(300)]


def check_environment(run) -> None:
    """What a rank really gets, of Slurm's step and of limits; `rankenv` has the list."""
    for rank in range(2):
        names = set(json.loads((run.work / "control" / f"environ.{rank}").read_text()))
        step = {
            name
            for name in names
            if re.match(r"(PMI|PMIX|OMPI|SRUN|SBATCH)_|SLURM_(STEP|PROCID|LOCALID|NODEID|NTASKS|CPU_BIND|MEM_)", name)
        }
        assert step == set()
        assert {"SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_CLUSTER_NAME", "USER", "HOME", "LOGNAME", "PYTHONUNBUFFERED"} <= names
        limits = {
            kind: resource.prlimit(run.rank(rank).pid, kind)
            for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE)
        }
        assert limits.pop(resource.RLIMIT_CORE)[0] == 0
        assert all(soft == hard for soft, hard in limits.values()), limits


def test_ranks_that_die_hang_or_stop_are_restarted_in_place(site) -> None:
    run = site.submit()
    epoch = run.until_trains(more=12)
    check_environment(run)
    found = []
    for number, strike in enumerate(
        (
            lambda: run.rank(1).kill(),
            lambda: run.once(0, "exit"),
            lambda: run.once(1, "raise"),
            lambda: run.once(0, "hang"),
            lambda: run.rank(1).suspend(),
        ),
        start=1,
    ):
        strike()
        incident = run.until_judged(number)
        assert incident.verdict.kind is VerdictKind.RESTART, run.story()
        found.append(incident.root)
        run.until_trains(epoch=type(epoch)(1, number + 1), more=6)
        run.until_past(incident.root)
    assert [(root.how, root.rank) for root in found] == [
        (How.SIGNAL, 1),
        (How.EXIT, 0),
        (How.EXCEPTION, 1),
        (How.QUIET, 0),
        (How.STOPPED, 1),
    ]
    killed, exited, raised, hung, _ = found
    assert killed.signal == "SIGKILL"
    assert exited.code == 3
    assert raised.error == "ValueError: this batch is broken"
    assert hung.where.startswith("train.py:")
    assert "stand_still" in hung.where
    run.finish()
    assert run.until_over().exit_code == 0
    assert run.decision()["verdict"] == "finished"
    assert run.grants() == 1
    first, *later = [event.step for event in run.events(CheckpointPicked)]
    assert first is None
    assert later[0] >= 5  # 12 steps were trained before
    assert later == sorted(later)
    begun = [int(step) for step in re.findall(r"rank 0 begins after step (\d+)\n", run.logs())]
    assert sorted(begun) == [0, *later], "each attempt resumes where it was told to"


DEAF = """
import signal, time
from ftsup_worker import beat
signal.signal(signal.SIGTERM, signal.SIG_IGN)
step = 0
while True:
    step += 1
    beat(step=step)
    time.sleep(0.1)
"""


def test_a_rank_is_known_to_have_failed_while_torchrun_waits_for_the_others(site, tmp_path) -> None:
    """torchrun gives the others 30 s to end before it says which one it began with."""
    script = tmp_path / "deaf.py"
    script.write_text(DEAF)
    run = site.submit(command=[str(script)], resume_args=[], checkpoint={"dir": ""})
    run.until_trains()
    run.rank(1).kill()
    incident = run.until_judged(1)
    assert (incident.root.how, incident.root.rank) == (How.SIGNAL, 1)
    assert incident.verdict.kind is VerdictKind.RESTART
    ended = run.events(RankEnded)[0]
    assert (ended.fault.how, ended.fault.rank) == (How.SIGNAL, 1)
    run.until_trains(epoch=Epoch(1, 2))
    site.run("scancel", run.job)
    run.until_over(state=JobState.CANCELLED)
