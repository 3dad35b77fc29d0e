"""The clock of real supervisors: the only place under supervisor/ that asks the system what time it is.

It must not know what the time is wanted for; everything else in this room is told the time.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone

LATE_S = 1.0
"""A wait that is over so much too late was none: we were stopped, or the whole job suspended."""


def away_s(gap_s: float, *, expected_s: float, late_s: float = LATE_S) -> float:
    """Of the time that a wait took, what nobody has had: all beyond the expected, where that is too much to be a busy machine's."""
    beyond_s = gap_s - expected_s
    return beyond_s if beyond_s > late_s else 0.0


class BootClock:
    """ports.Clock by CLOCK_BOOTTIME: goes on while the machine sleeps, and no administrator sets it."""

    def now(self) -> float:
        """Seconds since boot."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        """For programs of ours that may block; a loop never does."""
        time.sleep(seconds)

    def wall(self) -> str:
        """ISO 8601 with the local offset, to the millisecond."""
        return datetime.now(timezone.utc).astimezone().isoformat(timespec="milliseconds")
