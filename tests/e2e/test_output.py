"""Training of which nothing is known but what it prints: a script without torch and beat(), and `launch: command`."""

from __future__ import annotations

import json

import pytest

from ftsup.events import Epoch, How, Progressed, VerdictKind, WatchedBy

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SCRIPT = """
import os, pathlib, time
control, rank = pathlib.Path("control"), os.environ["RANK"]
for line in range(10**6):
    print(f"rank {rank}: line {line}", flush=True)
    while (control / f"hush.{rank}").exists():
        time.sleep(0.1)
    if (control / "finish").exists():
        break
    time.sleep(0.2)
"""
SHELL = """
while [ ! -e control/finish ]; do
    echo "node $FTSUP_NODE_RANK of $FTSUP_NNODES works"
    while [ -e control/hush.$FTSUP_NODE_RANK ]; do sleep 0.1; done
    sleep 0.2
done
"""
LIMITS = {"output": "6s", "start": "60s"}


def lines(run, who: str) -> int:
    return run.logs().count(who)


def page_of(run) -> dict[str, object]:
    page: dict[str, object] = json.loads(run.site.ftsup("status", "--json", str(run.place.root), cwd=run.work))
    return page


def hush_and_speak(run, who: str, number: int) -> object:
    """One falls silent and is found; the next attempt speaks, and goes on to the end."""
    run.until(lambda: lines(run, who) > 20)  # for longer than the limit would need a beat: its lines are its life
    assert run.incidents() == []
    hush = run.work / "control" / f"hush.{number}"
    hush.touch()
    incident = run.until_judged(1)
    hush.unlink()
    assert incident.verdict.kind is VerdictKind.RESTART, run.story()
    assert incident.root.how is How.QUIET
    assert incident.root.error.startswith("no line of output for ")
    before = lines(run, who)
    run.until(lambda: run.launches()[-1] == Epoch(1, 2) and lines(run, who) > before + 5)
    told = run.until(lambda: (told := run.events(Progressed)[-1]).epoch == Epoch(1, 2) and told.by and told)  # before its first line: None
    assert (told.by, told.step) == (WatchedBy.OUTPUT, None)
    page = run.until(lambda: (now := page_of(run))["watched_by"] and now)
    assert (page["watched_by"], page["step"]) == ("log output", None)
    run.until(lambda: "watched by log output" in run.site.ftsup("status", str(run.place.root), cwd=run.work))
    run.finish()
    assert run.until_over().exit_code == 0
    return incident.root


@pytest.mark.torch
def test_a_script_without_torch_and_beat_is_watched_by_its_output(site, tmp_path) -> None:
    script = tmp_path / "prints.py"
    script.write_text(SCRIPT)
    run = site.submit(command=[str(script)], resume_args=[], checkpoint={"dir": ""}, hang=LIMITS)
    root = hush_and_speak(run, "rank 1: line", 1)
    assert root.rank == 1


def test_a_command_of_ones_own_is_watched_by_its_output(site) -> None:
    run = site.submit(
        launch="command", command=["bash", "-c", SHELL], resume_args=[], checkpoint={"dir": ""}, hang=LIMITS, slurm={"nodes": 2}
    )
    root = hush_and_speak(run, "node 1 of 2 works", 1)
    assert (root.rank, root.node) == (None, "mock2")
