"""stop, restart, requeue, pause and cancel as whole commands, with a leader that answers, one that is silent, and none."""

from __future__ import annotations

import json
import os
import resource
import stat
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from ftsup import events as ev
from ftsup.cli.show import status
from ftsup.cli.steer import cancel, pause, requeue, restart, stop
from ftsup.config import Checkpoint, Config, SlurmOptions, to_json
from ftsup.errors import Exit, RunError, Unavailable
from ftsup.events import Request
from ftsup.ports import JobState
from ftsup.rundir import RunDir
from ftsup.supervisor.inbox import Inbox
from ftsup.supervisor.requests import look
from tests.cli.living import World, finish
from tests.report.leader import BEGAN, Leader

NAME = "demo/20260102-030405-00aa"
SIGNED = {"who": "me", "wall": "2026-01-02T03:04:35.000+00:00"}
STEERING = [(stop, "stop"), (restart, "restart"), (requeue, "requeue"), (pause, "pause")]


@pytest.fixture
def leader() -> Leader:
    """It trains, and spoke a moment ago."""
    one = Leader()
    one.grant()
    one.launch()
    one.after(20).train(100)
    return one


@pytest.fixture
def running(world) -> RunDir:
    """Slurm runs its job, and no leader has said anything yet."""
    return world.run(jobs=f"{submitted(world, begins=True)}\n")


def submitted(world: World, *, begins: bool) -> str:
    script = world.home / "s"
    script.write_text("#!/bin/bash\n")
    job = world.slurm.submit(script)
    world.slurm.advance(1 if begins else 0)
    return job


def type_(world: World, command, *args) -> tuple[int, str, str]:
    """The exit code, and what was said."""
    result = CliRunner().invoke(command, [*args], obj=world.ports(), standalone_mode=False)
    if result.exception:
        raise result.exception
    return int(result.return_value or 0), result.stdout, result.stderr


def answering(world: World, leader: Leader, run: RunDir) -> None:
    """The leader looks for requests while the command waits, as the real one does."""

    def hear() -> None:
        found = msgspec.to_builtins(look(run.requests))
        for event in Inbox(leader.lines).hear(found, wall=world.now.isoformat()):
            leader.take(event)
        world.run(leader=leader)

    world.asleep = hear


def requests(run: RunDir) -> list[dict[str, object]]:
    return [json.loads(path.read_bytes()) for path in run.requests.iterdir()] if run.requests.exists() else []


def configure(run: RunDir, *, nodes: int = 2, folder: Path | None = None, exclude: tuple[str, ...] = ()) -> None:
    checkpoint = Checkpoint(dir=str(folder) if folder else "", pattern="step*")
    run.config_json.write_bytes(
        to_json(Config(name="demo", command=("x",), slurm=SlurmOptions(nodes=nodes, exclude=exclude), checkpoint=checkpoint))
    )


# A leader that answers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command, words, wanted",
    [
        (stop, (), ({"request": "stop"}, "a stop: the ranks save first, where the script can, then the run ends")),
        (pause, (), ({"request": "pause"}, "a pause: the ranks save first, where the script can, then the job is released")),
        (
            requeue,
            (),
            ({"request": "requeue"}, "a requeue: the ranks save first, where the script can, then the job goes back to the queue"),
        ),
        (requeue, ("--avoid=n2",), ({"request": "requeue", "avoid": ["n2"]}, "a requeue without n2: the ranks save first")),
        (restart, (), ({"request": "restart"}, "a restart: the ranks save first, where the script can, then the next attempt begins")),
    ],
)
def test_what_is_asked_is_answered_by_the_leader_and_slurm_is_not_needed(world, leader, command, words, wanted):
    request_, answer = wanted
    run = world.run(leader=leader)
    answering(world, leader, run)
    code, said, hint = type_(world, command, *words)
    assert code == 0
    assert said.startswith(f"{NAME}: me asked for {answer}")
    assert hint.splitlines()[0] == f"ftsup status {NAME} shows how far it is"
    assert requests(run) == [request_ | SIGNED]
    assert [stat.S_IMODE(path.stat().st_mode) for path in run.requests.iterdir()] == [0o600]
    (asked,) = [line.event for line in leader.lines if isinstance(line.event, ev.Asked)]
    assert (asked.request.value, asked.who, asked.wall) == (request_["request"], "me", SIGNED["wall"])
    assert world.calls == bool(words)
    assert f"10 s ago: me asked for {answer}" in " ".join(world.type(status).stdout.split())


def test_a_refusal_is_an_answer_and_the_exit_code_says_no(world, leader):
    leader.take(ev.Asked(request=Request.STOP, who="ada"))
    run = world.run(leader=leader)
    answering(world, leader, run)
    with pytest.raises(RunError, match="me asked for a restart: refused: ada asked for a stop before, and that comes first") as caught:
        type_(world, restart)
    assert caught.value.exit_code == Exit.NO


def test_the_log_may_be_away_for_a_moment(world, leader):
    run = world.run(leader=leader)
    answering(world, leader, run)
    hear, looks = world.asleep, []

    def away() -> None:
        looks.append(1)
        if len(looks) == 1:
            run.events.unlink()
            run.events.mkdir()
        elif len(looks) == 2:
            run.events.rmdir()
            hear()

    world.asleep = away
    assert type_(world, stop)[0] == 0


# None that answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command, word", STEERING)
def test_a_silent_leader_is_said_and_the_request_waits_for_the_next_one(world, leader, command, word):
    world.now = BEGAN + timedelta(minutes=3)
    run = world.run(jobs=f"{submitted(world, begins=True)}\n", leader=leader)
    code, said, _ = type_(world, command)
    assert code == Exit.AGAIN
    assert said == (
        f"{NAME}: its leader has said nothing for 2 min 40 s (job 1 is running); the {word} lies in its directory, "
        "and the next leader that looks takes it\n"
    )
    assert [one["request"] for one in requests(run)] == [word]


def test_a_leader_that_has_said_nothing_yet_and_a_slurm_that_is_away(world, running):
    world.slurm.away = True
    code, said, _ = type_(world, stop)
    assert code == Exit.AGAIN
    assert "its leader has said nothing yet, and Slurm was asked in vain (Unable to contact slurm controller" in said
    assert len(requests(running)) == 1


def test_a_leader_that_speaks_and_does_not_answer(world, leader):
    run = world.run(leader=leader)
    code, said, _ = type_(world, pause)
    assert code == Exit.AGAIN
    assert said.startswith(f"{NAME}: its leader has said nothing for 10 s; the pause lies")
    assert (len(requests(run)), world.calls) == (1, 0)


# A run that waits, is over, or never was ----------------------------------------------------------------------------------


def test_a_pending_job_has_nothing_to_save_requeue_or_restart(world):
    run = world.run(jobs=f"{submitted(world, begins=False)}\n")
    with pytest.raises(RunError, match="has nothing to save: its job 1 is pending") as caught:
        type_(world, stop)
    assert "ftsup cancel" in caught.value.hint
    assert type_(world, requeue)[:2] == (0, f"{NAME}: nothing to requeue: its job 1 is pending already\n")
    with pytest.raises(RunError, match="has nothing to restart: its job 1 is pending, and begins from the newest checkpoint"):
        type_(world, restart)
    assert requests(run) == []


def test_a_pending_job_is_kept_off_a_node_by_slurm(world):
    run = world.run(jobs=f"{submitted(world, begins=False)}\n")
    configure(run, nodes=1)
    assert type_(world, requeue, "--avoid", "n2")[1] == f"{NAME}: nothing to requeue: its job 1 is pending already; it is kept off n2\n"
    assert world.slurm.show("1").excluded == ("n2",)


def test_a_pending_job_goes_back_to_an_earlier_step_when_it_begins(world):
    run = world.run(jobs=f"{submitted(world, begins=False)}\n")
    configure(run, folder=checkpoints(world, 100, 200))
    code, said, more = type_(world, restart, "--from-step", "150")
    assert (code, said) == (0, f"{NAME}: its job 1 is pending; when it begins, it goes back to a checkpoint of step 150 at most\n")
    assert more == "step100 (step 100) is the newest of step 150 at most; it is verified first\n"
    assert requests(run) == [{"request": "restart", "from_step": 150} | SIGNED]


def test_a_pending_job_is_paused_by_taking_it_out_of_the_queue(world):
    run = world.run(jobs=f"{submitted(world, begins=False)}\n")
    said = type_(world, pause)[1]
    assert said.startswith(
        f"{NAME} is paused: its job 1 was pending, and was taken out of the queue; ftsup submit --continue {NAME} goes on"
    )
    assert world.slurm.show("1").state is JobState.CANCELLED
    assert (run.paused.read_text(), requests(run)) == ("2026-01-02T03:04:35+00:00 me\n", [])
    assert stat.S_IMODE(run.paused.stat().st_mode) == 0o600
    shown = world.type(status).stdout
    assert shown.startswith(f"{NAME}: paused\n")
    assert "ftsup submit --continue" in shown
    assert "is paused already" in type_(world, pause)[1]
    with pytest.raises(RunError, match="has nothing to restart: it is paused"):
        type_(world, restart)


def test_a_pending_job_that_is_paused_while_slurm_is_away_keeps_the_mark(world, monkeypatch):
    run = world.run(jobs=f"{submitted(world, begins=False)}\n")

    def away(job_id):
        raise Unavailable("controller away")

    monkeypatch.setattr(world.slurm, "cancel", away)
    with pytest.raises(Unavailable, match="marked as paused, but Slurm was not told: controller away") as caught:
        type_(world, pause)
    assert "scancel 1" in caught.value.hint
    assert run.paused.exists()


@pytest.mark.parametrize("command, word", STEERING)
def test_a_job_that_has_ended_is_nothing_to_steer_and_may_be_continued(world, command, word):
    run = world.run(jobs=f"{submitted(world, begins=True)}\n")
    world.slurm.finish("1", exit_code=1)
    with pytest.raises(RunError, match=rf"has nothing to {word}: its job 1 is not running \(FAILED\)") as caught:
        type_(world, command)
    assert caught.value.hint == f"ftsup submit --continue {NAME} goes on"
    world.slurm.forget("1")
    with pytest.raises(RunError, match="its job 1 is not known to Slurm any more"):
        type_(world, command)
    assert requests(run) == []


@pytest.mark.parametrize("command, word", STEERING[1:])
def test_a_run_that_is_over_is_nothing_to_steer(world, leader, command, word):
    finish(leader)
    run = world.run(leader=leader)
    with pytest.raises(RunError, match=rf"has nothing to {word}: it is finished \(training finished\)") as caught:
        type_(world, command)
    assert "ftsup submit --continue" in caught.value.hint
    assert (requests(run), world.calls) == ([], 0)


@pytest.mark.parametrize("command, word", STEERING)
def test_a_run_that_was_never_submitted_or_is_cancelled(world, running, command, word):
    world.type(cancel)
    with pytest.raises(RunError, match="is cancelled: it ends without a save, and does not come back"):
        type_(world, command)
    world.run("other", jobs="")
    with pytest.raises(RunError, match=f"was never submitted: there is nothing to {word}"):
        type_(world, command, "other")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("command, word", [*STEERING, (cancel, "cancel")])
def test_only_the_owner_steers(world, running, command, word):
    os.chown(running.root, 12345, -1)
    with pytest.raises(RunError, match=f"belongs to somebody else: only its owner can {word} it"):
        type_(world, command)
    assert requests(running) == []
    assert not running.cancelled.exists()


def test_stop_of_a_run_that_is_over_says_so_and_touches_nothing(world, leader):
    finish(leader)
    run = world.run(leader=leader)
    assert type_(world, stop)[:2] == (0, f"{NAME} is over already: finished (training finished)\n")
    assert not run.requests.exists()
    assert world.calls == 0


def test_a_leader_may_have_paused_it(world, leader):
    leader.take(ev.Asked(request=Request.PAUSE, who="ada"))
    leader.after(31).take(ev.Tick())
    leader.take(ev.Decided(mirrored=True))
    run = world.run(leader=leader)
    assert world.type(status).stdout.startswith(f"{NAME}: paused\n")
    assert "is paused already" in type_(world, pause)[1]
    with pytest.raises(RunError, match=r"has nothing to requeue: it is paused by ada, nothing could be saved on request"):
        type_(world, requeue)
    assert requests(run) == []
    assert "paused by ada" in type_(world, stop)[1]
    assert f"{NAME} is cancelled" in type_(world, cancel)[1]
    assert world.type(status).stdout.startswith(f"{NAME}: cancelled\n")


# What can be told before ---------------------------------------------------------------------------------------------------


def checkpoints(world: World, *steps: int) -> Path:
    folder = world.home / "ckpt"
    for step in steps:
        (folder / f"step{step}").mkdir(parents=True)
    return folder


def test_which_checkpoint_it_will_be_is_said(world, leader):
    run = world.run(leader=leader)
    folder = checkpoints(world, 100, 200, 300)
    answering(world, leader, run)
    hear = world.asleep
    world.asleep = lambda: (hear(), configure(run, folder=folder))
    configure(run, folder=folder)
    code, said, more = type_(world, restart, "--from-step=250")
    assert code == 0
    assert (
        "me asked for a restart from step 250: at once, then the next attempt begins from the newest checkpoint of step 250 at most" in said
    )
    assert more.splitlines()[1] == "step200 (step 200) is the newest of step 250 at most; it is verified first"


def test_a_step_before_all_checkpoints_is_refused_with_the_steps_that_there_are(world, leader):
    run = world.run(leader=leader)
    folder = checkpoints(world, *range(100, 1300, 100))
    configure(run, folder=folder)
    with pytest.raises(RunError, match=f"no checkpoint of step 99 at most in {folder}") as caught:
        type_(world, restart, "--from-step", "99")
    assert caught.value.hint == "there are steps 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000 and 2 more"
    for step in range(100, 1300, 100):
        (folder / f"step{step}").rmdir()
    with pytest.raises(RunError) as caught:
        type_(world, restart, "--from-step", "99")
    assert caught.value.hint == "there is none"
    configure(run)
    with pytest.raises(RunError, match=r"checkpoint\.dir is not set: there is nothing to go back to"):
        type_(world, restart, "--from-step", "99")
    run.config_json.write_text("{}")
    with pytest.raises(RunError, match=r"config\.json cannot be read"):
        type_(world, restart, "--from-step", "99")
    assert requests(run) == []


def test_checkpoints_that_are_not_to_be_seen_from_here_are_the_leaders_affair(world, leader):
    run = world.run(leader=leader)
    answering(world, leader, run)
    hear = world.asleep
    world.asleep = lambda: (hear(), configure(run, folder=world.home / "nowhere"))
    configure(run, folder=world.home / "nowhere")
    code, _, more = type_(world, restart, "--from-step", "99")
    assert (code, len(more.splitlines())) == (0, 1)


def test_a_node_that_is_none_of_its_nodes_is_refused_with_those_that_there_are(world, leader):
    run = world.run(leader=leader)
    with pytest.raises(RunError, match="gpu17: none of its nodes") as caught:
        type_(world, requeue, "--avoid", "gpu17")
    assert caught.value.hint == "its nodes are n1, n2"
    with pytest.raises(RunError) as caught:
        type_(world, requeue, "--avoid", "n3")
    assert "did you mean n" in caught.value.hint
    assert (requests(run), world.calls) == ([], 0)


def test_nodes_without_which_it_cannot_run_are_not_avoided(world, leader):
    run = world.run(leader=leader)
    configure(run, nodes=3, exclude=("n4",))
    with pytest.raises(RunError, match="without n2 the cluster has 2 nodes for it, and it needs 3"):
        type_(world, requeue, "--avoid", "n2")
    assert requests(run) == []
    world.slurm.away = True
    assert type_(world, requeue, "--avoid", "n2")[0] == Exit.AGAIN
    assert len(requests(run)) == 1


@pytest.mark.parametrize("command", [stop, restart, requeue, pause, cancel])
def test_help_has_an_example(command):
    said = CliRunner().invoke(command, ["--help"]).output
    assert "Examples:" in said
    assert f"ftsup {command.name} demo" in said
    assert max(map(len, said.splitlines())) <= 80


# cancel -------------------------------------------------------------------------------------------------------------------


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
    assert json.loads(request.read_bytes()) == {"request": "cancel"} | SIGNED
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


def test_hints_name_a_run_as_it_is_found_from_here(world, running):
    elsewhere = world.home / "elsewhere"
    (world.home / "ftsup-runs").rename(elsewhere)
    for given in (["--runs-dir", "elsewhere"], [str(elsewhere / NAME)]):
        said = world.type(cancel, *given)
        assert said.stdout.startswith(f"{elsewhere / NAME} is ")


def test_on_a_full_disk_cancel_is_carried_out_and_the_others_say_what_is_in_the_way(world, leader):
    run = world.run(leader=leader)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(RunError, match=f"nothing was asked: {run.requests} cannot be written: File too large") as caught:
            world.type(stop)
        ended = world.type(cancel)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.hint == f"make room there; ftsup cancel {NAME} needs next to none"
    assert (ended.exit_code, run.cancelled.exists()) == (0, True)


def test_ctrl_c_does_not_take_back_what_was_asked_and_that_is_said(world, leader):
    run = world.run(leader=leader)

    def interrupted() -> None:
        raise KeyboardInterrupt

    world.asleep = interrupted
    result = CliRunner().invoke(stop, [], obj=world.ports())
    assert isinstance(result.exception, SystemExit)
    assert f"the stop was asked for and is not taken back: ftsup status {NAME} shows what follows" in result.stderr
    assert len(list(run.requests.glob("*.json"))) == 1


def test_what_is_no_number_is_told_so(world):
    result = CliRunner().invoke(restart, ["--from-step", "banana"], obj=world.ports())
    assert "'banana' is not a valid whole number." in result.stderr
