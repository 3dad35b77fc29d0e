"""Ranks break in every way; the run goes on from its newest checkpoint, and finishes."""

from __future__ import annotations

import pytest

from ftsup.events import How, VerdictKind

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(300)]


def test_ranks_that_die_hang_or_stop_are_restarted_in_place(site) -> None:
    run = site.submit()
    epoch = run.until_trains(more=12)
    found = []
    for number, strike in enumerate(
        (
            lambda: run.rank(1).kill(),
            lambda: run.once(0, "exit"),
            lambda: run.once(1, "raise"),
            lambda: run.once(0, "hang"),
            lambda: run.rank(1).suspend(),
        ),
        start=1,
    ):
        strike()
        incident = run.until_judged(number)
        assert incident.verdict.kind is VerdictKind.RESTART, run.story()
        found.append(incident.root)
        run.until_trains(epoch=type(epoch)(1, number + 1), more=6)
    assert [(root.how, root.rank) for root in found] == [
        (How.SIGNAL, 1),
        (How.EXIT, 0),
        (How.EXCEPTION, 1),
        (How.QUIET, 0),
        (How.STOPPED, 1),
    ]
    killed, exited, raised, hung, _ = found
    assert killed.signal == "SIGKILL"
    assert exited.code == 3
    assert raised.error == "ValueError: this batch is broken"
    assert hung.where.startswith("train.py:")
    assert "stand_still" in hung.where
    run.finish()
    assert run.until_over().exit_code == 0
    assert run.decision()["verdict"] == "finished"
    assert run.grants() == 1
    assert "rank 0 begins after step 5\n" in run.logs()
