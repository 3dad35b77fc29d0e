"""The worlds that the contract suite runs against, behind one set of verbs: submit, finish, until, hold.

`FakeRig` moves the fake's clock; `LiveRig` runs commands in an environment (mock or real) and polls. A rig cancels at its end
what it submitted.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ftsup.errors import Refused
from ftsup.ports import Job, JobState
from ftsup.slurm.commands import Commands, retried, scrubbed
from ftsup.slurm.fake import FakeSlurm

LINGER_S, SLOW_S = 1.0, 4.0
"""How long a job of the suite takes to end after SIGTERM, and the fake's."""
SLOW = "--job-name=slow"
"""A job that is COMPLETING until a test lets it end, or KillWait is over: so a test on a slow machine is in time for what it does then."""
KILL_WAIT_S = 10
"""Of the mock, and of the clusters that the contract has for itself (tests/realslurm/fixtures.py)."""
STAYS = f"""#!/bin/bash
lets() {{ if [ "$SLURM_JOB_NAME" = slow ]; then [ -e "let-$SLURM_JOB_ID" ]; fi; }}
trap 'sleep {LINGER_S}; until lets; do sleep 0.1; done; exit 0' TERM
echo "started ${{SLURM_RESTART_COUNT-unset}}" >> "started-$SLURM_JOB_ID"
until [ -e "end-$SLURM_JOB_ID" ]; do sleep 0.1; done
exit "$(cat "end-$SLURM_JOB_ID")"
"""
SRUN = "srun --mpi=none --cpu-bind=none"
SIGNALLED = f"""#!/bin/bash
hear() {{ trap "echo $1-$2 >> heard-$SLURM_JOB_ID" "$2"; }}
export -f hear
hear batch USR1
hear batch TERM
bash -c 'hear beside USR1; echo >> ready-$SLURM_JOB_ID; until [ -e end-$SLURM_JOB_ID ]; do sleep 0.1; done' &
setsid {SRUN} -N2 -n2 bash -c '
  hear task USR1
  hear task CONT
  bash -c "hear child USR1; echo >> ready-$SLURM_JOB_ID; until [ -e end-$SLURM_JOB_ID ]; do sleep 0.1; done" &
  setsid bash -c "hear session USR1; echo >> ready-$SLURM_JOB_ID; until [ -e end-$SLURM_JOB_ID ]; do sleep 0.1; done" &
  echo >> ready-$SLURM_JOB_ID
  until [ -e end-$SLURM_JOB_ID ]; do sleep 0.1; done' &
echo >> ready-$SLURM_JOB_ID
until [ -e end-$SLURM_JOB_ID ]; do sleep 0.1; done
"""
HEARERS = 2 * 3 + 2
"""On each node a task, its child, and a child in a session of its own; and the batch shell and its child. srun has a session of its
own, as ours has: it would hand signals on."""
OVER = {JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED, JobState.TIMEOUT, JobState.GONE}
STEP_S = 0.1


def running(job: Job) -> bool:
    return job.state is JobState.RUNNING and not job.completing


def pending(job: Job) -> bool:
    return job.state is JobState.PENDING and not job.completing


def completing(job: Job) -> bool:
    return job.completing


def over(job: Job) -> bool:
    return job.state in OVER and not job.completing


class Rig:
    """What both kinds share."""

    def __init__(self, slurm: FakeSlurm | Commands, folder: Path) -> None:
        self.slurm = slurm
        self.folder = folder
        self.mine: list[str] = []

    def submit(self, *args: str, text: str = STAYS) -> str:
        """Submit a script of this text; the default one stays until `finish`."""
        script = self.folder / f"job{len(self.mine)}.sh"
        script.write_text(text)
        job_id = self.slurm.submit(script, args=[*self.always, *args])
        self.mine.append(job_id)
        return job_id

    def until(self, job_id: str, what: Callable[[Job], bool], *, within_s: float = 25) -> Job:
        """The job once `what` is true of it."""
        spent, job = 0.0, self.slurm.show(job_id)
        while not what(job):
            assert spent < within_s, f"not {what.__name__} within {within_s} s: {job}"
            spent += self.pause()
            job = self.slurm.show(job_id)
        return job

    def pass_s(self, seconds: float) -> None:
        """So much time passes, and nobody asks Slurm for anything."""
        while seconds > 0:
            seconds -= self.pause()

    def start(self, *args: str) -> str:
        """Submit, and wait until it runs, and its script is ready to be told to end."""
        job_id = self.submit(*args)
        self.until(job_id, running)
        self.ready(job_id)
        return job_id

    def requeued(self, *args: str) -> str:
        """A job that waits after a requeue."""
        job_id = self.start(*args)
        self.slurm.requeue(job_id)
        self.until(job_id, pending)
        return job_id

    def again(self, job_id: str) -> Job:
        """A requeued job runs again, early; on a slow machine its wait is over by itself."""
        with contextlib.suppress(Refused):
            self.slurm.start_now(job_id)
        return self.until(job_id, running)

    def close(self) -> None:
        for job_id in self.mine:
            self.let(job_id)
            retried(lambda job_id=job_id: self.slurm.cancel(job_id), sleep=lambda _: self.pause(), tries=3)

    always: tuple[str, ...] = ()


class FakeRig(Rig):
    """The fake: time passes at once."""

    def __init__(self, folder: Path) -> None:
        self.fake = FakeSlurm(completing_s=SLOW_S, begin_wait_s=7)
        super().__init__(self.fake, folder)

    def pause(self) -> float:
        self.fake.advance(STEP_S)
        return STEP_S

    def finish(self, job_id: str, *, exit_code: int = 0) -> None:
        self.fake.finish(job_id, exit_code=exit_code)

    def hold(self, job_id: str) -> None:
        self.fake.hold(job_id)

    def ready(self, job_id: str) -> None:
        """It is, at once."""

    def let(self, job_id: str) -> None:
        """It ends by itself."""


class LiveRig(Rig):
    """Commands on PATH: the mock's, or the real ones."""

    limit = "1"
    """The shortest time limit: a minute."""
    lead_s = 15
    """How long before it the warning is asked for. Slurm looks every 30 s, and warns when less than that would be left at its next look:
    at the earliest after 15 s, when everybody listens."""
    limit_s = 120
    """How long it takes at most until such a job is over: limits are checked twice a minute, and then comes KillWait."""

    def __init__(self, folder: Path, env: Mapping[str, str], *, proctrack: str) -> None:
        self.env = {**scrubbed(os.environ), **env}
        self.proctrack = proctrack
        self.always = (f"--chdir={folder}",)
        super().__init__(Commands(environ=self.env), folder)

    def pause(self) -> float:
        began = time.monotonic()
        time.sleep(STEP_S)
        return time.monotonic() - began

    def finish(self, job_id: str, *, exit_code: int = 0) -> None:
        (self.folder / "end.new").write_text(str(exit_code))
        (self.folder / "end.new").rename(self.folder / f"end-{job_id}")

    def hold(self, job_id: str) -> None:
        self.run("scontrol", "hold", job_id)

    def ready(self, job_id: str) -> None:
        self.wait_for(lambda: self.read(f"started-{job_id}"))

    def let(self, job_id: str) -> None:
        """A slow one that was told to end may do so now."""
        (self.folder / f"let-{job_id}").touch()

    def run(self, *argv: str, code: int = 0) -> str:
        """Run one of Slurm's commands; what it printed."""
        done = subprocess.run(argv, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=50, check=False)
        assert done.returncode == code, (argv, done)
        return done.stdout + done.stderr

    def read(self, name: str) -> list[str]:
        """The lines of a file that a job writes; none while it is not there."""
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    def wait_for(self, there: Callable[[], object], *, within_s: float = 25) -> None:
        """Until it is true."""
        until = time.monotonic() + within_s
        while not there():
            assert time.monotonic() < until, f"not within {within_s} s"
            time.sleep(STEP_S)

    def signalled(self, *args: str) -> str:
        """A job in which everybody writes down the signals that reach him, and listens by now."""
        job_id = self.submit("-N2", *args, text=SIGNALLED)
        self.wait_for(lambda: len(self.read(f"ready-{job_id}")) == HEARERS)
        return job_id

    def heard(self, job_id: str) -> dict[str, int]:
        """Who heard what, how often: `task-USR1`: 2."""
        lines = self.read(f"heard-{job_id}")
        return {line: lines.count(line) for line in set(lines)}


class MockRig(LiveRig):
    """The mock's commands: its minutes are as short as its settings say."""

    limit = "0:20"
    lead_s = 5
    limit_s = 50
