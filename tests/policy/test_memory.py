"""A launcher that the kernel killed for memory is told as that, and no other end of it is."""

from __future__ import annotations

import pytest

from ftsup import events as ev
from ftsup.events import Kind
from ftsup.policy import nodestate
from ftsup.policy.judge import describe
from tests.policy.test_review import Bench

KILLED = "out of memory on host: the kernel killed 1 process of the job here (memory.events: oom_kill 0 -> 1)"


@pytest.mark.parametrize(
    "killed, kind, sentence",
    [
        (KILLED, Kind.HOST_MEMORY, f"the launcher on n1 was ended by SIGKILL: {KILLED}"),
        ("", None, "the launcher on n1 was ended by SIGKILL"),
    ],
)
def test_a_launcher_that_was_killed(killed: str, kind: Kind | None, sentence: str) -> None:
    bench = Bench().running().happen(nodestate.ChildEnded(t=1.0, code=-9, signal="SIGKILL", killed=killed), nodestate.Gone(t=2.0))
    (tell,) = bench.acts
    assert isinstance(tell, nodestate.Tell)
    assert isinstance(tell.event, ev.AttemptOver)
    (fault,) = tell.event.ended
    assert (fault.kind, describe(fault)) == (kind, sentence)
