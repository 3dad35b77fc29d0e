"""Bad days of a real cluster: daemons that are away or hang, commands that hang, supervisors that are killed, nodes that are ill.

After each: nothing lost, nothing doubled (tests/e2e/sound.py), and one clear line in `ftsup explain`. What a story breaks is a cluster
of its own.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from ftsup import events as ev
from tests.e2e.harness import Run, carrying, for_s, living, words
from tests.e2e.sound import explained, sound
from tests.realslurm.badly import AWAY, ONE, TWO, away, failed, ordered, script, three
from tests.realslurm.cluster import REQUEUE_WAIT_S

pytestmark = [pytest.mark.e2e, pytest.mark.realslurm, pytest.mark.timeout(300)]

HELD = "touch begun; while [ -e held ]; do sleep 0.1; done"
"""`setup`: the batch script waits, before there is a leader."""


def hold(run: Run) -> None:
    (run.work / "held").touch()


def go_on(run: Run) -> None:
    (run.work / "held").unlink()


@pytest.mark.timeout(600)
def test_the_controller_is_away_in_each_phase(own_site) -> None:
    """Before the step of the supervisors, while training breaks and restarts, when a requeue is asked for, while the job is pending."""
    site = own_site(TWO)
    cluster = site.cluster
    (site.folder / "a").mkdir()
    (site.folder / "a" / "held").touch()
    run = site.submit(slurm={"nodes": 2}, workers_per_node=1, setup=HELD, waits={"ask": "5s"})
    run.until((run.work / "begun").exists)
    with away(cluster, "slurmctld"):
        go_on(run)
        run.until(lambda: [event for event in run.events(ev.StepEnded) if event.unanswered])
        run.until(lambda: failed(run, "show"))
    run.until_trains(more=12)
    assert run.incidents() == [], run.story()
    hold(run)  # the next grant, which is not to begin before the controller was away once more

    with away(cluster, "slurmctld", frozen=True):
        run.once(1, "hang")
        assert run.until_judged(1).root.rank == 1
        run.until_trains(epoch=ev.Epoch(1, 2), more=12)

    with away(cluster, "slurmctld"):
        site.ftsup("requeue", str(run.place.root), cwd=run.work)
        run.until(lambda: failed(run, "requeue") >= 2)
    run.until(lambda: run.show().restarts and not run.show().completing)
    with away(cluster, "slurmctld"):
        pass
    go_on(run)
    run.until_trains(epoch=ev.Epoch(2, 1))
    run.finish()
    assert run.until_over().exit_code == 0
    assert run.launches() == [ev.Epoch(1, 1), ev.Epoch(1, 2), ev.Epoch(2, 1)]
    sound(run, told=[AWAY])


@pytest.mark.drill
def test_munge_is_away_while_training_breaks_and_restarts(own_site) -> None:
    """For less long than Slurm waits for a node."""
    site = own_site(replace(ONE, settings={"SlurmdTimeout": "120"}))
    run = site.submit(waits={"ask": "5s"})
    run.until_trains(more=12)
    with away(site.cluster, "munged"):
        run.until(lambda: failed(run, "show"))
        run.rank(1).kill()
        run.until_trains(epoch=ev.Epoch(1, 2), more=12)
    run.until(lambda: [event for event in run.events(ev.Noted) if event.trouble == "slurm" and event.over])
    run.finish()
    assert run.until_over().exit_code == 0
    assert {event.kind for event in run.events(ev.SlurmFailed)} == {"Unavailable"}
    sound(run, told=[r"Slurm does not answer: .*[Mm]unge.*\("])


@pytest.mark.drill
@pytest.mark.timeout(600)
def test_munge_is_away_until_slurm_gives_the_node_up(own_site) -> None:
    """It requeues the job and can tell nobody: our ranks end as soon as we hear of it, and the next grant is alone."""
    site = own_site(ONE)
    run = site.submit(waits={"ask": "5s"})
    run.until_trains(more=12)
    with away(site.cluster, "munged"):
        run.until(lambda: "requeue job" in (site.cluster.folder / "slurmctld.log").read_text())
        run.until_trains(more=12)
    run.until(lambda: [order for order in run.orders(ev.Decide) if order.verdict.rule == "elsewhere"])
    run.until(lambda: not list(carrying(f"FTSUP_MARK={run.place.id}/{run.job}/n1/1.")), within_s=30)
    run.until(lambda: run.grants() == 2 or run.show().held)
    if run.show().held:  # a node that still had the old grant refuses the new one, and is drained for it (seen: "Duplicate jobid")
        site.cluster.admin("scontrol", "update", "NodeName=n1", "State=RESUME")
        site.run("scontrol", "release", run.job)  # what `ftsup watch` does
    run.until_trains(epoch=ev.Epoch(2, 1))
    run.finish()
    assert run.until_over().exit_code == 0
    sound(run, told=[r"what +.*(Slurm has given up this grant|requeued by somebody else)|done +.*(Slurm has given up|by somebody else)"])


# Killed in each phase -----------------------------------------------------------------------------------------------------


def kill_leader(run: Run) -> None:
    """As soon as it is gone another one begins, and takes over."""
    began = len(run.events(ev.LeaderStarted))
    run.leader().kill()
    run.until(lambda: len(run.events(ev.LeaderStarted)) > began)


def last_node(run: Run) -> str:
    return str(run.events(ev.LeaderStarted)[-1].nodes[-1])


def kill_supervisor(run: Run) -> None:
    """Of the last node; its ranks die with it."""
    supervisor = run.until(lambda: supervising(run, last_node(run)))
    supervisor.kill()
    run.until(lambda: not living(supervisor))


def supervising(run: Run, node: str) -> psutil.Process | None:
    with contextlib.suppress(OSError, IndexError, ValueError, psutil.NoSuchProcess):
        return run.supervisor(node)
    return None


PATIENT = {"back_off": "4s", "leaders": 20, "starts": 20, "crashes": 20, "hangs": 20}
PHASES = (ev.StartStep, ev.Prepare, ev.Launch)


@pytest.mark.drill
def test_a_supervisor_is_killed_before_the_launch_and_the_leader_while_it_takes_evidence(real) -> None:
    run = real.submit(slurm={"nodes": 2}, workers_per_node=1, node_setup="sleep 1")
    ordered(run, ev.Prepare)
    kill_supervisor(run)
    epoch = run.until_trains(more=12)
    assert run.incidents() == [], "it had nothing to lose yet"
    run.once(1, "hang")
    ordered(run, ev.Collect)
    kill_leader(run)
    assert run.until_judged(1).root.rank == 1
    run.until_trains(epoch=ev.Epoch(1, epoch.attempt + 1))
    run.finish()
    assert run.until_over().exit_code == 0
    sound(run, told=[r"^the leader died once and was started again, while training went on$", r"rank 1 on n\d stood still"])


@pytest.mark.drill
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kill", [kill_leader, kill_supervisor])
def test_somebody_is_killed_in_each_phase(real, kill) -> None:
    run = real.submit(slurm={"nodes": 2}, workers_per_node=1, node_setup="sleep 1", policy=PATIENT, waits={"hello": "80s"})
    n = 0
    for phase in PHASES:
        n = ordered(run, phase, after_n=n)
        kill(run)
    run.until_trains(more=12)
    kill(run)
    for phase in (ev.Collect, ev.Stop):
        epoch = run.until_trains(more=12)
        n = run.lines()[-1].n
        run.once(0, "hang")
        ordered(run, phase, after_n=n)
        kill(run)
        run.until_trains(epoch=ev.Epoch(epoch.grant, epoch.attempt + 1))
    n = run.lines()[-1].n
    run.site.ftsup("requeue", str(run.place.root), cwd=run.work)
    ordered(run, ev.Decide, after_n=n)
    with contextlib.suppress(psutil.NoSuchProcess, AssertionError):
        kill(run)
    run.until_trains(epoch=ev.Epoch(2, 1))
    run.finish()
    assert run.until_over().exit_code == 0
    assert run.grants() == 2
    sound(run)
    word = "the leader died " if kill is kill_leader else "the supervisor of "
    assert any(word in line for line in explained(run))


# Nodes that are ill -------------------------------------------------------------------------------------------------------


def test_a_node_that_never_says_hello_is_left_and_told(own_site, open_folder) -> None:
    hangs = script(open_folder, '[ "$SLURMD_NODENAME" = n2 ] && [ -e ILL ] && sleep 600\nexit 0')
    run = own_site(three(TaskProlog=hangs)).submit(slurm={"nodes": 2}, workers_per_node=1, waits={"hello": "20s"})
    run.until_trains(epoch=ev.Epoch(2, 1))
    assert run.events(ev.LeaderStarted)[-1].nodes == ("n1", "n3")
    assert run.show().excluded == ("n2",)
    run.finish()
    assert run.until_over().exit_code == 0
    sound(run, told=[r"what +n2 never said hello"])


@pytest.mark.drill
@pytest.mark.timeout(600)
@pytest.mark.parametrize("node", ["n1", "n2"], ids=["the batch host", "another node"])
@pytest.mark.parametrize("flags", ["Alloc", "NoHold"])
def test_a_node_whose_prolog_fails(own_site, open_folder, node, flags) -> None:
    fails = script(open_folder, f'[ "$SLURMD_NODENAME" = {node} ] && [ -e ILL ] && exit 1\nexit 0')
    scheduler = "bf_interval=1,sched_interval=1,batch_sched_delay=1" + (",nohold_on_prolog_fail" if flags == "NoHold" else "")
    plan = three(Prolog=fails, SchedulerParameters=scheduler, **({"PrologFlags": "Alloc"} if flags == "Alloc" else {}))
    site = own_site(plan)
    run = site.submit(slurm={"nodes": 2}, workers_per_node=1, waits={"hello": "30s"}, hang={"shutdown": "60s"})
    run.until(lambda: run.events(ev.Launched) or run.show().held)
    if run.show().held:
        assert "launch failed requeued held" in run.show().reason.replace("_", " ").lower()
        site.run("scontrol", "release", run.job)  # what `ftsup watch` does
    run.until_trains()
    assert node not in run.events(ev.LeaderStarted)[-1].nodes
    run.finish()
    assert run.until_over().exit_code == 0
    sound(run, told=[r"what +n2 never said hello"] if run.incidents() else [])  # else Slurm found it out before there was a leader


@pytest.mark.drill
@pytest.mark.timeout(600)
def test_a_job_that_is_stuck_completing_comes_back_once(own_site, open_folder) -> None:
    epilog = script(open_folder, "while [ -e ILL ]; do sleep 0.2; done\nexit 0")
    site = own_site(three(Epilog=epilog))
    run = site.submit(slurm={"nodes": 2}, workers_per_node=1)
    run.until_trains(more=12)
    site.ftsup("requeue", str(run.place.root), cwd=run.work)
    run.until(lambda: run.show().completing)
    with for_s(3 * REQUEUE_WAIT_S):
        pass
    assert run.show().completing
    assert run.grants() == 1
    assert "requeued" in site.ftsup("status", str(run.place.root), cwd=run.work).splitlines()[0]
    (open_folder / "ill").unlink()
    run.until_trains(epoch=ev.Epoch(2, 1))
    run.finish()
    assert run.until_over().exit_code == 0
    assert run.grants() == 2
    sound(run)


# Minutes ------------------------------------------------------------------------------------------------------------------


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_the_controller_is_frozen_for_minutes_while_supervisors_are_killed(own_site) -> None:
    """Nobody can start another one, so nobody is blamed; once it goes on there is one supervisor a node, and one attempt."""
    site = own_site(TWO)
    run = site.submit(slurm={"nodes": 2}, workers_per_node=1, waits={"ask": "5s"}, policy={"back_off": "1s", "leaders": 20})
    run.until_trains(more=12)
    with away(site.cluster, "slurmctld", frozen=True), for_s(180):
        run.until(lambda: failed(run, "show"))
        run.once(1, "hang")
        run.until_judged(1)
        run.until_trains(epoch=ev.Epoch(1, 2), more=12)
        kill_supervisor(run)
        run.until(lambda: run.events(ev.NodeSilent))
        kill_leader(run)
        run.until(lambda: len(run.events(ev.NodeSilent)) > 15)
    run.until_trains(epoch=ev.Epoch(1, 3))
    run.finish()
    assert run.until_over().exit_code == 0
    assert [incident.verdict.avoid for incident in run.incidents()] == [(), ()]
    sound(run, told=[AWAY])


def comes_back_sound(run: Run) -> None:
    """After a requeue that had to wait for Slurm: trained to its end in the next grant, and that Slurm was away is told."""
    run.until_trains(epoch=ev.Epoch(2, 1))
    run.finish()
    assert run.until_over().exit_code == 0
    sound(run, told=[AWAY])


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_the_time_limit_passes_while_the_controller_is_away(own_site) -> None:
    site = own_site(ONE)
    run = site.submit(waits={"ask": "5s"})
    run.until_trains(more=12)
    limit_s = int(run.show().run_s) + 60
    site.cluster.admin("scontrol", "update", f"JobId={run.job}", f"TimeLimit=0:{limit_s // 60}:{limit_s % 60}")
    run.until(lambda: [event for event in run.events(ev.SlurmSaid) if event.left_s is not None and event.left_s <= 60])
    with away(site.cluster, "slurmctld"), for_s(75):
        run.until(lambda: failed(run, "requeue") >= 2)
    comes_back_sound(run)


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_scontrol_hangs(own_site) -> None:
    site = own_site(ONE)
    programs = site.folder / "bin"
    programs.mkdir()
    (programs / "ill").touch()
    Path(script(programs, 'while [ -e ILL ]; do sleep 1; done\nexec /usr/bin/scontrol "$@"')).rename(programs / "scontrol")
    site.environ["PATH"] = f"{programs}:{site.environ['PATH']}"
    run = site.submit(waits={"ask": "5s"})
    run.until_trains(more=12)
    run.until(lambda: failed(run, "show"))
    site.ftsup("requeue", str(run.place.root), cwd=run.work)
    run.until(lambda: failed(run, "requeue"))
    assert len([process for process in run.own() if words(process)[1:2] == [str(programs / "scontrol")]]) <= 3
    (programs / "ill").unlink()
    comes_back_sound(run)


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_the_clock_is_moved_by_an_hour_either_way(real) -> None:
    """Of the job's host, for all that runs in the job. The controller's own stays."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    work = real.folder / "a"
    work.mkdir()
    (work / "clock").write_text("0")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", work / "clock.so", Path(__file__).with_name("clock.c")], check=True, timeout=60)
    run = real.submit(setup=f"export LD_PRELOAD={work}/clock.so MOVED_CLOCK={work}/clock", waits={"ask": "5s"})
    epoch = run.until_trains(more=12)
    for moved in ("3600", "-3600"):
        (work / "clock").write_text(moved)
        seen = len(run.events(ev.SlurmSaid))
        run.until(lambda seen=seen: len(run.events(ev.SlurmSaid)) > seen + 1)
        run.until_trains(more=12)
    real.ftsup("restart", str(run.place.root), cwd=run.work)
    run.until_trains(epoch=ev.Epoch(1, epoch.attempt + 1), more=12)
    real.ftsup("requeue", str(run.place.root), cwd=run.work)
    run.until_trains(epoch=ev.Epoch(2, 1))
    assert run.incidents() == []
    assert all(event.away_s < 60 for event in run.events(ev.Away)), "by another clock than the one that was moved"
    lefts = [event.left_s for event in run.events(ev.SlurmSaid) if event.restarts == 0 and event.state == "RUNNING"]
    assert all(540 >= before >= now >= 300 for before, now in pairwise(lefts)), lefts
    walls = [line.wall[:13] for line in run.lines()]
    assert len(set(walls)) >= 3, "the clock was moved"
    run.finish()
    assert run.until_over().exit_code == 0
    sound(run)
