"""The clock of real supervisors: the only place under supervisor/ that asks the system what time it is.

It must not know what the time is wanted for; everything else in this room is told the time.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone


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
