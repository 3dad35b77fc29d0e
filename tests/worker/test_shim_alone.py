"""The worker's folder without the rest of ftsup: in a bare environment, outside a run, under either name, and with few imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.conftest import PYTHON, Bench

ALL = """
assert us.asked() is False
assert us.beat(step=3, phase="step") is us.beat() is us.saved(3) is None
with us.phase("evaluation"):
    us.beat()
"""


@pytest.mark.parametrize("first", ["ftsup.worker", "ftsup_worker"])
def test_both_names_are_one_module_whichever_comes_first(bench: Bench, first: str):
    bench.write("ftsup/__init__.py", "")
    (bench.home / "work/ftsup/worker").symlink_to(bench.lib / "ftsup_worker")
    bench.write(
        "train.py",
        f"import {first}\nimport ftsup.worker.beatfile, ftsup_worker.beatfile, ftsup, ftsup_worker.record\nfrom ftsup.worker import rank\n"
        "assert ftsup.worker is ftsup_worker and ftsup.worker.beatfile is ftsup_worker.beatfile\n"
        "assert rank is ftsup_worker.rank\n"
        "assert ftsup.worker.beat.__self__ is rank.THIS\n"
        "ftsup.worker.beat(step=7); ftsup_worker.beat(step=8, phase='step')\n",
    )
    plain, shim = bench.plain("train.py"), bench.shim("train.py")
    assert (plain.stderr, shim.stderr) == ("", "")
    assert bench.beat().step == 8


@pytest.mark.parametrize("start", [("train.py",), ("-m", "ftsup_worker", "train.py"), ("{lib}/ftsup_worker/__main__.py", "train.py")])
def test_outside_a_run_nothing_is_said_left_or_changed(bench: Bench, start: tuple[str, ...]):
    bench.write(
        "train.py",
        f"import ftsup_worker as us, sys, os, signal, faulthandler\n{ALL}"
        """
assert not faulthandler.is_enabled()
assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
assert not [one for one in sys.meta_path if type(one).__module__.startswith("ftsup")]
print(sorted(os.listdir()), [name for name in os.environ if name.startswith(("FTSUP", "NCCL"))])
""",
    )
    run = bench.plain(*(word.format(lib=bench.lib) for word in start))
    assert (run.returncode, run.stdout, run.stderr) == (0, "['train.py'] []\n", "")


def test_the_start_imports_little(bench: Bench):
    """10 ms are the limit of the shim's start; what would break it is one careless import (pathlib, typing: 10 ms each)."""
    bench.write("train.py", "import sys; print(*sys.modules)")
    added = set(bench.shim("train.py", env={"FTSUP_SUPERVISOR": "2", "FTSUP_WARNING": "10"}).stdout.split())
    added -= set(bench.plain("train.py").stdout.split())
    ours = {name for name in added if name.startswith("ftsup_worker")}
    assert "ftsup_worker.shim" in ours
    assert len(ours) < 12
    python = {"__future__", "_struct", "_weakrefset", "atexit", "faulthandler", "itertools", "mmap", "struct", "types", "weakref"}
    python |= {"_ctypes", "ctypes", "ctypes._endian"}
    assert added - ours <= python


@pytest.mark.torch
@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_a_training_environment_without_ftsup_and_without_pip(bench: Bench, tmp_path: Path):
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    python = tmp_path / "env/bin/python"
    site = next((tmp_path / "env/lib").glob("python*/site-packages"))
    for place in (place for place in sys.path if place.endswith("-packages") and Path(place).is_dir()):
        for entry in Path(place).iterdir():
            foreign = not entry.name.startswith(("ftsup", "_editable", "pip", "__pycache__")) and entry.suffix != ".pth"
            if foreign and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    bench.write(
        "train.py",
        """
import importlib.util, sys
assert [importlib.util.find_spec(name) for name in ("ftsup", "pip")] == [None, None]
import torch, ftsup_worker
optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1)
optimizer.step(); optimizer.step()
ftsup_worker.saved(2)
print(sys.prefix)
""",
    )
    shim = bench.shim("train.py", python=str(python), limit_s=150)
    assert (shim.returncode, shim.stdout, shim.stderr) == (0, f"{tmp_path / 'env'}\n", "")
    assert (bench.beat().beats, bench.beat().saved_step) == (2, 2)


COMPILED = """
import torch
def loss(x): return (torch.sin(x) * 2 + torch.cos(x)).relu().sum()
class Net(torch.nn.Module):
    def forward(self, x): return loss(x) + 1
x = torch.linspace(0, 3, 64)
made = torch.compile(Net(), fullgraph=True)(x)
print(torch.allclose(made, Net()(x)), torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.drill
@pytest.mark.timeout(300)
def test_a_compiled_model(bench: Bench):
    if not any(subprocess.run(["which", name], capture_output=True, check=False).returncode == 0 for name in ("g++", "clang++")):
        pytest.skip("no C++ compiler: torch.compile cannot make code for the CPU")
    bench.write("train.py", COMPILED)
    plain, shim = (
        start("train.py", env={"TORCHINDUCTOR_CACHE_DIR": str(bench.home / name)}, limit_s=140)
        for name, start in (("a", bench.plain), ("b", bench.shim))
    )
    assert (shim.returncode, shim.stdout, shim.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert shim.stdout == "True 1\n"
    assert list((bench.home / "b").rglob("*.so"))
