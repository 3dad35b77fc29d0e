"""`scancel` at any moment: that job never comes back, and nothing of it stays."""

from __future__ import annotations

import random
import time

import pytest

from ftsup import events as ev
from ftsup.ports import JobState
from tests.e2e.harness import BEGIN_WAIT_S, for_s, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SEED = 20
JOBS = 10
LINES_A_GRANT = 14
SLEEPER = {
    "launch": "command",
    "command": ["sleep", "1000"],
    "resume_args": [],
    "slurm": {"signal": "SIGUSR1@29"},
    "waits": {"end_margin": "27s"},
}
LEFT_S = 30
"""With so much left, the warning comes at once, and the requeue is asked for at once."""


class Moment:
    """When a run's log has so many lines, and a little later; past what a grant ever has: when it waits to begin again, or just has."""

    def __init__(self, run, *, lines: int, delay_s: float) -> None:
        self.run, self.lines, self.delay_s = run, lines, delay_s
        self.seen: float | None = None
        self.requeued = False

    def come(self) -> bool:
        if self.seen is None and self._there():
            self.seen = time.monotonic()
        return self.seen is not None and time.monotonic() >= self.seen + self.delay_s

    def _there(self) -> bool:
        if not self.requeued and self.run.events(ev.Launched):
            self.requeued = True
            limit_s = int(self.run.show().run_s) + LEFT_S
            self.run.site.run("scontrol", "update", f"JobId={self.run.job}", f"TimeLimit=0:{limit_s // 60}:{limit_s % 60}")
        if self.lines < LINES_A_GRANT:
            return len(self.run.lines()) >= self.lines
        return self.run.show().restarts > 0


def test_ten_jobs_cancelled_at_seeded_moments_stay_cancelled(wide_site) -> None:
    dice = random.Random(SEED)
    runs = [wide_site.submit(f"r{number}", **SLEEPER) for number in range(JOBS)]
    waiting = [Moment(run, lines=round(number * LINES_A_GRANT / (JOBS - 1)), delay_s=dice.uniform(0, 1)) for number, run in enumerate(runs)]
    while waiting:
        now = until(lambda: [moment for moment in waiting if moment.come()], within_s=200, what=waiting[0].run.story)  # a look asks a lot
        for moment in now:
            wide_site.slurm.cancel(moment.run.job)
            waiting.remove(moment)
    with for_s(3 * BEGIN_WAIT_S):
        pass
    for run in runs:
        run.until_ended()
        job = run.show()
        assert (job.state, job.completing) == (JobState.CANCELLED, False), run.story()
    until(lambda: not wide_site.processes(), within_s=20, what=lambda: str(wide_site.processes()))  # the mock's own need a moment
