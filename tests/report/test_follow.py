"""Reading a run again and again, and the gist of it: the same as reading all of it."""

from __future__ import annotations

import shutil

import msgspec
import pytest

from ftsup import events as ev
from ftsup.errors import RunError
from ftsup.report import runs
from ftsup.report.follow import Follower, gist
from ftsup.report.page import page
from ftsup.report.runs import View
from ftsup.report.story import Stage
from ftsup.rundir import RunDir
from tests.report.leader import BEGAN, NODES, Leader
from tests.report.scenes import trained


@pytest.fixture
def run(tmp_path) -> RunDir:
    found = RunDir(tmp_path / "demo" / "20260102-030405-00aa")
    found.root.mkdir(parents=True)
    found.config_json.write_text("{}")
    return found


def write(run: RunDir, leader: Leader, *, more: bytes = b"") -> None:
    run.events.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in leader.lines) + more)


def long_one() -> Leader:
    """Incidents with long routine between them."""
    leader = trained()
    for number in range(3):
        for _ in range(300):
            leader.after(60).train(leader.state.best_step + 60)
        for _ in range(50):
            leader.take(ev.SlurmSaid(state="RUNNING", left_s=9000.0))
        leader.hang(at=leader.state.best_step)
        leader.end_attempt()
        leader.after(20 * number).take(ev.Tick())
        leader.launch(checkpoint=leader.state.best_step)
        leader.after(5).train(leader.state.best_step + 1)
    return leader


def test_looking_again_reads_what_is_new(run):
    leader, follower = trained(), Follower(run)
    assert follower.look().story.lines == 0
    write(run, leader, more=b'{"n":9')
    assert follower.look().story == leader.story
    leader.after(5).hang()
    write(run, leader)
    assert follower.look() == runs.read(run)


def test_another_log_in_its_place_is_read_from_its_start(run):
    follower = Follower(run)
    write(run, long_one())
    follower.look()
    short = trained()
    write(run, short)
    view = follower.look()
    assert view.story == short.story
    assert any("read again from its start" in note for note in view.notes)
    run.events.unlink()
    assert follower.look().story.grants == 0


def test_what_cannot_be_read_now_is_said_and_what_was_read_stays(run):
    follower = Follower(run)
    write(run, trained())
    follower.look()
    run.events.unlink()
    run.events.mkdir()
    view = follower.look()
    assert view.story == trained().story
    assert any("cannot be read" in note for note in view.notes)


def test_status_json_is_read_anew_when_it_is_another(run):
    follower = Follower(run)
    for step in (1, 2):
        part = run.status.with_name("part")
        part.write_bytes(msgspec.json.encode({"wall": BEGAN.isoformat(), "ranks": {"0": {"step": step}}}))
        part.replace(run.status)
        assert follower.look().now.ranks["0"].step == step
    run.status.unlink()
    assert follower.look().now is None


def test_a_run_that_was_removed_meanwhile_is_gone_and_not_new(run):
    write(run, trained())
    follower = Follower(run)
    assert follower.look().story.stage is Stage.TRAINING
    shutil.rmtree(run.root)
    with pytest.raises(RunError, match="is gone: somebody removed it"):
        follower.look()


def facts(view: View) -> dict[str, object]:
    """What a list of runs shows."""
    found = page(view, now=BEGAN)
    names = ("stage", "step", "job", "restarts", "grants", "attempts", "epoch", "rate_per_min", "verdict", "reason")
    return {name: getattr(found, name) for name in names} | {"incidents": len(found.incidents)}


def test_the_gist_is_what_a_list_shows_wherever_the_log_ends(run):
    leader = long_one()
    for node in NODES:
        leader.take(ev.AttemptOver(node=node, epoch=leader.epoch, code=0))
    lines = leader.lines
    for end in (0, 1, 5, 12, 200, 320, 360, len(lines) - 5, len(lines)):
        leader.lines = lines[:end]
        write(run, leader)
        assert facts(gist(run)) == facts(runs.read(run)), end


def test_the_gist_of_a_run_that_was_continued_long_ago(run):
    leader = trained()
    leader.take(ev.Asked(request=ev.Request.PAUSE, who="ada"))
    leader.after(31).take(ev.Tick())
    leader.take(ev.Decided(mirrored=True))
    run.continued.write_text('{"n": 1, "who": "ada"}')
    leader.after(60).take(ev.Continued(n=1, who="ada"))
    leader.take(ev.LeaderStarted(job="8", restarts=0, host="n1", pid=1, nodes=NODES))
    for node in NODES:
        leader.take(ev.NodeUp(node=node, instance=f"{node}.8"))
    leader.launch(checkpoint=100)
    for _ in range(50):
        leader.after(60).train(leader.state.best_step + 60)
    write(run, leader)
    assert gist(run).story.stage is runs.read(run).story.stage is Stage.TRAINING
