"""Limits of a real cluster: memory, the time that a kill may take, what srun says of an end; and what ranks get, seen from inside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ftsup import events as ev
from ftsup.events import Epoch, How, Kind, VerdictKind
from ftsup.ports import JobState
from tests.e2e.harness import Run, Site, called, words
from tests.realslurm.cluster import Plan

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.realslurm, pytest.mark.timeout(300)]

PATIENT = {"step": "60s", "shutdown": "60s", "stopped": "60s"}
"""Nothing hangs in these stories; a loaded machine is slow."""
MEMORY = re.compile(
    r"rank 1 on (n\d) was ended by SIGKILL at step \d+: out of memory on host: the kernel killed 1 process of the job here "
    r"\(memory\.oom_control: oom_kill 0 -> 1\); limit 900MiB \(slurm\.mem\), peak 900MiB"
)


# srun ---------------------------------------------------------------------------------------------------------------------


def wrapped(site: Site, name: str, *, code: str) -> Path:
    """An srun before the real one in PATH, which ends with `code` whatever that did; the file where it writes what that did."""
    folder = site.folder / f"bin-{name}"
    folder.mkdir()
    real, said = shutil.which("srun", path=site.environ["PATH"]), site.folder / f"srun-{name}"
    (folder / "srun").write_text(f'#!/bin/sh\n{real} "$@"\nreal=$?\necho $real >>{said}\nexit {code}\n')
    (folder / "srun").chmod(0o755)
    site.give(folder)
    site.environ["PATH"] = f"{folder}:{site.environ['PATH']}"
    return said


def check_srun_that_lies(site: Site) -> None:
    path, runs = site.environ["PATH"], []
    for code in ("1", "75", "137"):
        said = wrapped(site, code, code=code)
        runs.append((site.submit(code, workers_per_node=1, hang=PATIENT), said))
        site.environ["PATH"] = path
    for run, _ in runs:
        run.until_trains()
        run.finish()
    for run, said in runs:
        assert run.until_over().exit_code == 0
        assert said.read_text() == "0\n"
        assert (run.decision()["verdict"], run.launches(), run.incidents()) == ("finished", [Epoch(1, 1)], [])


def test_an_srun_that_always_fails_changes_nothing(real) -> None:
    check_srun_that_lies(real)


# Memory -------------------------------------------------------------------------------------------------------------------


def scores(run: Run) -> dict[str, set[int]]:
    """How willing the kernel is to end each kind of process of the job."""
    found: dict[str, set[int]] = {}
    for process in run.own():
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            line = " ".join(words(process))
            ranks = "ftsup_worker" in line and "torch.distributed.run" not in line
            kind = "rank" if ranks else "torchrun" if "torch.distributed.run" in line else "ours"
            found.setdefault(kind, set()).add(int(Path(f"/proc/{process.pid}/oom_score_adj").read_text()))
    return found


def test_a_rank_without_memory_is_taken_and_no_supervisor_and_training_goes_on_here(real_cgroup) -> None:
    said = wrapped(real_cgroup, "honest", code="$real")
    run = real_cgroup.submit(slurm={"nodes": 2, "mem": "900MiB"}, hang=PATIENT)
    run.until_trains(more=12)
    found = scores(run)
    assert max(found["ours"]) < min(found["torchrun"]) <= max(found["torchrun"]) < min(found["rank"]), found
    before = [run.leader(), *map(run.supervisor, run.events(ev.LeaderStarted)[-1].nodes)]
    run.once(1, "eat")
    first = run.until_judged(1)
    assert (first.root.how, first.root.kind, first.verdict.kind) == (How.SIGNAL, Kind.HOST_MEMORY, VerdictKind.RESTART)
    assert MEMORY.match(first.verdict.reason), first.verdict.reason
    assert all(fault.signal == "SIGTERM" for fault in first.faults if fault.rank != 1), "the others were ended by torchrun and us"
    run.until_trains(epoch=Epoch(1, 2), more=6)
    run.once(0, "eat of the GPU")
    second = run.until_judged(2)
    assert (second.root.how, second.root.kind, second.root.rank) == (How.EXCEPTION, Kind.GPU_MEMORY, 0)
    assert re.match(
        r"rank 0 on n\d failed at step \d+: torch\.OutOfMemoryError: CUDA out of memory\. Tried to allocate 2\.00 GiB",
        second.verdict.reason,
    )
    run.until_trains(epoch=Epoch(1, 3))
    assert all(process.is_running() for process in before)
    run.finish()
    assert run.until_over().exit_code == 0
    assert "ExitCode=0:0" in real_cgroup.run("scontrol", "show", "job", run.job)
    assert said.read_text() == "1\n", "what srun makes of it"
    assert run.decision()["verdict"] == "finished"
    assert [event.step > 0 for event in run.events(ev.CheckpointPicked)[1:]] == [True, True]
    node = MEMORY.match(first.verdict.reason)[1]
    evidence = json.loads((run.place.incident(1) / node / "node.json").read_text())["facts"]
    assert any(path.endswith("memory.oom_control") and "oom_kill 1" in text for path, text in evidence.items()), evidence
    told = real_cgroup.ftsup("explain", str(run.place.root), cwd=run.work)
    assert "out of memory on host" in " ".join(told.split())
    assert "slurm.mem" in told
