"""Disks that are full, read-only, ill or hang for a while: training goes on, people are told once, and the record is whole in the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ftsup import eventlog
from ftsup import events as ev
from ftsup.events import How
from ftsup.ports import JobState
from ftsup.worker.beatfile import Phase
from tests.e2e.disks import DENIED, HANGS, MEDIA, QUOTA, disk_of_its_own, ext4_of_its_own, frozen, full, read_only, sick_disk
from tests.e2e.harness import Run, Site, called, for_s, living, mock_site
from tests.e2e.keeping import ANSWERS_S, answers_s, go_on, hold, notes, picks, sealed_more, status, submit

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(300)]

KILL_WAIT_S = 20
"""From Slurm's SIGTERM to its SIGKILL."""
MARGIN_S = 2.0
"""waits.kill_margin."""


@pytest.fixture
def small_disk(site) -> Iterator[Path]:
    """The disk of the run directories."""
    with disk_of_its_own(site.folder / "a" / "ftsup-runs") as folder:
        yield folder


def test_run_directory_is_read_only_and_full_for_a_while(site, small_disk) -> None:
    run = site.submit()

    def mirrored() -> bool:
        ours, mirror = (eventlog.read(path)[0] for path in (run.own_log(), run.place.events))
        return bool(mirror) and mirror[-1].n >= ours[-1].n

    run.until_trains(more=12)
    with read_only(run.place.root):
        run.rank(1).kill()
        incident = run.until_judged(1)
        run.until_trains(epoch=ev.Epoch(1, 2))
    run.until_past(incident.root)
    assert (incident.root.how, incident.root.rank) == (How.SIGNAL, 1)
    run.until(mirrored)
    with full(small_disk):
        run.rank(0).kill()
        run.until_judged(2)
        run.until_trains(epoch=ev.Epoch(1, 3))
        # what was left of the mirror's last page took some lines
        run.until(lambda: "No space left on device" in " ".join(notes(run)) and not mirrored())
    run.until(mirrored)
    assert len(run.events(ev.LeaderStarted)) == 1
    assert "Read-only file system" in " ".join(notes(run))
    run.finish()
    assert run.until_over().exit_code == 0
    assert eventlog.read(run.place.events) == eventlog.read(run.own_log())


ILL = {
    "Disk quota exceeded (quota": {"errno": QUOTA, "ops": "writes", "below": "/.ftsup"},  # the last bytes went to a save
    "Input/output error (media": {"errno": MEDIA, "below": "step", "ops": ["read"]},
    "Permission denied (credential": {"errno": DENIED},
}


def test_disk_of_the_checkpoints_falls_ill_again_and_again(tmp_path) -> None:
    """FUSE with no quota, no medium and no ticket: the kernel says so to all, the training script too."""
    with mock_site(tmp_path, nodes=1) as site, sick_disk(tmp_path / "a" / "ckpt") as sick:
        run = submit(site)
        sealed_more(run, than=1)
        for number, (word, rule) in enumerate(ILL.items(), 1):
            with sick.ill(rule):
                run.until(lambda word=word: any(word in note for note in notes(run)))
                run.until_trains(more=8)
                assert [word in text for text in run.until(lambda: status(run)["troubles"])] == [True]
                seen = len(run.events(ev.Sealed))
            sealed_more(run, than=seen)
            run.until(lambda number=number: notes(run).count("seal: works again") == number)
            assert run.until(lambda: not status(run)["troubles"])
        with sick.ill({"errno": MEDIA, "ops": ["read"], "who": "ftsup-keeper", "times": 1}):
            sealed_more(run, than=len(run.events(ev.Sealed)) + 1)
        assert run.launches() == [ev.Epoch(1, 1)]
        run.finish()
        assert run.until_over().exit_code == 0
        for word in ILL:
            assert sum(word in note for note in notes(run)) <= 2, notes(run)


def test_frozen_disks_are_in_nobodys_way(tmp_path) -> None:
    with mock_site(tmp_path, nodes=1, kill_wait_s=KILL_WAIT_S) as site:
        freezes(site, freeze_s=3.0, in_save=False)


@pytest.mark.drill
@pytest.mark.timeout(600)
def test_disks_are_frozen_for_two_minutes(tmp_path) -> None:
    with mock_site(tmp_path, nodes=1, kill_wait_s=KILL_WAIT_S) as site:
        freezes(site, freeze_s=120.0, in_save=True)


def freezes(site: Site, *, freeze_s: float, in_save: bool) -> None:
    """fsfreeze of the run directory and of the checkpoints: who writes there waits in the kernel, in state D, and nothing can kill him.

    `in_save`: when all is told to end, a rank is in its save.
    """
    work = site.folder / "a"
    with ext4_of_its_own(work / "ckpt") as ckpt, ext4_of_its_own(work / "ftsup-runs") as runs:
        run = submit(site, hang={"step": "3s"})
        run.until_trains()
        well_s = answers_s(run)
        with frozen(ckpt), frozen(runs), for_s(freeze_s):
            saves(run)
            assert answers_s(run) < max(ANSWERS_S, 2 * well_s)
        run.until_trains()
        hold(run)
        with frozen(ckpt), frozen(runs), for_s(freeze_s):
            run.until_trains(more=5)
            asked = time.monotonic()
            run.once(1, "hang")
            incident = run.until_judged(1)
            assert time.monotonic() - asked < 15.0
            assert (incident.root.how, incident.root.rank) == (How.QUIET, 1)
        run.until_trains(epoch=ev.Epoch(1, 2))
        go_on(run)
        assert len(run.incidents()) == 1
        assert len(run.events(ev.LeaderStarted)) == 1
        run.until(lambda: [len(ours(run, name)) for name in ("ftsup-clerk", "ftsup-keeper")] == [2, 1])
        run.until(lambda: eventlog.read(run.place.events)[1] == [])  # a line that is being written is torn
        told = [(event.node, event.trouble, event.over) for event in run.events(ev.Noted) if "hangs" in event.trouble]
        assert all(told.count(one) <= 2 for one in told), "once in each of the two"
        run.until(lambda: status(run)["troubles"] == [])
        if not in_save:
            hold(run)
        with frozen(ckpt), frozen(runs):
            if in_save:
                run.until(lambda: run.sights()[0].beat.phase is Phase.CHECKPOINT and run.rank(0).status() == psutil.STATUS_DISK_SLEEP)
            ends_in_time(run)
        run.until_over(state=JobState.CANCELLED)


@pytest.mark.drill
def test_checkpoints_disk_does_not_answer_at_all(tmp_path) -> None:
    """As a hard mount whose server is away: to look is to hang, in state D."""
    with mock_site(tmp_path, nodes=1, kill_wait_s=KILL_WAIT_S) as site, sick_disk(tmp_path / "a" / "ckpt") as sick:
        run = submit(site, hang={"step": "3s"})
        hold(run)
        well_s = answers_s(run)
        with sick.ill(HANGS), for_s(10.0):
            run.until_trains(more=5)
            assert answers_s(run) < max(ANSWERS_S, 2 * well_s)
            run.once(1, "hang")
            assert run.until_judged(1).root.rank == 1
        run.until_trains(epoch=ev.Epoch(1, 2))
        go_on(run)
        run.until(lambda: len(ours(run, "ftsup-keeper")) == 1)
        hold(run)
        with sick.ill(HANGS):
            ends_in_time(run)
        run.until_over(state=JobState.CANCELLED)


def saves(run: Run) -> None:
    """Rank 0 waits in its save: the phase says so, and it is no hang; the other rank trains."""
    run.until(lambda: run.sights()[0].beat.phase is Phase.CHECKPOINT)
    beats = run.sights()[1].beats
    run.until(lambda: run.sights()[1].beats > beats + 40)
    assert run.sights()[0].beat.phase is Phase.CHECKPOINT
    assert run.incidents() == []


def ends_in_time(run: Run) -> None:
    supervisors = run.leader(), run.supervisor("mock1")
    run.site.run("scancel", run.job)
    begun = time.monotonic()
    run.until(lambda: not any(map(living, supervisors)), within_s=30)
    assert time.monotonic() - begun < KILL_WAIT_S - MARGIN_S, run.story()
    assert not run.memory().exists()


def ours(run: Run, name: str) -> list[psutil.Process]:
    return [process for process in run.own() if called(process, name)]


@pytest.mark.drill
def test_new_files_are_seen_late_by_the_nodes_and_then_not_in_time(tmp_path) -> None:
    """As a slow NFS shows them: to the leader's keeper, which wrote their manifest, but not yet to the nodes."""
    with mock_site(tmp_path, nodes=2) as site, sick_disk(tmp_path / "a" / "ckpt") as sick:
        run = submit(site, slurm={"nodes": 2}, workers_per_node=1, waits={"files": "8s"})
        newest = hold(run).name
        with sick.ill({"late_s": 3600, "who": "ftsup-clerk"}):
            run.rank(1).kill()
            picked = picks(run)
            run.until(lambda: len(picks(run)) > len(picked))
            with for_s(1.5):
                pass
            assert run.launches() == [ev.Epoch(1, 1)]
        run.until_trains(epoch=ev.Epoch(1, 2))
        assert picks(run)[-1] == newest
        assert len(run.incidents()) == 1, "the wait was enough"
        with sick.ill({"late_s": 3600, "who": "ftsup-clerk"}):
            run.rank(0).kill()
            reason = run.until_judged(3).verdict.reason
        assert "after 8 s (waits.files): " in reason
        assert f"ckpt/{newest}: 0 files with 0 bytes here, 1 file with " in reason
        assert run.launches()[-1] < run.until_trains(epoch=ev.Epoch(1, 4))
        assert picks(run)[-1] == newest
        run.finish()
        assert run.until_over().exit_code == 0


@pytest.mark.drill
def test_run_directory_falls_ill_again_and_again(tmp_path) -> None:
    """No quota, no medium, no ticket: the record waits on the local disk, and is whole in the end."""
    with mock_site(tmp_path, nodes=1) as site, sick_disk(tmp_path / "a" / "ftsup-runs") as sick:
        run = submit(site)
        for number, (word, rule) in enumerate({"quota": QUOTA, "media": MEDIA, "credential": DENIED}.items(), 1):
            run.until_trains()
            with sick.ill({"errno": rule, "who": "ftsup-clerk"} if rule == DENIED else {"errno": rule, "ops": "writes"}):
                run.until(lambda word=word: any(f"({word}: " in text for text in local_notes(run)))
                run.rank(1).kill()
                run.until(lambda number=number: len(local(run, ev.AttemptOver)) == number)
                sealed = len(local(run, ev.Sealed))
                run.until(lambda number=number: max(event.epoch for event in local(run, ev.Launched)) == ev.Epoch(1, number + 1))
                run.until(lambda sealed=sealed: len(local(run, ev.Sealed)) > sealed)
            run.until(lambda: status(run)["troubles"] == [])
        told = [event for event in run.events(ev.Noted) if event.trouble and not event.node]
        assert [sum(f"({word}: " in event.text for event in told) for word in ("quota", "media", "credential")] == [1, 1, 1], told
        assert len(run.events(ev.LeaderStarted)) == 1
        run.finish()
        assert run.until_over().exit_code == 0
        lines, notes = eventlog.read(run.place.events)
        assert (lines, notes) == eventlog.read(run.own_log())


def local(run: Run, kind: type) -> list[Any]:
    """From the leader's own log: the mirror is behind."""
    return [line.event for line in eventlog.read(run.own_log())[0] if isinstance(line.event, kind)]


def local_notes(run: Run) -> list[str]:
    return [event.text for event in local(run, ev.Noted)]
