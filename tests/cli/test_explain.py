"""`ftsup explain` as a whole command, on run directories that real logs fill, and on all that is wrong with a directory."""

from __future__ import annotations

import json

import msgspec
import pytest

from ftsup.cli.explain import explain_run
from ftsup.errors import RunError
from ftsup.events import SCHEMA
from ftsup.report.explain import Tale
from tests.cli.living import World
from tests.report.leader import Leader
from tests.report.logs import hang_and_crash


class Told(Leader):
    """A log that was made elsewhere."""

    def __init__(self, lines) -> None:
        super().__init__()
        self.lines = lines


@pytest.fixture
def world(tmp_path) -> World:
    one = World(tmp_path)
    run = one.run(leader=Told(hang_and_crash()))
    (run.incident(1) / "n2").mkdir(parents=True)
    (run.incident(1) / "n2" / "stacks.3.txt").write_text('Current thread 0x0000 (most recent call first):\n  File "/t.py", line 4 in f\n')
    return one


def test_a_run_is_explained_without_a_word_to_slurm(world) -> None:
    shown = world.type(explain_run).stdout
    assert shown.startswith("demo/20260102-030405-00aa: finished\n")
    assert "where the time went" in shown
    assert f"{world.home}/ftsup-runs/demo/20260102-030405-00aa/incidents/1" in "".join(shown.split())
    assert max(len(line) for line in shown.splitlines() if str(world.home) not in line) <= 80
    assert world.calls == 0


def test_one_incident_with_its_stack(world) -> None:
    shown = world.type(explain_run, "demo", "--incident", "1").stdout
    assert shown.startswith("incident 1, ")
    assert "/t.py:4 in f" in shown
    with pytest.raises(RunError, match="has no incident 9") as refused:
        world.type(explain_run, "--incident", "9")
    assert refused.value.hint == "there are 1 to 3"


def test_json_and_markdown(world) -> None:
    tale = msgspec.json.decode(world.type(explain_run, "--json").stdout, type=Tale)
    assert (tale.run, len(tale.incidents)) == ("demo/20260102-030405-00aa", 3)
    assert sum(row.spent_s for row in tale.time) == pytest.approx(tale.whole_s)
    one = json.loads(world.type(explain_run, "--json", "--incident", "2").stdout)
    assert [told["number"] for told in one["incidents"]] == [2]
    assert world.type(explain_run, "--markdown").stdout.startswith("### demo/20260102-030405-00aa: finished\n")


def test_two_answers_at_once_are_refused(world) -> None:
    with pytest.raises(AssertionError, match="choose one"):
        world.type(explain_run, "--json", "--markdown")


# What is wrong with a directory -------------------------------------------------------------------------------------------


def test_a_log_with_garbage_a_torn_end_and_a_newer_schema_is_told_as_far_as_it_goes(world) -> None:
    run = world.run(leader=Told(hang_and_crash()))
    rows = run.events.read_bytes().splitlines(keepends=True)
    rows[20] = b"\x00\xffgarbage\n"
    rows[30] = rows[30].replace(b'"n":', b'"v":%d,"n":' % (SCHEMA + 1), 1)
    run.events.write_bytes(b"".join(rows)[:-7])
    shown = " ".join(world.type(explain_run).stdout.split())
    assert "note: events.jsonl: line 21 is unreadable" in shown
    assert f"written by a newer ftsup (schema {SCHEMA + 1}" in shown
    assert "the last line is torn" in shown
    assert "where the time went" in shown


@pytest.mark.parametrize("text", [b"", b"\x00" * 5000, b"{}\n" * 50, b'{"n":1}\n', b"\n\n\n"])
def test_a_log_that_is_none(world, text) -> None:
    run = world.run(leader=Told([]))
    run.events.write_bytes(text)
    shown = world.type(explain_run).stdout
    assert "no leader has written anything yet; its job is 7" in shown


def test_no_log_at_all_and_a_log_that_may_not_be_read(world) -> None:
    run = world.run(leader=Told([]))
    run.events.unlink()
    assert "no leader has written anything yet" in world.type(explain_run).stdout
    run.events.mkdir()
    assert "note: the event log cannot be read: Is a directory" in world.type(explain_run).stdout


def test_a_configuration_of_another_version_costs_advice_only(world) -> None:
    run = world.run(leader=Told(hang_and_crash()))
    run.config_json.write_text('{"name": "demo", "of": "tomorrow"}')
    shown = " ".join(world.type(explain_run).stdout.split())
    assert "note: config.json cannot be read, so no advice rests on it" in shown
    assert "where the time went" in shown


def test_foreign_directories_and_names_are_one_sentence(world) -> None:
    (world.home / "other").mkdir()
    for text, why in ((str(world.home / "other"), "is not a run directory"), ("nobody", "no run is called nobody")):
        with pytest.raises(RunError, match=why):
            world.type(explain_run, text)
    with pytest.raises(RunError, match="no runs in"):
        world.type(explain_run, "--runs-dir", str(world.home / "other"))


def test_an_incidents_folder_that_is_somewhere_else_is_left_out(world) -> None:
    run = world.run(leader=Told(hang_and_crash()))
    run.incident(2).symlink_to("/")
    assert world.type(explain_run).stdout.count("  evidence") == 1
