"""The controller of a real Slurm is away, stopped or frozen, for longer than every question's first round, in one phase after the other.

After each: nothing lost, nothing doubled (tests/e2e/sound.py), and one clear line in `ftsup explain`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ftsup import events as ev
from ftsup.ports import JobState
from tests.e2e import warned
from tests.e2e.harness import Run, for_s
from tests.e2e.sound import sound
from tests.realslurm.badly import AWAY, ONE, TWO, away, failed, ordered, script, three

pytestmark = [pytest.mark.e2e, pytest.mark.realslurm, pytest.mark.drill, pytest.mark.timeout(600)]

AWAY_S = 45.0
"""A question has 30 s, and the first one after it is asked within 10."""
HOW = pytest.mark.parametrize("frozen", [False, True], ids=["stopped", "frozen"])
SAVES = {"command": [str(warned.SCRIPT), "asks", "step=0.1", "save=1"], "checkpoint": {"pattern": "step*", "complete": "complete"}}


@HOW
def test_while_evidence_is_taken(own_site, frozen) -> None:
    site = own_site(TWO)
    run = site.submit(slurm={"nodes": 2}, workers_per_node=1, waits={"ask": "5s"})
    run.until_trains(more=12)
    run.once(1, "hang")
    ordered(run, ev.Collect)
    with away(site.cluster, "slurmctld", frozen=frozen), for_s(AWAY_S):
        assert run.until_judged(1).root.rank == 1
        run.until_trains(epoch=ev.Epoch(1, 2), more=12)
        run.until(lambda: failed(run, "show"))
    run.until_trains(more=12)
    run.finish()
    assert run.until_over().exit_code == 0
    sound(run, told=[AWAY, r"rank 1 on n\d stood still"])


@HOW
def test_while_ranks_save(own_site, frozen) -> None:
    """Asked by `checkpoint.every`: nobody needs Slurm for it, and saves go on."""
    site = own_site(ONE)
    run = site.submit(**warned.merged(SAVES, {"checkpoint": {"every": "6s"}}), waits={"ask": "5s"})
    run.until_trains(more=12)
    ordered(run, ev.AskRanks)
    with away(site.cluster, "slurmctld", frozen=frozen), for_s(AWAY_S):
        run.until(lambda: len({step for _, step, _ in warned.saves(run)}) >= 3)
        run.until(lambda: failed(run, "show"))
    run.until_trains(more=12)
    steps = [step for rank, step, _ in warned.saves(run) if rank == 0]
    assert len(set(steps)) == len(steps), "a step was saved twice"
    run.finish()
    assert run.until_over().exit_code == 0
    assert run.launches() == [ev.Epoch(1, 1)]
    sound(run, told=[AWAY])


@HOW
def test_while_the_warning_is_answered(own_site, frozen) -> None:
    """The save is made, the requeue waits for the controller; the next grant goes on from that step."""
    site = own_site(ONE)
    run = site.submit(**SAVES, slurm={"signal": "SIGUSR1@110", "time": "3min"}, waits={"ask": "5s"})
    run.until_trains(more=12)
    run.until(lambda: run.events(ev.Warned), within_s=240)
    with away(site.cluster, "slurmctld", frozen=frozen), for_s(AWAY_S):
        run.until(lambda: len({rank for rank, _, _ in warned.saves(run)}) == 2)
        run.until(lambda: run.place.requeue.exists() or run.events(ev.SaveOver))
    until_requeued(run)
    site.cluster.admin("scontrol", "update", f"JobId={run.job}", "TimeLimit=60")
    warned.check_resumed(run, max(step for _, step, _ in warned.saves(run)))
    run.finish()
    assert run.until_over().exit_code == 0
    assert run.grants() == 2
    sound(run, told=[AWAY])


def until_requeued(run: Run) -> None:
    run.until(lambda: run.show().state is JobState.PENDING or run.grants() == 2)


@HOW
def test_while_the_job_is_completing(own_site, open_folder, frozen) -> None:
    """Its epilog ends meanwhile: once the controller hears of it the job comes back, once.

    A slurmstepd that cannot tell the controller of its step's end counts as unkillable: past UnkillableStepTimeout (60 s) the node is
    drained, "Kill task failed" (seen), and an administrator has to give it back.
    """
    epilog = script(open_folder, "while [ -e ILL ]; do sleep 0.2; done\nexit 0")
    site = own_site(three(Epilog=epilog, UnkillableStepTimeout="300"))
    run = site.submit(slurm={"nodes": 2}, workers_per_node=1, waits={"ask": "5s"})
    run.until_trains(more=12)
    site.ftsup("requeue", str(run.place.root), cwd=run.work)
    run.until(lambda: run.show().completing)
    with away(site.cluster, "slurmctld", frozen=frozen), for_s(AWAY_S):
        (open_folder / "ill").unlink()
    run.until_trains(epoch=ev.Epoch(2, 1))
    run.finish()
    assert run.until_over().exit_code == 0
    assert run.grants() == 2
    sound(run)


def test_frozen_when_the_successor_is_submitted(own_site) -> None:
    """sbatch has handed the script over, and hears no answer: the controller takes it once it goes on, and nobody submits another one."""
    site = own_site(ONE)
    programs = site.folder / "bin"
    programs.mkdir()
    held = programs / "held"
    text = f'[ ! -e {held} ] || {{ touch {held}.reached; while [ -e {held} ]; do sleep 0.1; done; }}\nexec /usr/bin/sbatch "$@"'
    Path(script(programs, text)).rename(programs / "sbatch")
    site.give(programs)
    site.environ["PATH"] = f"{programs}:{site.environ['PATH']}"
    run = site.submit(slurm={"requeue": "chain"}, waits={"ask": "5s"})
    run.until_trains(more=12)
    held.touch()
    site.ftsup("requeue", str(run.place.root), cwd=run.work)
    run.until(Path(f"{held}.reached").exists)
    with away(site.cluster, "slurmctld", frozen=True):
        held.unlink()
        run.until(lambda: failed(run, "successor"))
    after = run.until(lambda: [job for job in run.place.jobs.read_text().split() if job != run.job])
    assert len(after) == 1
    later = Run(site, run.work, run.place, job=after[0])
    site.runs.append(later)
    later.until_trains(epoch=ev.Epoch(2, 1))
    later.finish()
    assert later.until_over().exit_code == 0
    assert run.show().state is JobState.COMPLETED
    assert later.launches() == [ev.Epoch(1, 1), ev.Epoch(2, 1)]
    sound(later, told=[AWAY])
