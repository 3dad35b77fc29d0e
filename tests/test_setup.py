"""What `make` says on a machine that lacks something: one clear message, and nothing half made."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOOLS = ("sh", "dirname", "cat", "cksum", "make")

OLD = "import sys; sys.version_info = (3, 9, 18, 'final', 0)"
NO_ENSUREPIP = "import sys; sys.version_info = (3, 11, 2, 'final', 0); sys.modules['ensurepip'] = None"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A checkout, and a PATH that has the tools and no Python."""
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    for file in (".ci/venv", "Makefile", "pyproject.toml", "constraints-dev.txt"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def python(machine: Path, name: str, start: str) -> None:
    """A real interpreter under this name, that runs `start` first."""
    home = machine / f"site-{name}"
    home.mkdir()
    (home / "sitecustomize.py").write_text(start)
    program = machine / "bin" / name
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{home}" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)


def make(machine: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": str(machine / "bin")}
    done = subprocess.run([shutil.which("make") or "make", *words], cwd=machine, env=env, capture_output=True, text=True, check=False)
    assert not (machine / ".venv").exists()
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done


def test_no_python_at_all(machine: Path):
    said = make(machine, "test").stderr
    assert "Python 3.10 or newer with venv is needed; no python3 is on PATH." in said
    assert "hint: install it" in said


def test_only_an_old_python(machine: Path):
    python(machine, "python3", OLD)
    said = make(machine, "demo").stderr
    assert "python3 is Python 3.9." in said
    assert "hint: install it" in said


def test_python_without_ensurepip(machine: Path):
    python(machine, "python3", NO_ENSUREPIP)
    said = make(machine, "check").stderr
    assert "python3 is Python 3.11 without the modules venv and ensurepip" in said
    assert "apt-get install python3-venv" in said


def test_every_python_that_will_not_do_is_named(machine: Path):
    python(machine, "python3.11", NO_ENSUREPIP)
    python(machine, "python3", OLD)
    assert "python3.11 is Python 3.11 without the modules venv and ensurepip; python3 is Python 3.9." in make(machine, "test").stderr


def test_a_named_python_that_is_not_there(machine: Path):
    said = make(machine, "test", "PYTHON=/opt/nothing/python3").stderr
    assert "/opt/nothing/python3 not found" in said
