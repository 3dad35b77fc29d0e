"""Two `ftsup watch` that share no lock, side by side on the mock, again and again: nothing is released, requeued or submitted twice.

Each sees the runs below a folder of its own (links to the same ones), and its lock lies there: as on two login nodes with a disk on which
each sees only its own locks, and where that disk has another path on the other.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ftsup.config import Config, to_json
from ftsup.policy.spool import Spool
from ftsup.ports import JobState
from ftsup.rundir import RunDir
from tests.e2e.harness import Site, mock_site, until

pytestmark = [pytest.mark.e2e, pytest.mark.drill, pytest.mark.timeout(600)]

ROUNDS = 6
LOOK = """
import sys, time
from dataclasses import replace
from itertools import count
from pathlib import Path
from ftsup.cli.minder import Minder
from ftsup.cli.ports import real
from ftsup.cli.watchlock import Memory

meet, mine, numbers = Path(sys.argv[2]), sys.argv[3], count()
ports = real()

def now():
    number = next(numbers)
    (meet / f"{number}.{mine}").touch()
    until = time.monotonic() + 2.0
    while len(list(meet.glob(f"{number}.*"))) < 2 and time.monotonic() < until:
        time.sleep(0.005)
    return ports.now()

memory = Memory()
for _ in range(2):
    Minder(ports=replace(ports, now=now), runs_dir=Path(sys.argv[1]), memory=memory, start_now=False, acts=True).look()
    memory.looked_s -= 61
"""
"""Two looks, a minute apart, that heed no lock. Whenever it looks at its clock it waits for the other one to do so too: that is after it
has read a run for the last time, and before it writes down what it is about to do.
"""


def left(site: Site, number: int, name: str, first: str) -> RunDir:
    """A run whose leader decided to requeue its job, and is gone. `first`: what its job does, other than those that follow."""
    run = RunDir(site.folder / "runs" / name / f"20260102-03{number:04}-00aa")
    run.root.mkdir(parents=True)
    run.config_json.write_bytes(to_json(Config(name=name, command=("x",))))
    run.script.write_text(f'#!/bin/bash\n[ -n "$1" ] || {first}\nsleep 600\n')
    job = site.run("sbatch", "--parsable", f"--chdir={run.root}", str(run.script)).strip()
    run.jobs.write_text(f"{job}\n")
    run.requeue.write_bytes(msgspec.json.encode(Spool(job=job, restarts=0, reason="rank 3 hung")))
    return run


def side_by_side(folders: list[Path], site: Site) -> None:
    """Two looks of each."""
    meet = site.folder / "meet"
    shutil.rmtree(meet, ignore_errors=True)
    meet.mkdir()
    argvs = [[sys.executable, "-c", LOOK, str(folder), str(meet), folder.name] for folder in folders]
    both = [subprocess.Popen(argv, cwd=site.folder, env=site.environ) for argv in argvs]
    assert [one.wait() for one in both] == [0, 0]


def test_nothing_is_doubled(tmp_path: Path) -> None:
    """A job that runs is requeued, and runs again at once; one that has failed is followed by another."""
    with mock_site(tmp_path, nodes=4, begin_wait_s=0.1) as site:
        folders, met = [tmp_path / "here", tmp_path / "there"], 0
        (tmp_path / "runs").mkdir()
        for number in range(ROUNDS):
            again, failed = left(site, number, f"again{number}", ":"), left(site, number, f"failed{number}", "exit 3")
            jobs = [run.jobs.read_text().strip() for run in (again, failed)]
            for folder in folders:
                folder.mkdir(exist_ok=True)
                for run in (again, failed):
                    (folder / run.root.parent.name).symlink_to(run.root.parent)
            until(lambda jobs=jobs: [site.slurm.show(job).state for job in jobs] == [JobState.RUNNING, JobState.FAILED])
            side_by_side(folders, site)
            until(lambda jobs=jobs: site.slurm.show(jobs[0]).restarts > 0)
            side_by_side(folders, site)
            until(lambda jobs=jobs: site.slurm.show(jobs[0]).state is JobState.RUNNING)
            later = [one.job_id for one in site.slurm.find(failed.script) if one.words]
            assert site.slurm.show(jobs[0]).restarts == 1
            assert [site.slurm.show(job).state for job in later].count(JobState.CANCELLED) == len(later) - 1, later
            met += any("another ftsup watch" in run.watched.read_text() for run in (again, failed))
            site.run("scancel", jobs[0], *later)
        assert met, "the test shows nothing where they never meet"
        print(f"\n{ROUNDS} rounds; in {met} of them both were about to do the same")
