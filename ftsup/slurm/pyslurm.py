"""The Slurm port with pyslurm, where a site has one that fits: for commands of the login node, never for leader or node supervisor
(it holds the interpreter while a controller that is away lets it wait).

It looks with the library and acts with the commands. The library's requeue brings finished jobs back, its cancel of an unknown
job says nothing, and its submission knows no `#SBATCH` lines. A child process imports it first: with a wrong configuration
the import ends the process, or hangs.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ftsup import proc
from ftsup.config.keys import Client
from ftsup.errors import Exit, Refused, SlurmError, Unavailable, Unreadable
from ftsup.ports import Found, Job, JobState, Node, Partition, Slurm
from ftsup.slurm import jobs
from ftsup.slurm.commands import Commands, Runner, scrubbed
from ftsup.slurm.hostlist import NOTHING, expand

PROBE_S = 15.0
"""What a probe may take: a good one needs less than a second, and a bad one may hang for a minute."""
UNKNOWN_JOB = 2017
_COMMUNICATION = range(1000, 2000)
_TIMEOUTS = range(5000, 5010)
_MUNGE_OR_VERSION = 1007
_MINUTE_S = 60.0
_VERSION = re.compile(r"(\d+)\.(\d+)")
_HINT = "slurm.client: commands asks Slurm without pyslurm"


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What a child process found out about pyslurm here."""

    version: str = ""
    trouble: str = ""
    """Empty: it was imported, and Slurm answered it."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which client this host's commands use, and why, as a sentence for people."""

    client: Client
    why: str


# Which one ---------------------------------------------------------------------------------------------------------------------


def choose(client: Client, *, environ: Mapping[str, str], run: Runner = proc.run, installed: bool | None = None) -> Choice:
    """The client that `slurm.client` leads to on this host. Unavailable where pyslurm is demanded and does not work."""
    if client is Client.COMMANDS:
        return Choice(client=Client.COMMANDS, why="slurm.client: commands")
    there = importlib.util.find_spec("pyslurm") is not None if installed is None else installed
    trouble = unfit(environ=environ, run=run) if there else "pyslurm is not installed in ftsup's environment"
    if not trouble:
        return Choice(client=Client.PYSLURM, why="pyslurm is installed, fits this host's Slurm, and was answered")
    if client is Client.PYSLURM:
        raise Unavailable(f"slurm.client is pyslurm, and {trouble}", hint=_HINT)
    return Choice(client=Client.COMMANDS, why=trouble)


def connect(client: Client, *, environ: Mapping[str, str]) -> Slurm:
    """The port for a command of the login node."""
    commands = Commands(environ=environ)
    if choose(client, environ=environ).client is Client.COMMANDS:
        return commands
    return PySlurm(module(), commands=commands)


def module() -> Any:  # noqa: ANN401 - optional, and untyped
    """The library. Only after `choose`: a child has shown then that importing it does not end us."""
    import pyslurm  # noqa: PLC0415 - as the docstring says

    return pyslurm


def unfit(*, environ: Mapping[str, str], run: Runner = proc.run, deadline_s: float = PROBE_S) -> str:
    """Why pyslurm cannot be used on this host; empty: it can."""
    done = run([sys.executable, *_safely(), "-m", "ftsup.slurm.pyslurm"], deadline_s=deadline_s, env=scrubbed(environ))
    probe = _answer(done)
    if probe.trouble:
        return probe.trouble
    said = run(["scontrol", "-V"], deadline_s=deadline_s, env=scrubbed(environ))
    slurm = _VERSION.search(said.out)
    if not said.ok or slurm is None:
        return f"scontrol -V does not say which Slurm pyslurm {probe.version} should fit"
    ours = _VERSION.search(probe.version)
    if ours is None or [int(part) for part in ours.groups()] != [int(part) for part in slurm.groups()]:
        return f"pyslurm {probe.version} does not fit Slurm {said.out.split()[-1]}: the first two numbers must be the same"
    return ""


def _answer(done: proc.Done) -> Probe:
    for line in done.out.splitlines():
        if line.startswith("{"):
            try:
                return msgspec.json.decode(line, type=Probe)
            except msgspec.DecodeError:
                break
    if done.code is None:
        return Probe(trouble=f"pyslurm does not answer here ({done.why}): the controller or munge is away, or its library hangs")
    said = [line.strip() for line in done.err.splitlines() if line.strip()]
    return Probe(trouble=f"importing pyslurm ended the process (exit code {done.code}{': ' + said[-1] if said else ''})")


def _safely() -> list[str]:
    return ["-P"] if sys.version_info >= (3, 11) else []


# The port ----------------------------------------------------------------------------------------------------------------------


class PySlurm:
    """`ports.Slurm` on a module of pyslurm that was probed, and on the commands for all that changes something."""

    def __init__(self, module: Any, *, commands: Slurm) -> None:  # noqa: ANN401 - optional, and untyped
        self._module = module
        self._commands = commands

    def show(self, job_id: str) -> Job:
        """As the commands show it. They are asked where the library says too little: about a task of an array (it takes numbers
        only), a job that waits (no word on when it starts, by Slurm's clock), and one that it does not know.
        """
        if not job_id.isdecimal() or not job_id.isascii():
            return self._commands.show(job_id)
        try:
            job = _job(self._ask(lambda: self._module.Job.load(int(job_id))))
        except _UnknownError:
            return self._commands.show(job_id)
        return self._commands.show(job_id) if job.state is JobState.PENDING else job

    def nodes(self, names: Sequence[str] = ()) -> list[Node]:
        """Refused when one of the names is no node."""
        found = {name: _node(each) for name, each in dict(self._ask(self._module.Nodes.load)).items()}
        if missing := sorted(set(names) - set(found)):
            raise Refused(f"Slurm knows no node {', '.join(missing)}")
        if not found:
            raise Unreadable("pyslurm listed no node")
        return [node for name, node in found.items() if not names or name in names]

    def submit(
        self,
        script: Path,
        *,
        args: Sequence[str] = (),
        words: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        test_only: bool = False,
    ) -> str:
        """By sbatch: the script's own lines are its language."""
        return self._commands.submit(script, args=args, words=words, env=env, test_only=test_only)

    def queue(self) -> list[Job]:
        """By squeue, which lists one user's."""
        return self._commands.queue()

    def requeue(self, job_id: str, *, ended: bool = False) -> None:
        """By scontrol, which has `incomplete`."""
        self._commands.requeue(job_id, ended=ended)

    def cancel(self, job_id: str) -> None:
        """By scancel."""
        self._commands.cancel(job_id)

    def partitions(self) -> list[Partition]:
        """By scontrol."""
        return self._commands.partitions()

    def avoid(self, job_id: str, nodes: Sequence[str], *, drop: Sequence[str] = ()) -> None:
        """By scontrol."""
        self._commands.avoid(job_id, nodes, drop=drop)

    def find(self, script: Path) -> list[Found]:
        """By squeue."""
        return self._commands.find(script)

    def config(self) -> dict[str, str]:
        """By scontrol, in whose words everybody knows the settings."""
        return self._commands.config()

    def release(self, job_id: str) -> None:
        """By scontrol."""
        self._commands.release(job_id)

    def start_now(self, job_id: str) -> None:
        """By scontrol."""
        self._commands.start_now(job_id)

    def _ask(self, call: Any) -> Any:  # noqa: ANN401 - what the library returns
        try:
            return call()
        except self._module.RPCError as error:
            raise failure(int(getattr(error, "errno", 0) or 0), str(error)) from error


class _UnknownError(Refused):
    """The library's word for a job that Slurm does not know."""


def failure(number: int, said: str) -> SlurmError:
    """What an RPCError means, by its number: what has to do with the way to Slurm says nothing about a job."""
    message = f"pyslurm: {said or 'no words'} (error {number})"
    if number == UNKNOWN_JOB:
        return _UnknownError(message)
    if number == _MUNGE_OR_VERSION:
        return Unavailable(message, hint="munge does not work here, or pyslurm is of another version than Slurm; " + _HINT)
    if number in _COMMUNICATION or number in _TIMEOUTS:
        return Unavailable(message, hint="the controller (slurmctld) does not answer; this says nothing about the job")
    if number <= 0:
        return Unavailable(message, hint="pyslurm's library does not understand this Slurm; " + _HINT)
    return Refused(message)


def _job(one: Any) -> Job:  # noqa: ANN401 - the library's
    try:
        word, reason, array, task = str(one.state).split()[0], str(one.state_reason or ""), one.array_id, one.array_task_id
        limit = one.time_limit
        return Job(
            job_id=f"{array}_{task}" if array and task is not None else str(one.id),
            state=jobs.JOB_STATES.get(word, JobState.UNKNOWN),
            completing=word in jobs.COMPLETING,
            reason="" if reason in NOTHING else reason,
            restarts=int(one.requeue_count),
            nodes=_names(one.allocated_nodes),
            excluded=_names(one.excluded_nodes),
            batch_host=one.batch_host or "",
            num_nodes=int(one.num_nodes),
            run_s=float(one.run_time or 0),
            limit_s=float(limit) * _MINUTE_S if isinstance(limit, int) else None,
            ends_in_s=_ends_in_s(one) if word == JobState.RUNNING.value else None,
            preempted=bool(getattr(one, "preempt_time", None)),
            exit_code=one.exit_code,
            exit_signal=one.exit_code_signal or None,
            requeueable=bool(one.is_requeueable),
            name=one.name or "",
            partition=getattr(one, "partition", "") or "",
            unclear="pyslurm does not tell",
        )
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        raise Unreadable(f"pyslurm showed a job that we cannot read ({error})", hint=_HINT) from error


def _ends_in_s(one: Any) -> float | None:  # noqa: ANN401 - the library's
    """Until EndTime, which a preemption with grace moves. Its run time is by this host's clock, from the start or a resume."""
    end, began, ran_s = getattr(one, "end_time", None), getattr(one, "start_time", None), float(one.run_time or 0)
    if resumed := getattr(one, "suspend_time", None):
        began, ran_s = resumed, ran_s - (getattr(one, "pre_suspension_time", None) or 0)
    if not end or not began or (not isinstance(one.time_limit, int) and end - began > jobs.YEAR_S):
        return None
    return max(float(end - began - ran_s), 0.0)


def _node(one: Any) -> Node:  # noqa: ANN401 - the library's
    try:
        raw, reason, gres = str(one.state), one.reason or "", one.configured_gres or {}
        return Node(
            name=str(one.name),
            state=jobs.node_state(raw),
            raw=raw,
            reason="" if reason in NOTHING else reason,
            gpus=sum(_count(number) for name, number in gres.items() if str(name).split(":")[0] == "gpu"),
            cpus=int(one.total_cpus or 0),
            features=tuple(getattr(one, "active_features", None) or ()),
            gres=",".join(f"{name}:{_count(number)}" for name, number in gres.items()),
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise Unreadable(f"pyslurm showed a node that we cannot read ({error})", hint=_HINT) from error


def _count(number: object) -> int:
    """`4`, or `4(S:0-1)`."""
    found = re.match(r"\d+", str(number))
    return int(found[0]) if found else 0


def _names(nodes: object) -> tuple[str, ...]:
    """A host list in one version, a list of names in another."""
    return tuple(name for part in nodes for name in expand(str(part))) if isinstance(nodes, list) else expand(str(nodes or ""))


def main() -> int:
    """The probe, in a process of its own: import it, and ask Slurm one small thing."""
    version = ""
    try:
        import pyslurm  # noqa: PLC0415 - this process is there to see what happens

        version = str(pyslurm.__version__)
        pyslurm.Partitions.load()
        found = Probe(version=version)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
        found = Probe(version=version, trouble=f"pyslurm {version} does not work here: {type(error).__name__}: {error}".replace("  ", " "))
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main())
