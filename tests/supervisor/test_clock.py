from __future__ import annotations

from datetime import datetime

from ftsup.supervisor.clock import BootClock


def test_the_clock_only_goes_forward_and_the_wall_time_carries_its_offset():
    clock = BootClock()
    first = clock.now()
    assert clock.now() >= first > 0
    assert datetime.fromisoformat(clock.wall()).tzinfo is not None
