"""The warning on the mock: each form of it, each moment, each kind of script, beside each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftsup import events as ev
from tests.e2e import warned
from tests.e2e.harness import Site, mock_site

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

LEAD_S = 45
KILL_WAIT_S = 10
AT_ONCE = 20
"""Stories beside each other would be too much for a small machine: so many seeds, in batches."""
BATCH = 4


def tell(site: Site, cases: list[warned.Case]) -> None:
    """Submit all, bring each to its moment, warn it, and see what becomes of it."""
    runs = [(case, warned.submit(site, case, lead_s=LEAD_S)) for case in cases]
    for case, run in sorted(runs, key=lambda one: one[0].moment != "start"):
        if case.moment == "start":
            warned.limit(run, LEAD_S + 85)
        warned.begin(run, case)
    for case, run in runs:
        warned.reach(run, case)
        if case.moment != "start":
            warned.limit(run, LEAD_S + (61 if case.moment == "early" else 1))
        if case.moment in {"early", "twice"}:
            warned.signal(run, case)
    warned.until_requeued([run for _, run in runs], lambda run: warned.limit(run, 3600), within_s=200)
    for case, run in runs:
        step = warned.check(run, case, kill_wait_s=KILL_WAIT_S)
        if case.moment == "own" and step is None:
            warned.check_resumed_from_own(run)
        elif case.moment != "save" or step is not None:
            warned.check_resumed(run, step)
        site.ftsup("cancel", cwd=run.work)


def nodes(cases: list[warned.Case]) -> int:
    return sum(case.nodes for case in cases)


@pytest.mark.parametrize("proctrack", [pytest.param("cgroup", marks=pytest.mark.drill), "linuxproc"])
def test_each_form_of_the_warning(tmp_path, proctrack: str) -> None:
    """To the steps, to the batch script, another signal, and none at all."""
    cases = warned.each_form(own=proctrack == "linuxproc")
    with mock_site(tmp_path, nodes=nodes(cases), proctrack=proctrack) as site:
        tell(site, cases)


@pytest.mark.torch
def test_nothing_of_the_step_dies_of_the_signal_and_no_data_loader_saves(tmp_path) -> None:
    """Where every process gets it: torchrun, ranks, data loaders that were forked and spawned; also those of the batch script."""
    with mock_site(tmp_path, nodes=1, proctrack="linuxproc") as site:
        run = warned.loading(site, slurm={"signal": f"SIGUSR1@{LEAD_S}"}, waits={"end_margin": "3s"})
        warned.check_loading(
            run,
            lambda: site.run("scancel", "--full", "--signal=USR1", run.job),
            lambda: warned.limit(run, LEAD_S + 60),
            ranks=2,
        )


@pytest.mark.drill
@pytest.mark.parametrize("proctrack", ["cgroup", "linuxproc"])
def test_a_script_that_is_in_a_save_of_its_own(tmp_path, proctrack: str) -> None:
    """It saves once more, at the beat that follows; one that does not listen goes on from its own."""
    ways = ("handler", "asks", "flag", "later")
    cases = [warned.Case(way=way, form=form, moment="own") for way, form in zip(ways, warned.FORMS, strict=True)]
    cases.append(warned.Case(way="deaf", moment="own"))
    with mock_site(tmp_path, nodes=nodes(cases), proctrack=proctrack) as site:
        tell(site, cases)


@pytest.mark.drill
@pytest.mark.parametrize("proctrack", ["cgroup", "linuxproc"])
def test_plain_handlers_get_the_signal_itself(tmp_path, proctrack: str) -> None:
    """`slurm.handlers: plain`: each rank once, whenever it comes. Who goes on is requeued in time, and who leaves is no fault."""
    cases = [warned.Case(way=way, nodes=2) for way in ("flag", "handler")]
    with mock_site(tmp_path, nodes=nodes(cases), proctrack=proctrack) as site:
        flag, leaves = runs = [warned.submit(site, case, lead_s=LEAD_S, slurm={"handlers": "plain"}) for case in cases]
        for run, case in zip(runs, cases, strict=True):
            warned.begin(run, case)
        for run in runs:
            warned.limit(run, LEAD_S + 1)
        warned.until_requeued(runs, lambda run: warned.limit(run, 3600), within_s=120)
        for run in runs:
            found = warned.saves(run, until_t=warned.requeue_line(run).event.t)
            assert len({rank for rank, _, _ in found}) == len(found), run.story()
            assert [one for one in run.incidents() if one.epoch.grant == 1] == [], run.story()
            assert [epoch for epoch in run.launches() if epoch.grant == 1] == [ev.Epoch(1, 1)], run.story()
        assert len(warned.saves(flag, until_t=warned.requeue_line(flag).event.t)) == 4, flag.story()
        assert warned.requeue_line(flag).event.t >= warned.end_s(flag) - KILL_WAIT_S - warned.MARGIN_S - 8.0, flag.story()
        assert warned.saves(leaves), leaves.story()
        assert "saved" in leaves.orders(ev.Decide)[0].verdict.reason, leaves.story()


@pytest.mark.drill
@pytest.mark.parametrize("first", range(0, AT_ONCE, BATCH))
def test_twenty_scripts_that_ask(tmp_path, first: int) -> None:
    cases = [warned.draw(seed + 2 * AT_ONCE, only="asks") for seed in range(first, first + BATCH)]
    with mock_site(tmp_path, nodes=nodes(cases), proctrack="cgroup" if first % (2 * BATCH) else "linuxproc") as site:
        tell(site, cases)


@pytest.mark.drill
@pytest.mark.parametrize("proctrack", ["cgroup", "linuxproc"])
@pytest.mark.parametrize("first", range(0, AT_ONCE, BATCH))
def test_any_script_warned_in_any_moment(tmp_path, first: int, proctrack: str) -> None:
    cases = [warned.draw(seed + AT_ONCE * (proctrack == "cgroup")) for seed in range(first, first + BATCH)]
    with mock_site(tmp_path, nodes=nodes(cases), proctrack=proctrack) as site:
        tell(site, cases)


SILENT = """#!/bin/sh
case "${{FTSUP_LOCAL:+$*}}" in *"show config"*) echo "Unable to contact slurm controller (connect failure)" >&2; exit 1 ;; esac
exec {scontrol} "$@"
"""
"""To those who ask from the batch step."""
ENDS = """
import os, pathlib, signal, sys, time
from ftsup_worker import beat

def save(*_):
    time.sleep(1)
    pathlib.Path("control", "saved." + os.environ["RANK"]).touch()
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
step = 0
while True:
    step += 1
    beat(step=step)
    time.sleep(0.05)
"""


@pytest.mark.drill
def test_ranks_hear_of_the_end_in_time_where_slurm_never_said_its_kill_wait(tmp_path) -> None:
    """It is shorter than the usual one, and only the step's tasks get SIGTERM; a rank that saves then takes a second."""
    with mock_site(tmp_path, nodes=1, kill_wait_s=9, proctrack="cgroup") as site:
        scontrol = Path(site.environ["PATH"].split(":")[0], "scontrol")
        scontrol.rename(scontrol.with_name("answers"))
        scontrol.write_text(SILENT.format(scontrol=scontrol.with_name("answers")))
        scontrol.chmod(0o755)
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "ends.py").write_text(ENDS)
        run = site.submit(command=["ends.py"], resume_args=[], checkpoint={"dir": ""}, grace="20s")
        run.until_trains()
        assert run.events(ev.SlurmSaid) == []
        site.run("scontrol", "requeue", run.job)
        run.until(lambda: {path.name for path in run.work.glob("control/saved.*")} == {"saved.0", "saved.1"}, within_s=20)
