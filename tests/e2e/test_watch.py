"""`ftsup watch` beside runs on the mock: the loop as a process of its own, and a batch script that was killed."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from ftsup import events as ev
from ftsup.ports import JobState
from tests.e2e.harness import beside, mock_site, until

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(300)]

WAIT_S = 600.0
"""What a requeued job would wait: longer than the story may take."""


def once(run) -> list[dict[str, str]]:
    """One look; what it has to tell."""
    return [json.loads(line) for line in run.site.ftsup("watch", "--once", "--json", cwd=run.work).splitlines()]


def minute_later(run) -> None:
    """As if the last look had been a minute ago."""
    (path,) = (run.work / "ftsup-runs").glob(".watch-*")
    memory = json.loads(path.read_bytes())
    memory["looked_s"] -= 61
    path.write_text(json.dumps(memory))


def test_the_loop_starts_a_requeued_job_at_once_and_another_one_is_refused(tmp_path) -> None:
    with mock_site(tmp_path, begin_wait_s=WAIT_S) as site:
        run = site.submit()
        run.until_trains()
        argv = [sys.executable, "-m", "ftsup", "watch", "--start-now", "--json"]
        with (
            (run.work / "said").open("wb") as out,
            (run.work / "err").open("wb") as err,
            beside(site, argv, cwd=run.work, out=out, err=err) as loop,
        ):
            until(lambda: [path for path in (run.work / "ftsup-runs").glob(".watch-*") if path.stat().st_size])
            refused = site.tried(sys.executable, "-m", "ftsup", "watch", "--once", cwd=run.work)
            assert (refused.returncode, f"pid {loop.pid} on" in refused.stderr) == (75, True)
            site.ftsup("requeue", run.place.id, cwd=run.work)
            run.until(lambda: (job := run.show()).state is JobState.RUNNING and job.restarts == 1, within_s=WAIT_S / 3)
            until(lambda: '"start now"' in (run.work / "said").read_text())  # told once it is done
            loop.send_signal(signal.SIGINT)
            assert loop.wait(60) == 130
        said = [json.loads(line) for line in (run.work / "said").read_text().splitlines()]
        assert [(one["do"], one["job"]) for one in said if one["do"] != "nothing"] == [("start now", run.job)]
        assert once(run) == []


def test_a_batch_script_that_was_killed_is_told_and_the_run_goes_on_as_it_says(site) -> None:
    """Slurm ends its job as failed, and nothing of ours is left to speak."""
    run = site.submit()
    run.until_trains()
    run.bash().kill()
    assert run.until_ended().state is JobState.FAILED
    assert once(run) == []  # the last lines of a log may be on their way
    minute_later(run)
    (said,) = once(run)
    assert (said["do"], said["about"], said["text"]) == (
        "say",
        "ended",
        f"its job {run.job} ended (FAILED), and no leader said why",
    )
    assert f"ftsup submit --continue {run.place.id}" in said["hint"]
    run.job = site.ftsup("submit", "--continue", run.place.id, cwd=run.work).split()[1].rstrip(":")
    run.until_trains(epoch=ev.Epoch(2, 1))
    run.finish()
    assert run.until_ended().state is JobState.COMPLETED
    assert once(run) == []
