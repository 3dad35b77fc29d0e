"""The Slurm port by Slurm's own commands: sbatch, scontrol, scancel. The same code for a real Slurm and for the mock.

Plain text, which every version prints alike; argument lists, never a shell; a deadline on every call. It owns which words
of a failed command mean "no answer" (Unavailable), and that all others are a "no" (Refused). It knows no clock: who
wants another try passes a sleeper to `retried`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from ftsup import proc
from ftsup.errors import Refused, SlurmError, Unanswered, Unavailable, Unreadable
from ftsup.ports import Found, Job, JobState, Node, Partition
from ftsup.slurm import accounting, hostlist, jobs, queue

T = TypeVar("T")

DEADLINE_S = 30.0
"""A controller that is away costs a command 9 to 18 s before it says so itself, in words better than ours."""

SACCT_S = 10.0
"""How long sacct may take: its data base is known to be slow, and its answer is an extra."""

SOON_S = 3
"""What `start_now` waits. A node that ended a job refuses whatever was signed in or before that second by its own clock; a job
that starts at once on a node where it was just ended is FAILED for good (seen: "Job credential revoked")."""

SCRUBBED = ("SBATCH_", "SLURM_", "SRUN_")
"""They override what the script says; some leak from a surrounding job."""
KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"}
"""Where Slurm is, and who we are to it."""

_CONTROLLER = "the controller (slurmctld) does not answer; `scontrol ping` shows it; this says nothing about the job"
_SILENT = (
    "the controller (slurmctld) or munge does not answer; `scontrol ping` and `munge -n` show which"
    " (neither: Slurm limits how often it is asked, and its commands wait in silence); this says nothing about the job"
)
_MUNGE = "munge on this host does not work; `munge -n | unmunge` shows why; an administrator can start it"
_CONF = "this host's Slurm has no usable configuration; is SLURM_CONF right, is this a host of the cluster?"
_PATH = "Slurm's commands are not on PATH; log in to a host of the cluster, or load its Slurm module"
NO_ANSWER: tuple[tuple[str, str], ...] = (  # words of a failed command, lower case -> hint; the first match wins
    ("if munged is up", _MUNGE),
    ("munge encode failed", _MUNGE),
    ("munge decode failed", _MUNGE),
    ("protocol authentication error", _MUNGE),
    ("authentication error", _MUNGE),
    ("invalid authentication credential", _MUNGE),
    ("could not establish a configuration source", _CONF),
    ("unable to process configuration file", _CONF),
    ("unable to contact slurm controller", _CONTROLLER),
    ("unexpected message received", _CONTROLLER),  # what scontrol's update and requeue say when nobody answers
    ("socket timed out", _CONTROLLER),
    ("communication connection failure", _CONTROLLER),
    ("communications connection failure", _CONTROLLER),
    ("communication shutdown failure", _CONTROLLER),
    ("message send failure", _CONTROLLER),
    ("message receive failure", _CONTROLLER),
    ("zero bytes were transmitted or received", _CONTROLLER),
    ("transport endpoint is not connected", _CONTROLLER),
    ("connection refused", _CONTROLLER),
    ("connection timed out", _CONTROLLER),
    ("connection reset", _CONTROLLER),
    ("no route to host", _CONTROLLER),
    ("in standby mode", _CONTROLLER),
    ("resource temporarily unavailable", _CONTROLLER),
    ("slurm temporarily unable to accept job", _CONTROLLER),
    ("rate limit exceeded", _CONTROLLER),
    ("incompatible versions of client and server", "the cluster is being upgraded, or this host's Slurm is another version"),
)
NEVER_ASKED = (
    "unable to contact slurm controller",
    "connection refused",
    "no route to host",
    "munge encode failed",
    "could not establish a configuration source",
    "unable to process configuration file",
    "in standby mode",
    "slurm temporarily unable to accept job",
    "rate limit exceeded",
    "incompatible versions of client and server",
    "no such file or directory",
    "permission denied",
)
"""Words of a failed sbatch after which no job is in the queue; after all others one may be."""
_NO_SUCH_JOB = re.compile(r"(?:\w+ error: )?Invalid job id specified|Job [\d_]+ not found", re.IGNORECASE)
_OVER = re.compile(r".*(?:Invalid job id specified|already completing or completed)", re.IGNORECASE)
_PREFIX = re.compile(r"^(?:sbatch|scontrol|scancel): (?:(?:error|fatal|warning): )?")


class Runner(Protocol):
    """How a command is run: `ftsup.proc.run`, or a test's."""

    def __call__(self, argv: Sequence[str], *, deadline_s: float, env: Mapping[str, str] | None = None) -> proc.Done:
        """Run it to its end, at most so long."""


class Commands:
    """`ports.Slurm` by commands. `environ` is the environment that they run in (PATH, SLURM_CONF); it is not read later."""

    def __init__(self, *, environ: Mapping[str, str], run: Runner = proc.run, deadline_s: float = DEADLINE_S) -> None:
        self._run = run
        self._deadline_s = deadline_s
        self._environ = scrubbed(environ)

    def submit(
        self,
        script: Path,
        *,
        args: Sequence[str] = (),
        words: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        test_only: bool = False,
    ) -> str:
        """The job id. After Unanswered or Unreadable the job may be in the queue."""
        how = "--test-only" if test_only else "--parsable"
        try:
            done = self._call(["sbatch", how, *args, str(script.absolute()), *words], env=self._environ if env is None else scrubbed(env))
        except Unavailable as error:
            if test_only or any(words in error.message.lower() for words in NEVER_ASKED):
                raise
            raise Unanswered(error.message, hint=error.hint) from error
        return _sentence(done.err or done.out) if test_only else jobs.parse_submitted(done.out)

    def show(self, job_id: str) -> Job:
        """The job now. For one that waits or runs, Slurm is also asked what time it is; for a forgotten one, sacct."""
        job, said = self._look(job_id)
        if job.state not in {JobState.PENDING, JobState.RUNNING}:
            return job
        now = jobs.parse_as_of(self._scontrol("show", "config").out)
        return jobs.parse_job(said, wanted=job_id, now=now)

    def _look(self, job_id: str) -> tuple[Job, str]:
        """The job without what only Slurm's clock tells, and what scontrol printed."""
        _check_id(job_id)
        done = self._scontrol("show", "job", job_id, fine=_NO_SUCH_JOB)
        if not done.ok:
            return self._remembered(job_id) or Job(job_id=job_id, state=JobState.GONE), ""
        return jobs.parse_job(done.out, wanted=job_id), done.out

    def queue(self) -> list[Job]:
        """By squeue."""
        return queue.parse_queue(self._call(list(queue.ARGV)).out)

    def requeue(self, job_id: str, *, ended: bool = False) -> None:
        """Only what runs: a plain requeue would bring a cancelled job back."""
        self._scontrol("requeue", *([] if ended else ["incomplete"]), _check_id(job_id))

    def cancel(self, job_id: str) -> None:
        """Of a job that Slurm has forgotten: nothing happens either."""
        self._call(["scancel", _check_id(job_id)], fine=_OVER)

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        """Refused when one of the names is no node."""
        found = jobs.parse_nodes(self._scontrol("show", "node", *([_hosts(names)] if names else [])).out)
        missing = set(names) - {node.name for node in found}
        if missing or not found:
            raise Unreadable(f"scontrol show node printed nothing of {hostlist.compress(sorted(missing)) or 'any node'}")
        return found

    def partitions(self) -> list[Partition]:
        """As `scontrol show partition` lists them."""
        found = jobs.parse_partitions(self._scontrol("show", "partition").out)
        if not found:
            raise Unreadable("scontrol show partition printed none")
        return found

    def avoid(self, job_id: str, nodes: Sequence[str], *, drop: Sequence[str] = ()) -> None:
        """Slurm replaces the list, so it is read first and read again afterwards."""
        before = self._look(job_id)[0]
        if before.state is JobState.GONE:
            raise Refused(f"Slurm does not know job {job_id}, so it cannot avoid {hostlist.compress(nodes)}")
        wanted = dict.fromkeys(name for name in (*before.excluded, *nodes) if name in nodes or name not in drop)
        if set(wanted) == set(before.excluded):
            return
        self._scontrol("update", f"JobId={job_id}", f"ExcNodeList={_hosts(wanted)}")
        now = set(self._look(job_id)[0].excluded)
        if missing := set(nodes) - now:
            raise Refused(f"Slurm took the update of job {job_id}, and its exclusion list lacks {hostlist.compress(sorted(missing))}")
        if kept := now & set(drop) - set(nodes):
            raise Refused(f"Slurm took the update of job {job_id}, and its exclusion list still has {hostlist.compress(sorted(kept))}")

    def find(self, script: Path) -> list[Found]:
        """By its Command, the file's whole path and its words. squeue lists finished jobs as well, for MinJobAge."""
        return queue.parse_commands(self._call(list(queue.COMMANDS)).out, script=script)

    def config(self) -> dict[str, str]:
        """The controller's settings, as it prints them."""
        return jobs.parse_config(self._scontrol("show", "config").out)

    def release(self, job_id: str) -> None:
        """Of a running job: nothing happens."""
        self._scontrol("release", _check_id(job_id))

    def start_now(self, job_id: str) -> None:
        """Refused unless it is pending: set while it is COMPLETING, the time could come in the second in which it ends."""
        if self._look(job_id)[0].completing:
            raise Refused(f"job {job_id} is still ending on its nodes", hint="ask again once it is PENDING")
        self._scontrol("update", f"JobId={job_id}", f"StartTime=now+{SOON_S}")

    def _remembered(self, job_id: str) -> Job | None:
        """How it ended, where there is accounting, and it answers soon; GONE is true without it."""
        done = self._run(accounting.argv(job_id), deadline_s=min(SACCT_S, self._deadline_s), env=self._environ)
        try:
            return accounting.parse_ended(done.out, wanted=job_id) if done.ok else None
        except Unreadable:
            return None

    def _scontrol(self, *words: str, fine: re.Pattern[str] | None = None) -> proc.Done:
        return self._call(["scontrol", *words], env={**self._environ, "SLURM_TIME_FORMAT": "%s"}, fine=fine)

    def _call(self, argv: list[str], *, env: Mapping[str, str] | None = None, fine: re.Pattern[str] | None = None) -> proc.Done:
        """Run it; a failure is an error of ours unless it is an answer and one of its lines is `fine`."""
        done = self._run(argv, deadline_s=self._deadline_s, env=self._environ if env is None else env)
        if done.ok:
            return done
        error = failure(done)
        if fine and not isinstance(error, Unavailable) and any(fine.fullmatch(line.strip()) for line in _lines(done)):
            return done
        raise error


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without what would override the script, or leak from a surrounding job."""
    return {name: value for name, value in environ.items() if name in KEPT or not name.startswith(SCRUBBED)}


def failure(done: proc.Done) -> SlurmError:
    """What a command that failed means."""
    what = " ".join(done.argv[: 3 if done.argv[0] == "scontrol" else 1])
    if done.code is None:
        return Unavailable(f"{what}: {done.why}", hint=_SILENT if "timed out" in done.why else _PATH)
    if done.code < 0:
        return Unavailable(f"{what} was ended by signal {-done.code}")
    everything = "\n".join(_lines(done))
    said = _sentence(everything)
    for words, hint in NO_ANSWER:
        if words in everything.lower():
            return Unavailable(f"{what}: {said}", hint=hint)
    if not said:
        return Unreadable(f"{what} failed with exit code {done.code} and said nothing")
    return Refused(f"{what}: {said}")


def no_answer(lines: Sequence[str]) -> str:
    """Of what a command printed, the line that says that nobody answered it; empty: somebody did."""
    return next((line for line in lines if any(words in line.lower() for words, _hint in NO_ANSWER)), "")


def retried(call: Callable[[], T], *, sleep: Callable[[float], object], tries: int = 5, first_s: float = 1.0, most_s: float = 30.0) -> T:
    """Call until Slurm answers, at most `tries` times; the pause between doubles. For everything but `submit`."""
    for attempt in range(tries - 1):
        try:
            return call()
        except Unavailable:
            sleep(backoff_s(attempt, first_s=first_s, most_s=most_s))
    return call()


def backoff_s(attempt: int, *, first_s: float = 1.0, most_s: float = 30.0) -> float:
    """The pause after the failed try number `attempt`, from 0."""
    return min(most_s, first_s * 2.0 ** min(attempt, 30))


def _check_id(job_id: str) -> str:
    try:
        return jobs.job_id(job_id)
    except ValueError as error:
        raise Refused(str(error)) from None


def _hosts(names: Sequence[str] | dict[str, None]) -> str:
    """As one argument. A name that is none never reaches a command line."""
    for name in names:
        if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
            raise Refused(f"{name!r} is not the name of a node")
    return hostlist.compress(names)


def _lines(done: proc.Done) -> list[str]:
    """What it said: some complaints go to stdout."""
    return [line for text in (done.err, done.out) for line in text.splitlines() if line.strip()]


def _sentence(text: str) -> str:
    """Slurm's lines as one, without the names of its commands; long ones cut in the middle."""
    lines = list(dict.fromkeys(_PREFIX.sub("", line.strip()) for line in text.splitlines() if line.strip()))
    sentence = "; ".join(lines)
    return sentence if len(sentence) <= 600 else f"{sentence[:300]} ... {sentence[-300:]}"  # noqa: PLR2004 - the same number
