"""The help of every command and subcommand: one line of purpose, examples that parse, 80 columns; and what is asked after a slip."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from ftsup import cli
from ftsup.cli.group import Choice

WIDTH = 80


def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from walk(below, (*path, name))


def everything() -> list[tuple[tuple[str, ...], click.Command]]:
    commands = {name: getattr(importlib.import_module(module), attribute) for name, (module, attribute, _) in cli.COMMANDS.items()}
    return [found for name, command in commands.items() if name not in cli.INTERNAL for found in walk(command, (name,))]


COMMANDS = everything()
each_command = pytest.mark.parametrize("path, command", COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])


def shown(path: tuple[str, ...]) -> str:
    result = CliRunner().invoke(cli.ftsup, [*path, "--help"], prog_name="ftsup", terminal_width=WIDTH)
    assert result.exit_code == 0, result.output
    return result.output


def commands_in(text: str) -> list[list[str]]:
    """The words of every `ftsup ...` below Examples, without its comment."""
    lines = [line.partition("  #")[0] for line in text.partition("Examples:")[2].splitlines()]
    calls = [call for line in lines for call in re.findall(r"(?:^ *|\$\(|&& )(ftsup [^|>&)]*)", line)]
    return [shlex.split(call) for call in calls]


@each_command
def test_help_says_in_a_line_what_it_is_for_and_shows_examples_in_80_columns(path, command):
    text = shown(path)
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    first = (command.help or "").strip().splitlines()[0]
    assert first.endswith(".")
    assert len(first) <= WIDTH - 2
    assert any(f" {' '.join(path)}" in f" {' '.join(words[1:])}" for words in commands_in(text)), f"no example of {' '.join(path)}"


@each_command
def test_every_example_parses(path, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in commands_in(shown(path)):
        ctx: click.Context = click.Context(cli.ftsup, info_name="ftsup")
        name, found, args = cli.ftsup.resolve_command(ctx, words[1:])
        while isinstance(found, click.Group):
            assert args, words
            ctx = click.Context(found, info_name=name, parent=ctx)
            name, found, args = found.resolve_command(ctx, args)
        assert found is not None
        found.make_context(name, args, parent=ctx)


def test_the_overview_has_a_line_a_command_in_80_columns():
    lines = shown(()).splitlines()
    assert [line for line in lines if len(line) > WIDTH] == []
    for name, (_, _, text) in cli.COMMANDS.items():
        assert [line for line in lines if line.split()[:1] == [name] and line.endswith(text)], name


@pytest.mark.parametrize(
    "args, said",
    [
        (["statsu"], "No such command 'statsu'. Did you mean 'status'?"),
        (["checkpoints", "verfy", "x"], "No such command 'verfy'. Did you mean 'verify'?"),
        (["config", "ful"], "Did you mean 'full'?"),
        (["mock", "fault", "node-dwn"], "Did you mean 'node-down'?"),
        (["xyzzy"], "No such command 'xyzzy'.\n"),
        (["submit", "c.yaml", "--cluster", "slrum"], "did you mean slurm?"),
        (["submit", "c.yaml", "--dry-rnu"], "--dry-run"),
        (["config", "check", "c.yaml", "--set", "slurm.node=2"], "slurm.node: no such key; did you mean slurm.nodes?"),
        (["config", "check", "c.yaml", "--set", "slurm.requeue=chian"], "allowed is one of requeue, chain, off; did you mean chain?"),
        (["config", "check", "c.yaml", "--set", "nodes=2"], "did you mean slurm.nodes?"),
        (["mock", "fault", "node-down", "mok2", "--state", "mock"], "did you mean mock2?"),
        (["checkpoints", "verify", "ckpt", "step-100.pt"], "did you mean step-1000.pt?"),
        (["status", "traing"], "did you mean training?"),
        (["logs", "training", "--node", "gpu01"], "did you mean gpu1?"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(args, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("name: a\ncommand: x\n")
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "step-1000.pt").touch()
    run = tmp_path / "ftsup-runs" / "training" / "20260102-030405-00aa"
    run.mkdir(parents=True)
    (run / "config.json").touch()
    (run / "logs" / "1.1").mkdir(parents=True)
    (run / "logs" / "1.1" / "gpu1.log").write_text("x\n")
    if "mock" in args:
        assert cli.main(["mock", "env", "--state", "mock"]) == 0
    assert cli.main(args) in {1, 2, 78}
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("word, said", [("slrum", "; did you mean slurm?"), ("xyzzy", "")])
def test_a_choice_keeps_clicks_own_words(word, said):
    with pytest.raises(click.BadParameter, match="is not one of 'slurm', 'mock'") as error:
        Choice(["slurm", "mock"]).convert(word, None, None)
    assert error.value.message.endswith(said or "'mock'.")
