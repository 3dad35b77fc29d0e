"""Nothing of an attempt survives, however it hides, and it is gone before the next one begins; nobody else is hurt."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from ftsup import events as ev
from ftsup.events import Epoch, How
from ftsup.ports import JobState
from ftsup.supervisor.child import KILL_LIMIT_S
from tests.e2e.harness import carrying, living, stopped
from tests.supervisor import freezer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parent / "strays.py"
FAMILY = 150
"""So many processes at least has an attempt of strays.py."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Watcher(threading.Thread):
    """When each of some processes ended, by the boot clock, as their start times are."""

    def __init__(self, processes: list[psutil.Process]) -> None:
        super().__init__(daemon=True)
        self.ended: dict[int, float] = {}
        self.fds: dict[int, int] = {}
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                self.fds[os.pidfd_open(process.pid)] = process.pid
        self.start()

    def run(self) -> None:
        poller = select.poll()
        for fd in self.fds:
            poller.register(fd, select.POLLIN)
        for _ in range(len(self.fds)):
            if len(self.ended) == len(self.fds):
                return
            for fd, _event in poller.poll():
                poller.unregister(fd)
                self.ended[self.fds[fd]] = time.clock_gettime(time.CLOCK_BOOTTIME)
                os.close(fd)


def started_t(pid: int) -> float:
    """By the boot clock."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]) * TICK_S


def launched(run, epoch: Epoch) -> int:
    """The first process of an attempt."""
    pid: int = run.until(lambda: next((event.pid for event in run.events(ev.Launched) if event.epoch == epoch and event.pid), 0))
    return pid


def family(run) -> list[psutil.Process]:
    """All of the attempt, also those whom no mark tells: they are below the guard."""
    guard = psutil.Process(launched(run, max(run.launches()))).parent()
    assert guard is not None
    return run.until(lambda: len(found := guard.children(recursive=True)) >= FAMILY and found)


@contextlib.contextmanager
def bystander(site, **env: str):
    """`python train.py` of the same user, of no run or of another one."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "train.py"], env={**os.environ, **env}) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def strays(site, name: str = "a"):
    config = {"command": [str(SCRIPT)], "resume_args": [], "checkpoint": {"dir": ""}, "workers_per_node": 1, "policy": {"back_off": "0s"}}
    return site.submit(name, **config)


def test_all_strays_are_gone_before_the_next_attempt_begins_and_nobody_else_is(site) -> None:
    run = strays(site)
    other = site.submit("b")
    run.until_trains()
    other.until_trains()
    others = list(carrying(f"FTSUP_MARK={other.place.id}/"))
    assert others
    same_node = f"{other.place.id}/{other.job}/mock1/1.1"
    with bystander(site) as plain, bystander(site, FTSUP_MARK=same_node) as second:
        watcher = Watcher(family(run))
        run.rank(0).kill()
        begun_t = started_t(launched(run, Epoch(1, 2)))
        watcher.join(20)
        assert not watcher.is_alive()
        assert max(watcher.ended.values()) <= begun_t + TICK_S
        (over,) = run.events(ev.AttemptOver)
        assert over.left == ()
        early_s = begun_t - max(watcher.ended.values())
        print(f"{len(watcher.ended)} processes ended in {over.took_s:g} s, the last one {early_s:.3f} s before the next began")
        assert living(plain)
        assert living(second)
    assert all(living(process) for process in others)
    site.run("scancel", run.job)
    run.until_over(state=JobState.CANCELLED)
    assert all(living(process) for process in others)
    other.finish()
    other.until_over()


def hidden(run) -> list[psutil.Process]:
    """Those that no mark tells: they cleared their environment."""
    marked = {process.pid for process in carrying(f"FTSUP_MARK={run.place.id}/")}
    return [process for process in family(run) if process.pid not in marked and living(process)]


@pytest.mark.drill
def test_a_supervisor_killed_while_it_stops_them_has_a_successor_that_ends_them(site) -> None:
    run = strays(site)
    run.until_trains()
    watcher = Watcher(family(run))
    run.rank(0).kill()
    run.until(lambda: run.orders(ev.Stop))
    run.supervisor("mock1").kill()
    begun_t = started_t(launched(run, Epoch(1, 2)))
    watcher.join(20)
    assert not watcher.is_alive()
    assert max(watcher.ended.values()) <= begun_t + TICK_S
    assert How.NODE in {fault.how for fault in run.incidents()[0].faults}
    run.until_trains(epoch=Epoch(1, 2))
    site.run("scancel", run.job)
    run.until_over(state=JobState.CANCELLED)


@pytest.mark.drill
def test_what_nobody_can_find_when_supervisor_and_guard_are_killed_is_said(site) -> None:
    run = strays(site)
    run.until_trains()
    guard = psutil.Process(launched(run, Epoch(1, 1))).parent()
    unseen, everybody = hidden(run), family(run)
    assert len(unseen) >= 3
    try:
        with stopped(guard):  # it would act at once
            run.supervisor("mock1").kill()
            guard.kill()
        run.until_trains(epoch=Epoch(1, 2))
        assert {process.pid for process in everybody if living(process)} <= {process.pid for process in unseen}
        assert any("nothing but a cgroup would find them" in note.text for note in run.events(ev.Noted))
    finally:
        for process in unseen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    site.run("scancel", run.job)
    run.until_over(state=JobState.CANCELLED)


@pytest.mark.drill
@freezer.needed
def test_a_node_that_holds_an_unkillable_process_is_avoided(site) -> None:
    run = site.submit(hang={"step": "3s", "storage": "4s"}, checkpoint={"dir": ""}, resume_args=[])
    run.until_trains()
    pid = run.rank(1).pid
    with freezer.frozen(pid) as group:
        incident = run.until_judged(1)
        assert (incident.verdict.kind, incident.verdict.avoid) == (ev.VerdictKind.REQUEUE, ("mock1",))
        (over,) = run.events(ev.AttemptOver)
        (left,) = over.left
        assert left.startswith(f"{pid} (")
        assert "in state D" in left
        assert left in incident.verdict.reason
        assert over.took_s <= KILL_LIMIT_S + 2 + 5
        stalled = run.events(ev.Stalled)[0]
        assert stalled.faults[0].how is How.STORAGE
        run.until(lambda: run.show().restarts == 1)
        freezer.thaw(group)
    run.until_trains(epoch=Epoch(2, 1))
    assert run.show().nodes == ("mock2",)
    run.finish()
    run.until_over()
