"""Healthy and nasty, for real: trainings that are slow in every way a healthy one can be finish in one attempt, with the default limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftsup import events as ev
from tests.e2e.harness import mock_site

pytestmark = [pytest.mark.e2e]

SCRIPT = Path(__file__).parent / "healthy.py"


def trained(folder: Path, seeds: range, *, step_s: float, floor_s: float, at_once: int) -> int:
    """All of them, so many side by side; the defaults, but for the floor, which is scaled as the steps are.

    How often ranks waited for a busy one for longer than the limit of a step.
    """
    with mock_site(folder, nodes=at_once) as site:
        runs = []
        for seed in seeds:
            hang = {"step": None, "step_floor": f"{floor_s:g}s"}
            config = {"command": [str(SCRIPT), str(seed), str(step_s)], "resume_args": [], "checkpoint": {"dir": ""}, "hang": hang}
            runs.append(site.submit(f"seed{seed}", workers_per_node=3, **config))
        for run in runs:
            run.until_over(within_s=600)
        waited = 0
        for seed, run in zip(seeds, runs, strict=True):
            assert len(run.launches()) == 1, (seed, run.story())
            assert run.decision()["verdict"] == "finished", (seed, run.story())
            told = [len(run.events(kind)) for kind in (ev.Stalled, ev.Busy, ev.Learned)]
            waited += told[0]
            print(f"seed {seed}: over the limit {told[0]} times, busy told {told[1]}, learned {told[2]}")
        return waited


@pytest.mark.timeout(300)
def test_one_of_them(tmp_path: Path) -> None:
    trained(tmp_path, range(13, 14), step_s=0.05, floor_s=1.5, at_once=1)


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_twenty_of_them(tmp_path: Path) -> None:
    assert trained(tmp_path, range(20), step_s=0.25, floor_s=4.0, at_once=5) > 0
