"""`ftsup rules` and `ftsup replay` as whole commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ftsup.cli.replay import replay_log
from ftsup.cli.rules import rules
from ftsup.config import Config, to_json
from ftsup.errors import ConfigError, RunError
from ftsup.policy.rules import Budgets, Hang
from tests.cli.living import World
from tests.cli.test_explain import Told
from tests.report.logs import hang_and_crash
from tests.world import RULES

LIKE_THE_WORLD = Config(name="demo", command=("x",), workers_per_node=2, hang=RULES.hang, grace_s=RULES.grace_s)


@pytest.fixture
def world(tmp_path) -> World:
    one = World(tmp_path)
    run = one.run(leader=Told(hang_and_crash()))
    run.config_json.write_bytes(to_json(LIKE_THE_WORLD))
    return one


def answer(world: World, command, *args: str) -> tuple[int, str, str]:
    """Exit code as the program has it, output, and what is beside it."""
    result = CliRunner().invoke(command, [*args], obj=world.ports(), standalone_mode=False)
    if result.exception:
        raise result.exception
    return int(result.return_value or 0), result.stdout, result.stderr


# rules --------------------------------------------------------------------------------------------------------------------


def test_rules_without_a_run_are_those_of_a_configuration_that_changes_nothing(world) -> None:
    _, shown, _ = answer(world, rules)
    assert "hard cap" in shown
    assert "200 attempts were made" in shown
    assert "left" not in shown.split("Budgets (policy)")[1].splitlines()[2]
    assert max(map(len, shown.splitlines())) <= 80


def test_rules_of_a_run_have_what_it_measured_and_what_is_left(world) -> None:
    _, shown, _ = answer(world, rules, "demo")
    assert "left" in shown
    assert any(line.split()[:3] == ["hard_cap", "200", "196"] for line in shown.splitlines()), "four attempts"
    assert "as hang.step says" in shown


def test_rules_of_a_file_and_in_markdown_and_the_signatures(world) -> None:
    (world.home / "c.yaml").write_text("name: t\ncommand: [x.py]\npolicy: {hard_cap: 7}\n")
    _, shown, _ = answer(world, rules, "--config", "c.yaml", "--markdown")
    assert "| hard cap | 7 attempts were made in this run | stop |" in shown
    _, shown, _ = answer(world, rules, "--signatures")
    assert "watchdog timeout" in shown
    with pytest.raises(ConfigError):
        answer(world, rules, "--config", "none.yaml")
    with pytest.raises(Exception, match="leave out one"):
        answer(world, rules, "demo", "--config", "c.yaml")


def test_rules_of_a_run_whose_log_is_damaged_say_so(world) -> None:
    run = world.run(leader=Told(hang_and_crash()))
    run.config_json.write_bytes(to_json(LIKE_THE_WORLD))
    rows = run.events.read_bytes().splitlines(keepends=True)
    run.events.write_bytes(b"garbage\n" + b"".join(rows[2:]))
    _, shown, beside = answer(world, rules, "demo")
    assert "hard_cap" in shown
    assert "note: events.jsonl: line 1 is unreadable" in beside


# replay -------------------------------------------------------------------------------------------------------------------


def test_replay_by_the_same_rules_is_the_same(world) -> None:
    code, shown, beside = answer(world, replay_log, "demo")
    assert (code, beside) == (0, "")
    assert shown.endswith("today's rules decide as was decided\n")


def test_replay_by_other_rules_says_where_and_what_and_exits_with_1(world) -> None:
    (world.home / "c.yaml").write_text("name: t\ncommand: [x.py]\nworkers_per_node: 2\npolicy: {hangs: 0}\ngrace: 5s\nhang: {step: 20s}\n")
    code, shown, _ = answer(world, replay_log, "demo", "--config", "c.yaml")
    assert code == 1
    assert "  Incident (restart: rank 3 on n2" in shown
    assert "today's rules differ on" in shown
    assert "with another verdict" in shown
    assert "those after the first may follow from it" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_log_alone_is_replayed_by_the_defaults_and_that_is_said(world, tmp_path) -> None:
    alone = Path(tmp_path / "old.jsonl")
    alone.write_bytes(world.run(leader=Told(hang_and_crash())).events.read_bytes())
    code, shown, beside = answer(world, replay_log, str(alone))
    assert "no config.json beside the log" in beside
    assert code in {0, 1}
    assert "today's rules" in shown


@pytest.mark.parametrize("text", [b"", b"\x00\xff" * 100, b'{"n":1,"event":{"type":"FromTheFuture"}}\n', b"x,y\n1,2\n"])
def test_what_is_no_log_is_one_sentence(world, text) -> None:
    (world.home / "some.txt").write_bytes(text)
    with pytest.raises(RunError, match="no line of a leader that began"):
        answer(world, replay_log, "some.txt", "--config", str(world.run().config_json))


def test_a_run_without_a_log_or_with_a_foreign_configuration(world) -> None:
    run = world.run(leader=Told(hang_and_crash()))
    run.config_json.write_text('{"of": "tomorrow"}')
    with pytest.raises(RunError, match="of another version of ftsup") as refused:
        answer(world, replay_log, "demo")
    assert "--config FILE" in refused.value.hint
    with pytest.raises(RunError, match="of another version of ftsup"):
        answer(world, rules, "demo")
    run.config_json.write_bytes(to_json(LIKE_THE_WORLD))
    run.events.unlink()
    with pytest.raises(RunError, match="no line of a leader that began"):
        answer(world, replay_log, "demo")
    with pytest.raises(RunError, match="no run is called nothing"):
        answer(world, replay_log, "nothing")


def test_all_differences_or_the_first_ten(world) -> None:
    world.run(leader=Told(hang_and_crash())).config_json.write_bytes(
        to_json(Config(name="demo", command=("x",), workers_per_node=2, hang=Hang(step_s=20.0), policy=Budgets(hangs=0)))
    )
    _, few, beside = answer(world, replay_log, "demo")
    _, every, _ = answer(world, replay_log, "demo", "--all")
    assert few.count("\nline ") + few.startswith("line ") == 10
    assert every.count("line ") > few.count("line ")
    assert "more: --all" in beside


def test_replay_knows_by_what_a_run_went_before_it_was_continued(world) -> None:
    run = next((world.home / "ftsup-runs").glob("*/*"))
    (run / "config.1.yaml").write_text("name: t\ncommand: [x.py]\npolicy: {hangs: 0}\n")
    code, shown, _ = answer(world, replay_log, "demo")
    assert (code, "PickCheckpoint: not ordered any more" in shown) == (1, True), "nothing continued it: all of it went by that"
    (run / "config.1.yaml").write_text("name: [")
    code, _, beside = answer(world, replay_log, "demo")
    assert (code, "config.1.yaml, by which the run went before it was continued, cannot be read" in beside) == (0, True)


def test_what_is_no_log_is_said_with_one_note(world, tmp_path) -> None:
    (tmp_path / "train.py").write_text("import torch\n" * 90)
    result = CliRunner().invoke(replay_log, [str(tmp_path / "train.py")], obj=world.ports(), standalone_mode=False)
    assert isinstance(result.exception, RunError)
    assert result.stderr.count("note: train.py: ") == 1
