"""People steer a run, end to end: restart, also from an earlier step, requeue without a node, pause and go on; a leader dies of it."""

from __future__ import annotations

import signal
from datetime import datetime
from pathlib import Path

import pytest

from ftsup import eventlog
from ftsup import events as ev
from ftsup.cli.asking import leave
from ftsup.events import Epoch, Request
from ftsup.ports import JobState
from ftsup.supervisor.requests import Wanted
from tests.e2e.harness import Run, for_s, merged, mock_site

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SAVER = Path(__file__).parent / "saver.py"
ANSWER_S = 5.0


def saver(site, name: str = "a", **config: object) -> Run:
    """It saves when it is asked to, and at no other time."""
    base = {"command": [str(SAVER), "asks"], "checkpoint": {"pattern": "step*", "complete": "complete", "poll": "1s"}}
    return site.submit(name, **merged(base, config))


def steps(run: Run) -> list[int]:
    """Where attempts began; a leader that takes over before the launch picks once more."""
    return list({event.epoch: event.step or 0 for event in run.events(ev.CheckpointPicked)}.values())


def saved(run: Run) -> list[int]:
    """The steps at which all ranks saved, in their order; two attempts may come to the same step."""
    lines = (run.work / "saves").read_text().splitlines()
    found = [(int(step), int(rank)) for rank, step, *_ in map(str.split, lines)]
    ranks = run.ranks(run.launches()[0])
    saves = [sorted(found[at : at + ranks]) for at in range(0, len(found), ranks)]
    assert all(save == [(save[0][0], rank) for rank in range(ranks)] for save in saves), found
    return [save[0][0] for save in saves]


def steer(run: Run, *words: str) -> str:
    """A request, answered in time, as the log has it: by whom, when, and with which words."""
    before = len(run.events(ev.Asked))
    said = run.site.ftsup(*words, cwd=run.work)
    (line,) = [line for line in run.lines() if isinstance(line.event, ev.Asked)][before:]
    assert isinstance(line.event, ev.Asked)
    assert line.event.who
    waited_s = (datetime.fromisoformat(line.wall) - datetime.fromisoformat(line.event.wall)).total_seconds()
    assert 0 <= waited_s < ANSWER_S, waited_s
    answer = next(order.text for order in line.orders if isinstance(order, ev.Notify))
    assert answer in said
    return answer


def test_restart_pause_and_go_on(tmp_path) -> None:
    with mock_site(tmp_path, nodes=1) as site:
        run = saver(site)
        run.until_heard()
        # Restart: saved, no incident, and resumed from what was saved.
        assert "the ranks save first" in steer(run, "restart")
        run.until_heard(epoch=Epoch(1, 2))
        steer(run, "restart")
        run.until_heard(epoch=Epoch(1, 3))
        first, second = saved(run)
        assert steps(run) == [0, first, second]
        # Back to the first: the second stays, and a fault does not bring it back.
        steer(run, "restart", "--from-step", str(second - 1))
        run.until_heard(epoch=Epoch(1, 4))
        assert steps(run)[-1] == first
        assert (run.work / "ckpt" / f"step{second:06}").is_dir()
        assert (run.incidents(), run.orders(ev.Requeue)) == ([], [])
        run.rank(0).kill()
        run.until_heard(epoch=Epoch(1, 5))
        assert steps(run)[-1] == first
        # Pause: saved, the job is released, and nothing follows but by a person.
        steer(run, "pause")
        job = run.until_over()
        assert job.exit_code == 0
        third = saved(run)[-1]
        assert run.decision()["reason"].endswith(f", saved at step {third}")
        assert "paused" in site.ftsup("status", cwd=run.work)
        old = run.job
        said = site.ftsup("submit", "--continue", "e2e", "--set", "grace=3s", cwd=run.work)
        run.job = said.split()[1].rstrip(":")
        assert run.job != old
        assert run.place.jobs.read_text().split() == [old, run.job]
        assert run.until_heard(epoch=Epoch(2, 1)) == Epoch(2, 1)
        assert steps(run)[-1] == third
        assert [event.changed for event in run.events(ev.Continued)] == [("grace",)]
        run.finish()
        assert run.until_over().exit_code == 0
        numbers = [line.n for line in eventlog.read(run.place.events)[0]]
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_requeue_keeps_a_node_out_and_a_leader_killed_at_a_request_does_it_once(tmp_path) -> None:
    with mock_site(tmp_path, nodes=2) as site:
        run = saver(site)
        waits = saver(site, "waits", slurm={"nodes": 2})
        run.until_heard()
        # A job that waits is paused in the queue, goes on into it, and is cancelled there.
        assert "was pending, and was taken out of the queue" in site.ftsup("pause", cwd=waits.work)
        assert waits.show().state is JobState.CANCELLED
        assert "paused" in site.ftsup("status", cwd=waits.work)
        waits.job = site.ftsup("submit", "--continue", "e2e", cwd=waits.work).split()[1].rstrip(":")
        assert waits.show().state is JobState.PENDING
        site.ftsup("pause", cwd=waits.work)
        site.ftsup("cancel", cwd=waits.work)
        assert "cancelled" in site.ftsup("status", cwd=waits.work)
        # The leader dies as soon as the request is in its log.
        leave(run.place, Wanted(request=Request.RESTART, who="ada"))
        run.until(lambda: b'"type":"Asked"' in run.own_log().read_bytes())
        run.leader().send_signal(signal.SIGKILL)
        run.until_heard(epoch=Epoch(1, 2))
        assert len(run.events(ev.Asked)) == 1
        run.until(lambda: not list(run.place.requests.glob("*.json")))
        # Another node.
        (node,) = run.show().nodes
        steer(run, "requeue", "--avoid", node)
        run.until_heard(epoch=Epoch(2, 1))
        assert run.show().nodes != (node,)
        assert (run.show().restarts, run.incidents()) == (1, [])
        assert steps(run) == [0, *saved(run)]
        # Paused and cancelled: nothing comes back.
        steer(run, "pause")
        run.until_over()
        assert "is cancelled" in site.ftsup("cancel", cwd=run.work)
        with for_s(3.0):
            pass
        assert "cancelled" in site.ftsup("status", cwd=run.work)
        assert (run.grants(), run.show().state) == (2, JobState.COMPLETED)
