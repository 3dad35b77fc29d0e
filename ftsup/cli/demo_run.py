"""One demo, from an empty folder to the last line: the undisturbed run, the disturbed one with its faults, and the comparison.

Everything real: `ftsup submit` puts the job in, faults strike from outside, and what is shown is read from the run's event log. Owns the
order of it and its bounds in time; each part has a module of its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from types import FrameType

import click
from msgspec.structs import replace
from rich.console import Console

from ftsup import eventlog, proc
from ftsup import events as ev
from ftsup.cli.demo_cleaning import LOOK_S, Site, clean, look
from ftsup.cli.demo_faults import Kind, Struck, choose, instant
from ftsup.cli.demo_hands import Hands, Now, Seat, limit, ranks_now
from ftsup.cli.demo_proof import missing, outcomes, recovered
from ftsup.cli.demo_training import UNDISTURBED, Training
from ftsup.cli.demo_view import Scene, View, table
from ftsup.errors import RunError, SlurmError
from ftsup.events import Line
from ftsup.mockslurm import control as mockslurm
from ftsup.monitors import procs
from ftsup.ports import Job, JobState
from ftsup.report.story import Story, tell
from ftsup.report.words import short_time
from ftsup.rundir import RunDir
from ftsup.slurm.commands import scrubbed

LIMIT_S = 480.0
"""The whole demo; on two cores it takes two to three minutes."""
ASK_S = 5.0
"""Between two questions to the mock Slurm: each is a process of its own."""
WORK = "work"
SETTLE_S = 20.0
HELPER_S = 60.0
KILL_WAIT_S = 5
BEGIN_WAIT_S = 2
"""A real Slurm lets a requeued job wait for two minutes."""
PACE_S = 0.2
"""No step is shorter while faults strike: what two cores need for one anyway. On a big machine the training would outrun the faults."""


class Told:
    """Whether somebody wants us to end: Ctrl-C, or a signal. A flag, so that the cleaning up is never cut short."""

    def __init__(self) -> None:
        self.flag = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._set)

    def _set(self, _number: int, _frame: FrameType | None) -> None:
        self.flag = True


class Demo:
    """One demo, from an empty folder to the last line."""

    def __init__(self, training: Training, *, seed: int, kinds: Collection[Kind], console: Console) -> None:
        self._home, self._training = training.home, training
        self._plan = choose(seed, steps=training.steps, ranks=training.ranks, kinds=kinds)
        self._console = console
        self._view = View(
            console, title=f"ftsup demo: {training.ranks} ranks on {training.config.slurm.nodes} virtual nodes, DEMO_SEED={seed}"
        )
        self._began_s = time.monotonic()
        self._told = Told()
        self._site = Site(mock=self._home / "slurm", local=self._home / "local", environ=scrubbed(os.environ))
        self._struck: tuple[Struck, ...] = ()
        self._lines: list[Line] = []
        self._story = Story()
        self._run_dir: RunDir | None = None
        self._job: Job | None = None
        self._asked_s = 0.0
        self._lifted = False
        """The time limit is far away again."""

    def run(self) -> bool:
        """All of it; whether everything held."""
        try:
            with self._view:
                expected = self._undisturbed()
                self._submit()
                self._follow()
                left = self._left()
        finally:
            for text in clean(self._run_dir, self._site, patience_s=2 * KILL_WAIT_S):
                click.echo(text, err=True)
        found = outcomes(self._lines, self._story, self._struck)
        problems = [*missing(self._story, self._plan, found), *self._ending(), *left]
        self._console.print()
        self._console.print(table(found))
        for problem in problems:
            self._console.print(f"did not hold: {problem}", style="bold red", soft_wrap=True, markup=False)
        self._console.print(f"{len(self._struck)} faults, {short_time(self._now_s())} in all", markup=False)
        return self._compare(expected) and not problems

    # Its parts ------------------------------------------------------------------------------------------------------------

    def _undisturbed(self) -> str:
        """Train once without ftsup and without faults; the digest of the weights."""
        self._say("first an undisturbed run by plain torchrun, to compare the weights with")
        running = self._training.start_undisturbed()
        try:
            while (done := running.poll()) is None:
                self._draw("the undisturbed run", step=self._training.saved(UNDISTURBED))
                self._pause()
        finally:
            self._training.end_undisturbed()
        if not done.ok:
            raise RunError("the undisturbed run failed:\n" + "\n".join((done.out + done.err).splitlines()[-12:]))
        return self._training.weights(UNDISTURBED)

    def _submit(self) -> None:
        """Make the mock Slurm, and submit by `ftsup submit` as a user does."""
        add = mockslurm.create(self._site.mock, nodes=4, kill_wait_s=KILL_WAIT_S, begin_wait_s=BEGIN_WAIT_S)
        self._site = replace(self._site, environ={**self._site.environ, **add})
        place = self._training.folder(WORK)
        sets = {
            "workdir": str(place),
            "runs_dir": str(self._home / "runs"),
            "local_dir": str(self._site.local),
            "env.DEMO_PACE": str(PACE_S),
        }
        sleep = next((strike for strike in self._plan if strike.kind is Kind.SLEEP), None)
        if sleep:
            sets["env.DEMO_STRIKE"] = f"{sleep.rank}:{sleep.step}:{self._marker}"
        words = [word for key, value in sets.items() for word in ("--set", f"{key}={json.dumps(value)}")]
        submit = [sys.executable, "-m", "ftsup", "submit", str(self._training.file), "--cluster", "mock", *words]
        done = proc.run(submit, env=self._site.environ, cwd=self._home, deadline_s=HELPER_S)
        said = done.out.strip().splitlines()
        found = list((self._home / "runs" / self._training.config.name).glob("*/jobs"))
        if len(found) == 1:
            self._run_dir = RunDir(found[0].parent)
        if not done.ok or self._run_dir is None or not said:
            raise RunError(f"ftsup submit failed: {(done.err or done.why).strip()}")
        self._say(f"submitted: {said[0]}")
        self._say(f"in another terminal: ftsup top {self._run_dir.root}")

    def _follow(self) -> None:
        """Watch the run until Slurm says that its job is over, and strike on the way."""
        look = partial(ranks_now, base=self._site.local, run_id=self._run.id)
        hands = Hands(
            self._run,
            look=look,
            checkpoints=self._training.checkpoints(WORK),
            every=self._training.every,
            warning_s=self._training.config.rules().warning_s,
            environ=self._site.environ,
        )
        while not self._over():
            self._read()
            seats = look(self._story)
            now = Now(story=self._story, lines=self._lines, seats=seats)
            self._strike(hands, now)
            self._draw(f"{self._run.id}: {self._story.stage.value}", step=now.step or self._story.step or 0, seats=seats)
            self._pause()
        self._read()

    def _read(self) -> None:
        """The story as it is in the run directory now; what is new in it is said."""
        lines, _ = eventlog.read(self._run.events)
        known = self._lines[-1].n if self._lines else 0
        before, self._lines, self._story = self._story, lines, tell(lines)
        self._view.tell(before, self._story, [line for line in lines if line.n > known], at_s=self._now_s())

    # Strikes --------------------------------------------------------------------------------------------------------------

    def _strike(self, hands: Hands, now: Now) -> None:
        """Do what is due: the next fault, once training is back from the one before and all ranks are at its step."""
        self._lift()
        due = self._plan[len(self._struck) :]
        if not due:
            return
        if due[0].kind is Kind.SLEEP:  # by itself, in the script
            if self._marker.exists():
                at = instant(self._marker.stat().st_mtime)
                self._has_struck(Struck(strike=due[0], at=at, step=due[0].step, epoch=self._story.epoch))
        elif len(now.seats) == self._training.ranks and recovered(self._story, outcomes(self._lines, self._story, self._struck)):
            for one in hands.strike(due, now):
                self._has_struck(one)

    def _has_struck(self, one: Struck) -> None:
        self._struck = (*self._struck, one)
        self._say(f"struck: {one.text}, at step {one.step}")

    def _lift(self) -> None:
        """The time limit came near for one grant only."""
        near = any(one.strike.kind is Kind.WARNING for one in self._struck)
        if near and not self._lifted and any(isinstance(order, ev.Requeue) for line in self._lines for order in line.orders):
            self._lifted = limit(self._story.job, left_s=None, environ=self._site.environ)

    # The end --------------------------------------------------------------------------------------------------------------

    def _over(self) -> bool:
        """Whether Slurm says that the job is over. Silence says nothing about it."""
        now_s = self._now_s()
        if now_s - self._asked_s < (1.0 if self._story.stage.over else ASK_S):
            return False
        self._asked_s = now_s
        try:
            self._job = look(self._run, self._site)
        except SlurmError as error:
            self._say(f"the mock Slurm: {error.message}")
            return False
        return self._job is not None and not self._job.lives

    def _ending(self) -> list[str]:
        """What should be so when it is over."""
        state = self._job.state.value if self._job else "unknown"
        said = [] if state == JobState.COMPLETED.value else [f"the job should have ended well; Slurm says {state}"]
        aside = [line.event for line in self._lines if isinstance(line.event, ev.Quarantined)]
        return said + [f"{event.name} is said to be in quarantine, and is not there" for event in aside if not Path(event.path).exists()]

    def _left(self) -> list[str]:
        """Processes of the run that outlive it."""
        until_s = self._now_s() + SETTLE_S
        while left := procs.marked(f"{self._run.id}/"):
            if self._now_s() > until_s:
                return [f"a process was left behind: {process.pid} {process.command}" for process in left]
            self._pause()
        return []

    def _compare(self, expected: str) -> bool:
        """The last line."""
        try:
            ours = self._training.weights(WORK)
        except RunError as error:
            self._console.print(f"final weights: {error.message}", style="bold red", markup=False)
            return False
        equal = ours == expected
        text = f"equal bit for bit to the undisturbed run's (sha256 {ours[:12]}...)" if equal else f"DIFFER: {ours} is not {expected}"
        self._console.print(f"final weights: {text}", style="bold green" if equal else "bold red", soft_wrap=True, markup=False)
        return equal

    # Small things ---------------------------------------------------------------------------------------------------------

    @property
    def _run(self) -> RunDir:
        assert self._run_dir is not None
        return self._run_dir

    @property
    def _marker(self) -> Path:
        """Written by the rank that goes to sleep."""
        return self._home / "asleep"

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def _draw(self, act: str, *, step: int, seats: Mapping[int, Seat] | None = None) -> None:
        scene = Scene(act=act, step=step, steps=self._training.steps, story=self._story, seats=seats or {})
        self._view.draw(scene, at_s=self._now_s())

    def _say(self, text: str) -> None:
        self._view.say(text, at_s=self._now_s())

    def _pause(self) -> None:
        """Wait a moment; here, and only here, somebody may end the demo."""
        time.sleep(LOOK_S)
        if self._told.flag:
            raise KeyboardInterrupt
        if self._now_s() > LIMIT_S:
            raise RunError(f"the demo is not over after {short_time(LIMIT_S)}", hint="is this machine very busy?")
