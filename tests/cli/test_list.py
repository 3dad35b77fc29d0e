"""list as a whole command: the newest first, what cannot be read beside what can, and many of them."""

from __future__ import annotations

import json
import os

import pytest

from ftsup.cli.show import list_runs
from tests.cli.living import hang_and_restart


def test_the_newest_first_within_80_columns(world, leader):
    hang_and_restart(leader)
    world.run(leader=leader)
    world.run("a" * 60, "20260103-000000-00cc", jobs="")
    lines = world.type(list_runs).stdout.splitlines()
    assert lines[0].split() == ["RUN", "STATE", "STEP", "AGE", "JOB", "INC"]
    assert lines[1].split() == [f"{'a' * 13}..{'/20260103-000000-00cc':a>23}", "waiting", "-", "0", "s", "-", "-"]
    assert lines[2].split() == ["demo/20260102-030405-00aa", "training", "101", "30", "s", "7", "1"]
    assert max(map(len, lines)) <= 80
    assert world.type(list_runs, "-n", "1").stderr == "1 older ones: -n 2\n"


def test_json_has_the_same_facts(world, leader):
    leader.after(60).train(160)
    run = world.run(leader=leader)
    (facts,) = json.loads(world.type(list_runs, "--json").stdout)
    assert facts == {
        "run": run.id,
        "path": str(run.root),
        "stage": "training",
        "step": 160,
        "rate_per_min": 60.0,
        "age_s": 30.0,
        "quiet_s": 0.0,
        "job": "7",
        "incidents": 0,
        "trouble": "",
    }


def test_what_cannot_be_read_is_a_line_with_its_reason_and_breaks_nothing(world, leader):
    world.run(leader=leader)
    (world.run("cut", "20260104-000000-00cc").root / "config.json").unlink()
    world.run("odd", "20260103-000000-00cc").events.mkdir()
    lines = world.type(list_runs).stdout.splitlines()
    assert lines[1] == f"{'cut/20260104-000000-00cc':<38} unreadable: no config.json to read"
    assert lines[2].split()[:2] == ["odd/20260103-000000-00cc", "waiting*"]
    assert lines[3].split()[:2] == ["demo/20260102-030405-00aa", "training"]
    assert max(map(len, lines)) <= 80
    found = json.loads(world.type(list_runs, "--json").stdout)
    assert found[0]["stage"] is None
    assert "cannot be read" in found[1]["trouble"]


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_run_of_somebody_else_is_a_line_too(world):
    world.run().root.chmod(0)
    try:
        assert "unreadable" in world.type(list_runs).stdout
    finally:
        (world.home / "ftsup-runs/demo/20260102-030405-00aa").chmod(0o700)


def test_no_runs(world):
    assert "no runs in ftsup-runs" in world.type(list_runs).stderr
    assert json.loads(world.type(list_runs, "--json").stdout) == []
