"""Limits on the mock: it has no control groups, so memory is told by torch's own exception only. The rest is in tests/realslurm."""

from __future__ import annotations

import os
import resource

import pytest

from ftsup.events import Epoch, How, Kind
from tests.e2e.limited import LOGIN, PATIENT, RAISED, check_inside, check_srun_that_lies, login_shell

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(300)]


def test_an_srun_that_always_fails_changes_nothing(site) -> None:
    check_srun_that_lies(site)


def test_what_ranks_get_and_a_gpu_without_memory(site) -> None:
    kinds = [getattr(resource, f"RLIMIT_{name}") for name in RAISED]
    limits = {kind: resource.getrlimit(kind) for kind in (*kinds, *LOGIN)}
    with login_shell(site):
        run = site.submit(slurm={"cpus_per_task": 1}, hang=PATIENT)
    run.until_trains(more=12)
    check_inside(run, limits=limits, cpus=sorted(os.sched_getaffinity(0)))
    run.once(0, "eat of the GPU")
    root = run.until_judged(1).root
    assert (root.how, root.kind, root.rank) == (How.EXCEPTION, Kind.GPU_MEMORY, 0)
    assert root.error.startswith("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    run.until_trains(epoch=Epoch(1, 2))
    run.finish()
    assert run.until_over().exit_code == 0
