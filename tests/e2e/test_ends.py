"""Runs that are over: a bug in the script, an end that hangs, a stray requeue afterwards."""

from __future__ import annotations

import json

import pytest

from ftsup import events as ev
from ftsup.events import VerdictKind
from ftsup.ports import JobState

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(300)]


def test_same_traceback_twice_stops_and_says_so(site) -> None:
    control = site.folder / "a" / "control"
    control.mkdir(parents=True)
    (control / "every.0").write_text("raise")  # before it begins: at the third step, and so twice at one step
    run = site.submit(workers_per_node=1)
    assert run.until_over(state=JobState.FAILED).exit_code == 1
    assert [incident.verdict.kind for incident in run.incidents()] == [VerdictKind.RESTART, VerdictKind.STOP]
    decision = run.decision()
    assert (decision["verdict"], decision["code"]) == ("stop", 1)
    assert "the same error twice" in decision["reason"]
    assert "ValueError: this batch is broken (train.py:" in run.output()
    assert "in act" in run.output()
    assert run.grants() == 1


def test_finished_training_that_does_not_exit_is_finished_and_stays_so(site) -> None:
    hang = {"shutdown": "8s"}
    run = site.submit(env={"TOKEN": "s3cr3t $HOME"}, node_setup="export FROM_SETUP='of the node'", hang=hang)
    run.until_trains()
    for rank in range(2):
        environ = json.loads((run.work / "control" / f"environ.{rank}").read_text())
        assert (environ["TOKEN"], environ["FROM_SETUP"], environ["RANK"]) == ("s3cr3t $HOME", "of the node", str(rank))
    run.once(0, "thread at the end")
    run.once(1, "atexit at the end")
    run.until(lambda: not list((run.work / "control").glob("once.*")))
    run.finish()
    assert run.until_over().exit_code == 0
    (incident,) = run.incidents()
    assert incident.verdict.kind is VerdictKind.FINISHED
    assert run.launches() == [ev.Epoch(1, 1)]

    site.run("scontrol", "requeue", run.job)
    run.until(lambda: run.show().restarts == 1)
    assert run.until_over().exit_code == 0
    assert run.grants() == 2
    assert run.launches() == [ev.Epoch(1, 1)]


def test_training_that_leaves_by_os_exit_is_finished(site) -> None:
    """It leaves no record, and torchrun says nothing of a rank that ended with 0. The last news arrive, slow as their hook is."""
    news = site.folder / "news"
    run = site.submit(notify={"command": ["sh", "-c", f"sleep 4; cat >>'{news}'"]}, hang={"shutdown": "60s"})
    run.until_trains()
    for rank in (0, 1):
        run.once(rank, "leave at the end")
    run.until(lambda: not list((run.work / "control").glob("once.*")))
    run.finish()
    assert run.until_over().exit_code == 0
    assert run.incidents() == []
    assert run.decision()["verdict"] == "finished"
    assert '"kind":"finished"' in news.read_text()
    assert run.launches() == [ev.Epoch(1, 1)]
