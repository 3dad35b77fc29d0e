"""Save on request, end to end: asked(), a script's own handlers, and neither; because of the warning, `ftsup stop` and checkpoint.every."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftsup import events as ev
from tests.e2e.harness import merged, mock_site

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parent / "saver.py"
LEFT_S = 35


def submit(site, way: str, name: str = "a", **config: object):
    base = {
        "command": [str(SCRIPT), way],
        "slurm": {"signal": "SIGUSR1@30"},
        "waits": {"end_margin": "2s"},
        "checkpoint": {"pattern": "step*", "complete": "complete"},
    }
    return site.submit(name, **merged(base, config))


def saves(run) -> list[tuple[int, int, str]]:
    """Rank, step and place of each save."""
    path = run.work / "saves"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(rank), int(step), where) for rank, step, where, _ in map(str.split, lines)]


def limit(run, left_s: int) -> None:
    """So much time is left from now."""
    limit_s = int(run.show().run_s) + left_s
    run.site.run("scontrol", "update", f"JobId={run.job}", f"TimeLimit=0:{limit_s // 60}:{limit_s % 60}")


def check_saved(run, where: str) -> int:
    """Every rank saved, once, at one step; the step."""
    found = saves(run)
    assert sorted(rank for rank, _, _ in found) == list(range(run.ranks(run.launches()[0]))), run.story()
    assert {place for _, _, place in found} == {where}
    (step,) = {step for _, step, _ in found}
    assert run.incidents() == [], run.story()
    return step


@pytest.mark.parametrize("proctrack", ["cgroup", "linuxproc"])
def test_a_warning_is_a_save_on_every_rank_at_one_step_once_and_a_requeue(tmp_path, proctrack: str) -> None:
    """Three jobs beside each other, for three kinds of scripts. Nobody dies of the signal, and what saved and left has saved."""
    with mock_site(tmp_path, nodes=4, proctrack=proctrack) as site:
        runs = {way: submit(site, way, way, slurm={"nodes": 2 if way == "handler" else 1}) for way in ("asks", "handler", "flag")}
        for run in runs.values():
            run.until_trains()
            limit(run, LEFT_S)
        waiting = dict(runs)

        def requeued() -> bool:
            for way, run in list(waiting.items()):
                if run.orders(ev.Requeue):
                    site.run("scontrol", "update", f"JobId={run.job}", "TimeLimit=1:0:0")
                    waiting.pop(way)
            return not waiting

        runs["asks"].until(requeued)
        for way, run in runs.items():
            step = check_saved(run, {"asks": "asked"}.get(way, way))
            assert run.orders(ev.Decide)[0].verdict.reason == f"the time limit is near, and training is saved at step {step}: requeue"
            run.finish()
        for run in runs.values():
            assert run.until_over().exit_code == 0
            assert run.events(ev.CheckpointPicked)[-1].step == saves(run)[0][1]


def test_saves_now_and_then_until_stop_saves_and_ends_the_run_with_success(tmp_path) -> None:
    """A script that asks, and one that does not listen, beside each other."""
    with mock_site(tmp_path, nodes=3) as site:
        asks = submit(site, "asks", "asks", slurm={"nodes": 2}, checkpoint={"every": "2s"})
        deaf = submit(site, "deaf", "deaf")
        asks.until(lambda: len(saves(asks)) >= 12)
        deaf.until_trains()
        for run in (asks, deaf):
            assert "will stop: all ranks save at one step" in site.ftsup("stop", cwd=run.work)
        for run in (asks, deaf):
            assert run.until_over().exit_code == 0
            assert run.orders(ev.Requeue) == []
            assert run.incidents() == [], run.story()
        found = saves(asks)
        by_step = {step: sorted(rank for rank, at, _ in found if at == step) for _, step, _ in found}
        assert all(ranks == [0, 1, 2, 3] for ranks in by_step.values()), by_step
        assert asks.decision()["reason"].endswith(f", saved at step {max(by_step)}")
        assert asks.decision()["code"] == 0
        assert ", nothing could be saved on request: not every rank calls asked()" in deaf.decision()["reason"]
        assert "stopped" in site.ftsup("status", cwd=asks.work)
        assert "over already: stopped" in site.ftsup("stop", cwd=asks.work)
