"""status as a whole command, on run directories that a real log fills: once, and again and again."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from click import UsageError

from ftsup import events as ev
from ftsup.cli.show import status
from ftsup.errors import RunError
from ftsup.events import Fault, How
from tests.cli.lived import Lived
from tests.cli.living import World, finish, hang_and_restart
from tests.report.leader import BEGAN
from tests.report.scenes import trained


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_run_that_came_back_from_an_incident(world, leader):
    hang_and_restart(leader)
    world.run(leader=leader)
    assert world.type(status).stdout.splitlines() == [
        "demo/20260102-030405-00aa: training",
        "  next: not known: the leader has written no status.json yet",
        "  step 101",
        "  nothing saved yet; no sealed checkpoint",
        "  job 7, attempt 1.2, on n1, n2",
        "  1 incident, 2 attempts in 1 grant:",
        "    incident 1, 22 s ago, attempt 1.1: rank 3 on n2 stood still for 5.2 s (limit",
        "      5 s) at step 118: restart here; found after 5.2 s; back at work after 10",
        "      s, 18 steps replayed",
    ]
    assert world.calls == 0


def test_no_line_is_wider_than_80_columns_and_no_control_character_gets_through(world, leader):
    fault = Fault(how=How.EXCEPTION, node="n1", rank=1, step=120, error="ValueError: \x1b[31m" + "long words " * 40 + "x" * 120)
    leader.take(ev.RankEnded(node="n1", epoch=leader.epoch, fault=fault))
    leader.end_attempt()
    world.run(leader=leader)
    shown = world.type(status).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown
    assert "not back at work" in flat(shown)


def test_live_counters_are_newer_than_the_log(world, leader):
    run = world.run(leader=leader)
    ranks = {"0": {"step": 118, "phase": "step", "node": "n1"}, "1": {"step": 117, "phase": "step", "node": "n2"}}
    run.status.write_text(json.dumps({"wall": BEGAN.isoformat(), "stage": "run", "epoch": "1.1", "ranks": ranks}))
    assert "step 117" in world.type(status).stdout
    ranks["0"]["step"] = ranks["1"]["step"] = -1
    run.status.write_text(json.dumps({"wall": BEGAN.isoformat(), "ranks": ranks}))
    assert "step 100" in world.type(status).stdout


def test_a_leader_that_fell_silent_is_said_and_one_of_a_run_that_is_over_is_not(world, leader):
    world.now = BEGAN + timedelta(minutes=20)
    world.run(leader=leader)
    shown = flat(world.type(status).stdout)
    assert "the leader has said nothing for 19 min 57 s" in shown
    assert "job 7 is not known to Slurm any more" in shown
    assert "ftsup submit --continue demo/20260102-030405-00aa goes on" in shown
    assert world.calls == 1
    finish(leader)
    world.run(leader=leader)
    shown = world.type(status).stdout
    assert "said nothing" not in shown
    assert shown.startswith("demo/20260102-030405-00aa: finished\n  training finished\n  next: nothing: it is done\n")
    assert world.calls == 1


def test_json_has_the_same_facts(world, leader):
    hang_and_restart(leader)
    run = world.run(leader=leader)
    facts = json.loads(world.type(status, "--json").stdout)
    assert (facts["run"], facts["path"], facts["stage"], facts["epoch"], facts["job"]) == (run.id, str(run.root), "training", "1.2", "7")
    (incident,) = facts["incidents"]
    assert {key: incident[key] for key in ("number", "node", "rank", "step", "detected_s", "back_s", "replayed", "verdict")} == {
        "number": 1,
        "node": "n2",
        "rank": 3,
        "step": 118,
        "detected_s": 5.2,
        "back_s": pytest.approx(10.2),
        "replayed": 18,
        "verdict": "restart",
    }


def test_slurm_is_asked_once_and_only_about_a_job_that_says_nothing_itself(world):
    script = world.home / "s"
    script.write_text("#!/bin/bash\n")
    job = world.slurm.submit(script)
    world.run(jobs=f"{job}\n")
    assert f"job {job} is pending" in world.type(status).stdout
    assert "it starts when Slurm gives it nodes" in world.type(status).stdout
    world.slurm.advance(1)
    assert f"job {job} is running" in world.type(status).stdout
    assert f"its own output is in slurm-{job}.out" in flat(world.type(status).stdout)
    world.slurm.finish(job, exit_code=1)
    shown = flat(world.type(status).stdout)
    assert f"job {job} ended (FAILED)" in shown
    assert "slurm-*.out in the run directory says why" in shown
    world.slurm.forget(job)
    assert "not known to Slurm any more" in world.type(status).stdout
    world.slurm.away = True
    assert "Unable to contact slurm controller" in world.type(status).stdout
    assert world.calls == 7


def test_a_job_that_waits_for_its_requeue_is_asked_about(world, leader):
    script = world.home / "s"
    script.write_text("#!/bin/bash\n")
    job = world.slurm.submit(script)
    leader.take(ev.Signalled(signal="SIGTERM"))
    leader.after(2).take(ev.SlurmSaid(state="PENDING", restarts=1))
    world.run(jobs=f"{job}\n", leader=leader)
    shown = flat(world.type(status).stdout)
    assert shown.startswith("demo/20260102-030405-00aa: requeued requeued by somebody else")
    assert "next: it goes on when Slurm gives it nodes" in shown


def test_torn_empty_and_foreign_things_are_said_in_a_sentence(world, leader):
    run = world.run(leader=leader)
    with run.events.open("ab") as file:
        file.write(b'{"n":99,"ev')
    run.status.write_text("{")
    shown = world.type(status).stdout
    assert "note: events.jsonl: the last line is torn" in shown
    assert "note: status.json cannot be read" in shown
    assert ": training\n" in shown
    (world.home / "folder").mkdir()
    with pytest.raises(RunError, match="folder is not a run directory"):
        world.type(status, str(world.home / "folder"))


def test_a_run_directory_with_nothing_but_its_configuration(world):
    world.run(jobs="")
    assert world.type(status).stdout == "demo/20260102-030405-00aa: waiting\n  next: nothing: it was never submitted\n"


# Again and again ----------------------------------------------------------------------------------------------------------


def acting(world: World, *acts) -> None:
    """Between two looks, one thing after the other happens."""
    left = iter(acts)

    def act() -> None:
        next(left)()

    world.asleep = act


def test_watching_without_a_terminal_says_what_changed_and_ends_with_the_run(world, leader):
    world.run(leader=leader)

    def later(seconds: float) -> None:
        world.now += timedelta(seconds=seconds)

    def trains() -> None:
        leader.after(60).train(160)
        world.run(leader=leader)
        later(60)

    def ends() -> None:
        finish(leader)
        world.run(leader=leader)

    acting(world, lambda: later(5), trains, lambda: later(5), ends)
    lines = world.type(status, "--watch", "1").stdout.splitlines()
    assert lines == [
        "03:04:35 demo/20260102-030405-00aa: training; step 100",
        "03:05:40 demo/20260102-030405-00aa: training; step 160, 60 steps/min",
        "03:05:45 demo/20260102-030405-00aa: finished; step 160; training finished",
    ]


def test_watching_as_json_is_a_line_a_look(world, leader):
    world.run(leader=leader)
    acting(world, lambda: (finish(leader), world.run(leader=leader)))
    lines = world.type(status, "demo", "--watch", "--json").stdout.splitlines()
    assert [json.loads(line)["stage"] for line in lines] == ["training", "finished"]


def test_what_stands_behind_watch_is_a_time_or_the_run(world, leader):
    finish(leader)
    world.run(leader=leader)
    assert ": finished" in world.type(status, "--watch", "demo").stdout
    assert ": finished" in world.type(status, "--watch", "2s").stdout
    for args in (["--watch", "4711"], ["demo", "--watch", "soon"]):
        with pytest.raises(UsageError, match="--watch takes"):
            status.main([*args], obj=world.ports(), standalone_mode=False)


def test_a_watched_job_that_says_nothing_is_not_asked_about_at_every_look(world):
    script = world.home / "s"
    script.write_text("#!/bin/bash\n")
    world.run(jobs=f"{world.slurm.submit(script)}\n")

    def later() -> None:
        world.now += timedelta(seconds=25)

    def ends() -> None:
        (world.home / "ftsup-runs/demo/20260102-030405-00aa/cancelled").touch()

    acting(world, later, later, later, later, ends)
    world.type(status, "--watch")
    assert world.calls == 2


def test_on_a_terminal_it_stays_in_its_place_and_ctrl_c_ends_it(tmp_path):
    lived = Lived(tmp_path, trained())
    with lived.on_a_terminal("status", "--watch", "0.2", rows=12) as screen:
        screen.shows(": training\n", "step 484")
        lived.leader.after(9).hang(at=484)
        lived.write()
        screen.shows(": recovering\n", "not back at work")
        lived.leader.end_attempt()
        lived.leader.launch(checkpoint=484)
        lived.leader.after(3).train(490)
        lived.write()
        screen.shows(": training\n", "attempt 1.2")
        assert screen.text().count("demo/20260102-030405-00aa: ") == 1
        screen.type("\x03")
        assert screen.ended() == 130
        assert screen.restored()
        assert "attempt 1.2" in screen.text()
