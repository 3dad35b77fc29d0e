"""A rank without a supervisor: runs a script under plain Python and under the shim, in a directory of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

import ftsup.worker
from ftsup.worker import beatfile

PYTHON = os.environ.get("FTSUP_TEST_PYTHON", sys.executable)
"""The training environment's interpreter: it may be another one than ours."""


@dataclass(frozen=True)
class Bench:
    """Where scripts of one test live; `lib` is what the run directory would put on PYTHONPATH."""

    home: Path
    lib: Path

    @property
    def beats(self) -> Path:
        return self.home / "beats"

    def write(self, name: str, text: str) -> Path:
        path = self.home / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def start(self, *argv: str, env: Mapping[str, str] | None = None, python: str = PYTHON, **more: object) -> subprocess.Popen:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("FTSUP_", "COV", "PYTHON"))}
        clean |= {"PYTHONPATH": str(self.lib), "PYTHONUNBUFFERED": "1", **(env or {})}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        return subprocess.Popen([python, *argv], cwd=self.home / "work", env=clean, text=True, **streams)

    def plain(self, *argv: str, limit_s: float = 50, **more: object) -> subprocess.CompletedProcess:
        return finished(self.start(*argv, **more), limit_s=limit_s)

    def start_shim(self, *argv: str, rank: int = 0, env: Mapping[str, str] | None = None, **more: object) -> subprocess.Popen:
        self.beats.mkdir(exist_ok=True)
        beatfile.create(self.beats / f"beat.{rank}")
        ours = {"FTSUP_BEATS": str(self.beats), "RANK": str(rank), "FTSUP_BASE_STEP": "0"}
        ours |= {"FTSUP_WARNING": str(signal.SIGUSR2.value), **(env or {})}
        return self.start(str(self.lib / "ftsup_worker/__main__.py"), *argv, env=ours, **more)

    def shim(self, *argv: str, limit_s: float = 50, **more: object) -> subprocess.CompletedProcess:
        return finished(self.start_shim(*argv, **more), limit_s=limit_s)

    def beat(self, rank: int = 0) -> beatfile.Beat:
        beat = beatfile.read(self.beats / f"beat.{rank}")
        assert beat is not None
        return beat

    def record(self, rank: int = 0) -> dict | None:
        path = self.beats / f"exit.{rank}.json"
        return msgspec.json.decode(path.read_bytes()) if path.exists() else None


def finished(process: subprocess.Popen, *, limit_s: float = 50) -> subprocess.CompletedProcess:
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def new(home: Path) -> Bench:
    shutil.copytree(Path(ftsup.worker.__file__).parent, home / "lib/ftsup_worker", ignore=shutil.ignore_patterns("__pycache__"))
    (home / "work").mkdir()
    return Bench(home, home / "lib")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return new(tmp_path)
