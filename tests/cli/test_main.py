"""The command line as a program: what it lists without importing it, and what becomes of errors."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from ftsup import cli
from ftsup.errors import ConfigError, FtsupError, Refused, RuleBroken, Unavailable

ROOT = Path(__file__).parents[2]


def ftsup(*args, cwd=None, env=None):
    return subprocess.run(
        [sys.executable, "-m", "ftsup", *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)} | (env or {}),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def modules_after(*args):
    """What is imported once a command has run."""
    code = f"import sys\nfrom ftsup.cli import main\nmain({list(args)!r})\nprint(*sys.modules, file=sys.stderr)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True).stderr.split())


def test_help_is_light_and_lists_every_command():
    imported = modules_after("--help")
    assert not imported & {"rich", "torch", "zmq", "jinja2", "psutil", "yaml", "ftsup.config", "asyncio"}
    shown = ftsup("--help").stdout
    for name, (_, _, text) in cli.COMMANDS.items():
        assert f"  {name} " in shown
        assert text in shown


def test_checking_a_configuration_needs_no_heavy_library(tmp_path):
    (tmp_path / "c.yaml").write_text("name: a\ncommand: x\n")
    assert not modules_after("config", "check", str(tmp_path / "c.yaml")) & {"rich", "torch", "zmq", "jinja2"}


def test_every_command_of_the_table_is_there_and_named_so():
    """Read from the source: importing them all would test the libraries, not the table."""
    for name, (module, attribute, _) in cli.COMMANDS.items():
        tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
        assert attribute in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name


@pytest.mark.parametrize(
    "args, said",
    [
        (["confg"], "No such command 'confg'. Did you mean 'config'?"),
        (["xyzzy"], "No such command 'xyzzy'."),
        (["config", "check", "--sett", "a=1", "f"], "'--set'"),
        (["config", "check"], "Missing argument 'FILE'"),
        (["--nope"], "No such option"),
    ],
)
def test_a_slip_of_the_fingers_is_usage(capsys, args, said):
    assert cli.main(args) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert not out


def test_the_version_is_the_package_s(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == "ftsup 0.1.0\n"


def fails(error):
    """Run a program that raises."""

    @click.command()
    def broken():
        raise error

    return cli.main([], program=broken)


@pytest.mark.parametrize(
    "error, code",
    [
        (ConfigError("c.yaml:1: a: b", hint="do that"), 78),
        (Unavailable("Slurm did not answer", hint="do that"), 75),
        (Refused("no", hint="do that"), 1),
        (RuleBroken("bug", hint="do that"), 70),
        (FtsupError("no", hint="do that"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_people_should_read_comes_without_a_traceback(capsys, error, code):
    assert fails(error) == code
    out, err = capsys.readouterr()
    assert err == f"{error.message}\nhint: do that\n"
    assert not out


def test_a_bug_asks_to_be_reported_and_says_where(capsys):
    assert fails(ZeroDivisionError("division by zero")) == 70
    err = capsys.readouterr().err
    assert "ftsup has a bug: ZeroDivisionError: division by zero" in err
    assert "at ftsup/cli/__init__.py:" in err
    assert err.endswith("hint: please report this with the lines above\n")
    assert "Traceback" not in err
    assert str(ROOT) not in err


def test_interrupted_is_130():
    assert fails(KeyboardInterrupt()) == 130


@pytest.mark.parametrize("library", ["click", "msgspec"])
def test_ctrl_c_while_libraries_are_imported_is_as_quiet(tmp_path, library):
    (tmp_path / f"{library}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nsignal.pause()\n")
    done = ftsup("status", cwd=tmp_path, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


def test_a_reader_that_goes_away_is_no_error_message():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "ftsup", "config", "full"], stdout=write, stderr=subprocess.PIPE, timeout=50, check=False)
    os.close(write)
    assert done.stderr == b""
    assert done.returncode == 1


def test_config_check_says_everything_on_standard_error(tmp_path):
    (tmp_path / "c.yaml").write_text("name: a\ncommand: x\ngrace: 60\nnodes: 2\n")
    done = ftsup("config", "check", "c.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.splitlines() == [
        "c.yaml:3: grace: 60: allowed is a duration with its unit, such as 90s, 20min, 1h30m, 2d or 1-12:00:00",
        "c.yaml:4: nodes: no such key; did you mean slurm.nodes?",
    ]


def test_config_show_is_data_on_standard_output(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("name: a\ncommand: x\n")
    assert cli.main(["config", "show", "c.yaml", "--set", "slurm.nodes=4"]) == 0
    out, err = capsys.readouterr()
    assert "slurm.nodes: 4" in out
    assert "# --set" in out
    assert not err
    assert "\x1b" not in out


def test_config_full_prints_the_file_of_the_checkout(capsys):
    assert cli.main(["config", "full"]) == 0
    assert capsys.readouterr().out == (ROOT / "configs" / "full.yaml").read_text()
