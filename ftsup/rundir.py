"""Where everything of a run lies: the run directory on the shared disk, and its places on a node's local disk.

Owns names and modes, nothing else: who writes what when is the flows' affair. The run directory is 0700 (or group-readable
by `share: group`); keys, `env.json` and requests are always 0600/0700.

    RUN/config.yaml          as the user wrote it            RUN/events.jsonl     the mirror of the event log
    RUN/config.json          effective, without env          RUN/status.json      the leader's view of now, for people
    RUN/env.json             the `env` values, 0600          RUN/requests/        what people ask for, one file each
    RUN/job.sbatch           the script                      RUN/decisions/<job>.<restarts>.json
    RUN/jobs                 job ids, one a line             RUN/logs/<epoch>/<node>.log
    RUN/keys/                0700, the link's keys           RUN/incidents/<n>/incident.json, <node>/...
    RUN/worker/ftsup_worker/ what the ranks import           RUN/slurm-<job>.out  the batch script's own output
    RUN/unexplained.json     told to end, and nobody said why (`policy.told`)
    RUN/git/<grant>.json     which code ran                  RUN/cancelled        it never comes back
    RUN/cluster.json         which Slurm                     RUN/paused           it comes back when it is continued
    RUN/typed.json           what `submit` was given, 0600   RUN/bash-requeues    counted by the batch script
    RUN/continued.json       the newest --continue           RUN/submitting       sbatch was asked, its answer not written down
    RUN/config.<n>.yaml      as it was before continuation n RUN/requeue.json     decided, and not seen yet (`policy.spool`)
    RUN/watch.jsonl          what `ftsup watch` did          RUN/leader.json      where nodes find their leader
    RUN/watch.claims/        an empty file for each try of it: two watches never do the same
    RUN/taken-back           job ids of successors that were one too many, and that ftsup cancelled
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

from ftsup.errors import RunError

_NOBODY = 65534
"""The owner of what an NFS server or a container has no name for."""
_MEMORY = Path("/dev/shm")  # noqa: S108 - below it, `claim` sees to it that we are among ourselves


@dataclass(frozen=True, slots=True)
class RunDir:
    """The paths of a run directory."""

    root: Path

    @property
    def id(self) -> str:
        """`name/time-hex`: unique on a site, and what people type."""
        return f"{self.root.parent.name}/{self.root.name}"

    @property
    def task(self) -> int | None:
        """Which task of `slurm.array` it is; None: it is no part of an array."""
        number = self.root.name.rpartition("_")[2]
        return int(number) if "_" in self.root.name and number.isdecimal() else None

    def of_task(self, task: int) -> RunDir:
        """The run of a task, beside those of the others."""
        return RunDir(self.root.with_name(f"{self.root.name}_{task}"))

    def named_from(self, cwd: Path) -> str:
        """What people type for it there: its id, or its path where that would need `--runs-dir`."""
        return self.id if self.root.parent.parent == cwd / "ftsup-runs" else str(self.root)

    @property
    def config_yaml(self) -> Path:
        """The user's file, as it was."""
        return self.root / "config.yaml"

    @property
    def config_json(self) -> Path:
        """The effective configuration."""
        return self.root / "config.json"

    @property
    def env_json(self) -> Path:
        """The `env` values."""
        return self.root / "env.json"

    @property
    def script(self) -> Path:
        """The batch script."""
        return self.root / "job.sbatch"

    @property
    def jobs(self) -> Path:
        """The job ids of the run, one a line, the newest last."""
        return self.root / "jobs"

    @property
    def taken_back(self) -> Path:
        """Job ids, one a line: two asked for a successor at once, and ftsup itself cancelled the one too many. Not there: none."""
        return self.root / "taken-back"

    @property
    def keys(self) -> Path:
        """The link's keys."""
        return self.root / "keys"

    @property
    def worker(self) -> Path:
        """What goes on the ranks' PYTHONPATH."""
        return self.root / "worker"

    @property
    def events(self) -> Path:
        """The mirror of the event log."""
        return self.root / "events.jsonl"

    @property
    def status(self) -> Path:
        """The leader's view of now."""
        return self.root / "status.json"

    @property
    def leader(self) -> Path:
        """Where a node that hears nothing looks for its leader: addresses, as a JSON list. Who is there proves it by the run's key."""
        return self.root / "leader.json"

    @property
    def requests(self) -> Path:
        """What people ask for."""
        return self.root / "requests"

    @property
    def cancelled(self) -> Path:
        """There when it was cancelled: it never comes back."""
        return self.root / "cancelled"

    @property
    def paused(self) -> Path:
        """There when it was paused while its job waited in the queue: a leader that begins ends at once."""
        return self.root / "paused"

    @property
    def unexplained(self) -> Path:
        """A grant was told to end (SIGTERM), and nobody has said why: a `policy.told.Unexplained` as JSON. Nothing was requeued.

        There from the signal until Slurm has said why, whatever that was: the leader (or, where it is gone, the batch script) writes it,
        the leader removes it, and so does the next grant's. Where it stays, Slurm did not answer before the job was gone. `ftsup watch`
        asks Slurm how the job ended: cancelled is for good, and what was preempted or lost its node may be brought back.
        """
        return self.root / "unexplained.json"

    @property
    def continued(self) -> Path:
        """The newest continuation: a leader that does not find it in its log begins anew."""
        return self.root / "continued.json"

    @property
    def requeue(self) -> Path:
        """A requeue that was decided and does not show yet: a `policy.spool.Spool` as JSON, which says whether it is still to be done.

        There from the decision until Slurm shows the requeue, or another verdict takes its place: the leader writes and removes it. The
        next leader removes what its own grant proves done; `ftsup watch` carries out what nobody else does any more.
        """
        return self.root / "requeue.json"

    @property
    def watched(self) -> Path:
        """What `ftsup watch` said and did."""
        return self.root / "watch.jsonl"

    @property
    def claims(self) -> Path:
        """An empty file for each thing that `ftsup watch` began to do."""
        return self.root / "watch.claims"

    @property
    def array_script(self) -> Path:
        """The script of all tasks of an array, in the run of its first."""
        return self.root / "array.sbatch"

    @property
    def submitting(self) -> Path:
        """There while sbatch is asked, and after its answer was lost."""
        return self.root / "submitting"

    @property
    def typed(self) -> Path:
        """What `ftsup submit` was given: file, overrides, and where."""
        return self.root / "typed.json"

    def decision(self, job: str, restarts: int) -> Path:
        """The mirrored decision of one grant."""
        return self.root / "decisions" / f"{job}.{restarts}.json"

    def log(self, epoch: str, node: str) -> Path:
        """The ranks' output of one attempt on one node."""
        return self.root / "logs" / epoch / f"{node}.log"

    def incident(self, number: int) -> Path:
        """The folder of an incident."""
        return self.root / "incidents" / str(number)


def see_that_it_is_ours(run: RunDir) -> None:
    """RunError where others may write to a run directory, which says what is executed."""
    facts = run.root.stat()
    if facts.st_uid not in {os.getuid(), _NOBODY}:
        raise RunError(f"{run.root} belongs to user {facts.st_uid}", hint="ftsup submit CONFIG starts a run of your own")
    if facts.st_mode & 0o022:
        mode = stat.S_IMODE(facts.st_mode)
        raise RunError(f"others may write to {run.root} (mode {mode:04o})", hint="chmod go-w it, and look at what they did there")


def rank_log_part(head: Path, number: int) -> Path:
    """A log that grew past its cap goes on in numbered parts, of which the oldest are removed; 0: the head."""
    return head.with_name(f"{head.name}.{number}") if number else head


@dataclass(frozen=True, slots=True)
class LocalDir:
    """The places of one job on one node's local disk; several virtual nodes of one machine stay apart by the node's name."""

    base: Path
    """`local_dir` of the configuration."""
    run_id: str
    job: str
    node: str
    disk: Path | None = None
    memory: Path | None = None
    """All that we have on this disk, and in node-local memory; None: under the names that everybody can guess."""
    strange: tuple[str, ...] = ()
    """What people should know about these places."""

    @property
    def top(self) -> Path:
        """All that we have on this disk."""
        return self.disk or self.base / _usual()

    def claim(self, *, memory: bool = True) -> LocalDir:
        """The same with both tops made, 0700; what lies below counts as our own word. RunError where there can be none.

        Whoever shares the machine can guess their names and be there first: then they get names that nobody can guess. Without
        `memory`: on the disk only. A leader keeps nothing elsewhere, and one that is killed takes nothing away.
        """
        tops, strange = [], []
        for base in (self.base, _MEMORY) if memory else (self.base,):
            try:
                for folder in (*reversed(base.parents), base):
                    if not folder.exists():
                        folder.mkdir(mode=0o755, exist_ok=True)  # whatever the umask is
                top = self._top(base)
                strange += _unsafe(base)
            except OSError as error:
                raise RunError(f"{base} cannot be used: {error.strerror}", hint="local_dir can name another place") from error
            if top.name != _usual():
                strange.append(f"{_usual()} in {base} is {_whose(base / _usual())}, and its name is ours: {top.name} is used")
            tops.append(top)
        return replace(self, disk=tops[0], memory=tops[1] if memory else None, strange=tuple(strange))

    def leave(self) -> None:
        """Node-local memory is not ours to fill: a name that was only needed here goes, once nothing lies below it."""
        if self.memory and self.memory.name != _usual():
            with suppress(OSError):
                self.memory.rmdir()

    def _top(self, base: Path) -> Path:
        other = next(self._others(base), None)
        if other is not None:  # also where the usual name is free again: a predecessor may live there
            return other
        usual = base / _usual()
        with suppress(FileExistsError):
            usual.mkdir(mode=0o700)
        if _ours(usual):
            return usual
        other = base / f"{_usual()}-{self._key()}-{os.urandom(8).hex()}"
        other.mkdir(mode=0o700)
        return other

    def _others(self, base: Path) -> Iterator[Path]:
        return (path for path in sorted(base.glob(f"{_usual()}-{self._key()}-*")) if _ours(path))

    def _key(self) -> str:
        return f"{crc32(self.mark().encode()):08x}"

    @property
    def root(self) -> Path:
        """0700, ours."""
        return self.top / self._below()

    def beats(self, epoch: str) -> Path:
        """Beat files, exit records and stacks of an attempt."""
        return (self.memory or _MEMORY / _usual()) / self._below() / epoch

    def _below(self) -> Path:
        return Path(self.run_id.replace("/", "-"), self.job, self.node)

    def out(self, epoch: str) -> Path:
        """The ranks' raw output of an attempt."""
        return self.root / "out" / epoch

    @property
    def cache(self) -> Path:
        """What ranks build and download here where they have no better place; kept from attempt to attempt."""
        return self.root / "cache"

    @property
    def lock(self) -> Path:
        """Held by the node supervisor that lives."""
        return self.root / "node.lock"

    def mark(self, epoch: str = "") -> str:
        """FTSUP_MARK of an attempt; without an epoch, what all attempts of this job on this node begin with."""
        return f"{self.run_id}/{self.job}/{self.node}/{epoch}"


def _usual() -> str:
    return f"ftsup-{os.getuid()}"


def _ours(top: Path) -> bool:
    """A folder that we made, into which nobody else could ever lay anything: 0700 from now on."""
    try:
        facts = top.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o022:
            return False
        top.chmod(0o700)
    except OSError:
        return False
    return True


def _whose(path: Path) -> str:
    try:
        uid = path.lstat().st_uid
    except OSError:
        return "gone again"
    return f"user {uid}'s" if uid != os.getuid() else "nothing that only we can write to"


def _unsafe(base: Path) -> list[str]:
    """What lies there can be moved away by others, whatever its own mode."""
    facts = base.stat()
    if facts.st_mode & 0o022 and not facts.st_mode & stat.S_ISVTX:
        return [f"{base} has mode {stat.S_IMODE(facts.st_mode):04o} and no sticky bit: whoever may write there can take our files away"]
    return []


def add_job(path: Path, job: str) -> None:
    """One more in a list of job ids (`jobs`, `taken_back`); OSError where that cannot be, also for a pipe that nobody reads."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o640)
    with os.fdopen(fd, "w") as file:
        file.write(f"{job}\n")
