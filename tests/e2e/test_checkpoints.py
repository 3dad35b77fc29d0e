"""Checkpoints of a running job: sealed beside it, picked by their bytes, owned by one run, and never in the way of training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftsup import events as ev
from ftsup.events import Epoch, How
from ftsup.ports import JobState
from tests.e2e.disks import disk_of_its_own, full, read_only
from tests.e2e.harness import Site, living, mock_site, stopped
from tests.e2e.keeping import ANSWERS_S, answers_s, go_on, hold, keeper, notes, picks, status, submit

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(300)]


def test_damaged_late_and_unloadable_checkpoints_and_a_second_run(site) -> None:
    run = submit(site)
    run.until_trains()

    # another run, alive, wants the same directory
    newest = hold(run)
    with pytest.raises(AssertionError, match=rf"belong to run {run.place.id} \(job {run.job} on mock1\), which is alive"):
        submit(site, "b", checkpoint={"dir": str(run.work / "ckpt")})

    # a bit flips in the newest
    data = bytearray(newest.read_bytes())
    data[-5] ^= 4
    newest.write_bytes(data)
    run.rank(1).kill()
    run.until_trains(epoch=Epoch(1, 2))
    (aside,) = run.events(ev.Quarantined)
    assert aside.name == newest.name
    assert "block 0" in aside.why
    assert "weights" in aside.why
    assert Path(aside.path).read_bytes() == data
    assert picks(run)[1] < newest.name
    assert not newest.exists()
    shown = run.until(lambda: (now := status(run))["sealed_step"] == int(picks(run)[1][4:10]) and now)
    assert f"checkpoint {newest.name} was set aside, damaged: the file, block 0" in shown["damaged"][0]

    # the newest is sound, and the script cannot load it
    go_on(run)
    newest = hold(run)
    (run.work / "control" / "unloadable").write_text(newest.name)
    run.until_past(run.incidents()[0].root)
    run.rank(0).kill()
    for number in (2, 3, 4):
        run.until(lambda number=number: len(run.incidents()) >= number)  # nobody waits for us to look at each
    run.until_trains(epoch=Epoch(1, 5))
    assert [order.verdict.rule for order in run.incidents()] == ["otherwise", "otherwise", "otherwise", "suspect checkpoint"]
    assert picks(run)[2:4] == [newest.name] * 2
    assert picks(run)[4] < newest.name
    assert run.incidents()[-1].root.how is How.EXCEPTION
    assert "has no optimizer" in run.incidents()[-1].verdict.reason

    # the node sees the checkpoint later than the leader
    chosen, there = len(picks(run)), newest.with_name(picks(run)[-1])
    with stopped(run.clerk(run.supervisor("mock1"))):  # which looks for the node
        run.rank(1).kill()
        run.until(lambda: len(picks(run)) > chosen)
        there.rename(there.with_name("away"))
    assert picks(run)[-1] == there.name
    time.sleep(1.5)
    assert not any(event.epoch == Epoch(1, 6) for event in run.events(ev.Prepared))
    there.with_name("away").rename(there)
    run.until_trains(epoch=Epoch(1, 6))
    assert len(run.incidents()) == 5
    run.finish()
    assert run.until_over().exit_code == 0
    owner = run.work / "ckpt" / ".ftsup" / "owner"
    assert not owner.exists(), "a run that is over lets go of its directory"


@pytest.mark.drill
def test_directory_that_hangs_is_in_nobodys_way(tmp_path) -> None:
    """Whoever touches it stands still (SIGSTOP): training goes on, status answers, a hang is found, and TERM ends all in time."""
    with mock_site(tmp_path, nodes=1, kill_wait_s=10) as site:
        hangs(site)


def hangs(site: Site) -> None:
    run = submit(site, hang={"step": "3s"})
    run.until_trains()
    run.until(lambda: run.events(ev.Sealed))
    well_s = answers_s(run)
    with stopped(keeper(run), run.clerk(run.leader())):
        run.until_trains(more=5)
        assert answers_s(run) < max(ANSWERS_S, 2 * well_s)
        run.once(1, "hang")
        incident = run.until_judged(1)
        assert incident.root.how is How.QUIET
        run.until_trains(epoch=Epoch(1, 2))
    assert picks(run)[-1]
    node, frozen = run.supervisor("mock1"), keeper(run)
    with stopped(frozen, run.clerk(run.leader()), run.clerk(node)):
        site.run("scancel", run.job)
        begun = time.monotonic()
        run.until(lambda: not living(node), within_s=20)
        assert time.monotonic() - begun < 10.0
        run.until(lambda: not living(frozen), within_s=20)  # with the leader, which stays until Slurm says why
    run.until_over(state=JobState.CANCELLED)


@pytest.fixture
def checkpoint_disk(site) -> Iterator[Path]:
    """A small disk of its own for the checkpoints."""
    with disk_of_its_own(site.folder / "a" / "ckpt") as folder:
        yield folder


@pytest.mark.drill
def test_checkpoints_disk_takes_nothing_for_a_while(site, checkpoint_disk) -> None:
    run = submit(site)
    run.until_trains()
    run.until(lambda: run.events(ev.Sealed))
    with read_only(checkpoint_disk / ".ftsup"):
        run.until(lambda: "Read-only file system" in " ".join(notes(run)))
        seen = len(run.events(ev.Sealed))
        run.until_trains(more=3)
    run.until(lambda: len(run.events(ev.Sealed)) > seen)
    run.until(lambda: "seal: works again" in notes(run))
    with full(checkpoint_disk):
        run.until(lambda: "is not saved: No space left on device" in run.logs())
        run.rank(1).kill()
        run.until_trains(epoch=Epoch(1, 2))
        assert picks(run)[-1] >= max(event.name for event in run.events(ev.Sealed))  # one that cannot be sealed is good enough
    seen = len(run.events(ev.Sealed))
    run.until(lambda: len(run.events(ev.Sealed)) > seen)
    assert len(run.events(ev.LeaderStarted)) == 1
    run.finish()
    assert run.until_over().exit_code == 0
