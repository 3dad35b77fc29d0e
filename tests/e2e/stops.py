"""Stories of a job that is told to end, for a mock and a real Slurm."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from ftsup import events as ev
from ftsup.events import Verdict
from ftsup.ports import JobState
from tests.e2e import plainly, warned
from tests.e2e.harness import Run, Site, for_s, until

CASE = warned.Case(ranks=1)
"""It saves when it is asked."""


def submit(site: Site, name: str, **slurm: object) -> Run:
    """A run of one node and one rank, in a partition of its own."""
    config = CASE.config(lead_s=60)
    return site.submit(name, **warned.merged(config, {"slurm": {"time": "30min", "mem": "1500MiB", **slurm}, "waits": {"ask": "5min"}}))


def preempt(run: Run, *, partition: str, node: str, seconds: float) -> None:
    """Somebody's better job wants this node, for so long."""
    wanted = ["--parsable", f"--partition={partition}", f"--nodelist={node}", "--exclusive", "--output=/dev/null"]
    run.site.run("sbatch", *wanted, f"--wrap=sleep {seconds:g}")


def verdicts(run: Run) -> list[Verdict]:
    """What was decided about each grant, the newest last; a decision that was made again counts once."""
    found: list[Verdict] = []
    for order in run.orders(ev.Decide):
        if not found or found[-1] != order.verdict:
            found.append(order.verdict)
    return found


def until_back(run: Run) -> None:
    """It trains again, in another grant."""
    run.until(lambda: run.grants() == 2)
    run.until_trains(epoch=ev.Epoch(2, 1))


def script_told_in_vain(run: Run) -> None:
    """In a preemption's grace somebody tells the batch script to end as well. It forgets: a leader that dies is followed by another one."""

    def answered() -> int:
        return sum(order.back for order in run.orders(ev.Unexplained))

    run.until(answered)
    known = answered()
    run.site.run("scancel", "--batch", "--signal=TERM", run.job)
    run.until(lambda: run.events(ev.Signalled) and answered() > known)
    line = max(line.n for line in run.lines() if any(isinstance(order, ev.Unexplained) and order.back for order in line.orders))
    run.until(lambda: run.lines()[-1].n > line)  # a leader writes what it wants to do, does it, and only then hears more
    leaders = len(run.events(ev.LeaderStarted))
    run.leader().kill()
    run.until(lambda: len(run.events(ev.LeaderStarted)) > leaders)


def resumed_at_what_was_saved(run: Run) -> None:
    """The save that was asked for is what the next grant began with."""
    saved = [event.step for event in run.events(ev.SaveOver)]
    assert saved, run.story()
    assert run.events(ev.CheckpointPicked)[-1].step >= saved[0], run.story()


def undisturbed(run: Run, epoch: ev.Epoch) -> None:
    """It trains, in the same attempt, and nothing was judged."""
    assert run.until_trains(epoch=epoch) == epoch
    assert (run.incidents(), run.orders(ev.Decide)) == ([], []), run.story()


def told(run: Run, words: str) -> None:
    """`ftsup explain` has one line with these words."""
    said = run.site.ftsup("explain", str(run.place.root), cwd=run.work)
    assert sum(words in " ".join(line.split()) for line in [said.replace("\n", " ")]) == 1, said


# scancel ------------------------------------------------------------------------------------------------------------------------

WAYS: tuple[tuple[str, ...], ...] = (("job",), ("name",), ("full",), ("signal", "TERM"), ("signal", "KILL"), ("full", "signal", "TERM"))
MOMENTS = ("trains", "hang", "evidence", "warning", "completing", "away")
ENDS = {JobState.CANCELLED, JobState.FAILED}
"""Of a job that was signalled the batch script says how it ended: 1."""


class Cancel:
    """One cancelled run: how, when, and (by the seed) how long after that moment."""

    def __init__(self, seed: int, *, moments: tuple[str, ...] = MOMENTS) -> None:
        dice = random.Random(seed)
        self.way = WAYS[seed % len(WAYS)]
        self.moment = moments[(seed // len(WAYS) + seed) % len(moments)]
        self.delay_s = dice.uniform(0.0, 1.5)
        self.seed = seed

    def config(self) -> dict[str, Any]:
        """What is submitted."""
        slurm = {"nodes": 1, "time": "30min", "mem": "1500MiB", "signal": "SIGUSR1@120"}
        return {"name": f"cancel{self.seed}", "slurm": slurm, "workers_per_node": 1}

    def submit(self, site: Site, **slurm: object) -> Run:
        """It is on its way."""
        return site.submit(f"c{self.seed}", **warned.merged(self.config(), {"slurm": slurm}))

    def reach(self, run: Run) -> None:
        """Come to the moment, and a little farther."""
        run.until_trains(more=2)
        if self.moment in {"hang", "evidence"}:
            run.once(0, "hang")
            wanted = ev.Stalled if self.moment == "hang" else ev.Collected
            run.until(lambda: run.events(wanted))
        elif self.moment == "warning":
            run.site.run("scancel", "--signal=USR1", run.job)
            run.until(lambda: run.events(ev.Warned))
        elif self.moment == "completing":
            run.site.run("scontrol", "requeue", run.job)
            run.until(lambda: run.show().completing or run.show().restarts)
        time.sleep(self.delay_s)

    def scancel(self, run: Run) -> None:
        """As people do; where that is only a signal it says so once more to a job that has begun again."""
        words = [f"--name={run.show().name}"] if "name" in self.way else [run.job]
        extra = ["--full"] if "full" in self.way else []
        if "signal" in self.way and run.show().state is JobState.RUNNING:
            extra.append(f"--signal={self.way[-1]}")
        run.site.run("scancel", *extra, *words)


@contextlib.contextmanager
def away(hide: Callable[[], None], show: Callable[[], None], seconds: float) -> Iterator[None]:
    """The controller answers nobody until the end."""
    hide()
    try:
        yield
        time.sleep(seconds)
    finally:
        show()


def stays_cancelled(runs: list[Run], *, requeue_wait_s: float) -> None:
    """Nothing of them is pending, held or running after three times the requeue wait."""
    for run in runs:
        run.until_ended()
    with for_s(3 * requeue_wait_s):
        pass
    for run in runs:
        job = run.show()
        assert job.state in ENDS, run.story()
        assert not job.completing, run.story()
        assert not list(run.site.processes(f"FTSUP_MARK={run.place.id}/")), run.story()


def array_cancelled(site: Site, *, requeue_wait_s: float) -> None:
    """Of five tasks three run at once. One is cancelled, and no other notices; one is on its way back, and then all are cancelled."""
    first, second, third, fourth, fifth = tasks = plainly.submit(site, nodes=1, array="1-5%3")
    for task in (first, second, third):
        plainly.until_runs(task)
    assert (fourth.show().state, fifth.show().state) == (JobState.PENDING, JobState.PENDING)
    site.run("scancel", second.job)
    plainly.until_runs(fourth)
    assert second.until_ended().state in ENDS
    for task in (first, third, fourth):
        assert (task.show().state, task.show().restarts) == (JobState.RUNNING, 0)
        assert (len(task.launches()), task.incidents(), task.orders(ev.Decide)) == (1, [], []), task.story()
    site.run("scontrol", "requeue", first.job)
    first.until(lambda: first.show().restarts)
    site.run("scancel", first.job.partition("_")[0])
    stays_cancelled(tasks, requeue_wait_s=requeue_wait_s)
    assert [len(task.launches()) for task in tasks[:4]] == [1, 1, 1, 1]


def kill(process: psutil.Process, number: signal.Signals = signal.SIGTERM) -> None:
    """A person's signal."""
    process.send_signal(number)


__all__ = ["until"]
