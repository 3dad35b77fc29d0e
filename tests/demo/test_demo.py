"""The demo itself, as `make demo` runs it; and what is left of it when somebody ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftsup.monitors import procs

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(540), pytest.mark.xdist_group("demo")]


def start(folder: Path, *, seed: int = 3) -> subprocess.Popen:
    environ = {**os.environ, "DEMO_SEED": str(seed)}
    argv = [sys.executable, "-m", "ftsup", "demo", "--dir", str(folder / "demo")]
    return subprocess.Popen(argv, env=environ, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


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


def in_memory(folder: Path) -> list[str]:
    """What the run has left in /dev/shm."""
    runs = [path.name for path in (folder / "demo" / "runs" / "demo").glob("*")]
    return [str(path) for path in Path(f"/dev/shm/ftsup-{os.getuid()}").glob("*") if any(run in path.name for run in runs)]  # noqa: S108 - where beats are


def test_all_of_it_holds(tmp_path):
    out, err = (process := start(tmp_path)).communicate(timeout=500)
    assert process.returncode == 0, out + err
    assert out.splitlines()[-1].startswith("final weights: equal bit for bit")
    for fault in ("time.sleep(3600)", "kill -9", "scontrol requeue"):
        assert any(line.startswith("struck: " + fault) for line in (line[6:] for line in out.splitlines())), out
    assert holding(tmp_path) == []
    assert in_memory(tmp_path) == []


@pytest.mark.drill
def test_ended_in_the_middle_it_leaves_nothing(tmp_path):
    process = start(tmp_path)
    marker = tmp_path / "demo" / "asleep"
    end_s = time.monotonic() + 300
    while not marker.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end_s
        time.sleep(0.1)
    assert procs.marked("demo/")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    assert holding(tmp_path) == []
    assert in_memory(tmp_path) == []
