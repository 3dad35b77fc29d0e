"""The demo itself, as `make demo` runs it; a script that forgets something; and what is left of it when somebody ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftsup.cli import COMMANDS
from ftsup.cli.demo_faults import KINDS, Kind
from ftsup.monitors import procs

CONFIGS = Path(__file__).parents[2] / "configs"

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(540), pytest.mark.xdist_group("demo")]


def start(folder: Path, *words: object, seed: int = 3) -> subprocess.Popen:
    environ = {**os.environ, "DEMO_SEED": str(seed), "PYTHONUNBUFFERED": "1"}
    argv = [sys.executable, "-m", "ftsup", "demo", "--dir", folder / "demo", *words]
    return subprocess.Popen(
        [str(word) for word in argv], env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def holding(folder: Path) -> list[str]:
    """Commands of living processes that mention the folder in their environment or command."""
    needle, found = str(folder).encode(), []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes()
            if int(place.name) != os.getpid() and (needle in (place / "environ").read_bytes() or needle in command):
                found.append(command.decode(errors="replace"))
        except OSError:
            continue
    return found


def nobody_left(folder: Path, *, within_s: float = 10.0) -> bool:
    """What was killed may need a moment to be gone, on a crowded machine."""
    end_s = time.monotonic() + within_s
    while (left := holding(folder)) and time.monotonic() < end_s:
        time.sleep(0.1)
    assert left == []
    return True


def in_memory(folder: Path) -> list[str]:
    """What the run has left in /dev/shm."""
    runs = [path.name for path in (folder / "demo" / "runs" / "demo").glob("*")]
    return [str(path) for path in Path(f"/dev/shm/ftsup-{os.getuid()}").glob("*") if any(run in path.name for run in runs)]  # noqa: S108 - where beats are


def test_all_of_it_holds(tmp_path):
    out, err = (process := start(tmp_path)).communicate(timeout=500)
    assert process.returncode == 0, out + err
    assert out.splitlines()[-1].startswith("final weights: equal bit for bit")
    said = [line[6:] for line in out.splitlines()]
    assert all(any(line.startswith(f"struck: {kind.value}") for line in said) for kind in KINDS), out
    (run,) = (tmp_path / "demo" / "runs" / "demo").iterdir()
    assert str(tmp_path / "demo") in err
    assert (f"ftsup explain {run}" in err) is ("explain" in COMMANDS)
    assert nobody_left(tmp_path)
    assert in_memory(tmp_path) == []


def changed(name: str, into: Path, *changes: tuple[str, str]) -> Path:
    """A file of configs/ with other words in it."""
    text = (CONFIGS / name).read_text()
    for whole, part in changes:
        assert text.count(whole) == 1
        text = text.replace(whole, part)
    (into / name).write_text(text)
    return into / name


@pytest.mark.drill
def test_a_script_that_forgets_its_optimizer_is_found_out(tmp_path):
    """Shorter, on two ranks, and killed once: what matters is the comparison at the end."""
    changed("demo_train.py", tmp_path, ('    optimizer.load_state_dict(saved["optimizer"])\n', ""))
    short = ("--steps 100 --every 10", "--steps 20 --every 4")
    config = changed("demo.yaml", tmp_path, short, ("workers_per_node: 2", "workers_per_node: 1"))
    out, err = (process := start(tmp_path, "--config", config, "--only", "kill")).communicate(timeout=300)
    assert process.returncode == 1, out + err
    assert "DIFFER" in out.splitlines()[-1], out + err
    assert "did not hold" not in out, out


@pytest.mark.drill
def test_a_script_that_does_not_save_when_it_is_asked_is_found_out(tmp_path):
    """What did not hold is enough for exit code 1: the weights are equal."""
    changed("demo_train.py", tmp_path, ("if asked() or step %", "if step %"))
    config = changed("demo.yaml", tmp_path, ("--steps 100", "--steps 60"), ("workers_per_node: 2", "workers_per_node: 1"))
    out, err = (process := start(tmp_path, "--config", config, "--only", "warning")).communicate(timeout=300)
    assert process.returncode == 1, out + err
    assert "did not hold: was not seen as what it was: Slurm's warning" in out, out
    assert "equal bit for bit" in out.splitlines()[-1]


@pytest.mark.drill
@pytest.mark.parametrize("kind", KINDS, ids=[kind.name.lower() for kind in KINDS])
def test_ended_as_a_fault_strikes_it_leaves_nothing(tmp_path, kind):
    process = start(tmp_path, "--only", kind.name.lower())
    end_s = time.monotonic() + 300
    struck = f"struck: {(Kind.KILL if kind is Kind.FLIP else kind).value}"
    while struck not in (line := process.stdout.readline()):
        assert line, process.communicate()
        assert time.monotonic() < end_s
    assert procs.marked("demo/")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    assert nobody_left(tmp_path)
    assert in_memory(tmp_path) == []
