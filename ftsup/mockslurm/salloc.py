"""`salloc`: ask for nodes, run a command here (a shell where none is named) while the job lasts, give them back when it has ended.

The command is our child and no part of the job: it is not signalled when the job is taken away. Not in the mock: `--no-shell`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from ftsup.mockslurm import options, request, rules, runner
from ftsup.mockslurm.client import CONNECT, VERSION, Away, controller
from ftsup.mockslurm.model import JobRec, World
from ftsup.mockslurm.options import Parsed, fail
from ftsup.mockslurm.store import Store
from ftsup.ports import JobState

LOOK_S = 0.1
"""How often to look whether the job has its nodes, or has lost them."""
FATAL = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
ONLY_NODES = {"SLURM_CPUS_ON_NODE", "SLURM_JOB_GID", "SLURM_JOB_UID", "SLURM_JOB_USER", "SLURM_WORKING_CLUSTER"}
"""What only a job's own processes are told."""


class Salloc:
    """One allocation, and the command in it."""

    def __init__(self, store: Store, given: Parsed) -> None:
        self.store, self.given = store, given
        self.job = 0
        self.stopped = False
        self.revoked = False
        for number in FATAL:
            signal.signal(number, self._stop)

    def _stop(self, *_: object) -> None:
        self.stopped = True

    def say(self, line: str) -> None:
        """A line of ours."""
        if not self.given.has("quiet"):
            print(f"salloc: {line}", file=sys.stderr, flush=True)

    def ask(self) -> None:
        """Put the job into the queue."""
        job = request.job(self.given, program="salloc", name="interactive")
        with controller(self.store) as (world, now):
            request.check(world, self.given, job, program="salloc")
            job.interactive, job.words = True, []
            job.job, world.next_job = world.next_job, world.next_job + 1
            job.submit_at = job.eligible_at = job.accrue_at = now
            self.store.job_dir(job.job).mkdir(mode=0o700, parents=True, exist_ok=True)
            world.jobs[job.job] = job
        self.job = job.job

    def wait(self) -> dict[str, str] | None:
        """Until it has its nodes: what the command is told of them. None: it will not have them."""
        told = False
        while True:
            world = self.store.read()
            job = world.jobs.get(self.job)
            if job and job.state is JobState.RUNNING:
                if told:
                    self.say(f"job {self.job} has been allocated resources")
                self.say(f"Granted job allocation {self.job}")
                return _env(world, job)
            if self.stopped:
                self.say("Job aborted due to signal")
                self._cancel()
            if self.stopped or job is None or job.over:
                self.say(f"Job allocation {self.job} has been revoked.")
                return None
            if not told:
                self.say(f"Pending job allocation {self.job}")
                self.say(f"job {self.job} queued and waiting for resources")
            told = True
            time.sleep(LOOK_S)

    def run(self, env: dict[str, str]) -> int:
        """The command, to its end. Its exit code is ours; a signal that ends it is none."""
        argv = list(self.given.rest) or [pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"]
        status = 1 << 8
        if shutil.which(argv[0]) is None:
            options.say("salloc", f'_fork_command: Unable to find command "{argv[0]}"')
        else:
            status = self._live(argv, env)
        if not self.revoked:
            self.say(f"Relinquishing job allocation {self.job}")
            self._end(status)
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0

    def _live(self, argv: list[str], env: dict[str, str]) -> int:
        """Start it, with the terminal where we have one, and wait; its wait status."""
        terminal = sys.stdin.isatty()
        command = subprocess.Popen(argv, env=os.environ | env, preexec_fn=_in_front if terminal else os.setpgrp)  # noqa: S603, PLW1509 - the user's; one thread
        while command.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(LOOK_S)
            if not self.revoked:
                self._watch()
        if terminal:
            _in_front()
        code = command.returncode
        return -code if code < 0 else code << 8

    def _watch(self) -> None:
        """Give the job back when we were signalled; say so once it is gone."""
        if self.stopped:
            self._cancel()
        job = self.store.read().jobs.get(self.job)
        if job is None or job.completing or job.over:
            self.revoked = True
            self.say(f"Job allocation {self.job} has been revoked.")

    def _cancel(self) -> None:
        with contextlib.suppress(Away), controller(self.store) as (world, now):
            if job := world.jobs.get(self.job):
                rules.cancel(job, now)

    def _end(self, status: int) -> None:
        try:
            with controller(self.store) as (world, now):
                if job := world.jobs.get(self.job):
                    rules.script_ended(job, status, now)
        except Away:
            options.say("salloc", f"Unable to clean up job allocation {self.job}: {CONNECT}")


def _in_front() -> None:
    """Our process group is the terminal's from now on."""
    os.setpgrp()
    ours = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, ours)


def _env(world: World, job: JobRec) -> dict[str, str]:
    return {name: value for name, value in (runner.job_env(world, job) | runner.asked_env(job)).items() if name not in ONLY_NODES}


def main(store: Store, arguments: Sequence[str]) -> int:
    """The program."""
    given = options.parse(options.SALLOC, arguments)
    if given.has("version"):
        print(f"slurm-wlm {VERSION}")
        return 0
    allocation = Salloc(store, given)
    try:
        allocation.ask()
    except Away:
        fail("salloc", f"{request.REFUSED['salloc']}: {CONNECT}")
    except rules.Refusal as refusal:
        fail("salloc", f"{request.REFUSED['salloc']}: {refusal}")
    env = allocation.wait()
    return 1 if env is None else allocation.run(env)
