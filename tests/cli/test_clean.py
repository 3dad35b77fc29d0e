"""`ftsup clean`: what goes, what stays whatever is asked, and what an interrupted one leaves for the next."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from ftsup.cli.clean import clean
from ftsup.config import Checkpoint, Config, to_json
from ftsup.errors import RunError
from ftsup.events import SCHEMA
from ftsup.report.oldruns import ASIDE, OURS, size
from ftsup.rundir import RunDir
from tests.cli.living import World, finish
from tests.report.leader import BEGAN, Leader

ROOT = Path(__file__).parents[2]


def trained(*, over: bool = True) -> Leader:
    leader = Leader()
    leader.grant()
    leader.launch()
    leader.after(3).train(100)
    if over:
        finish(leader)
    return leader


def filled(
    world: World, name: str = "demo", stamp: str = "20260102-030405-00aa", *, over: bool = True, leader: Leader | None = None
) -> RunDir:
    """A run with all that it leaves behind, untouched since it ended."""
    run = world.run(name, stamp, leader=leader or trained(over=over))
    for path, text in {
        "logs/1.1/n1.log": "x" * 5000,
        "incidents/1/n1/stacks.0.txt": "y" * 3000,
        "decisions/7.0.json": "{}",
        "config.yaml": "",
    }.items():
        (run.root / path).parent.mkdir(parents=True, exist_ok=True)
        (run.root / path).write_text(text)
    aged(run)
    return run


def aged(run: RunDir) -> None:
    """Nothing of it was written since."""
    for path in (run.events, run.jobs, run.root):
        os.utime(path, (BEGAN.timestamp(), BEGAN.timestamp()))


@pytest.fixture
def world(tmp_path) -> World:
    one = World(tmp_path)
    one.now = BEGAN + timedelta(days=40)
    return one


def answer(world: World, *args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(clean, [*args], obj=world.ports(), standalone_mode=False)
    if result.exception:
        raise result.exception
    return int(result.return_value or 0), result.stdout, result.stderr


def there(run: RunDir) -> set[str]:
    return {path.name for path in run.root.iterdir()} if run.root.exists() else set()


# What goes, and what stays ------------------------------------------------------------------------------------------------


def test_logs_and_incidents_of_an_old_run_go_and_all_else_stays(world) -> None:
    run = filled(world)
    before = there(run)
    code, shown, _ = answer(world, "--yes")
    assert code == 0
    assert shown.splitlines() == ["      8.0 kB  demo/20260102-030405-00aa: logs and incidents", "      8.0 kB  in all"]
    assert there(run) == before - {"logs", "incidents"}
    code, shown, beside = answer(world, "--yes")
    assert (code, shown) == (0, "")
    assert "nothing to remove in ftsup-runs" in beside


def test_all_takes_the_whole_run_and_its_empty_folder(world) -> None:
    run = filled(world)
    assert answer(world, "--all", "--yes")[0] == 0
    assert not run.root.parent.exists()
    assert (world.home / "ftsup-runs").exists()


def test_a_dry_run_and_a_missing_terminal_remove_nothing(world) -> None:
    run = filled(world)
    before = there(run)
    code, shown, _ = answer(world, "--dry-run")
    assert code == 0
    assert "logs and incidents" in shown
    with pytest.raises(RunError, match="there is no terminal to ask at") as refused:
        answer(world)
    assert "--yes removes without asking" in refused.value.hint
    assert there(run) == before


@pytest.mark.parametrize("typed,gone", [("y\n", True), ("n\n", False), ("", False)])
def test_at_a_terminal_it_asks_first(tmp_path, typed, gone) -> None:
    run = filled(World(tmp_path))
    mine, theirs = pty.openpty()
    with os.fdopen(mine, "wb", buffering=0) as keys:
        keys.write(typed.encode() or b"\x04")
        done = subprocess.run(
            [sys.executable, "-m", "ftsup", "clean", "--runs-dir", str(tmp_path / "ftsup-runs"), "--older-than", "1h"],
            stdin=theirs, capture_output=True, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
        os.close(theirs)
    assert "Remove this of 1 run?" in done.stderr
    assert ("logs" not in there(run)) is gone, done.stderr
    assert done.returncode == (0 if gone else 1)


def test_the_young_and_the_newest_of_each_name_stay(world) -> None:
    old = [filled(world, name, f"2026010{n}-030405-00aa") for name in ("a", "b") for n in (1, 2, 3)]
    world.now = BEGAN + timedelta(days=29)
    assert answer(world, "--yes")[1] == ""
    world.now = BEGAN + timedelta(days=40)
    assert answer(world, "--keep", "2", "--yes")[0] == 0
    assert [("logs" in there(run)) for run in old] == [False, True, True, False, True, True]
    fresh = filled(world, "c")
    os.utime(fresh.events, (world.now.timestamp(),) * 2)
    answer(world, "--yes")
    assert "logs" in there(fresh), "its log was written a moment ago, whatever it says"


# What is left alone -------------------------------------------------------------------------------------------------------


def continued(run: RunDir) -> None:
    run.jobs.write_text("7\n8\n")


def submitting(run: RunDir) -> None:
    (run.root / "submitting").touch()


def torn(run: RunDir) -> None:
    run.events.write_bytes(run.events.read_bytes()[:-5] + b"")


def damaged(run: RunDir) -> None:
    rows = run.events.read_bytes().splitlines(keepends=True)
    run.events.write_bytes(b"".join([*rows[:2], b"\x00garbage\n", *rows[2:]]))


def newer(run: RunDir) -> None:
    run.events.write_bytes(run.events.read_bytes().replace(b'{"n":', b'{"v":%d,"n":' % (SCHEMA + 1)))


def without_log(run: RunDir) -> None:
    run.events.unlink()


def foreign_config(run: RunDir) -> None:
    run.config_json.write_text('{"of": "tomorrow"}')


def checkpoints_inside(run: RunDir) -> None:
    home = Config(name="demo", command=("x",), checkpoint=Checkpoint(dir=str(run.root / "logs" / "ckpt")))
    run.config_json.write_bytes(to_json(home))


@pytest.mark.parametrize("whole", [(), ("--all",)], ids=["parts", "all"])
@pytest.mark.parametrize(
    "change,said",
    [
        (continued, "not over"),
        (submitting, "not over"),
        (torn, "not over"),
        (damaged, "not readable without doubt"),
        (newer, "not readable without doubt"),
        (without_log, "not over"),
        (foreign_config, "not readable without doubt"),
        (checkpoints_inside, "with checkpoints inside"),
    ],
    ids=lambda change: getattr(change, "__name__", ""),
)
def test_what_is_not_certainly_over_ours_and_readable_is_left_alone(world, change, said, whole) -> None:
    run = filled(world)
    change(run)
    for path in (run.events, run.jobs, run.root):
        if path.exists():
            os.utime(path, (BEGAN.timestamp(), BEGAN.timestamp()))
    before = there(run)
    code, shown, beside = answer(world, "--yes", *whole)
    assert (code, shown) == (0, "")
    assert f"left alone: 1 run {said}" in beside
    assert there(run) == before


def test_a_run_that_trains_is_left_alone_however_old_its_log(world) -> None:
    run = filled(world, over=False)
    assert "left alone: 1 run not over" in answer(world, "--yes", "--all", "--older-than", "1s")[2]
    assert "logs" in there(run)


def test_runs_of_others_are_left_alone(world, monkeypatch) -> None:
    run = filled(world)
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    assert "left alone: 1 run of somebody else" in answer(world, "--yes")[2]
    assert "logs" in there(run)


def test_links_are_never_followed(world) -> None:
    outside = world.home / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "weights.pt").write_text("precious")
    run = filled(world)
    (run.root / "logs" / "1.1" / "link").symlink_to(outside)
    (run.root / "logs" / "1.1" / "file").symlink_to(outside / "deep" / "weights.pt")
    moved = filled(world, "moved")
    away = moved.root.rename(world.home / "away")
    moved.root.symlink_to(away)
    linked = filled(world, "linked")
    (linked.root / "logs").rename(outside / "logs")
    (linked.root / "logs").symlink_to(outside / "logs")
    aged(linked)
    code, shown, beside = answer(world, "--yes")
    assert code == 0
    assert "left alone: 1 run behind a link" in beside
    assert "linked/20260102-030405-00aa: incidents" in shown
    assert (outside / "deep" / "weights.pt").read_text() == "precious"
    assert (outside / "logs" / "1.1" / "n1.log").exists()
    assert (away / "logs" / "1.1" / "n1.log").exists()


def test_what_is_none_of_ours_keeps_the_run_and_is_named(world) -> None:
    run = filled(world)
    (run.root / "ckpt").mkdir()
    (run.root / "ckpt" / "last.pt").write_text("precious")
    aged(run)
    code, shown, _ = answer(world, "--all", "--yes")
    assert code == 0
    assert "logs and incidents (it stays: ckpt is none of ftsup's)" in shown
    assert (run.root / "ckpt" / "last.pt").read_text() == "precious"
    assert "events.jsonl" in there(run)


def test_the_names_of_a_run_directory_are_all_known() -> None:
    run = RunDir(Path("/r"))
    paths = [getattr(run, name) for name, kind in vars(RunDir).items() if isinstance(kind, property) and name not in {"id", "task"}]
    firsts = {path.relative_to(run.root).parts[0] for path in [*paths, run.log("1.1", "n"), run.incident(1), run.decision("7", 0)]}
    assert firsts <= set(OURS)


# Trouble ------------------------------------------------------------------------------------------------------------------


def test_a_run_that_changes_while_one_thinks_is_left_alone(world) -> None:
    run = filled(world)
    looks = iter(range(1000))

    def now():
        if next(looks) == 3:  # after the choice: somebody continues it
            run.jobs.write_text("7\n8\n")
        return BEGAN + timedelta(days=40)

    ports = world.ports()
    object.__setattr__(ports, "now", now)
    result = CliRunner().invoke(clean, ["--yes"], obj=ports, standalone_mode=False)
    assert result.return_value == 1
    assert "has changed since it was listed: left alone" in result.stderr
    assert "logs" in there(run)


def test_an_interrupted_clean_is_taken_up_by_the_next(world) -> None:
    run = filled(world)
    begun = run.root.rename(run.root.with_name(run.root.name + ASIDE))
    (begun / "config.json").unlink()
    code, shown, _ = answer(world, "--yes")
    assert code == 0
    assert f"demo/{begun.name}: the rest of it" in shown
    assert not begun.parent.exists()


def test_what_cannot_be_removed_is_said_and_the_next_run_still_is(world, monkeypatch) -> None:
    runs = filled(world, "a"), filled(world, "b")
    real, refused = os.unlink, iter([True])

    def unlink(path, *args, **kwargs):
        if str(path).endswith("stacks.0.txt") and next(refused, False):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "unlink", unlink)
    code, _, beside = answer(world, "--yes")
    assert code == 1
    assert "cannot be removed: Permission denied" in beside
    assert sorted("incidents" in there(run) for run in runs) == [False, True]
    assert not any("logs" in there(run) for run in runs)
    assert answer(world, "--yes")[0] == 0
    assert not any("incidents" in there(run) for run in runs)


def test_a_slow_disk_is_looked_at_for_a_while_only(world) -> None:
    for n in range(1, 6):
        filled(world, stamp=f"2026010{n}-030405-00aa")
    start = world.now
    looks = iter(range(10000))
    ports = world.ports()
    object.__setattr__(ports, "now", lambda: start + timedelta(seconds=25 * next(looks)))
    result = CliRunner().invoke(clean, ["--dry-run"], obj=ports, standalone_mode=False)
    assert "not looked at: the disk is slow" in result.stderr
    assert "> " in result.stdout, "sizes are bounds, then"


def test_sizes_count_plain_files_once_and_no_links(tmp_path) -> None:
    (tmp_path / "a").write_text("x" * 100)
    (tmp_path / "l").symlink_to(tmp_path / "a")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "b").write_text("x" * 11)
    assert size([tmp_path], late=lambda: False) == (111, True)
    assert size([tmp_path], late=lambda: True)[1] is False


def test_an_age_without_a_unit_is_refused_with_what_is_allowed(world) -> None:
    result = CliRunner().invoke(clean, ["--older-than", "30"], obj=world.ports())
    assert result.exit_code == 2
    assert "a duration with its unit" in result.stderr


def test_no_runs_at_all(world) -> None:
    assert "nothing to remove" in answer(world, "--yes")[2]
