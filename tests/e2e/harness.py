"""What an end-to-end story is made of: a mock (or a real) Slurm, a run submitted through the command line, and eyes and hands on it.

Nothing here sleeps for a fixed time: a story waits, within a bound, for what it wants to see in the run's event log, in Slurm or in
/proc. Limits are generous, since the machine may be loaded; what is asserted is what happened, not how fast.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
import psutil
import yaml

from ftsup import eventlog
from ftsup import events as ev
from ftsup.events import Line
from ftsup.mockslurm import control as mockslurm
from ftsup.monitors import heartbeat
from ftsup.ports import Job, JobState
from ftsup.rundir import LocalDir, RunDir
from ftsup.slurm.commands import Commands
from tests.realslurm.cluster import Cluster
from tests.realslurm.plainuser import ALICE

TRAIN = Path(__file__).parent / "train.py"
WITHIN_S = 90.0
OVER_S = 180.0
"""For a run's end: what was not sealed yet is waited for by ftsup itself, up to two minutes, and then there are goodbyes."""
BEGIN_WAIT_S = 1.5
CONFIG: dict[str, Any] = {
    "name": "e2e",
    "command": [str(TRAIN)],
    "resume_args": ["--resume", "{path}"],
    "workers_per_node": 2,
    "slurm": {"nodes": 1, "time": "9min"},
    "checkpoint": {"dir": "ckpt", "pattern": "step*.json"},
    "hang": {"step": "6s", "shutdown": "30s", "stopped": "3s"},
    "grace": "2s",
    "lead_grace": "5s",
    "node_grace": "4s",
    "local_dir": "local",
    "policy": {"back_off": "1s"},
    "waits": {"tick": "0.5s", "late": "2s"},
}
"""Short, so that stories are. As in the defaults, a leader that is so late that nodes seem silent to it was away: late < node_grace."""


def until(there: Callable[[], object], *, within_s: float = WITHIN_S, what: Callable[[], str] = str) -> Any:
    """Wait until it is true; what it gave."""
    deadline = time.monotonic() + within_s
    while not (found := there()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what()}"
        time.sleep(0.05)
    return found


def merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """`more` over `base`, section by section."""
    both = dict(base)
    for key, value in more.items():
        both[key] = merged(both[key], value) if isinstance(value, dict) and isinstance(both.get(key), dict) else value
    return both


class Site:
    """A folder to work in and a Slurm."""

    def __init__(self, folder: Path, add: dict[str, str], *, mark: str) -> None:
        self.folder = folder
        self.environ = {**os.environ, **add}
        self.slurm = Commands(environ=self.environ)
        self.mark = mark
        """In the environment of all that runs here, and of nothing else."""
        self.uid = os.getuid()
        self.runs: list[Run] = []

    def submit(self, name: str = "a", /, **config: object) -> Run:
        """Write a configuration and submit it, as a user would."""
        work = self.folder / name
        (work / "control").mkdir(parents=True, exist_ok=True)
        settings = merged(CONFIG, {"local_dir": str(self.folder / "local"), **config})
        (work / "c.yaml").write_text(yaml.safe_dump(settings))
        self.give(work)
        return self.submit_file(work, "c.yaml")

    def submit_file(self, work: Path, file: str, *more: str) -> Run:
        """Submit a configuration that lies in a folder, its run directories below that folder."""
        said = self.ftsup("submit", file, "--cluster", "slurm", *more, cwd=work)
        root = work / "ftsup-runs" / said.split()[2]
        run = Run(self, work, RunDir(root), job=said.split()[1].rstrip(":"))
        self.runs.append(run)
        return run

    def ftsup(self, *words: str, cwd: Path) -> str:
        """A command of ours that must succeed; its output."""
        done = self.tried(sys.executable, "-m", "ftsup", *words, cwd=cwd)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, *argv: str) -> str:
        """A command of Slurm's that must succeed; its output."""
        done = self.tried(*argv, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def tried(self, *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """A command as the user types it."""
        return subprocess.run(self.as_user(argv, cwd), cwd=cwd, env=self.environ, capture_output=True, text=True, timeout=60, check=False)

    def as_user(self, argv: Sequence[str], _cwd: Path) -> list[str]:
        """How a command is run as the user of this site: here that is us."""
        return list(argv)

    def give(self, _path: Path) -> None:
        """Files that we made become the user's."""

    def processes(self, mark: str = "") -> list[psutil.Process]:
        """All that runs here."""
        return list(carrying(mark or self.mark))


def living(process: psutil.Process) -> bool:
    """No zombie."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def called(process: psutil.Process, name: str) -> bool:
    """It lives and has this name; one that has just ended has none."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name() == name and living(process)
    return False


def words(process: psutil.Process) -> list[str]:
    """Its command line; none when it has just ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        found: list[str] = process.cmdline()
        return found
    return []


def seen_below(folder: Path, see: Callable[[Path], Any]) -> dict[Path, Any]:
    """What is seen at each path of a folder in which others work; what is gone before we come to it is passed over."""
    found = {}
    for top, folders, names in os.walk(folder):
        for path in (Path(top, name) for name in (*folders, *names)):
            with contextlib.suppress(FileNotFoundError):
                found[path] = see(path)
    return found


def carrying(mark: str) -> Iterator[psutil.Process]:
    """The living processes with this in their environment."""
    wanted = mark.encode()
    for process in psutil.process_iter():
        try:
            found = wanted in Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:
            continue
        if found and living(process):
            yield process


@contextlib.contextmanager
def mock_site(folder: Path, *, nodes: int = 2, **settings: object) -> Iterator[Site]:
    """A mock Slurm with short waits; afterwards nothing of it is left, whatever the test did."""
    state = folder / "mock"
    quick = {"kill_wait_s": 10, "begin_wait_s": BEGIN_WAIT_S, "limit_unit_s": 1, "signal_early_s": 0, "away_delay_s": 1}
    site = Site(folder, mockslurm.create(state, nodes=nodes, **(quick | settings)), mark=f"FTSUP_MOCK_STATE={state}")
    try:
        yield site
    finally:
        mockslurm.stop(state)
        for process in site.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        until(lambda: not site.processes(), within_s=20)
        for run in site.runs:
            shutil.rmtree(run.memory(), ignore_errors=True)


class RealSite(Site):
    """A folder of a plain user on a real Slurm. `cluster.admin` is the administrator's hand."""

    def __init__(self, cluster: Cluster, name: str, *, user: str) -> None:
        self.cluster, self.user = cluster, user
        folder = cluster.work(name, user=user)
        super().__init__(folder, cluster.env, mark=f"SLURM_SUBMIT_DIR={folder}/")
        self.uid = folder.stat().st_uid

    def as_user(self, argv: Sequence[str], cwd: Path) -> list[str]:
        return self.cluster.argv(argv, cwd=cwd, user=self.user)

    def give(self, path: Path) -> None:
        self.cluster.give(path, user=self.user)


@contextlib.contextmanager
def real_site(cluster: Cluster, name: str, *, user: str = ALICE) -> Iterator[RealSite]:
    """A running Slurm that others use as well; afterwards nothing of our jobs is left."""
    site = RealSite(cluster, name, user=user)
    try:
        yield site
    finally:
        for run in site.runs:
            cluster.admin("scancel", run.job)
            run.until_ended()
            shutil.rmtree(run.memory(), ignore_errors=True)


class Run:
    """One submitted run."""

    def __init__(self, site: Site, work: Path, place: RunDir, *, job: str) -> None:
        self.site, self.work, self.place, self.job = site, work, place, job
        self.local = site.folder / "local"

    # What is known of it -----------------------------------------------------------------------------------------------------

    def lines(self) -> list[Line]:
        """The event log: the leader's own, or the mirror where it has more."""
        logs = [eventlog.read(path)[0] for path in (self.own_log(), self.place.events)]
        return max(logs, key=lambda lines: (lines[-1].n if lines else 0, len(lines)))  # a successor's own begins with it

    def on(self, node: str) -> LocalDir:
        """The node-local places of its user, under their usual names or, where those were taken, under others."""
        usual, below = f"ftsup-{self.site.uid}", Path(self.place.id.replace("/", "-"), self.job, node)
        bases = (self.local, Path("/dev/shm"))  # noqa: S108
        tops = [next((top for top in base.glob(f"{usual}-*") if (top / below).is_dir()), base / usual) for base in bases]
        return LocalDir(self.local, self.place.id, self.job, node, disk=tops[0], memory=tops[1])

    def own_log(self) -> Path:
        """The leader's, on its local disk."""
        return self.on("leader").root / "events.jsonl"

    def events(self, kind: type) -> list[Any]:
        """Events of one kind."""
        return [line.event for line in self.lines() if isinstance(line.event, kind)]

    def orders(self, kind: type) -> list[Any]:
        """Orders of one kind."""
        return [order for line in self.lines() for order in line.orders if isinstance(order, kind)]

    def launches(self) -> list[ev.Epoch]:
        """The attempts, in their order."""
        return sorted({order.epoch for order in self.orders(ev.Launch)})

    def incidents(self) -> list[ev.Incident]:
        """Those that were judged."""
        return [order for order in self.orders(ev.Incident) if order.verdict]

    def grants(self) -> int:
        """How many allocations it had."""
        return len({event.restarts for event in self.events(ev.LeaderStarted)})

    def show(self) -> Job:
        """What Slurm says."""
        return self.site.slurm.show(self.job)

    def decision(self, restarts: int = 0) -> dict[str, Any]:
        """decision.json of a grant, as bash reads it."""
        path = self.on("leader").root / f"decision.{restarts}.json"
        found: dict[str, Any] = msgspec.json.decode(path.read_bytes())
        return found

    def output(self) -> str:
        """The batch script's own."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.place.root.glob("slurm-*.out")))

    def logs(self) -> str:
        """The ranks' output."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.place.root.glob("logs/*/*.log")))

    def story(self) -> str:
        """For a failure: all of it, short."""
        text = [f"{line.n} {line.event} -> {line.orders}"[:400] for line in self.lines()[-25:]]
        step = "".join(path.read_text(errors="replace") for path in self.local.glob("*/*/*/leader/step.out"))
        return "\n".join([str(self.show()), *text, self.output()[-2000:], step[-2000:], self.logs()[-2000:]])

    # Waiting -----------------------------------------------------------------------------------------------------------------

    def until(self, there: Callable[[], object], *, within_s: float = WITHIN_S) -> Any:
        """Wait until it is true."""
        return until(there, within_s=within_s, what=self.story)

    def until_trains(self, *, epoch: ev.Epoch | None = None, more: int = 3) -> ev.Epoch:
        """All ranks of the newest attempt (not before `epoch`) did some more steps."""

        def beats() -> tuple[ev.Epoch, int]:
            newest = max(self.launches(), default=ev.Epoch(0, 0))
            sights = self.sights(newest)
            return newest, min((sight.beats for sight in sights.values()), default=0) if len(sights) == self.ranks(newest) else 0

        first: dict[ev.Epoch, int] = {}

        def there() -> ev.Epoch | None:
            newest, done = beats()
            if done == 0 or (epoch is not None and newest < epoch):
                return None
            return newest if done >= first.setdefault(newest, done) + more else None  # an attempt that has just died does no more

        found: ev.Epoch = self.until(there)
        return found

    def until_past(self, fault: ev.Fault) -> None:
        """All ranks are past its step: what breaks now is not the same fault again, at which ftsup would look for other nodes."""

        def past() -> bool:
            steps = [sight.step for sight in self.sights().values()]
            return len(steps) > 0 and all(step is not None and step > (fault.step or 0) for step in steps)

        self.until(past)

    def until_heard(self, *, epoch: ev.Epoch | None = None) -> ev.Epoch:
        """The same, and the leader knows it: at a wish that comes sooner nothing is saved."""
        found = self.until_trains(epoch=epoch)
        self.until(lambda: any(event.epoch == found and event.beats for event in self.events(ev.Progressed)))
        return found

    def until_over(self, *, state: JobState = JobState.COMPLETED, within_s: float = OVER_S) -> Job:
        """The job left Slurm's queue in this state, and nothing of it is left: no process, nothing in node-local memory."""
        job = self.until_ended(within_s=within_s)
        assert job.state is state, self.story()
        assert not self.memory().exists(), list(self.memory().rglob("*"))
        return job

    def until_ended(self, *, within_s: float = OVER_S) -> Job:
        """The job left Slurm's queue, and no process of it is left."""
        job: Job = self.until(
            lambda: (job := self.show()).state not in {JobState.PENDING, JobState.RUNNING} and not job.completing and job, within_s=within_s
        )
        self.until(lambda: not list(carrying(f"FTSUP_MARK={self.place.id}/")), within_s=20)
        return job

    def memory(self) -> Path:
        """Its place in node-local memory."""
        return self.on("x").beats("1.1").parents[2]

    def until_judged(self, number: int) -> ev.Incident:
        """So many incidents came to a verdict; the last of them."""
        found: list[ev.Incident] = self.until(lambda: len(found := self.incidents()) >= number and found)
        assert len(found) == number, self.story()
        return found[-1]

    # Its processes -----------------------------------------------------------------------------------------------------------

    def ranks(self, epoch: ev.Epoch) -> int:
        """Number of ranks of an attempt."""
        launched = [event.ranks for event in self.events(ev.Launched) if event.epoch == epoch]  # told twice where a leader died
        return len({rank for ranks in launched for rank in ranks})

    def sights(self, epoch: ev.Epoch | None = None) -> dict[int, heartbeat.RankSight]:
        """The ranks of an attempt (the newest), by their beats."""
        epoch = epoch or max(self.launches())
        nodes = {event.node for event in self.events(ev.NodeUp)}
        places = [self.on(node).beats(str(epoch)) for node in nodes]
        return {rank: sight for place in places for rank, sight in heartbeat.sights(place).items()}

    def rank(self, number: int) -> psutil.Process:
        """A rank's process."""
        return psutil.Process(self.sights()[number].pid)

    def torchrun(self, node: str) -> psutil.Process:
        """The process that a node launched."""
        return psutil.Process([event.pid for event in self.events(ev.Launched) if event.node == node and event.pid][-1])  # 0: told again

    def leader(self) -> psutil.Process:
        """The leader."""
        return psutil.Process(self.events(ev.LeaderStarted)[-1].pid)

    def bash(self) -> psutil.Process:
        """The batch script."""
        parent = self.leader().parent()
        assert parent is not None
        return parent

    def supervisor(self, node: str) -> psutil.Process:
        """A node's supervisor."""
        words: list[str] = self.until(lambda: self.on(node).lock.read_text().split())  # empty while a successor writes itself into it
        return psutil.Process(int(words[0]))

    def clerk(self, of: psutil.Process) -> psutil.Process:
        """The clerk of a leader or a node supervisor."""
        found: psutil.Process = self.until(lambda: next((child for child in of.children() if called(child, "ftsup-clerk")), None))
        return found

    def own(self) -> list[psutil.Process]:
        """Everything of the job that is not Slurm's (the mock's runner, daemons, srun)."""
        return [process for process in self.site.processes() if not any("mockslurm" in word for word in words(process))]

    # Ordering ----------------------------------------------------------------------------------------------------------------

    def once(self, rank: int, action: str) -> None:
        """A rank does something, once."""
        self._order(f"once.{rank}", action)

    def every(self, rank: int, action: str) -> None:
        """A rank does something in each attempt."""
        self._order(f"every.{rank}", action)

    def finish(self) -> None:
        """Training has done enough."""
        self._order("finish", "")

    def _order(self, name: str, text: str) -> None:
        path = self.work / "control" / name
        part = path.with_name(f".{name}")
        part.write_text(text)
        self.site.give(part)
        part.replace(path)


@contextlib.contextmanager
def beside(site: Site, argv: Sequence[str], *, cwd: Path, out: IO[Any], err: IO[Any] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A command that goes on beside the story; one that fails does not wait for its end."""
    with subprocess.Popen(site.as_user(argv, cwd), cwd=cwd, env=site.environ, stdout=out, stderr=err or out) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def stopped(*processes: psutil.Process) -> Iterator[None]:
    """SIGSTOP, and SIGCONT at the end."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # a helper that has just ended
            process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def for_s(seconds: float) -> Iterator[None]:
    """At least so long: for silences, which have no event to wait for."""
    end = time.monotonic() + seconds
    yield
    time.sleep(max(end - time.monotonic(), 0.0))
