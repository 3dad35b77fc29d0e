"""TAB, as a shell asks for it: click's protocol in a child process, and once a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ftsup import cli
from ftsup.cli.completion import SHELLS

ROOT = Path(__file__).parents[2]
HEAVY = {"rich", "torch", "zmq", "jinja2", "psutil", "yaml"}


@pytest.fixture
def home(tmp_path) -> Path:
    """A folder with two runs, configurations and checkpoints."""
    for name, stamp in (("demo", "20260101-000000-0001"), ("demo", "20260102-000000-0002"), ("big", "20260103-000000-0003")):
        run = tmp_path / "ftsup-runs" / name / stamp
        (run / "logs" / "1.1").mkdir(parents=True)
        (run / "logs" / "2.1").mkdir()
        (run / "config.json").touch()
        for node in ("gpu1", "gpu2", "cpu3"):
            (run / "logs" / "1.1" / f"{node}.log").touch()
        (run / "logs" / "2.1" / "gpu2.log").touch()
    for name in ("a.yaml", "b.yml", "train.py", "more/c.yaml", "ckpt/step-1.pt", "ckpt/step-2.pt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def child(*args: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run([sys.executable, *args], cwd=home, env=environ, capture_output=True, text=True, timeout=50, check=False)


def tab(line: str, home: Path) -> list[tuple[str, str]]:
    """Kind and value of what is proposed where this line ends."""
    words = line.split(" ")
    env = {"_FTSUP_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = child("-m", "ftsup", home=home, **env)
    assert (done.returncode, done.stderr) == (0, "")
    return [(kind, value) for kind, _, value in (found.partition(",") for found in done.stdout.splitlines() if found)]


@pytest.mark.parametrize(
    "line, values",
    [
        ("ftsup sta", ["status"]),
        ("ftsup re", ["render", "replay", "restart", "requeue"]),
        ("ftsup checkpoints p", ["pick", "pin", "prune"]),
        ("ftsup mock fault node-", ["node-down", "node-up"]),
        ("ftsup submit --dry", ["--dry-run"]),
        ("ftsup submit --cluster ", ["slurm", "mock", "auto"]),
        ("ftsup completion ", ["bash", "zsh", "fish"]),
        ("ftsup status ", ["big", "demo"]),
        ("ftsup status d", ["demo"]),
        ("ftsup status demo/", ["demo/20260102-000000-0002", "demo/20260101-000000-0001"]),
        ("ftsup status --runs-dir nowhere ", []),
        ("ftsup stop x", []),
        ("ftsup submit --continue b", ["big"]),
        ("ftsup submit ", ["a.yaml", "b.yml"]),
        ("ftsup config check more/", ["more/c.yaml"]),
        ("ftsup logs demo --epoch ", ["2.1", "1.1"]),
        ("ftsup logs --node g", ["gpu1", "gpu2"]),
        ("ftsup requeue demo --avoid c", ["cpu3"]),
        ("ftsup checkpoints verify ckpt ", ["step-2.pt", "step-1.pt"]),
        ("ftsup checkpoints verify ckpt step-2.pt ", ["step-1.pt"]),
        ("ftsup no", []),
    ],
)
def test_tab_proposes(home, line, values):
    assert sorted(tab(line, home)) == sorted(("plain", value) for value in values)


@pytest.mark.parametrize(
    "line, kind", [("ftsup submit mor", "file"), ("ftsup checkpoints list ", "dir"), ("ftsup checkpoints list --config ", "file")]
)
def test_where_the_shell_knows_more_it_is_left_to_it(home, line, kind):
    assert [found for found, _ in tab(line, home)] == [kind]


def test_every_command_is_proposed_but_those_that_nobody_types(home):
    assert [value for _, value in tab("ftsup ", home)] == [name for name in cli.COMMANDS if name not in cli.INTERNAL]


@pytest.mark.parametrize("line", ["ftsup ", "ftsup s", "ftsup status ", "ftsup logs --epoch ", "ftsup init --"])
def test_tab_imports_nothing_heavy(home, line):
    """An interpreter with click takes most of the time that there is."""
    code = "import sys\nfrom ftsup.cli import main\ntry: main([])\nexcept SystemExit: pass\nprint(*sys.modules, file=sys.stderr)"
    env = {"_FTSUP_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    imported = set(child("-c", code, home=home, **env).stderr.split())
    assert not imported & (HEAVY - {"yaml"} if "init" in line else HEAVY)
    if line in {"ftsup ", "ftsup s"}:
        assert not {name for name in imported if name.startswith("ftsup.cli.")} - {"ftsup.cli.group"}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_names_us_and_is_good(home, shell):
    done = child("-m", "ftsup", "completion", shell, home=home)
    assert "_FTSUP_COMPLETE" in done.stdout
    program = shutil.which(shell)
    if program:
        subprocess.run([program, "--no-execute" if shell == "fish" else "-n"], input=done.stdout, text=True, timeout=20, check=True)


def test_a_real_bash_completes(home):
    """As a login shell would: the script is evaluated, and its function called for a line that is being typed."""
    (home / "bin").mkdir()
    (home / "bin" / "ftsup").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ftsup "$@"\n')
    (home / "bin" / "ftsup").chmod(0o755)
    script = """
    eval "$(ftsup completion bash)" || exit 1
    complete -p ftsup
    COMP_WORDS=(ftsup status d) COMP_CWORD=2 COMPREPLY=()
    $(complete -p ftsup | sed 's/.*-F \\([^ ]*\\).*/\\1/') ftsup d status
    printf 'proposed: %s\\n' "${COMPREPLY[@]}"
    """
    env = {**os.environ, "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", script], cwd=home, env=env, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "proposed: demo"
