"""The run directory is gone for a while, as an unmounted disk is: training goes on, and the record is whole in the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from ftsup import eventlog
from ftsup import events as ev
from tests.e2e.harness import Run, for_s
from tests.e2e.sound import sound

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(300)]


@contextlib.contextmanager
def gone(run: Run) -> Iterator[None]:
    """All run directories of this name."""
    aside = run.place.root.parent.with_name("unmounted")
    run.place.root.parent.rename(aside)
    try:
        yield
    finally:
        if run.place.root.parent.exists():  # a folder that somebody of ours made in its place would hide it
            raise AssertionError(list(run.place.root.parent.rglob("*")))
        aside.rename(run.place.root.parent)


def own(run: Run, kind: type) -> list[ev.Event]:
    """From the leader's own log."""
    return [line.event for line in eventlog.read(run.own_log())[0] if isinstance(line.event, kind)]


def test_run_directory_is_gone_while_ranks_train(site) -> None:
    run = site.submit()
    run.until_trains(more=12)
    with gone(run):
        run.until(lambda: [event for event in own(run, ev.Noted) if event.trouble and not event.over])
        with for_s(5.0):
            pass
        assert own(run, ev.RankEnded) == []
    run.until_trains(more=12)
    run.until(lambda: not [1 for event in own(run, ev.Noted)[-1:] if event.trouble and not event.over])
    run.finish()
    assert run.until_over().exit_code == 0
    assert run.launches() == [ev.Epoch(1, 1)]
    sound(run)


@pytest.mark.drill
def test_run_directory_is_gone_while_a_rank_dies(site) -> None:
    """What ranks import lies in it: nothing can be launched, nobody is blamed, and once it is back training goes on."""
    run = site.submit()
    run.until_trains(more=12)
    with gone(run):
        run.rank(1).kill()
        run.until(lambda: own(run, ev.AttemptOver))
        with for_s(12.0):  # longer than a launch waits for the mirror
            pass
    assert run.until_trains(epoch=ev.Epoch(1, 2)) == ev.Epoch(1, 2)
    run.finish()
    assert run.until_over().exit_code == 0
    assert len(run.incidents()) == 1
    sound(run, told=[r"what +rank 1 .*SIGKILL", r"the run directory is gone \(\d"])
