"""`ftsup demo`: trains on a mock Slurm of this machine, breaks it three times, and compares the end with an undisturbed run.

Everything real: `ftsup submit` puts the job in, faults strike from outside, and what is shown is read from the run's event log. Owns the
order of it and the cleaning up. Bounded in time; nothing stays behind but the folder, where it is asked for or something failed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from ftsup import eventlog, proc
from ftsup.cli.demo_faults import Kind, Seat, Strike, Struck, choose, kill, missing, moment, ranks_now, slowest
from ftsup.cli.demo_training import FILE, UNDISTURBED, read, sweep
from ftsup.cli.demo_view import Scene, View, table
from ftsup.cli.group import examples
from ftsup.errors import ConfigError, FtsupError, RunError, SlurmError
from ftsup.mockslurm import control as mockslurm
from ftsup.monitors import procs
from ftsup.ports import Job, JobState
from ftsup.report.story import Story, tell
from ftsup.report.words import short_time
from ftsup.rundir import LocalDir, RunDir
from ftsup.slurm.commands import Commands, scrubbed

LIMIT_S = 480.0
"""The whole demo; on two cores it takes two to three minutes."""
LOOK_S = 0.2
ASK_S = 5.0
"""Between two questions to the mock Slurm: each is a process of its own."""
WORK = "work"
SETTLE_S = 20.0
HELPER_S = 60.0
KILL_WAIT_S = 5
BEGIN_WAIT_S = 2
"""A real Slurm lets a requeued job wait for two minutes."""


@click.command(epilog=examples("ftsup demo", "ftsup demo --seed 7 --dir /tmp/demo  # the folder stays"))
@click.option(
    "--seed", type=click.IntRange(min=0), envvar="DEMO_SEED", help="Where the faults strike; also DEMO_SEED. Default: anew each time."
)
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path), help="An empty folder for all of it, which stays. Default: a temporary one."
)
@click.option("--keep", is_flag=True, help="Keep the temporary folder.")
def demo(seed: int | None, folder: Path | None, keep: bool) -> int:  # noqa: FBT001 - click's signature
    """Watch a run survive faults on this machine."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("the demo trains with PyTorch, which is not installed here", hint="pip install 'ftsup[train]', or `make demo`")
    seed = secrets.randbelow(1000) if seed is None else seed
    home = _home(folder)
    stays = folder is not None or keep
    try:
        good = Demo(home, seed=seed, console=Console(highlight=False)).run()
        stays = stays or not good
    except FtsupError:
        stays = True
        raise
    finally:
        if stays:
            click.echo(f"all of it lies in {home}", err=True)
        else:
            shutil.rmtree(home, ignore_errors=True)
    return 0 if good else 1


def _home(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="ftsup-demo-"))
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(f"--dir {folder}: is not empty")
    return folder


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

    def __init__(self, home: Path, *, seed: int, console: Console) -> None:
        self._home = home
        self._training = read(home)
        self._plan = choose(seed, steps=self._training.steps, ranks=self._training.ranks)
        self._console = console
        self._view = View(console, title=f"ftsup demo: {self._training.ranks} ranks on 2 virtual nodes, DEMO_SEED={seed}")
        self._began_s = time.monotonic()
        self._told = Told()
        self._mock = home / "slurm"
        self._environ = scrubbed(os.environ)
        self._struck: tuple[Struck, ...] = ()
        self._story = Story()
        self._run_dir: RunDir | None = None
        self._job: Job | None = None
        self._asked_s = 0.0

    def run(self) -> bool:
        """All of it; whether everything held."""
        try:
            with self._view:
                expected = self._undisturbed()
                self._submit()
                self._follow()
                left = self._left()
        finally:
            self._clean()
        problems = [*missing(self._story, self._plan, self._struck), *self._ending(), *left]
        self._console.print()
        self._console.print(table(self._story, self._struck))
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
        self._environ |= mockslurm.create(self._mock, nodes=4, kill_wait_s=KILL_WAIT_S, begin_wait_s=BEGIN_WAIT_S)
        place = self._training.folder(WORK)
        sleep = self._plan[0]
        sets = {
            "workdir": str(place),
            "runs_dir": str(self._home / "runs"),
            "local_dir": str(self._home / "local"),
            "env.DEMO_STRIKE": f"{sleep.rank}:{sleep.step}:{self._marker}",
        }
        words = [word for key, value in sets.items() for word in ("--set", f"{key}={json.dumps(value)}")]
        done = self._ftsup("submit", str(FILE), "--cluster", "mock", *words)
        said = done.out.strip().splitlines()
        found = list((self._home / "runs" / self._training.config.name).glob("*/jobs"))
        if not done.ok or len(found) != 1 or not said:
            raise RunError(f"ftsup submit failed: {(done.err or done.why).strip()}")
        self._run_dir = RunDir(found[0].parent)
        self._say(f"submitted: {said[0]}")

    def _follow(self) -> None:
        """Watch the run until Slurm says that its job is over, and strike on the way."""
        while not self._over():
            self._story = self._read()
            seats = ranks_now(self._story, base=self._home / "local", run_id=self._run.id)
            self._strike(seats)
            step = slowest(seats) or self._story.step or 0
            self._draw(f"{self._run.id}: {self._story.stage.value}", step=step, seats=seats)
            self._pause()
        self._story = self._read()

    def _read(self) -> Story:
        """The story as it is in the run directory now; what is new in it is said."""
        lines, _ = eventlog.read(self._run.events)
        story = tell(lines)
        self._view.tell(self._story, story, at_s=self._now_s())
        return story

    # Strikes --------------------------------------------------------------------------------------------------------------

    def _strike(self, seats: dict[int, Seat]) -> None:
        """Do what is due: the next fault, once training is back from the one before and all ranks are at its step."""
        due = next((strike for strike in self._plan if strike not in {one.strike for one in self._struck}), None)
        if due is None:
            return
        if due.kind is Kind.SLEEP:
            if self._marker.exists():
                self._has_struck(due, wall_s=self._marker.stat().st_mtime, step=due.step)
            return
        if not self._recovered() or len(seats) < self._training.ranks or slowest(seats) < due.step:
            return
        do: dict[Kind, Callable[[], bool]] = {
            Kind.KILL: lambda: kill(seats[due.rank or 0], mark=f"{self._run.id}/"),
            Kind.REQUEUE: lambda: proc.run(["scontrol", "requeue", self._story.job], env=self._environ, deadline_s=HELPER_S).ok,
        }
        wall_s = time.time()
        if do[due.kind]():
            self._has_struck(due, wall_s=wall_s, step=slowest(seats))

    def _has_struck(self, strike: Strike, *, wall_s: float, step: int) -> None:
        self._struck = (*self._struck, Struck(strike=strike, at=moment(wall_s)))
        self._say(f"struck: {strike.text}, at step {step}")

    def _recovered(self) -> bool:
        """Training is back from everything that struck, whatever it was taken for."""
        return len(self._story.incidents) >= len(self._struck) and not self._story.open

    # The end --------------------------------------------------------------------------------------------------------------

    def _over(self) -> bool:
        """Whether Slurm says that the job is over. Silence says nothing about it."""
        now = self._now_s()
        if now - self._asked_s < (1.0 if self._story.stage.over else ASK_S) or not self._run.jobs.exists():
            return False
        self._asked_s = now
        try:
            self._job = Commands(environ=self._environ).show(self._run.jobs.read_text().split()[-1])
        except SlurmError as error:
            self._say(f"the mock Slurm: {error.message}")
            return False
        return not self._job.completing and self._job.state not in {JobState.PENDING, JobState.RUNNING}

    def _ending(self) -> list[str]:
        state = self._job.state.value if self._job else "unknown"
        return [] if state == JobState.COMPLETED.value else [f"the job should have ended well; Slurm says {state}"]

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

    def _clean(self) -> None:
        """Leave no process and no file in memory behind, whatever happened."""
        if self._run_dir is not None:
            self._asked_s = -ASK_S
            if not self._over():
                proc.run(["scancel", *self._run.jobs.read_text().split()[-1:]], env=self._environ, deadline_s=HELPER_S)
                until_s = time.monotonic() + 2 * KILL_WAIT_S
                while not self._over() and time.monotonic() < until_s:
                    time.sleep(LOOK_S)
        if self._mock.exists() and not mockslurm.stop(self._mock):
            click.echo(f"some processes of the mock Slurm in {self._mock} could not be ended", err=True)
        if self._run_dir is not None:
            sweep(f"{self._run.id}/")
            beats = LocalDir(self._home / "local", self._run.id, "job", "node").beats("epoch")
            shutil.rmtree(beats.parents[2], ignore_errors=True)

    # Small things ---------------------------------------------------------------------------------------------------------

    @property
    def _run(self) -> RunDir:
        assert self._run_dir is not None
        return self._run_dir

    @property
    def _marker(self) -> Path:
        """Written by the rank that goes to sleep."""
        return self._home / "asleep"

    def _ftsup(self, *words: str) -> proc.Done:
        return proc.run([sys.executable, "-m", "ftsup", *words], env=self._environ, cwd=self._home, deadline_s=HELPER_S)

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def _draw(self, act: str, *, step: int, seats: dict[int, Seat] | None = None) -> None:
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
