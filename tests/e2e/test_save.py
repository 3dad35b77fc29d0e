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


@pytest.mark.parametrize("proctrack, ways", [("cgroup", ("asks", "handler", "flag")), ("linuxproc", ("handler", "2late"))])
def test_a_warning_is_a_save_on_every_rank_at_one_step_once_and_a_requeue(tmp_path, proctrack: str, ways: tuple[str, ...]) -> None:
    """Jobs beside each other, for several kinds of scripts. What saved and left, with code 3, has saved."""
    with mock_site(tmp_path, nodes=len(ways) + 1, proctrack=proctrack) as site:
        slurm = {"handler": {"nodes": 2}, "2late": {"signal": "SIGUSR2@30"}}
        runs = {way: submit(site, way, way, slurm=slurm.get(way, {})) for way in ways}
        for run in runs.values():
            run.until_trains()
        for run in runs.values():  # one that waited for the others would be warned, and save, in its next grant as well
            limit(run, LEFT_S)
        waiting = dict(runs)

        def requeued() -> bool:
            for way, run in list(waiting.items()):
                if run.orders(ev.Requeue):
                    site.run("scontrol", "update", f"JobId={run.job}", "TimeLimit=1:0:0")
                    waiting.pop(way)
            return not waiting

        runs["handler"].until(requeued)
        for way, run in runs.items():
            step = check_saved(run, {"asks": "asked", "2late": "late"}.get(way, way))
            assert run.orders(ev.Decide)[0].verdict.reason == f"the time limit is near, and training is saved at step {step}: requeue"
            assert (way == "2late") <= (step % 20 == 0)
            run.finish()
            if (proctrack, way) != ("cgroup", "handler"):  # the next grants are all the same
                site.ftsup("cancel", cwd=run.work)
        if proctrack == "cgroup":
            assert runs["handler"].until_over().exit_code == 0
            assert runs["handler"].events(ev.CheckpointPicked)[-1].step == saves(runs["handler"])[0][1]


def test_saves_now_and_then_at_a_signal_by_hand_and_at_stop_which_ends_the_run_with_success(tmp_path) -> None:
    """A script that asks, and one that does not listen, beside each other. Under linuxproc every process of a step gets the signal."""
    with mock_site(tmp_path, nodes=3, proctrack="linuxproc") as site:
        asks = submit(site, "asks", "asks", slurm={"nodes": 2}, checkpoint={"every": "2s"})
        deaf = submit(site, "deaf", "deaf")
        asks.until(lambda: len(saves(asks)) >= 8)
        deaf.until_trains()
        for run in (asks, deaf):
            site.run("scancel", "--signal=USR1", run.job)
        before = {process for run in (asks, deaf) for process in (run.rank(0), run.torchrun(run.events(ev.NodeUp)[0].node), run.leader())}
        asks.until(lambda: "training goes on" in asks.output())
        deaf.until(lambda: "nothing can be saved on request" in deaf.output())
        assert all(process.is_running() for process in before)
        for run in (asks, deaf):
            assert "asked for a stop: the ranks save first" in site.ftsup("stop", cwd=run.work)
        for run in (asks, deaf):
            assert run.until_over().exit_code == 0
            assert (run.orders(ev.Requeue), run.incidents(), len(run.launches())) == ([], [], 1), run.story()
        found = saves(asks)
        by_step = {step: sorted(rank for rank, at, _ in found if at == step) for _, step, _ in found}
        assert all(ranks == [0, 1, 2, 3] for ranks in by_step.values()), by_step
        assert asks.decision()["reason"].endswith(f", saved at step {max(by_step)}")
        assert asks.decision()["code"] == 0
        assert ", nothing could be saved on request: not every rank calls asked()" in deaf.decision()["reason"]
        assert "stopped" in site.ftsup("status", cwd=asks.work)
        assert "over already: stopped" in site.ftsup("stop", cwd=asks.work)


@pytest.mark.realslurm
@pytest.mark.drill
def test_a_real_warning_is_a_save_and_a_requeue(real) -> None:
    """Under proctrack/linuxproc, where the signal goes to every process of the step."""
    run = submit(real, "handler", slurm={"nodes": 2, "mem": "2GiB", "signal": "SIGUSR1@60"}, workers_per_node=1)
    run.until_trains()
    minutes = -(-(int(run.show().run_s) + 75) // 60)  # real limits are in minutes, and the warning may come one early
    real.run("scontrol", "update", f"JobId={run.job}", f"TimeLimit={minutes}")
    run.until(lambda: run.orders(ev.Requeue), within_s=150)
    step = check_saved(run, "handler")
    assert run.events(ev.Warned)
    assert run.orders(ev.Decide)[0].verdict.reason == f"the time limit is near, and training is saved at step {step}: requeue"
    run.until_trains(epoch=ev.Epoch(2, 1))
    run.finish()
    assert run.until_over().exit_code == 0
    assert run.events(ev.CheckpointPicked)[-1].step == step
