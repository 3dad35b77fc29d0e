"""A run's directory seen from a host of another cluster: its Slurm knows the job's number for somebody else's job, or not at all."""

from __future__ import annotations

from datetime import timedelta

import pytest
from click.testing import CliRunner

from ftsup.cli.show import status
from ftsup.cli.steer import requeue
from ftsup.cli.watch import watch
from ftsup.errors import Exit

WHERE = "the run is on cluster there, and this host asks cluster here"


@pytest.fixture
def run(world, leader):
    world.slurm.settings["ClusterName"] = "here"
    script = world.home / "s"
    script.write_text("#!/bin/bash\n")
    made = world.run(jobs=f"{world.slurm.submit(script)}\n", leader=leader)
    world.slurm.advance(1)
    (made.root / "cluster.json").write_text('{"name": "there"}')
    world.now += timedelta(hours=1)
    return made


def test_watch_does_nothing_about_it_and_says_why(world, run):
    done = CliRunner().invoke(watch, ["--once"], obj=world.ports(), standalone_mode=False)
    assert done.return_value == Exit.AGAIN
    assert WHERE in done.stdout
    assert [job.restarts for job in world.slurm.jobs.values()] == [0]


def test_status_and_requests_do_not_take_the_other_job_for_it(world, run):
    assert "is running" not in world.type(status).stdout
    said = world.type(requeue, run.id)
    assert WHERE in said.output
