"""The demo's training script by plain torchrun: killed and resumed it ends with the very bits of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "configs" / "demo_train.py"

pytestmark = [
    pytest.mark.drill,
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.e2e,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("demo"),
]


def torchrun(folder: Path, *words: object, ranks: int = 4, env: dict[str, str] | None = None) -> subprocess.Popen:
    """The script on so many ranks, in a session of its own."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", ranks]
    argv = [sys.executable, *launch, SCRIPT, "--dir", folder, "--steps", 14, "--every", 4, "--batch", 2, *words]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    return subprocess.Popen([str(word) for word in argv], env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(process: subprocess.Popen) -> str:
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0, out
    return out


def weights(folder: Path) -> str:
    return json.loads((folder / "final.json").read_text())["weights_sha256"]


def wait_for(path: Path, *, limit_s: float = 120.0) -> None:
    end_s = time.monotonic() + limit_s
    while not path.exists():
        assert time.monotonic() < end_s, f"{path.name} did not come"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    finished(torchrun(folder))
    return folder


def test_killed_and_resumed_is_equal_bit_for_bit(undisturbed, tmp_path):
    marker = tmp_path / "asleep"
    running = torchrun(tmp_path, env={"DEMO_STRIKE": f"2:11:{marker}"})
    wait_for(marker)
    for rank in ranks_of(running):
        os.kill(rank, signal.SIGKILL)
    running.communicate(timeout=100)
    assert running.returncode != 0
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["step-000004.pt", "step-000008.pt"]
    said = finished(torchrun(tmp_path, "--resume", tmp_path / "step-000008.pt", env={"DEMO_STRIKE": f"2:11:{marker}"}))
    assert "step    9 of 14" in said
    assert "step    8 of 14" not in said
    assert weights(tmp_path) == weights(undisturbed)
    assert (tmp_path / "final.pt").read_bytes() == (undisturbed / "final.pt").read_bytes()


def test_other_ranks_are_refused(undisturbed, tmp_path):
    process = torchrun(tmp_path, "--resume", undisturbed / "step-000008.pt", ranks=2)
    out, _ = process.communicate(timeout=200)
    assert process.returncode != 0
    assert "saved by 4 ranks, and these are 2" in out


def ranks_of(process: subprocess.Popen) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 4
    return [int(child) for child in children]
