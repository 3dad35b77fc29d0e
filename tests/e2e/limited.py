"""Stories of limits that the mock and a real Slurm tell alike: an srun whose exit code lies, and what ranks get, seen from inside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from ftsup.events import Epoch
from tests.e2e.harness import Run, Site

PATIENT = {"step": "60s", "shutdown": "60s", "stopped": "60s"}
"""Nothing hangs in these stories; a loaded machine is slow."""
# Slurm sets RSS to the job's memory; the kernel does not look at it.
RAISED = ("NOFILE", "NPROC", "MEMLOCK", "AS", "DATA", "RSS", "FSIZE", "CPU", "SIGPENDING", "MSGQUEUE")
UMASK = 0o027
LOGIN = {resource.RLIMIT_NOFILE: 300, resource.RLIMIT_STACK: 3 << 20, resource.RLIMIT_CORE: 4096}
"""Soft limits of the shell that submits."""
ELSEWHERE = {
    "SBATCH_PARTITION": "nowhere", "SBATCH_TIMELIMIT": "1", "SBATCH_EXCLUSIVE": "user", "SBATCH_NO_REQUEUE": "1",
    "SLURM_JOB_ID": "1", "SLURM_NTASKS": "64", "SLURM_NNODES": "9", "SLURM_PROCID": "3", "SLURM_CPU_BIND": "map_cpu:0", "SLURM_EXACT": "1",
    "SLURM_MEM_PER_CPU": "1", "SRUN_CPUS_PER_TASK": "1", "PMI_RANK": "3", "PMIX_RANK": "3", "OMPI_COMM_WORLD_RANK": "3", "PALS_RANKID": "3",
    "MPI_LOCALRANKID": "3", "TORCHELASTIC_RESTART_COUNT": "9", "PET_NNODES": "9", "MASTER_PORT": "1", "RANK": "77",
    "BASH_FUNC_ml%%": "() { :\n}",
}  # fmt: skip
"""What is left in a shell inside another job, of another launcher."""
OF_A_STEP = re.compile(
    r"(PMI|PMI2|PMIX|PALS|OMPI|SRUN|SBATCH|SALLOC|PET)_|MPI_LOCAL|BASH_FUNC_"
    r"|SLURM_(STEP|PROCID|LOCALID|NODEID|NTASKS|NPROCS|TASK|CPU_BIND|MEM_|EXACT|OOM|LAUNCH|SRUN|GTIDS|DISTRIBUTION)"
)


# srun ---------------------------------------------------------------------------------------------------------------------


def wrapped(site: Site, name: str, *, code: str) -> tuple[str, Path]:
    """`setup` with an srun before the real one in PATH, which ends with `code` whatever that did; where it writes what that did."""
    folder = site.folder / f"bin-{name}"
    folder.mkdir()
    real, said = shutil.which("srun", path=site.environ["PATH"]), site.folder / f"srun-{name}"
    (folder / "srun").write_text(f'#!/bin/sh\n{real} "$@"\nreal=$?\necho $real >>{said}\nexit {code}\n')
    (folder / "srun").chmod(0o755)
    site.give(folder)
    return f"PATH={folder}:$PATH", said


def check_srun_that_lies(site: Site) -> None:
    """Whatever it exits with, the job ends as training did."""
    runs = []
    for code in ("1", "75", "137"):
        setup, said = wrapped(site, code, code=code)
        runs.append((site.submit(code, setup=setup, workers_per_node=1, hang=PATIENT), said))
    for run, _ in runs:
        run.until_trains()
        run.finish()
    for run, said in runs:
        assert run.until_over().exit_code == 0
        assert said.read_text() == "0\n"
        assert (run.decision()["verdict"], run.launches(), run.incidents()) == ("finished", [Epoch(1, 1)], [])


# What ranks get -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def login_shell(site: Site) -> Iterator[None]:
    """The one in which `ftsup submit` is typed: limits and an umask of its own, inside another job of Slurm's, by another launcher."""
    before, environ, umask = {kind: resource.getrlimit(kind) for kind in LOGIN}, dict(site.environ), os.umask(UMASK)
    for kind, soft in LOGIN.items():
        resource.setrlimit(kind, (soft, before[kind][1]))
    site.environ.update(ELSEWHERE)
    try:
        yield
    finally:
        site.environ.clear()
        site.environ.update(environ)
        os.umask(umask)
        for kind, limits in before.items():
            resource.setrlimit(kind, limits)


def check_inside(run: Run, *, limits: Mapping[int, tuple[int, int]], cpus: list[int]) -> None:
    """What each rank saw of itself. `limits`: of who starts jobs on the node."""
    for rank in range(2):
        seen = json.loads((run.work / "control" / f"inside.{rank}").read_text())
        assert seen["umask"] == UMASK
        assert seen["cpus"] == cpus
        assert seen["oom"] == 600
        found = {name.removeprefix("RLIMIT_"): tuple(pair) for name, pair in seen["limits"].items()}
        hard = {name: limits[getattr(resource, f"RLIMIT_{name}")][1] for name in RAISED}
        other = {name: (found[name], most) for name, most in hard.items() if found[name] != (most, most) and name != "RSS"}
        assert not other, other
        assert found["CORE"][0] == 0, found["CORE"]
        assert found["STACK"][0] == limits[resource.RLIMIT_STACK][0] != LOGIN[resource.RLIMIT_STACK]
        environ = json.loads((run.work / "control" / f"environ.{rank}").read_text())
        assert [name for name in environ if OF_A_STEP.match(name)] == []
        assert (environ["SLURM_JOB_ID"], environ["SLURM_JOB_NUM_NODES"], environ["RANK"], environ["WORLD_SIZE"]) == (
            run.job,
            "1",
            str(rank),
            "2",
        )
        assert (environ["TORCHELASTIC_RESTART_COUNT"], environ["MASTER_PORT"] == "1") == ("0", False)
        assert {"USER", "HOME", "LOGNAME", "SLURM_JOB_NODELIST", "SLURM_CPUS_PER_TASK", "PYTHONUNBUFFERED"} <= environ.keys()
