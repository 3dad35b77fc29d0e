"""`ftsup run` inside an allocation of somebody's own: the leader is in the foreground, nothing is requeued, its code is the run's."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
import yaml

from ftsup import events as ev
from ftsup.events import VerdictKind
from ftsup.ports import JobState
from ftsup.rundir import RunDir
from tests.cli.terminal import terminal
from tests.e2e import stops
from tests.e2e.harness import CONFIG, Run, Site, beside, living, merged, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SAVER = Path(__file__).parent / "saver.py"
SAVES = {"command": [str(SAVER), "asks"], "checkpoint": {"pattern": "step*", "complete": "complete"}}
ONES_OWN = """#!/bin/bash
{python} -m ftsup run c.yaml
echo $? >> code
"""


def own_job(site: Site, *options: str, name: str = "a", **config: object) -> Run:
    """A batch script of the user's own that types `ftsup run`; its run, once it has one."""
    work = written(site, name, **config)
    done = site.tried("sbatch", "--parsable", *options, "own.sh", cwd=work)
    assert done.returncode == 0, done.stderr
    return begun(site, work)


def written(site: Site, name: str, **config: object) -> Path:
    """A folder of the user's."""
    work = site.folder / name
    (work / "control").mkdir(parents=True)
    (work / "c.yaml").write_text(yaml.safe_dump(merged(CONFIG, {"local_dir": str(site.folder / "local"), **config})))
    (work / "own.sh").write_text(ONES_OWN.format(python=sys.executable))
    site.give(work)
    return work


def begun(site: Site, work: Path) -> Run:
    """The run that `ftsup run` made there."""
    root = until(lambda: next(work.glob("ftsup-runs/*/*/jobs"), None), what=lambda: said(work)).parent
    run = Run(site, work, RunDir(root), job=until(lambda: (root / "jobs").read_text().split(), what=lambda: said(work))[0])
    site.runs.append(run)
    return run


def said(work: Path) -> str:
    """What the batch script printed."""
    return "".join(path.read_text(errors="replace") for path in work.glob("slurm-*.out"))


def test_in_a_batch_script_of_ones_own_faults_are_restarts_and_a_requeue_by_slurm_goes_on_in_the_same_run(site) -> None:
    run = own_job(site, "-N2", "--requeue", "--time=9", "--open-mode=append")
    run.until_trains()
    assert {node for event in run.events(ev.LeaderStarted) for node in event.nodes} == {"mock1", "mock2"}
    run.once(1, "hang")
    assert run.until_judged(1).verdict.kind is VerdictKind.RESTART
    run.until_trains(epoch=ev.Epoch(1, 2))
    site.run("scontrol", "requeue", run.job)
    run.until_trains(epoch=ev.Epoch(2, 1))
    run.finish()
    run.until_over()
    assert (run.work / "code").read_text().split()[-1] == "0"
    assert [path.name for path in run.place.root.parent.iterdir()] == [run.place.root.name]
    assert run.orders(ev.Requeue) == []
    out = said(run.work)
    assert "slurm.nodes is 1, and this allocation has 2 nodes: all of those take part" in out
    assert out.count("nothing is requeued from here") == 2  # once each time that it begins
    assert f"{run.place.id} goes on: it began in this job before Slurm requeued it" in out


def test_in_sallocs_allocation_a_fault_is_a_restart_and_the_nodes_go_back_when_the_run_has_ended(site) -> None:
    work = written(site, "hand")
    argv = ["salloc", "-N2", sys.executable, "-m", "ftsup", "run", "c.yaml"]
    with (work / "slurm-salloc.out").open("w") as out, beside(site, argv, cwd=work, out=out) as typed:
        run = begun(site, work)
        run.until_trains()
        assert {node for event in run.events(ev.LeaderStarted) for node in event.nodes} == {"mock1", "mock2"}
        run.rank(0).kill()
        assert run.until_judged(1).verdict.kind is VerdictKind.RESTART
        run.until_trains(epoch=ev.Epoch(1, 2))
        run.finish()
        assert typed.wait(60) == 0, said(work)
    run.until_over()
    assert (run.show().state, run.orders(ev.Requeue)) == (JobState.COMPLETED, [])
    assert said(work).endswith(f"salloc: Relinquishing job allocation {run.job}\n")


def test_ctrl_c_saves_where_the_script_can_and_a_second_one_ends_at_once(site) -> None:
    asks = own_job(site, "-N1", "--time=9", name="asks", **SAVES)
    stubborn = own_job(site, "-N1", "--time=9", name="stubborn", setup="export SET_UP=yes")
    asks.until_heard()
    asks.leader().send_signal(signal.SIGINT)
    asks.until_over()
    assert (asks.work / "code").read_text().split() == ["0"]
    decided = asks.orders(ev.Decide)[-1].verdict
    assert (decided.kind, "saved at step" in decided.reason) == (VerdictKind.STOP, True), asks.story()
    stubborn.until_trains()
    assert '"SET_UP": "yes"' in (stubborn.work / "control" / "environ.0").read_text()
    leader = stubborn.leader()
    for supervisor in (stubborn.supervisor("mock1" if stubborn.show().nodes == ("mock1",) else "mock2"),):
        supervisor.suspend()  # what is asked of it is not answered
        leader.send_signal(signal.SIGINT)
        stubborn.until(lambda: stubborn.events(ev.Asked))
        leader.send_signal(signal.SIGINT)
        stubborn.until(lambda: stubborn.orders(ev.Decide))
        supervisor.resume()
    stubborn.until_ended()
    assert stubborn.orders(ev.Decide)[-1].verdict.kind is VerdictKind.CANCELLED
    assert (stubborn.work / "code").read_text().split() == ["1"]


def test_a_terminal_that_goes_away_is_a_stop_that_says_so(site) -> None:
    """Where the allocation stays: it saves where the script can, and nothing that it prints into the void is in its way."""
    work = written(site, "a", **SAVES)
    wrap = "env -0 >part && mv part environ; until [ -e control/go ]; do sleep 0.2; done"
    job = site.run("sbatch", "--parsable", f"--chdir={work}", "--output=/dev/null", f"--wrap={wrap}").strip()
    until((work / "environ").exists)
    environ = dict(one.split("=", 1) for one in (work / "environ").read_text().split("\0")[:-1])
    with terminal([sys.executable, "-m", "ftsup", "run", "c.yaml"], cwd=work, env=environ) as typed:
        run = begun(site, work)
        run.until_heard()
        leader = run.leader()
        typed.goes()
        run.until(lambda: not living(leader))
    decided = run.orders(ev.Decide)[-1].verdict
    assert (decided.kind, run.job) == (VerdictKind.STOP, job)
    assert decided.reason.startswith("stopped by the terminal going away (SIGHUP), saved at step "), decided
    stops.told(run, decided.reason)
    (work / "control" / "go").touch()
    run.until_over()


def test_a_heterogeneous_job_is_refused_once_and_not_begun_again(site) -> None:
    run = site.submit("het", setup="export SLURM_HET_SIZE=2")
    job = run.until_ended()
    assert job.exit_code == 1
    assert run.output().count("is heterogeneous (2 components, SLURM_HET_SIZE)") == 1
    assert "no decision" not in run.output()
    assert run.decision()["verdict"] == "stop"
    assert run.show().restarts == 0
