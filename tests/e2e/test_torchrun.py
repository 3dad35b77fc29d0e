"""What becomes of a run when torchrun itself cannot begin, dies or hangs."""

from __future__ import annotations

import socket

import pytest

from ftsup import events as ev
from ftsup.events import How, VerdictKind

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(300)]


def test_torchrun_finds_its_port_taken_is_killed_and_hangs_at_the_end(site) -> None:
    run = site.submit(hang={"shutdown": "8s"})
    prepared = run.until(lambda: run.events(ev.Prepared))[0]
    with socket.create_server((prepared.address, prepared.port)):  # between the look for a free port and torchrun's own bind
        port = run.until_judged(1)
    assert (port.root.how, port.verdict.kind, port.verdict.rule) == (How.PORT, VerdictKind.RESTART, "port")
    run.until_trains(more=12)

    run.torchrun("mock1").kill()
    killed = run.until_judged(2)
    assert (killed.root.how, killed.root.signal) == (How.TORCHRUN, "SIGKILL")
    assert killed.verdict.kind is VerdictKind.RESTART
    run.until_trains(epoch=ev.Epoch(1, 3))

    run.torchrun("mock1").suspend()
    run.finish()
    hung = run.until_judged(3)
    assert (hung.root.how, hung.verdict.kind) == (How.TORCHRUN, VerdictKind.FINISHED)
    assert run.until_over().exit_code == 0
    assert len(run.launches()) == 3
