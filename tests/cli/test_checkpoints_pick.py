"""`ftsup checkpoints pick`, `pin` and `prune`: what is taken, held and removed; and a run that lives keeps people off."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ftsup import events as ev
from ftsup.checkpoint.byhand import Readings, plan
from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.keep import pins
from ftsup.checkpoint.owner import read_owner
from ftsup.checkpoint.survey import Row, Standing
from ftsup.cli.owners import life_of
from ftsup.ports import JobState
from tests.checkpoint.disks import fails
from tests.checkpoint.folders import contents, saved, tear
from tests.cli.checkpointing import Desk, rot

pytestmark = [pytest.mark.torch]  # its files are torch.save's

ROOT = Path(__file__).parents[2]
RUN = "runs/one/20260102-030405-0001"


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


def live_run(desk: Desk, *, picked: str | None = None, over: bool = False) -> str:
    """A run with a job in Slurm that owns the directory, as its run directory and Slurm tell of it."""
    root = desk.home / RUN
    root.mkdir(parents=True)
    (root / "config.json").write_text("{}")
    script = desk.home / "job.sh"
    script.write_text("#!/bin/sh\n")
    job = desk.slurm.submit(script)
    desk.slurm.advance(1)
    (root / "jobs").write_text(f"{job}\n")
    happened: list[ev.LeaderEvent] = [ev.LeaderStarted(t=0.0, job=job, restarts=0, host="n1", pid=1, nodes=("n1",))]
    if picked:
        happened.append(ev.CheckpointPicked(t=1.0, epoch=ev.Epoch(1, 1), path=str(desk.folder / picked), step=1))
    orders = (ev.Decide(verdict=ev.Verdict(kind=ev.VerdictKind.FINISHED, reason="done")),) if over else ()
    lines = [ev.Line(n=number, event=event) for number, event in enumerate(happened, 1)]
    lines[-1] = msgspec.structs.replace(lines[-1], orders=orders)
    (root / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    desk.owned(job=job, run=RUN)
    return job


def test_pick_prints_the_path_alone_and_the_reason_beside_it(desk):
    desk.save(100, 200, 300)
    rot(desk.folder / "step-300.pt", 300)
    dry = desk.type("pick", "ck", "--dry-run")
    assert dry.stdout == f"{desk.folder}/step-200.pt\n"
    assert (desk.folder / "step-300.pt").exists()
    result = desk.type("pick", "ck")
    assert (result.exit_code, result.stdout) == (0, f"{desk.folder}/step-200.pt\n")
    assert result.stderr.startswith("step-200.pt: step 200, verified against its manifest; passed over: step-300.pt: damaged: ")
    assert (desk.folder / ".ftsup/quarantine/step-300.pt.1/step-300.pt").exists()
    told = json.loads(desk.type("pick", "ck", "--json").stdout)
    assert (told["name"], told["step"], told["seen"][0]["state"]) == ("step-200.pt", 200, "verified")


def test_pick_in_a_shell(desk):
    """The real command, in the way that scripts use it."""
    desk.save(100, 200)
    shutil.move(desk.folder, desk.home / "my checks")
    script = f'picked="$({shlex.quote(sys.executable)} -m ftsup checkpoints pick "my checks")" && printf "<%s>" "$picked"'
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=desk.home,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert done.stdout == f"<{desk.home}/my checks/step-200.pt>"
    assert done.stderr.startswith("step-200.pt: step 200, ")
    assert len(done.stderr.splitlines()) == 1  # no bar: nobody looks


def test_pick_without_a_good_one_exits_with_1_and_prints_nothing(desk):
    desk.folder.mkdir()
    result = desk.type("pick", "ck")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "ck has no checkpoint that matches *: from the beginning" in result.stderr
    desk.save(100)
    rot(desk.folder / "step-100.pt", 300)
    result = desk.type("pick", "ck")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "were whole once and are damaged" in result.stderr
    assert "hint: nothing was moved or deleted" in result.stderr
    assert (desk.folder / "step-100.pt").exists()


def test_several_damaged_in_a_row_are_passed_over_and_when_all_are_nothing_is_lost(desk):
    desk.save(*range(100, 700, 100))
    for step in (400, 500, 600):
        rot(desk.folder / f"step-{step}.pt", 300)
    result = desk.type("pick", "ck")
    assert (result.exit_code, result.stdout) == (0, f"{desk.folder}/step-300.pt\n")
    assert result.stderr.count("damaged: the file, block 0") == 3
    assert sorted(path.name for path in (desk.folder / ".ftsup/quarantine").iterdir()) == [f"step-{step}.pt.1" for step in (400, 500, 600)]
    for step in (100, 200, 300):
        rot(desk.folder / f"step-{step}.pt", 300)
    before = contents(desk.folder)
    result = desk.type("pick", "ck")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "3 of the 3 checkpoints in" in result.stderr
    assert "hint: nothing was moved or deleted; move them away to start from the beginning" in result.stderr
    assert contents(desk.folder) == before | {".ftsup/attempt.json": contents(desk.folder)[".ftsup/attempt.json"]}


def test_a_name_that_is_not_utf8_is_passed_over(desk):
    desk.save(100)
    Path(os.fsdecode(os.fsencode(desk.folder) + b"/step-900\xff.pt")).write_bytes(b"x")
    assert desk.type("pick", "ck").stdout.endswith("/step-100.pt\n")


def test_pick_seals_what_it_takes_and_goes_on_where_the_disk_takes_nothing(desk):
    desk.save(100, seal=False)
    result = desk.type("pick", "ck", disk=fails(errno.EROFS))
    assert (result.exit_code, result.stdout) == (0, f"{desk.folder}/step-100.pt\n")
    assert "read-only" in result.stderr
    assert "sealed now" in desk.type("pick", "ck").stderr
    assert desk.manifest("step-100.pt").exists()


def test_a_pinned_one_stays_until_it_is_unpinned(desk):
    desk.save(100, 200, 300, writer=RUN)
    assert desk.type("pin", "ck", "step-100.pt").stdout == "step-100.pt: pinned\n"
    assert desk.type("pin", "ck", "step-100.pt").exit_code == 0
    assert desk.type("prune", "ck", "--keep", "1", "--yes").exit_code == 0
    assert [path.name for path in sorted(desk.folder.glob("*.pt"))] == ["step-100.pt", "step-300.pt"]
    assert desk.type("unpin", "ck", "ck/step-300.pt").stdout == "step-300.pt: was not pinned\n"
    assert desk.type("unpin", "ck", "step-100.pt").stdout == "step-100.pt: unpinned\n"
    desk.type("prune", "ck", "--keep", "1", "--yes")
    assert [path.name for path in desk.folder.glob("*.pt")] == ["step-300.pt"]


def test_a_pin_of_what_is_gone_can_be_taken_back(desk):
    desk.save(100, 200)
    desk.type("pin", "ck", "step-100.pt")
    (desk.folder / "step-100.pt").unlink()
    assert "litter: step-100.pt (0 B): sealed or pinned, and not there any more" in desk.type("list", "ck").stderr
    assert desk.type("unpin", "ck", "step-100.pt").exit_code == 0
    assert not pins(RealDisk(), Home(desk.folder))


def test_prune_shows_what_would_go_and_why_and_what_stays_and_why(desk):
    desk.save(100, 200, 300, 400, writer=RUN)
    desk.save(150)
    desk.save(350, seal=False)
    tear(saved(desk.folder / "step-500.pt", value=5))
    desk.type("pin", "ck", "step-100.pt")
    rot(desk.folder / "step-400.pt", 300)
    before = desk.files() | {".ftsup/verified.json"}
    result = desk.type("prune", "ck", "--keep", "1", "--dry-run")
    assert result.exit_code == 0
    told = {line.split()[1]: (line.split()[0], line.split(None, 4)[4]) for line in result.stdout.splitlines()}
    assert told == {
        "step-500.pt": ("stays", "not sealed (incomplete)"),
        "step-400.pt": ("stays", "damaged: pick sets it aside"),
        "step-350.pt": ("stays", "not sealed"),
        "step-300.pt": ("stays", "verified, the newest"),
        "step-200.pt": ("goes", "older than a verified one that stays"),
        "step-150.pt": ("stays", "found: no run of ftsup wrote it (--found takes these too)"),
        "step-100.pt": ("stays", "pinned"),
    }
    assert "step-400.pt: damaged: the file, block 0" in result.stderr
    assert "1 checkpoint would go, " in result.stderr
    assert desk.files() == before
    plan_ = json.loads(desk.type("prune", "ck", "--keep", "1", "--dry-run", "--json").stdout)
    assert [fate["name"] for fate in plan_["plan"] if fate["goes"]] == ["step-200.pt"]
    assert plan_["removed"]["names"] == []


def test_prune_asks_first(desk):
    desk.save(100, 200, writer=RUN)
    for answer in ("n\n", "", "\n"):
        result = desk.type("prune", "ck", "--keep", "1", stdin=answer)
        assert result.exit_code == 1
        assert "remove 1 checkpoint, " in result.stderr
        assert "nothing was removed\nhint: --yes" in result.stderr
        assert (desk.folder / "step-100.pt").exists()
    result = desk.type("prune", "ck", "--keep", "1", stdin="y\n")
    assert result.exit_code == 0
    assert "1 checkpoint removed, " in result.stderr
    assert {path.name for path in desk.folder.rglob("*") if "100" in path.name} == set()
    assert desk.type("prune", "ck", "--keep", "1", stdin="").exit_code == 0  # nothing to ask about


def test_found_ones_go_only_when_it_is_said(desk):
    desk.save(100, 200)
    desk.type("prune", "ck", "--keep", "1", "--yes")
    assert (desk.folder / "step-100.pt").exists()
    desk.type("prune", "ck", "--keep", "1", "--yes", "--found")
    assert not (desk.folder / "step-100.pt").exists()


def test_prune_finishes_an_earlier_one_and_passes_over_what_nfs_holds(desk):
    desk.save(100)
    trash = desk.folder / ".ftsup" / "trash"
    (trash / "step-1.1").mkdir(parents=True)
    (trash / "step-1.1" / ".nfs00001").write_bytes(b"held")
    (trash / "step-1.1" / "data").write_bytes(b"x" * 5000)
    (trash / "step-2.1").write_bytes(b"x" * 3000)
    assert ".ftsup/trash/step-1.1" in desk.type("prune", "ck", "--dry-run").stderr
    result = desk.type("prune", "ck")
    assert result.exit_code == 0
    assert "1 checkpoint removed, 3.0 kB" in result.stderr
    assert f"left over: {trash}/step-1.1/.nfs00001: a process still has it open; the next prune tries again" in result.stderr
    assert [path.name for path in trash.rglob("*") if path.is_file()] == [".nfs00001"]


def test_a_run_that_lives_keeps_people_off(desk):
    desk.save(100, 200, 300, writer=RUN)
    desk.save(400, seal=False)
    job = live_run(desk, picked="step-100.pt")
    for words in (["seal", "ck"], ["prune", "ck", "--keep", "1", "--yes"]):
        result = desk.type(*words)
        assert result.exit_code == 1
        assert f"ck: the checkpoints belong to run {RUN} (job {job} on n1), which is alive" in result.stderr
        assert "--force goes on although it may live" in result.stderr
    picked = desk.type("pick", "ck")
    assert picked.stdout == f"{desk.folder}/step-400.pt\n"
    assert "nothing is moved or sealed: the checkpoints belong to run" in picked.stderr
    assert not desk.manifest("step-400.pt").exists()
    assert desk.type("verify", "ck").exit_code == 0
    assert desk.type("pin", "ck", "step-200.pt").exit_code == 0
    desk.type("unpin", "ck", "step-200.pt")
    result = desk.type("prune", "ck", "--keep", "1", "--yes", "--force")
    assert result.exit_code == 0
    assert "a run resumed from it" in result.stdout
    assert not (desk.folder / "step-200.pt").exists()
    assert (desk.folder / "step-100.pt").exists()  # the run's attempts rest on it
    desk.slurm.finish(job)
    assert "step-400.pt: sealed" in desk.type("seal", "ck").stdout


def test_a_slurm_that_is_silent_leaves_the_directory_alone_unless_the_run_says_that_it_is_over(desk):
    desk.save(100, 200, writer=RUN)
    live_run(desk)
    desk.slurm.away = True
    result = desk.type("seal", "ck")
    assert result.exit_code == 1
    assert "nobody can say now whether it is over" in result.stderr
    shutil.rmtree(desk.home / RUN)
    shutil.rmtree(desk.folder / ".ftsup" / "owner")
    desk.slurm.away = False
    live_run(desk, over=True)
    desk.slurm.away = True
    assert desk.type("seal", "ck").exit_code == 0


@pytest.mark.parametrize(
    "state,cluster,life", [(None, "here", "over"), (None, "there", "unknown"), (None, "", "unknown"), (JobState.PENDING, "", "alive")]
)
def test_the_life_of_an_owner(desk, state, cluster, life):
    """A job that its own Slurm knows no more is over; a requeued one comes back."""
    desk.save(100)
    job = live_run(desk)
    desk.slurm.settings["ClusterName"] = "here"
    if cluster:
        (desk.home / RUN / "cluster.json").write_text(f'{{"name": "{cluster}"}}')
    owner = read_owner(RealDisk(), Home(desk.folder))
    if state is None:
        desk.slurm.forget(job)
    else:
        desk.slurm.jobs[job].state = state
    assert life_of(owner, ports=desk.ports).value == life


def test_what_was_there_before_the_run_began_is_not_its_to_remove():
    rows = [Row(name=f"s{step}", path="", standing=Standing.SEALED, step=step, writer=RUN) for step in (4, 3, 2, 1)]
    fates = plan(rows, Readings(verified=frozenset({"s4", "s3"})), keep=2, found_too=True, needed=(), before=("s1",))
    assert [(fate.name, fate.goes, fate.why) for fate in fates] == [
        ("s4", False, "verified, one of the newest 2"),
        ("s3", False, "verified, one of the newest 2"),
        ("s2", True, "older than the 2 verified that stay"),
        ("s1", False, "was there before the run that owns the directory"),
    ]
    assert [fate.why for fate in plan(rows, Readings(verified=frozenset({"s4"})), keep=2, found_too=False, needed=(), before=())] == [
        "verified, one of the newest 2",
        *["only 1 of 2 are verified"] * 3,
    ]
