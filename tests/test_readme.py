"""README.md is true: its blocks of commands are run as they stand, what it names in passing parses, and its tables are the code's."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from ftsup import cli
from ftsup.policy.rules import Rules
from ftsup.report.rulebook import judge_table, limit_table, markdown
from tests.cli.terminal import Terminal, terminal

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent
CHECKPOINTS = """
import pathlib, torch
for step in (1, 2, 3):
    torch.save({"step": step, "weights": torch.ones(9)}, pathlib.Path("ckpt") / f"step-{step}.pt")
"""


def block(heading: str, *, number: int = 0) -> list[str]:
    """The commands of an indented block below a heading, without their comments."""
    text = re.split(rf"^##+ {re.escape(heading)}$", README, maxsplit=1, flags=re.MULTILINE)[1]
    text = re.split(r"^##+ ", text, maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(r"(?:^ {4}\S.*\n)+", text, flags=re.MULTILINE)
    return [line.partition("  #")[0].strip() for line in found[number].splitlines()]


def passing() -> list[str]:
    """Commands named in the text."""
    return sorted({span for span in re.findall(r"`([^`\n]+)`", README) if re.match(r"ftsup( |$)", span)})


class Shell:
    """Commands as a person types them, in a folder, with a home of his own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "home").mkdir()
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "FTSUP", "PYTHON"))}
        self.env = {
            **keep,
            "HOME": str(folder / "home"),
            "XDG_CACHE_HOME": str(folder / "home/cache"),
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }

    def run(self, command: str, *, code: int = 0, cwd: Path | None = None, limit_s: float = 120) -> str:
        """What it prints, on both."""
        done = subprocess.run(
            ["bash", "-c", command], cwd=cwd or self.folder, env=self.env, timeout=limit_s, check=False, capture_output=True, text=True
        )
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def until(self, command: str, *, within_s: float = 90) -> str:
        """Again and again, as a person does, until it says yes."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.env, check=False, capture_output=True, text=True)
            if done.returncode == 0:
                return done.stdout + done.stderr
            time.sleep(0.2)
        raise AssertionError(done.stdout + done.stderr)


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    yield shell
    if (shell.folder / "home/cache/ftsup").exists():
        shell.run("ftsup mock stop")


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_the_five_minutes_on_this_machine(shell):
    """The block in its order; the copied configuration is shortened to 60 steps, and two commands are minded: `top` and `pause`."""
    commands = block("Five minutes on this machine")
    assert commands[:2] == ["make demo", ". .venv/bin/activate"]  # a test of its own, and the environment of this one
    copy = commands[2].replace("/some/folder", shlex.quote(str(shell.folder)))
    shell.run(copy, cwd=ROOT)
    configuration = shell.folder / "demo.yaml"
    configuration.write_text(re.sub(r"--steps \d+", "--steps 60", configuration.read_text()))
    special: dict[str, Callable[[], None]] = {
        "ftsup top": lambda: watch_top(shell),
        "ftsup submit --continue demo": lambda: str(shell.until("ftsup submit --continue demo")) and None,
    }
    done = []
    for command in commands[3:]:
        if command == "ftsup pause":
            shell.until('ftsup status --json | grep \'"stage": *"training"\'')
        if command in special:
            special[command]()
        else:
            done.append((command, shell.run(command, limit_s=240)))
    said = dict(done)
    assert "finished" in said["ftsup explain"]
    assert re.search(r"step +60 of 60 ", said["ftsup logs -f"])


def watch_top(shell: Shell) -> None:
    """Until it shows the run; q leaves."""
    with terminal([str(BIN / "ftsup"), "top"], cwd=shell.folder, env={**shell.env, "TERM": "xterm-256color", "LANG": "C.UTF-8"}) as seen:
        assert isinstance(seen, Terminal)
        seen.shows("demo/", "q quits")
        seen.type("q")
        seen.until(lambda: seen.child.poll() is not None)
        assert seen.child.returncode == 0


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_on_a_cluster(shell):
    """The block, with a script that needs no torch, and the mock for a cluster."""
    (shell.folder / "train.py").write_text("print('step 1', flush=True)\n")
    first, doctor, rehearsal, submit = block("On a cluster")
    shell.run(f"{first} --nodes 1 --launch command --yes")
    assert "ok" in shell.run(f"{doctor} --cluster mock")
    shell.run(f"{rehearsal} --cluster mock", limit_s=200)
    shell.run(f"{submit} --cluster mock")
    assert "finished" in shell.until("ftsup status | grep finished")


@pytest.mark.torch
def test_checkpoints_of_any_directory(shell):
    (shell.folder / "ckpt").mkdir()
    (shell.folder / "make.py").write_text(CHECKPOINTS)
    (shell.folder / "train.py").write_text("import sys; assert sys.argv[2].endswith('step-3.pt'), sys.argv\n")
    shell.run("python make.py")
    for command in block("Checkpoints"):
        shell.run(command)


@pytest.mark.parametrize("command", passing())
def test_what_is_named_in_passing_parses(command):
    words = shlex.split(command.replace("FILE", "config.yaml"))[1:]
    ctx: click.Context = click.Context(cli.ftsup, info_name="ftsup")
    if words:
        name, found, args = cli.ftsup.resolve_command(ctx, words)
        while isinstance(found, click.Group) and args and args != ["--help"]:
            ctx = click.Context(found, info_name=name, parent=ctx)
            name, found, args = found.resolve_command(ctx, args)
        assert found is not None
        if "--help" not in args:
            found.make_context(name, args, parent=ctx)


def test_there_is_a_block_of_commands_where_the_tests_look():
    everything = re.findall(r"^ {4}(?:ftsup|make|python|cp|\.) .*$", README, flags=re.MULTILINE)
    looked = [*block("See it"), *block("Five minutes on this machine"), *block("On a cluster"), *block("Checkpoints"), *block("Work on it")]
    assert len(everything) == len(looked)
    assert {command for command in looked if command.startswith("make")} == {"make demo", "make test"}


@pytest.mark.parametrize("table", [judge_table(Rules()), limit_table(Rules())], ids=["judge", "limits"])
def test_tables_are_those_of_the_code(table):
    assert markdown(table) in README, "copy the table from `ftsup rules --markdown`"


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(((?!http)[^)#]+)\)", README))))
def test_what_is_linked_is_there(path):
    assert (ROOT / path).exists()
