"""The warning and the time limit on a real Slurm, in both process trackings: several jobs wait for theirs at the same time.

Slurm's unit is the minute, it looks at limits about twice a minute, and may warn a minute early: limits here are two or three minutes.
"""

from __future__ import annotations

import pytest

from ftsup import events as ev
from tests.e2e import warned
from tests.e2e.harness import RealSite, Run
from tests.realslurm.cluster import KILL_WAIT_S

pytestmark = [pytest.mark.e2e, pytest.mark.realslurm, pytest.mark.timeout(600)]

CLUSTERS = ("real", "real_cgroup")
ONE_IN_CI = (pytest.param("real", marks=pytest.mark.drill), "real_cgroup")
"""Where a signal goes with cgroups it is harder to follow; the other tracking is a drill."""
BATCH = 5


def submit(site: RealSite, case: warned.Case, *, lead_s: int, minutes: int, **more: object):
    slurm = {"time": f"{minutes}min", "mem": "1500MiB"}
    return warned.submit(site, case, lead_s=lead_s, **warned.merged({"slurm": slurm}, more))


def until_requeued(site: RealSite, runs: list[Run]) -> None:
    def extend(run: Run) -> None:
        site.cluster.admin("scontrol", "update", f"JobId={run.job}", "TimeLimit=60")

    warned.until_requeued(runs, extend, within_s=240)


def check(site: RealSite, case: warned.Case, run: Run, *, margin_s: float) -> None:
    step = warned.check(run, case, kill_wait_s=KILL_WAIT_S, margin_s=margin_s)
    if case.moment != "save" or step is not None:
        warned.check_resumed(run, step)
    site.ftsup("cancel", cwd=run.work)


@pytest.mark.parametrize("cluster", ONE_IN_CI)
def test_each_form_of_the_warning_and_who_can_be_asked(cluster: str, request) -> None:
    """As Slurm itself sends it: 0 to 20 s after the start. Who cannot be asked is requeued in time; others have a minute more."""
    site = request.getfixturevalue(cluster)
    cases = [(case, 60.0) for case in warned.each_form(own=cluster == "real_cgroup")]
    cases.append((warned.Case(way="deaf"), 120.0))
    runs = [(submit(site, case, lead_s=160, minutes=3, waits={"end_margin": f"{margin_s}s"}), case, margin_s) for case, margin_s in cases]
    until_requeued(site, [run for run, _, _ in runs])
    for run, case, margin_s in runs:
        check(site, case, run, margin_s=margin_s)


@pytest.mark.drill
@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("first", range(0, 20, BATCH))
def test_any_script_warned_in_any_moment(cluster: str, first: int, request) -> None:
    site = request.getfixturevalue(cluster)
    cases = [warned.draw(seed + 100 * (cluster == "real_cgroup")) for seed in range(first, first + BATCH)]
    runs = [(case, submit(site, case, lead_s=90, minutes=3)) for case in cases]
    for case, run in sorted(runs, key=lambda one: one[0].moment != "start"):
        warned.begin(run, case)
    for case, run in runs:
        warned.reach(run, case)
        for _ in range({"none": 0}.get(case.form, 2 if case.moment == "twice" else 1)):
            warned.signal(run, case)
    until_requeued(site, [run for _, run in runs])
    for case, run in runs:
        check(site, case, run, margin_s=warned.MARGIN_S)


@pytest.mark.torch
def test_nothing_of_a_real_step_dies_of_the_signal_and_no_data_loader_saves(real) -> None:
    """Under linuxproc, where every process gets it, and also those of the batch script."""
    run = warned.loading(real, slurm={"signal": "SIGUSR1@100", "time": "60min", "mem": "3GiB"})
    warned.check_loading(
        run,
        lambda: real.run("scancel", "--full", "--signal=USR1", run.job),
        lambda: real.cluster.admin("scontrol", "update", f"JobId={run.job}", f"TimeLimit={minutes_gone(run) + 2}"),
        ranks=2,
    )


@pytest.mark.drill
@pytest.mark.torch
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_nothing_of_a_step_with_several_loaders_dies_of_the_signal_whatever_tracks_it(cluster: str, request) -> None:
    """Under cgroup tracking only the step's own tasks get it, of the batch script all; two ranks on each of two nodes."""
    site = request.getfixturevalue(cluster)
    run = warned.loading(site, workers=2, slurm={"nodes": 2, "signal": "SIGUSR1@100", "time": "60min", "mem": "6GiB"})
    warned.check_loading(
        run,
        lambda: site.run("scancel", "--full", "--signal=USR1", run.job),
        lambda: site.cluster.admin("scontrol", "update", f"JobId={run.job}", f"TimeLimit={minutes_gone(run) + 2}"),
        ranks=4,
        workers=2,
    )


def minutes_gone(run: Run) -> int:
    return int(run.show().run_s) // 60


@pytest.mark.parametrize("cluster", ONE_IN_CI)
def test_an_admin_who_moves_the_limit_is_followed(cluster: str, request) -> None:
    """One limit is moved near: Slurm warns at its next look. One is moved away before any warning: nothing is saved, training goes on."""
    site = request.getfixturevalue(cluster)
    near, far = warned.Case(way="asks"), warned.Case(way="handler", form="none")
    nearer = submit(site, near, lead_s=100, minutes=60, waits={"ask": "300s"})
    farther = submit(site, far, lead_s=60, minutes=2, waits={"ask": "300s"})
    for run in (nearer, farther):
        run.until(lambda run=run: run.events(ev.SlurmSaid))
    site.cluster.admin("scontrol", "update", f"JobId={nearer.job}", f"TimeLimit={minutes_gone(nearer) + 2}")
    site.cluster.admin("scontrol", "update", f"JobId={farther.job}", "TimeLimit=60")
    until_requeued(site, [nearer])
    check(site, near, nearer, margin_s=warned.MARGIN_S)
    farther.until(lambda: any((event.left_s or 0) > 3000 for event in farther.events(ev.SlurmSaid)))  # asked anew when it was due
    step = max(event.step for event in farther.events(ev.Progressed))
    farther.until(lambda: max(event.step for event in farther.events(ev.Progressed)) > step)
    assert (warned.saves(farther), farther.orders(ev.AskRanks), farther.incidents()) == ([], [], []), farther.story()


@pytest.mark.drill
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_limit_that_is_moved_away_after_the_warning(cluster: str, request) -> None:
    """Slurm does not warn again: the new end is known by its EndTime. One is in the middle of its save, one cannot be asked."""
    site = request.getfixturevalue(cluster)
    lead_s = 40
    asks, deaf = warned.Case(way="asks"), warned.Case(way="deaf")
    saving = submit(site, asks, lead_s=lead_s, minutes=2, command=[str(warned.SCRIPT), "asks", "save=8"], checkpoint={"every": "1h"})
    waiting = submit(site, deaf, lead_s=lead_s, minutes=2)
    for run in (saving, waiting):
        run.until(lambda run=run: run.events(ev.Warned), within_s=150)
        site.cluster.admin("scontrol", "update", f"JobId={run.job}", "TimeLimit=4")
    saving.until(lambda: "training goes on" in saving.output())
    first = saving.events(ev.SaveOver)[-1].step
    until_requeued(site, [saving, waiting])
    check(site, deaf, waiting, margin_s=warned.MARGIN_S)
    line = warned.requeue_line(saving)
    newest = max(step for _, step, _ in warned.saves(saving, until_t=line.event.t))
    assert newest > first
    assert saving.orders(ev.Decide)[0].verdict.reason == f"the time limit is near, and training is saved at step {newest}: requeue"
    assert warned.end_s(saving) - line.event.t <= lead_s, saving.story()
    assert (saving.incidents(), len(saving.events(ev.Warned))) == ([], 1), saving.story()
    warned.check_resumed(saving, newest)
