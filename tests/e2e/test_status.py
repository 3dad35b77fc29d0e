"""What `ftsup status` and `list` say of a run that really runs: before, in and after a hang."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest

from ftsup.policy.outlook import Budget
from ftsup.report import runs
from ftsup.report.page import Page, page
from ftsup.report.story import Stage
from tests.e2e.harness import Run, Site, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(240)]


def facts(run: Run) -> Page:
    """What the command would say, without its start."""
    return page(runs.read(run.place), now=datetime.now(timezone.utc))


def test_status_from_the_queue_over_a_hang_to_the_end(site: Site):
    before = site.run("sbatch", "--parsable", "-N2", "--output=/dev/null", "--wrap=sleep 600").strip()  # both nodes are taken
    run = site.submit(slurm={"time": "90min"})
    assert facts(run).stage is Stage.WAITING
    site.run("scancel", before)
    told = run.until(
        lambda: (now := facts(run)).stage is Stage.TRAINING and "hard_cap" in now.budgets and "before the time limit" in now.next and now
    )
    assert "a save is asked for" not in told.next  # it would hear nothing
    assert told.left_s > 60
    assert told.budgets["hard_cap"] == Budget(left=199, of=200)
    run.once(1, "hang")
    told = run.until(lambda: (now := facts(run)).stage is Stage.TRAINING and now.epoch == "1.2" and now)
    (row,) = told.incidents
    assert (row.number, row.rank) == (1, 1)
    assert row.back_s > 0
    shown = site.ftsup("status", cwd=run.work)
    assert "incident 1, " in shown
    assert max(map(len, shown.splitlines())) <= 80
    run.finish()
    run.until_over()
    until(lambda: facts(run).stage is Stage.FINISHED)
    (line,) = json.loads(site.ftsup("list", "--json", cwd=run.work))
    assert (line["stage"], line["incidents"], line["trouble"]) == ("finished", 1, "")
