"""`ftsup submit --continue` as a whole command: what is asked first, shown first, put in place, and taken back."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from ftsup import events as ev
from ftsup.cli.show import status
from ftsup.cli.steer import cancel, pause
from ftsup.cli.submit import submit
from ftsup.config import from_json
from ftsup.errors import ConfigError, Exit, Refused, RunError, Unanswered, Unavailable, Unreadable
from ftsup.ports import JobState
from ftsup.rundir import RunDir
from ftsup.supervisor.requests import Continuation, continuation
from tests.cli.test_submit import CONFIG, World
from tests.report.leader import Leader

NAME = "demo/20260102-030405-0001"


@pytest.fixture
def world(tmp_path, monkeypatch) -> World:
    """A run was submitted, and its job has ended."""
    monkeypatch.chdir(tmp_path)
    one = World(tmp_path)
    one.submit("--set=policy.hard_cap=7")
    one.slurm.advance(1)
    one.slurm.finish("1", exit_code=1)
    return one


def go_on(world: World, *words: str) -> tuple[str, list[str]]:
    """What is said on standard output, and the lines for people."""
    result = CliRunner().invoke(submit, ["--continue", "demo", *words], obj=world.ports, standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.stdout, result.stderr.splitlines()


def told(run: RunDir, *verdicts: ev.Verdict, kind: ev.VerdictKind | None = None) -> Leader:
    """A leader's log."""
    leader = Leader()
    leader.grant()
    for verdict in verdicts:
        leader.lines[-1] = msgspec.structs.replace(leader.lines[-1], orders=(*leader.lines[-1].orders, ev.Decide(verdict=verdict)))
    if kind:
        leader.lines[-1] = msgspec.structs.replace(
            leader.lines[-1], orders=(*leader.lines[-1].orders, ev.Decide(verdict=ev.Verdict(kind=kind, reason="a bug")))
        )
    leader.lines[0] = msgspec.structs.replace(leader.lines[0], event=msgspec.structs.replace(leader.lines[0].event, job="1"))
    run.events.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in leader.lines))
    return leader


def snapshot(run: RunDir) -> dict[str, bytes]:
    return {
        str(path.relative_to(run.root)): path.read_bytes()
        for path in sorted(run.root.rglob("*"))
        if path.is_file() and "worker" not in path.parts
    }


# It goes on ---------------------------------------------------------------------------------------------------------------


def test_the_same_run_goes_on_in_another_job_and_its_log_stays(world):
    told(world.run, kind=ev.VerdictKind.STOP)
    log = world.run.events.read_bytes()
    said, lines = go_on(world)
    assert said == f"job 2: {NAME}\n"
    assert lines[:2] == [f"{NAME}: it was stopped: a bug; budgets and the hard cap begin anew", "the configuration is as it was"]
    assert world.run.jobs.read_text() == "1\n2\n"
    assert world.run.events.read_bytes() == log
    assert continuation(world.run.continued) == Continuation(n=1, who="me", wall="2026-01-02T03:04:05.000+00:00")
    assert not world.run.submitting.exists()
    assert from_json(world.run.config_json.read_bytes()).policy.hard_cap == 7
    shown = CliRunner().invoke(status, ["demo"], obj=world.ports).output
    assert shown.startswith(f"{NAME}: waiting\n")
    assert "job 2 is pending" in shown


@pytest.mark.parametrize("kind", [ev.VerdictKind.FINISHED, ev.VerdictKind.CANCELLED, ev.VerdictKind.PAUSED])
def test_how_it_was_left_is_said_first(world, kind):
    told(world.run, kind=kind)
    assert go_on(world)[1][0].startswith(f"{NAME}: it was {kind.value}: a bug; ")


def test_a_leader_that_said_nothing_and_a_run_that_never_had_one(world):
    assert go_on(world)[1][0].startswith(f"{NAME}: its job 1 is gone, and no leader said why; ")


def test_marks_counts_and_requests_of_the_past_are_not_those_of_the_new_job(world):
    run = world.run
    (run.root / "bash-requeues").write_text("5 100\n")
    (run.requests / "a.json").write_text('{"request": "stop"}')
    CliRunner().invoke(cancel, ["demo"], obj=world.ports)
    lines = go_on(world)[1]
    assert lines[0].startswith(f"{NAME}: it was cancelled; ")
    assert [path for path in (run.cancelled, run.paused, run.root / "bash-requeues") if path.exists()] == []
    assert list(run.requests.glob("*.json")) == []
    assert len(list(run.requests.iterdir())) == 2


def test_a_run_that_was_paused_in_the_queue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path)
    world.submit()
    CliRunner().invoke(pause, ["demo"], obj=world.ports)
    assert world.run.paused.exists()
    assert go_on(world)[1][0].startswith(f"{NAME}: it was paused; ")
    assert not world.run.paused.exists()
    assert world.slurm.show("2").state is JobState.PENDING


def test_again_and_again(world):
    go_on(world)
    world.slurm.advance(1)
    world.slurm.finish("2")
    (world.home / "c.yaml").write_text(CONFIG + "notify: {command: mail}\n")
    go_on(world)
    assert world.run.jobs.read_text() == "1\n2\n3\n"
    assert continuation(world.run.continued).n == 2
    assert sorted(path.name for path in world.run.root.glob("config.*.yaml")) == ["config.1.yaml", "config.2.yaml"]


# What changed -------------------------------------------------------------------------------------------------------------


def test_the_file_as_it_is_by_now_with_what_was_typed_beside_it(world):
    (world.home / "c.yaml").write_text(CONFIG.replace("time: 1h", "time: 2h").replace("hunter2", "hunter3").replace("nodes: 2", "nodes: 1"))
    lines = go_on(world, "--set", "grace=9s")[1]
    assert sorted(lines[1:5]) == ["env.TOKEN: (hidden) -> (changed)", "grace: 30s -> 9s", "slurm.nodes: 2 -> 1", "slurm.time: 1h -> 2h"]
    assert "hunter" not in "\n".join(lines)
    run = world.run
    config = from_json(run.config_json.read_bytes())
    assert (config.policy.hard_cap, config.grace_s, config.slurm.nodes, config.slurm.time_s) == (7, 9.0, 1, 7200.0)
    assert json.loads(run.env_json.read_bytes()) == {"TOKEN": "hunter3"}
    assert "--nodes=1" in run.script.read_text()
    assert (run.root / "config.1.yaml").read_text() == CONFIG
    assert set(continuation(run.continued).changed) == {"env.TOKEN", "grace", "slurm.nodes", "slurm.time"}
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in run.root.iterdir() if path.is_file()}
    assert {modes[name] for name in ("env.json", "config.yaml", "job.sbatch", "typed.json", "config.1.yaml", "continued.json")} == {0o600}
    assert modes["config.json"] == 0o640
    holding = [path.name for path in run.root.rglob("*") if path.is_file() and b"hunter3" in path.read_bytes()]
    assert sorted(holding) == ["config.yaml", "env.json"]


def test_env_that_comes_and_goes(world):
    (world.home / "c.yaml").write_text(CONFIG.replace("TOKEN: hunter2", "OTHER: x"))
    lines = go_on(world)[1]
    assert sorted(lines[1:3]) == ["env.OTHER: (not set) -> (changed)", "env.TOKEN: (hidden) -> (not set)"]


def test_another_file_is_read_alone_and_from_where_the_run_was_made(world, monkeypatch):
    (world.home / "sub").mkdir()
    (world.home / "sub" / "other.yaml").write_text(CONFIG)
    monkeypatch.chdir(world.home / "sub")
    world.ports = dataclasses.replace(world.ports, cwd=world.home / "sub")
    lines = go_on(world, "other.yaml", "--runs-dir", str(world.home / "ftsup-runs"))[1]
    assert lines[1] == "policy.hard_cap: 7 -> 200"
    assert from_json(world.run.config_json.read_bytes()).workdir == str(world.home)
    assert json.loads(world.run.typed.read_bytes())["file"] == str(world.home / "sub" / "other.yaml")


def test_a_file_that_is_gone_is_said_and_the_runs_own_copy_counts(world):
    (world.home / "c.yaml").unlink()
    lines = go_on(world)[1]
    assert lines[1:3] == [f"{world.home}/c.yaml is not there any more: the run's own copy counts", "the configuration is as it was"]
    assert json.loads(world.run.typed.read_bytes())["file"] == str(world.home / "c.yaml")


def test_a_run_of_an_older_ftsup_goes_on_as_it_was_and_does_not_guess(world):
    world.run.typed.unlink()
    with pytest.raises(ConfigError, match="does not know from which file it was made"):
        go_on(world, "--set", "grace=9s")
    assert go_on(world)[1][1] == "the configuration is as it was"
    assert json.loads(world.run.env_json.read_bytes()) == {"TOKEN": "hunter2"}


@pytest.mark.parametrize("change, key", [("name=other", "name"), ("runs_dir=elsewhere", "runs_dir"), ("share=group", "share")])
def test_what_says_which_run_it_is_cannot_change(world, change, key):
    before = snapshot(world.run)
    with pytest.raises(ConfigError, match=f"{key} cannot change within a run"):
        go_on(world, "--set", change)
    assert snapshot(world.run) == before


def test_nodes_that_were_kept_out_are_not_any_more_and_how_to_keep_them_out(world):
    avoided = ev.Verdict(kind=ev.VerdictKind.REQUEUE, reason="x", avoid=("n3", "n4"))
    told(world.run, avoided, kind=ev.VerdictKind.STOP)
    lines = go_on(world)[1]
    assert lines[1] == "kept out before, and not any more: n3, n4; --set slurm.exclude='[n3, n4]' keeps them out"
    world.slurm.advance(1)
    world.slurm.finish("2")
    go_on(world, "--set", "slurm.exclude=[n3, n4]")
    assert world.slurm.show("3").excluded == ("n3", "n4")


# What is refused, lost, or interrupted ------------------------------------------------------------------------------------


@pytest.mark.parametrize("begins, word", [(False, "pending"), (True, "running")])
def test_a_run_whose_job_is_alive_goes_on_by_itself(tmp_path, monkeypatch, begins, word):
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path)
    world.submit()
    world.slurm.advance(int(begins))
    before = snapshot(world.run)
    with pytest.raises(RunError, match=f"{NAME} goes on by itself: its job 1 is {word}") as caught:
        go_on(world)
    assert "ftsup pause" in caught.value.hint
    assert (snapshot(world.run), set(world.slurm.jobs)) == (before, {"1"})
    world.slurm.advance(1)
    world.slurm.finish("1")
    world.slurm.jobs["1"].completing_until_s = world.slurm.now_s + 5
    with pytest.raises(RunError, match="is ending"):
        go_on(world)


def test_a_job_that_slurm_holds_for_good_is_cancelled_before_another_one_follows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path)
    world.submit()
    world.slurm.jobs["1"].held, world.slurm.jobs["1"].why = True, "JobHoldMaxRequeue"
    world.run.requeue.write_text('{"job": "1", "restarts": 0}')
    _, lines = go_on(world)
    assert "its job 1 is held for good, after too many failed launches (JobHoldMaxRequeue): it is cancelled first" in lines
    assert {job: record.state for job, record in world.slurm.jobs.items()} == {"1": JobState.CANCELLED, "2": JobState.PENDING}
    assert not world.run.requeue.exists()


def test_a_job_that_is_held_and_cannot_be_cancelled_has_no_second_one_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path)
    world.submit()
    world.slurm.jobs["1"].held, world.slurm.jobs["1"].why = True, "JobHoldMaxRequeue"
    monkeypatch.setattr(world.slurm, "cancel", lambda _job: None)
    before = snapshot(world.run)
    with pytest.raises(RunError, match="job 1 was cancelled, and Slurm still has it"):
        go_on(world)
    assert list(world.slurm.jobs) == ["1"]
    assert snapshot(world.run) == before


def test_the_job_that_leads_counts_as_well_as_the_one_that_was_written_down(world):
    told(world.run)
    world.run.jobs.write_text("77\n")
    world.slurm.jobs["1"].state = JobState.RUNNING
    with pytest.raises(RunError, match="its job 1 is running"):
        go_on(world)


def test_slurm_away_is_no_answer_and_nothing_is_submitted(world):
    before = snapshot(world.run)
    world.slurm.away = True
    with pytest.raises(Unavailable) as caught:
        go_on(world)
    assert caught.value.exit_code == Exit.AGAIN
    assert snapshot(world.run) == before


@pytest.mark.parametrize("error", [Refused("no such partition"), Unavailable("controller away"), OSError("disk full"), SystemExit(3)])
def test_a_no_of_sbatch_takes_everything_back_and_it_can_be_repeated(world, monkeypatch, error):
    world.run.paused.write_text("x y\n")
    before = snapshot(world.run)
    (world.home / "c.yaml").write_text(CONFIG.replace("time: 1h", "time: 2h"))

    def no(*_args, **_more):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(world.slurm, "submit", no)
        with pytest.raises(type(error)):
            go_on(world)
    assert snapshot(world.run) == before
    assert "slurm.time: 1h -> 2h" in go_on(world)[1]
    assert continuation(world.run.continued).n == 1


@pytest.mark.parametrize("error", [Unanswered("timed out after 30 s"), Unreadable("garbage"), KeyboardInterrupt()])
def test_an_answer_of_sbatch_that_is_lost_keeps_everything_and_nothing_is_submitted_again(world, monkeypatch, error):
    submit_, calls = world.slurm.submit, []

    def lost(*args, **more):
        calls.append(submit_(*args, **more))
        raise error

    monkeypatch.setattr(world.slurm, "submit", lost)
    result = CliRunner().invoke(submit, ["--continue", "demo"], obj=world.ports, standalone_mode=False)
    assert result.exception.exit_code == Exit.AGAIN
    assert f"{NAME} may be in the queue, or may not: " in str(result.exception)
    assert f"squeue --me --name=demo shows it if it is; if it is not: rm {world.run.submitting}" in str(result.exception)
    assert world.run.jobs.read_text() == "1\n"
    result = CliRunner().invoke(submit, ["--continue", "demo"], obj=world.ports, standalone_mode=False)
    assert result.exception.exit_code == Exit.AGAIN
    assert f"{NAME} was handed to sbatch before (2026-01-02T03:04:05+00:00 me), and nobody knows what became of it" in str(result.exception)
    assert len(calls) == 1
    leader = told(world.run)
    leader.take(ev.Continued(n=1, who="me"))
    leader.take(ev.LeaderStarted(job="2", restarts=0, host="n1", pid=1, nodes=("n1", "n2")))
    world.run.events.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in leader.lines))
    with pytest.raises(RunError, match="goes on by itself: its job 2 is pending"):
        go_on(world)
    world.slurm.cancel("2")
    monkeypatch.setattr(world.slurm, "submit", submit_)
    assert go_on(world)[0].startswith("job 3")
    assert not world.run.submitting.exists()


def test_two_at_once_are_one(world, monkeypatch):
    original, inner = world.slurm.submit, []

    def submit_(*args, **more):
        monkeypatch.setattr(world.slurm, "submit", original)
        with pytest.raises(Exception, match=r"nobody knows what became of it|is being submitted by somebody else") as caught:
            go_on(world)
        inner.append(caught)
        return original(*args, **more)

    monkeypatch.setattr(world.slurm, "submit", submit_)
    go_on(world)
    assert (len(inner), set(world.slurm.jobs)) == (1, {"1", "2"})


def test_a_script_that_is_not_good_bash_changes_nothing(world):
    before = snapshot(world.run)
    with pytest.raises(ConfigError, match="not good bash"):
        go_on(world, "--set", "setup=if true")
    assert snapshot(world.run) == before


def test_a_configuration_that_cannot_be_read(world):
    world.run.env_json.write_text("[")
    with pytest.raises(RunError, match=r"the configuration of demo/.* cannot be read"):
        go_on(world)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_only_the_owner_continues(world):
    os.chown(world.run.root, 12345, -1)
    with pytest.raises(RunError, match="only its owner can continue it"):
        go_on(world)


@pytest.mark.parametrize("words", [["--dry-run"], ["--force"], ["--cluster=slurm"]])
def test_options_of_a_new_run_have_no_meaning_here(world, words):
    result = CliRunner().invoke(submit, ["--continue", "demo", *words], obj=world.ports)
    assert result.exit_code == Exit.USAGE
    assert "--continue goes on where RUN was" in result.output


def test_without_a_file_and_without_a_run():
    result = CliRunner().invoke(submit, [])
    assert result.exit_code == Exit.USAGE
    assert "Missing argument 'FILE'" in result.output


def test_the_first_submission_whose_answer_is_lost_keeps_its_run_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path)

    def lost(*_args, **_more):
        raise Unanswered("sbatch: timed out after 30 s")

    monkeypatch.setattr(world.slurm, "submit", lost)
    error = world.submit(fails=True)
    assert error.exit_code == Exit.AGAIN
    assert str(error).startswith(f"{NAME} may be in the queue, or may not: sbatch: timed out after 30 s\nhint: squeue --me --name=demo")
    assert world.run.submitting.exists()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    world.run.submitting.unlink()
    assert go_on(world)[0] == f"job 1: {NAME}\n"
    assert Path(world.run.jobs).read_text() == "1\n"
