"""watch as a whole command: one look, many looks, two at once, and everything that is wrong with one run or with Slurm."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from itertools import count
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from ftsup.cli import watchlock
from ftsup.cli.explain import explain_run
from ftsup.cli.show import status
from ftsup.cli.watch import AWAY_MOST_S, HURRIES, HURRY_S, watch
from ftsup.errors import Exit
from ftsup.policy.spool import Spool
from ftsup.ports import Job, JobState
from ftsup.report.minding import LIMITS, Do
from ftsup.rundir import RunDir
from ftsup.slurm.fake import FakeSlurm
from tests.cli.living import World, finish

NAME = "demo/20260102-030405-00aa"
MINUTE_S = 60.0


class Asked(FakeSlurm):
    """Counts what it is asked, and lets a test act in the middle of a look."""

    def __init__(self) -> None:
        super().__init__(ids=count(7))  # the job that the leader's log is of
        self.asked: list[str] = []
        self.forgotten: set[str] = set()
        """squeue does not list them any more, and accounting knows how they ended."""
        self.at: dict[str, object] = {}

    def _note(self, what: str) -> None:
        self.asked.append(what)
        act = self.at.pop(what, None)
        if callable(act):
            act()

    def queue(self) -> list[Job]:
        asked, at = self.asked, self.at
        self.asked, self.at = [], {}  # it asks itself about each job
        try:
            found = super().queue()
        finally:
            self.asked, self.at = asked, at
        self._note("queue")
        return [row for row in found if row.job_id not in self.forgotten]

    def show(self, job_id: str) -> Job:
        found = super().show(job_id)
        self._note("show")
        return found

    def requeue(self, job_id: str) -> None:
        super().requeue(job_id)
        self._note("requeue")


@pytest.fixture
def slurm(world) -> Asked:
    world.slurm = Asked()
    return world.slurm


def submitted(world: World, *args: str, begins: bool = True) -> str:
    script = world.home / "s"
    script.write_text("#!/bin/bash\n")
    job = world.slurm.submit(script, args=args)
    world.slurm.advance(1 if begins else 0)
    return job


def later(world: World, seconds: float) -> None:
    world.now += timedelta(seconds=seconds)
    if not world.slurm.away:
        world.slurm.advance(seconds)


def look(world: World, *words: str, code: int = 0) -> list[str]:
    """One look; the lines that it printed."""
    result = CliRunner().invoke(watch, ["--once", *words], obj=world.ports(), standalone_mode=False)
    if result.exception:
        raise result.exception
    assert int(result.return_value or 0) == code, result.output
    return result.stdout.splitlines()


def facts(world: World, *words: str, code: int = 0) -> list[dict[str, object]]:
    return [json.loads(line) for line in look(world, "--json", *words, code=code)]


def looks(world: World, most: int, *words: str) -> tuple[list[str], list[float]]:
    """The loop, ended after so many naps; what it printed, and how long it slept each time."""
    naps: list[float] = []

    class EnoughError(Exception):
        pass

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        later(world, seconds)
        world.asleep()
        if len(naps) >= most:
            raise EnoughError

    ports = world.ports()
    result = CliRunner().invoke(
        watch, [*words], obj=type(ports)(**{name: getattr(ports, name) for name in ports.__slots__} | {"sleep": sleep})
    )
    assert isinstance(result.exception, EnoughError), result.output
    return result.stdout.splitlines(), naps


def deeds(run: RunDir) -> list[dict[str, object]]:
    return [json.loads(line) for line in run.watched.read_text().splitlines()] if run.watched.exists() else []


def spool(run: RunDir, job: str, **more: object) -> None:
    run.requeue.write_bytes(msgspec.json.encode(Spool(**({"job": job, "restarts": 0, "reason": "rank 3 hung"} | more))))


def leading(run: RunDir, stage: str) -> None:
    run.status.write_text(json.dumps({"wall": "2026-01-02T03:04:05.000+00:00", "stage": stage}))


# What it does -------------------------------------------------------------------------------------------------------------


def test_a_spooled_requeue_is_carried_out_once_and_written_down_first(world, slurm, leader):
    job = submitted(world)
    run = world.run(jobs=f"{job}\n", leader=leader)
    spool(run, job)
    slurm.at["requeue"] = lambda: written.extend(deeds(run))
    written: list[dict[str, object]] = []
    assert look(world) == []  # its leader may be about to do it
    later(world, MINUTE_S)
    (line,) = look(world)
    assert (
        line
        == f"03:05:35 {NAME}: its leader decided to requeue job {job} (rank 3 hung) and did not get through: scontrol requeue incomplete"
    )
    assert slurm.jobs[job].restarts == 1
    assert [(one["do"], one["about"], one["job"], one["restarts"]) for one in written] == [("requeue", "spooled", job, 0)]
    for _ in range(3):
        later(world, MINUTE_S)
        assert look(world) == []
    assert slurm.jobs[job].restarts == 1
    assert len(deeds(run)) == 1


def test_a_successor_is_submitted_once_where_the_job_ended_before_its_requeue(world, slurm, leader):
    job = submitted(world)
    run = world.run(jobs=f"{job}\n", leader=leader)
    run.script.write_text("#!/bin/bash\n")
    spool(run, job, avoid=("n2",))
    slurm.finish(job, exit_code=1)
    look(world)
    later(world, MINUTE_S)
    (line,) = look(world)
    assert "one successor of it is submitted" in line
    first, second = run.jobs.read_text().split()
    assert (first, slurm.jobs[second].excluded) == (job, ("n2",))
    assert not run.requeue.exists()
    for _ in range(3):
        later(world, MINUTE_S)
        look(world)
    assert sorted(slurm.jobs) == [first, second]


def test_a_successor_that_cannot_be_written_down_is_told_and_found_again(world, slurm, leader):
    job = submitted(world)
    run = world.run(jobs=f"{job}\n", leader=leader)
    run.script.write_text("#!/bin/bash\n")
    spool(run, job)
    slurm.finish(job, exit_code=1)
    look(world)
    later(world, MINUTE_S)
    aside = run.root / "aside"
    slurm.at["show"] = lambda: (run.jobs.rename(aside), run.jobs.mkdir())
    (line,) = look(world)
    assert line.endswith("that failed: job 8 follows it, and that cannot be written down (Is a directory)")
    run.jobs.rmdir()
    aside.rename(run.jobs)
    later(world, MINUTE_S)
    look(world)
    assert (run.jobs.read_text().split(), sorted(slurm.jobs)) == (["7", "8"], ["7", "8"])


def test_what_was_preempted_while_nobody_answered_has_one_successor(world, slurm, leader):
    job = submitted(world)
    run = world.run(jobs=f"{job}\n", leader=leader)
    run.script.write_text("#!/bin/bash\n")
    run.unexplained.write_text(json.dumps({"job": job, "restarts": 0}))
    slurm.finish(job, exit_code=1)
    slurm.jobs[job].state = JobState.PREEMPTED
    for _ in range(4):
        look(world)
        later(world, MINUTE_S)
    assert len(slurm.jobs) == 2
    assert run.jobs.read_text().split() == [*slurm.jobs]
    assert not run.unexplained.exists()


def test_what_was_cancelled_while_nobody_answered_stays_cancelled(world, slurm, leader):
    job = submitted(world)
    run = world.run(jobs=f"{job}\n", leader=leader)
    run.unexplained.write_text(json.dumps({"job": job, "restarts": 0}))
    slurm.cancel(job)
    said = []
    for _ in range(4):
        later(world, MINUTE_S)
        said += look(world)
    assert list(slurm.jobs) == [job]
    assert f"its job {job} was cancelled in Slurm: nothing follows by itself" in said[0]
    assert len(said) == 2


def test_how_a_job_ended_that_squeue_has_forgotten_is_asked_once(world, slurm, leader):
    job = submitted(world)
    world.run(jobs=f"{job}\n", leader=leader)
    slurm.cancel(job)
    later(world, 600)
    slurm.forgotten.add(job)
    said = []
    for _ in range(6):
        said += look(world)
        later(world, MINUTE_S)
    assert f"its job {job} was cancelled in Slurm" in said[0]
    assert len(said) == 2
    assert slurm.asked == ["queue", "queue", "show", "queue", "show"]


@pytest.mark.parametrize("state", [JobState.NODE_FAIL, JobState.TIMEOUT])
def test_what_only_accounting_knows_is_told_and_not_followed(world, slurm, leader, state):
    """Watch was away for so long that a successor could be forgotten as well."""
    job = submitted(world)
    run = world.run(jobs=f"{job}\n", leader=leader)
    run.script.write_text("#!/bin/bash\n")
    spool(run, job)
    slurm.finish(job, exit_code=1)
    slurm.jobs[job].state = state
    slurm.forgotten.add(job)
    said = []
    for _ in range(5):
        said += look(world)
        later(world, MINUTE_S)
    assert len(said) == 2
    assert f"did not get through, and Slurm does not know the job any more\n  hint: ftsup explain {NAME}" in "\n".join(said)
    assert list(slurm.jobs) == [job]


def test_a_failed_launch_is_released_with_a_back_off_and_an_end(world, slurm):
    job = submitted(world, "--hold")
    run = world.run(jobs=f"{job}\n")
    done = 0
    for _ in range(24 * 60):
        slurm.jobs[job].held, slurm.jobs[job].why, slurm.jobs[job].state = True, "launch failed requeued held", JobState.PENDING
        lines = look(world)
        done += any("release" in line and "again" not in line for line in lines)
        if lines and "is not done again" in lines[0]:
            break
        later(world, MINUTE_S)
    assert done == LIMITS[Do.RELEASE].tries
    assert [one["do"] for one in deeds(run)] == ["release"] * 5 + ["say"]
    assert look(world) == []


def test_what_slurm_holds_for_good_is_told_once_with_the_way_out(world, slurm):
    job = submitted(world, "--hold")
    slurm.jobs[job].why = "JobHoldMaxRequeue"
    world.run(jobs=f"{job}\n")
    line, hint = look(world)
    assert "(MaxBatchRequeue), and only an admin may release it" in line
    assert hint == f"  hint: ftsup submit --continue {NAME} goes on in another job"
    assert look(world) == []


def test_another_job_that_has_the_id_of_a_cancelled_run_is_left_alone(world, slurm, leader):
    """Slurm counts anew: it was installed again, or all ids were used up."""
    job = submitted(world, begins=False)
    world.run(jobs=f"{job}\n").cancelled.touch()
    assert look(world) == []
    assert slurm.jobs[job].state is JobState.PENDING


def test_a_cancel_that_slurm_did_not_hear_is_told_to_it(world, slurm, leader):
    run = world.run(jobs="7\n")
    run.script.write_text("#!/bin/bash\n")
    job = slurm.submit(run.script)
    assert job == "7"
    run.cancelled.touch()
    (line,) = look(world)
    assert f"it is cancelled, and its job {job} is still pending: scancel" in line
    assert slurm.jobs[job].state is JobState.CANCELLED
    assert look(world) == []
    assert slurm.asked.count("queue") == 2
    assert look(world) == []
    assert slurm.asked.count("queue") == 2  # over, and nothing of it is left in Slurm


def test_a_run_that_is_over_costs_no_question(world, slurm, leader):
    finish(leader)
    world.run(leader=leader, jobs=f"{submitted(world)}\n")
    assert look(world) == []
    assert slurm.asked == []


def test_one_question_for_all_runs_and_none_about_a_healthy_one(world, slurm, leader):
    for n in range(4):
        world.run(f"demo{n}", jobs=f"{submitted(world)}\n", leader=leader)
    for _ in range(3):
        later(world, MINUTE_S)
        for n in range(4):
            leading(RunDir(world.home / "ftsup-runs" / f"demo{n}" / "20260102-030405-00aa"), "run")
        assert look(world) == []
    assert slurm.asked == ["queue"] * 3


def test_what_is_new_is_asked_about_alone_before_it_is_told(world, slurm):
    job = submitted(world, "--hold")
    world.run(jobs=f"{job}\n")
    assert "somebody holds its job" in look(world)[0]
    look(world)
    assert slurm.asked == ["queue", "show", "queue"]


# Silence ------------------------------------------------------------------------------------------------------------------


def test_a_silent_leader_is_told_once_and_nothing_is_done(world, slurm, leader):
    job = submitted(world)
    run = world.run(jobs=f"{job}\n", leader=leader)
    said = []
    for _ in range(8):
        said += look(world)
        later(world, MINUTE_S)
    assert len(said) == 2
    assert f"its job {job} is running on n1, and nothing has moved in its directory for 5 min" in said[0]
    assert f"scontrol requeue incomplete {job} gives it back to the queue" in said[1]
    assert slurm.jobs[job].restarts == 0
    (one,) = facts(world)
    assert (one["do"], one["about"], one["new"], one["job"], one["run"]) == ("say", "silent", False, job, NAME)
    leading(run, "run")
    assert facts(world) == []


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_clock_that_jumps_an_hour_makes_nobody_silent(world, slurm, leader, jump_s):
    world.run(jobs=f"{submitted(world)}\n", leader=leader)
    look(world)
    world.now += timedelta(seconds=jump_s)
    assert look(world) == []
    later(world, MINUTE_S)
    assert look(world) == []


def test_a_lost_memory_begins_to_count_anew(world, slurm, leader):
    world.run(jobs=f"{submitted(world)}\n", leader=leader)
    look(world)
    (memory,) = (world.home / "ftsup-runs").glob(".watch-*")
    for _ in range(4):
        later(world, MINUTE_S)
        look(world)
    memory.write_text('{"holder": "x", "runs": [')
    later(world, MINUTE_S)
    assert look(world) == []


# Never against people's will ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", ["cancelled", "paused"])
def test_what_is_cancelled_between_the_look_and_the_deed_is_left_alone(world, slurm, leader, mark):
    job = submitted(world)
    run = world.run(jobs=f"{job}\n", leader=leader)
    spool(run, job)
    look(world)
    later(world, MINUTE_S)
    slurm.at["show"] = getattr(run, mark).touch
    assert look(world) == []
    assert (slurm.jobs[job].restarts, deeds(run)) == (0, [])


def test_what_is_cancelled_in_the_moment_of_the_deed_does_not_come_back(world, slurm, leader):
    job = submitted(world)
    run = world.run(jobs=f"{job}\n", leader=leader)
    spool(run, job)
    look(world)
    later(world, MINUTE_S)
    slurm.at["requeue"] = run.cancelled.touch
    look(world)
    later(world, 600)
    assert slurm.jobs[job].state is JobState.CANCELLED


def test_what_changed_since_the_look_is_not_done(world, slurm):
    job = submitted(world, "--hold")
    slurm.jobs[job].why = "launch failed requeued held"
    run = world.run(jobs=f"{job}\n")
    slurm.at["queue"] = lambda: slurm.release(job)
    assert look(world) == []
    assert deeds(run) == []


# Two at once --------------------------------------------------------------------------------------------------------------


def test_two_never_act_at_once(world, slurm):
    job = submitted(world, "--hold")
    slurm.jobs[job].why = "launch failed requeued held"
    world.run(jobs=f"{job}\n")
    lock = watchlock.Lock(world.home / "ftsup-runs")
    lock.remembered()
    with pytest.raises(watchlock.Held, match=f"another ftsup watch looks after .*ftsup-runs: pid {os.getpid()} on ") as error:
        look(world)
    assert error.value.exit_code == Exit.AGAIN
    assert slurm.jobs[job].held
    lock.close()
    assert len(look(world)) == 1
    assert not slurm.jobs[job].held


def test_without_a_lock_it_only_looks(world, slurm):
    job = submitted(world, "--hold")
    slurm.jobs[job].why = "launch failed requeued held"
    run = world.run(jobs=f"{job}\n")
    (world.home / "ftsup-runs" / f".watch-{os.getuid()}").mkdir()
    (line,) = look(world)
    assert line.endswith("Slurm holds it: release, but watch only looks")
    assert slurm.jobs[job].held
    assert deeds(run) == []


# Trouble ------------------------------------------------------------------------------------------------------------------


def test_a_controller_that_is_away_is_a_line_and_nothing_is_done(world, slurm, leader):
    job = submitted(world)
    run = world.run(jobs=f"{job}\n", leader=leader)
    spool(run, job)
    look(world)
    slurm.away = True
    later(world, MINUTE_S)
    (line, *_) = look(world, code=Exit.AGAIN)
    assert "Slurm was asked in vain, and nothing is done until it answers: Unable to contact" in line
    later(world, MINUTE_S)
    assert look(world, code=Exit.AGAIN) == []
    assert deeds(run) == []
    slurm.away = False
    (line,) = look(world)
    assert "scontrol requeue incomplete" in line


def test_a_controller_that_goes_away_before_the_deed(world, slurm, leader):
    job = submitted(world)
    run = world.run(jobs=f"{job}\n", leader=leader)
    spool(run, job)
    look(world)
    later(world, MINUTE_S)
    slurm.at["show"] = lambda: setattr(slurm, "away", True)
    (line,) = look(world)
    assert "that failed: Unable to contact slurm controller" in line
    assert [one.get("failed", "")[:9] for one in deeds(run)] == ["", "Unable to"]


def break_events(run: RunDir) -> None:
    run.events.unlink()
    run.events.mkdir()


BROKEN = {
    "no config.json": (lambda run: run.config_json.unlink(), "there is no config.json to read"),
    "the log is a folder": (break_events, "it cannot be read: Is a directory"),
    "the spool is torn": (lambda run: run.requeue.write_text('{"job": '), "requeue.json cannot be read"),
    "the spool is another's": (lambda run: run.requeue.write_text('{"job": 7}'), "requeue.json cannot be read"),
    "the mark is torn": (lambda run: run.unexplained.write_text("{"), "unexplained.json cannot be read"),
    "its own log is a folder": (lambda run: run.watched.mkdir(), "it cannot be read: Is a directory"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_run_is_a_line_once_and_the_others_go_on(world, slurm, leader, how):
    broken = world.run("broken", jobs=f"{submitted(world)}\n", leader=leader)
    spool(broken, broken.jobs.read_text().strip())
    job = submitted(world, "--hold")
    slurm.jobs[job].why = "launch failed requeued held"
    world.run(jobs=f"{job}\n", leader=leader)
    act, text = BROKEN[how]
    act(broken)
    said = look(world)
    assert sum(text in line for line in said) == 1
    assert any("Slurm holds it: release" in line for line in said)
    later(world, 10)
    assert look(world) == []
    assert [one["new"] for one in facts(world) if text in str(one["text"])] == [False]


def test_where_nothing_can_be_written_nothing_is_done(world, slurm):
    job = submitted(world, "--hold")
    slurm.jobs[job].why = "launch failed requeued held"
    run = world.run(jobs=f"{job}\n")
    run.watched.symlink_to("/dev/full")
    line, *_ = look(world)
    assert "it cannot be read" in line or "but nothing is done (watch.jsonl cannot be written" in line
    assert slurm.jobs[job].held
    assert look(world) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_run_of_somebody_else_is_a_line_once(world, slurm, leader):
    run = world.run(jobs=f"{submitted(world)}\n", leader=leader)
    os.chown(run.root, 12345, 12345)
    (line,) = look(world)
    assert line.endswith(f"{NAME}: it belongs to somebody else, and is left to them")
    assert look(world) == []
    assert slurm.asked == []


def test_no_runs(world):
    result = CliRunner().invoke(watch, ["--once"], obj=world.ports())
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("no runs in ")
    (world.home / "ftsup-runs").mkdir()
    assert look(world) == []


def test_lines_that_are_torn_cost_nothing(world, slurm):
    job = submitted(world, "--hold")
    slurm.jobs[job].why = "JobHoldMaxRequeue"
    run = world.run(jobs=f"{job}\n")
    run.watched.write_text('garbage\n{"wall": "x"}\n{"wall": "torn')
    assert len(look(world)) == 2
    assert json.loads(run.watched.read_text().splitlines()[-1])["about"] == "max requeue"
    assert look(world) == []


# The loop -----------------------------------------------------------------------------------------------------------------


def test_the_loop_asks_once_a_minute(world, slurm, leader):
    run = world.run(jobs=f"{submitted(world)}\n", leader=leader)
    world.asleep = lambda: leading(run, f"run{world.now}")
    lines, naps = looks(world, 5)
    assert lines == []
    assert naps == [60.0] * 5
    assert slurm.asked == ["queue"] * 5


def test_the_loop_asks_less_often_while_slurm_does_not_answer(world, slurm, leader):
    world.run(jobs=f"{submitted(world)}\n", leader=leader)
    slurm.away = True
    lines, naps = looks(world, 6, "--every", "30")
    assert naps == [60.0, 120.0, 240.0, 480.0, AWAY_MOST_S, AWAY_MOST_S]
    assert len(lines) == 1


def test_start_now_is_set_within_seconds_of_the_requeue(world, slurm, leader):
    job = submitted(world)
    run = world.run(jobs=f"{job}\n", leader=leader)
    leading(run, "run")

    def requeues() -> None:
        world.asleep = lambda: None
        leading(run, "requeue")
        slurm.requeue(job)

    world.asleep = requeues
    lines, naps = looks(world, 4, "--start-now")
    assert any("waits after its requeue: StartTime=now" in line for line in lines)
    assert naps == [HURRY_S] * 4
    assert slurm.jobs[job].state is JobState.RUNNING
    assert [one["do"] for one in deeds(run)] == ["start now"]


def test_without_start_now_the_wait_is_slurms(world, slurm, leader):
    job = submitted(world)
    run = world.run(jobs=f"{job}\n", leader=leader)
    slurm.requeue(job)
    lines, naps = looks(world, 2)
    assert (lines, naps, deeds(run)) == ([], [60.0, 60.0], [])
    assert slurm.jobs[job].state is JobState.PENDING


def test_a_leader_that_gives_back_for_ever_hurries_nobody_for_ever(world, slurm, leader):
    run = world.run(jobs=f"{submitted(world)}\n", leader=leader)
    leading(run, "requeue")
    _, naps = looks(world, HURRIES + 13, "--start-now")
    assert naps == [HURRY_S] * len(naps)
    assert slurm.asked.count("queue") == HURRIES + 2


def test_a_person_is_told_what_it_came_to(world, slurm, leader):
    world.run(jobs=f"{submitted(world)}\n", leader=leader)
    ports = world.ports()
    ports = type(ports)(**{name: getattr(ports, name) for name in ports.__slots__} | {"terminal": True})
    result = CliRunner().invoke(watch, ["--once"], obj=ports)
    assert (result.stdout, result.stderr) == ("", "1 run looked at; 0 things done\n")

    def ctrl_c(_seconds: float) -> None:
        raise KeyboardInterrupt

    ports = type(ports)(**{name: getattr(ports, name) for name in ports.__slots__} | {"sleep": ctrl_c})
    result = CliRunner().invoke(watch, [], obj=ports)
    assert (result.stdout.strip(), result.exit_code) == ("", 1)
    assert result.stderr.startswith("1 run in ftsup-runs, looked at every 60 s; Ctrl-C ends it\n")
    look(world)  # the lock is free


def test_the_lock_is_private(world, slurm, leader):
    world.run(jobs=f"{submitted(world)}\n", leader=leader)
    look(world)
    (path,) = Path(world.home / "ftsup-runs").glob(".watch-*")
    assert path.stat().st_mode & 0o777 == 0o600


def test_status_and_explain_tell_what_it_did(world, slurm, leader):
    job = submitted(world)
    run = world.run(jobs=f"{job}\n", leader=leader)
    spool(run, job)
    look(world)
    later(world, MINUTE_S)
    slurm.refuse_requeues = 1
    look(world)
    told = "ftsup watch: its leader decided to requeue job 7 (rank 3 hung) and did not get through: scontrol requeue incomplete"
    shown = " ".join(world.type(status).stdout.split())
    assert f"0 s ago: {told}; that failed: scontrol requeue incomplete: Access/permission denied for job 7" in shown
    assert shown.endswith(f"0 s ago: {told}")
    assert f"2026-01-02 03:05:35 {told} " in " ".join(world.type(explain_run).stdout.split())
    assert [one["do"] for one in json.loads(world.type(explain_run, "--json").stdout)["watched"]] == ["requeue", "requeue"]
