"""status, list, stop and cancel as whole commands, on run directories that a real log fills."""

from __future__ import annotations

import json
import os
import stat
from datetime import timedelta, timezone

import pytest

from ftsup.cli.cluster import Cluster, of_run
from ftsup.cli.show import status
from ftsup.cli.steer import cancel, stop
from ftsup.errors import RunError, Unavailable
from ftsup.ports import JobState
from ftsup.rundir import RunDir
from tests.cli.living import World, finish
from tests.report.leader import BEGAN, Leader


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


@pytest.fixture
def leader() -> Leader:
    one = Leader()
    one.grant()
    one.launch()
    one.after(3).train(100)
    return one


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


# cancel -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def running(world) -> RunDir:
    script = world.home / "s"
    script.write_text("#!/bin/bash\n")
    job = world.slurm.submit(script)
    world.slurm.advance(1)
    return world.run(jobs=f"{job}\n")


def test_cancel_writes_the_wish_before_it_asks_slurm(world, running):
    seen = []
    original = world.slurm.cancel

    def watched(job_id):
        seen.append(((running.root / "cancelled").exists(), len(list(running.requests.glob("*.json")))))
        original(job_id)

    world.slurm.cancel = watched
    assert "job 1 was told to end and will not come back" in world.type(cancel).stdout
    assert seen == [(True, 1)]
    (request,) = running.requests.iterdir()
    assert json.loads(request.read_bytes()) == {"request": "cancel", "who": "me"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (request, running.root / "cancelled")} == {0o600}
    assert world.slurm.show("1").state.value in {"CANCELLED", "UNKNOWN"}
    assert world.type(status).stdout.startswith("demo/20260102-030405-00aa: cancelled\n")


def test_cancel_of_a_run_that_is_over_says_so_and_touches_nothing(world, leader):
    finish(leader)
    run = world.run(leader=leader)
    assert world.type(cancel).stdout == "demo/20260102-030405-00aa is over already: finished (training finished)\n"
    assert not (run.root / "cancelled").exists()
    assert world.calls == 0


def test_cancel_while_slurm_is_away_keeps_the_wish(world, running):
    world.slurm.away = True
    with pytest.raises(Unavailable, match="marked as cancelled, but Slurm was not told") as caught:
        world.type(cancel)
    assert "scancel 1" in caught.value.hint
    assert (running.root / "cancelled").exists()


def test_cancel_of_a_run_that_was_never_submitted(world):
    run = world.run(jobs="")
    assert "never submitted" in world.type(cancel).stdout
    assert (run.root / "cancelled").exists()
    assert world.calls == 0


def test_cancel_twice_is_fine(world, running):
    world.type(cancel)
    world.type(cancel)
    assert len(list(running.requests.iterdir())) == 2


def test_a_run_under_way_that_is_asked_to_cancel_shows_it(world, leader):
    run = world.run(leader=leader)
    (run.root / "cancelled").touch()
    assert "cancel was asked for" in world.type(status).stdout
    world.now = BEGAN + timedelta(hours=1)
    assert world.type(status).stdout.startswith("demo/20260102-030405-00aa: cancelled\n")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_only_the_owner_cancels(world, running):
    os.chown(running.root, 12345, -1)
    with pytest.raises(RunError, match="belongs to somebody else"):
        world.type(cancel)
    assert not (running.root / "cancelled").exists()


def test_a_run_remembers_its_cluster(world, running):
    assert of_run(running) == Cluster()
    (running.root / "cluster.json").write_text('{"state": "/somewhere/mock"}')
    environ = of_run(running).environ({"PATH": "/bin", "A": "b"})
    assert environ["PATH"].startswith("/somewhere/mock/")
    assert (environ["FTSUP_MOCK_STATE"], environ["A"]) == ("/somewhere/mock", "b")


def test_the_wall_clock_of_the_tests_has_a_zone():
    assert BEGAN.tzinfo is timezone.utc


# stop ---------------------------------------------------------------------------------------------------------------------


def test_stop_leaves_a_request_for_the_leader_and_says_what_will_happen(world, running):
    said = world.type(stop).stdout
    assert said.startswith("demo/20260102-030405-00aa will stop: all ranks save at one step")
    assert "is not requeued" in said
    (request,) = running.requests.iterdir()
    assert json.loads(request.read_bytes()) == {"request": "stop", "who": "me"}
    assert stat.S_IMODE(request.stat().st_mode) == 0o600
    assert not (running.root / "cancelled").exists()
    assert world.slurm.show("1").state is JobState.RUNNING


def test_stop_of_a_run_that_is_over_says_so_and_touches_nothing(world, leader):
    finish(leader)
    run = world.run(leader=leader)
    assert world.type(stop).stdout == "demo/20260102-030405-00aa is over already: finished (training finished)\n"
    assert not run.requests.exists()
    assert world.calls == 0


def test_stop_of_a_job_that_waits_or_has_ended_is_refused_in_a_sentence(world):
    script = world.home / "s"
    script.write_text("#!/bin/bash\n")
    run = world.run(jobs=f"{world.slurm.submit(script)}\n")
    with pytest.raises(RunError, match="has nothing to save: its job 1 is pending") as caught:
        world.type(stop)
    assert "ftsup cancel" in caught.value.hint
    world.slurm.cancel("1")
    with pytest.raises(RunError, match=r"its job 1 is not running \((CANCELLED|GONE|UNKNOWN)\)"):
        world.type(stop)
    assert not run.requests.exists()


def test_stop_of_a_run_that_was_never_submitted_or_is_cancelled(world, running):
    world.type(cancel)
    with pytest.raises(RunError, match="is cancelled: it ends without a save"):
        world.type(stop)
    world.run("other", jobs="")
    with pytest.raises(RunError, match="never submitted: there is nothing to stop"):
        world.type(stop, "other")


def test_stop_while_slurm_is_away_is_left_to_the_leader(world, running):
    world.slurm.away = True
    assert "will stop, if its job runs (Slurm does not answer): " in world.type(stop).stdout
    assert len(list(running.requests.iterdir())) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_only_the_owner_stops(world, running):
    os.chown(running.root, 12345, -1)
    with pytest.raises(RunError, match="only its owner can stop it"):
        world.type(stop)
    assert not running.requests.exists()
