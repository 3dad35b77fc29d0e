"""One poller a run: what a quiet run on several nodes asks of Slurm, counted at the commands themselves; people's looks ask nothing."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.harness import Site, for_s, mock_site

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ASK_S, QUIET_S = 8, 30
COMMANDS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "sacct")


def counted(site: Site) -> Path:
    """Every command of Slurm, whoever calls it, writes a line first."""
    calls, kept = site.folder / "calls", site.folder / "kept"
    kept.mkdir()
    place = Path(site.environ["PATH"].split(os.pathsep)[0])
    for name in COMMANDS:
        if (path := place / name).exists():
            path.rename(kept / name)
            path.write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\nexec {kept / name} "$@"\n')
            path.chmod(0o755)
    calls.touch()
    return calls


def test_a_quiet_run_asks_once_in_a_while_by_its_leader_alone_and_a_person_who_looks_asks_nothing(tmp_path) -> None:
    with mock_site(tmp_path, nodes=3) as site:
        calls = counted(site)
        run = site.submit(slurm={"nodes": 3}, waits={"ask": f"{ASK_S}s"})
        run.until_trains()
        before, began = len(calls.read_text().splitlines()), time.monotonic()
        with for_s(QUIET_S):
            for command in ("status", "list", "explain"):
                site.ftsup(command, cwd=run.work)
        most = (time.monotonic() - began) / ASK_S + 2
        found = Counter(line.rpartition(" ")[0] if line[-1].isdigit() else line for line in calls.read_text().splitlines()[before:])
        run.finish()
        run.until_over()
    assert set(found) == {"scontrol show job", "scontrol show config"}, found
    questions = found["scontrol show job"]
    assert QUIET_S // ASK_S - 2 <= questions <= most, found
    # Slurm's own clock, for the end of the job, is asked beside each question; the look may begin and end between the two.
    assert abs(found["scontrol show config"] - questions) <= 1, found
