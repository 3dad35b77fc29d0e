"""Every file of configs/ is checked, and every example run to its end on the mock, with its own script and a rank killed on the way.

Real torch, transformers, Lightning and Accelerate, on CPUs with gloo. Of the container only the runtime is a stand-in: a script with
apptainer's command line that starts what it is given, as apptainer does, without another process in between.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path

import psutil
import pytest

from ftsup import events as ev
from ftsup.config import load
from tests.e2e.harness import Run, mock_site

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(path.name for path in CONFIGS.glob("*.yaml"))
pytestmark = [pytest.mark.timeout(300)]

CPU = ["slurm.gpus_per_node=null", "env.OMP_NUM_THREADS='1'", "grace=3s", "evidence=5s", "slurm.time=2h"]
"""What a laptop has; all else is the file's own."""
APPTAINER = """#!/bin/bash
[ "$1" = exec ] || { echo "the stand-in knows exec only" >&2; exit 1; }
shift
while :; do case $1 in --nv) shift ;; --bind) shift 2 ;; *) break ;; esac; done
[ -e "$1" ] || { echo "FATAL: could not open image $1" >&2; exit 255; }
image=$1; shift
export APPTAINER_CONTAINER=$image
exec "$@"
"""
OWN = "{its own}"
QUICK = "--steps 300 --every 50 --batch 1024"
EXAMPLES = {
    # name of the file -> nodes, ranks of each, the command with fewer steps, how a saved checkpoint is known
    "ddp": (1, 2, f"{OWN} {QUICK}", "checkpoints/step-*.pt"),
    "fsdp2": (2, 2, f"{OWN} --steps 150 --every 50", "checkpoints/step-*/.metadata"),
    "huggingface": (1, 1, f"{OWN} --max_steps 150 --save_steps 50 --disable_tqdm true", "out/checkpoint-*/trainer_state.json"),
    "lightning": (2, 2, f"{OWN} {QUICK}", "checkpoints/step=*.ckpt"),
    "command": (1, 2, f"{OWN} {QUICK}", "checkpoints/step-*.pt"),
    "accelerate": (2, 2, f"{OWN} {QUICK}", "checkpoints/step-*/complete"),
    "container": (2, 1, f"{OWN} {QUICK}", "checkpoints/step-*.pt"),
}
IN_CI = ("ddp",)


@pytest.mark.parametrize("name", FILES)
def test_it_has_no_mistakes_and_its_script_is_beside_it(name: str) -> None:
    config = load(CONFIGS / name).config
    scripts = [word for word in config.command if word.endswith(".py")]
    assert scripts
    if name not in {"full.yaml", "small.yaml"}:  # those two are about keys
        assert all((CONFIGS / script).is_file() for script in scripts)


def test_every_example_is_run() -> None:
    assert {f"{name}.yaml" for name in EXAMPLES} == set(FILES) - {"demo.yaml", "full.yaml", "small.yaml"}


@pytest.mark.e2e
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in IN_CI else [pytest.mark.drill]) for name in EXAMPLES])
def test_it_trains_loses_a_rank_resumes_and_ends(name: str, tmp_path: Path) -> None:
    nodes, workers, command, saved = EXAMPLES[name]
    own = load(CONFIGS / f"{name}.yaml").config
    work = tmp_path / "work"
    shutil.copytree(CONFIGS, work, ignore=shutil.ignore_patterns("__pycache__", "ftsup-runs"))
    (work / "train.sif").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "apptainer").write_text(APPTAINER)
    (programs / "apptainer").chmod(0o755)
    command = command.replace(OWN, " ".join(own.command))
    sets = [*CPU, f"slurm.nodes={nodes}", f"workers_per_node={workers}", f"command={command}", f"local_dir={tmp_path / 'local'}"]
    with mock_site(tmp_path, nodes=nodes) as site:
        site.environ["PATH"] = os.pathsep.join([str(programs), str(Path(sys.executable).parent), site.environ["PATH"]])
        run = site.submit_file(work, f"{name}.yaml", *(f"--set={each}" for each in sets))
        script = next(word for word in own.command if word.endswith(".py"))
        victim = run.until(lambda: a_rank(run, script, number=nodes * workers - 1))
        run.until(lambda: list(work.glob(saved)))  # training may be over some seconds later
        assert (victim.environ().get("APPTAINER_CONTAINER") == "train.sif") == (name == "container")
        victim.kill()
        run.until_over(within_s=200)
        assert_resumed(run, name)


def a_rank(run: Run, script: str, *, number: int) -> psutil.Process | None:
    """Found by its script: a command of the user's own has no beats."""
    parents: dict[int, int] = {}
    for process in run.own():
        with contextlib.suppress(psutil.NoSuchProcess):  # what a rank forks looks as the rank does, and may end at any time
            if script in process.cmdline() and process.environ().get("RANK") == str(number):
                parents[process.pid] = process.ppid()
    found = [pid for pid, parent in parents.items() if parent not in parents]
    return psutil.Process(*found) if found else None


def assert_resumed(run: Run, name: str) -> None:
    assert len(run.launches()) == 2, run.story()
    assert len(run.incidents()) == 1, run.story()
    first, second = (event.step for event in run.events(ev.CheckpointPicked))
    assert first is None
    assert second >= 50
    assert run.decision()["verdict"] == "finished"
    logs = run.logs()
    if name != "huggingface":  # Trainer does not say it
        assert f"from step {second}" in logs
    assert "done at step" in logs
