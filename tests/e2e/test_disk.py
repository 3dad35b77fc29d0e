"""The run directory is read-only or full for a while: training does not notice, and the record is whole in the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ftsup import eventlog
from ftsup import events as ev
from ftsup.events import How
from tests.e2e.disks import disk_of_its_own, full, read_only

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(300)]


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
    assert (incident.root.how, incident.root.rank) == (How.SIGNAL, 1)
    run.until(mirrored)
    with full(small_disk):
        run.rank(0).kill()
        run.until_judged(2)
        run.until_trains(epoch=ev.Epoch(1, 3))
        assert not mirrored()
    run.until(mirrored)
    assert len(run.events(ev.LeaderStarted)) == 1
    notes = " ".join(event.text for event in run.events(ev.Noted))
    assert "Read-only file system" in notes
    assert "No space left on device" in notes
    run.finish()
    assert run.until_over().exit_code == 0
    lines, notes = eventlog.read(run.place.events)
    assert (lines, notes) == eventlog.read(run.own_log())
