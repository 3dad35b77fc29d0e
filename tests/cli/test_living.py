"""status and list as whole commands, on run directories that a real log fills."""

from __future__ import annotations

import json
from datetime import timezone

import pytest

from ftsup.cli.cluster import Cluster, of_run
from ftsup.cli.show import status
from ftsup.errors import RunError
from ftsup.rundir import RunDir
from tests.report.leader import BEGAN


def flat(text: str) -> str:
    return " ".join(text.split())


# Which run ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "typed, found",
    [
        (None, "other/20260103-000000-00cc"),
        ("demo", "demo/20260102-030405-00bb"),
        ("demo/20260101-000000-00aa", "demo/20260101-000000-00aa"),
        ("20260101-000000-00aa", "demo/20260101-000000-00aa"),
        ("demo/20260101", "demo/20260101-000000-00aa"),
        ("20260103", "other/20260103-000000-00cc"),
        ("de", "demo/20260102-030405-00bb"),
        ("11", "demo/20260101-000000-00aa"),
        ("12", "demo/20260101-000000-00aa"),
        ("PATH", "demo/20260101-000000-00aa"),
    ],
)
def test_a_run_is_found_by_what_people_type(world, typed, found):
    old = world.run(stamp="20260101-000000-00aa", jobs="11\n12\n")
    world.run(stamp="20260102-030405-00bb", jobs="13\n")
    world.run("other", "20260103-000000-00cc", jobs="14\n")
    args = [] if typed is None else [str(old.root) if typed == "PATH" else typed]
    assert json.loads(world.type(status, "--json", *args).stdout)["run"] == found


def test_what_is_not_found_or_not_clear_is_said_with_what_there_is(world):
    with pytest.raises(RunError, match="no runs in"):
        world.type(status)
    world.run("demo-a", jobs="")
    world.run("demo-b", jobs="")
    with pytest.raises(RunError, match="several runs: demo-a, demo-b"):
        world.type(status, "demo")
    with pytest.raises(RunError, match="no run is called nothing"):
        world.type(status, "nothing")


# Its cluster, and its clock ------------------------------------------------------------------------------------------------


@pytest.fixture
def running(world) -> RunDir:
    script = world.home / "s"
    script.write_text("#!/bin/bash\n")
    job = world.slurm.submit(script)
    world.slurm.advance(1)
    return world.run(jobs=f"{job}\n")


def test_a_run_remembers_its_cluster(world, running):
    assert of_run(running) == Cluster()
    (running.root / "cluster.json").write_text('{"state": "/somewhere/mock"}')
    environ = of_run(running).environ({"PATH": "/bin", "A": "b"})
    assert environ["PATH"].startswith("/somewhere/mock/")
    assert (environ["FTSUP_MOCK_STATE"], environ["A"]) == ("/somewhere/mock", "b")


def test_the_wall_clock_of_the_tests_has_a_zone():
    assert BEGAN.tzinfo is timezone.utc
