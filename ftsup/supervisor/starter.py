"""Starts node supervisors through srun, and adopts the srun of a leader that died. Its exit code is never asked for.

srun runs in a session of its own with its output in a file of the leader's local directory, so that a leader's death costs nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ftsup import proc
from ftsup.supervisor import proctree
from ftsup.supervisor.files import write_whole

ADDRESSES = "FTSUP_LEADER"
NODES = "FTSUP_NODES"
RUN = "FTSUP_RUN"
AT_ONCE = 2
"""So many sruns for one node may live: the one whose supervisor is silent, and the next. More only wait for the same controller."""
BETWEEN = " / "
"""What stands between two lines of srun's output, where they are told."""
OPTIONS = ("--ntasks-per-node=1", "--mpi=none", "--cpu-bind=none", "--kill-on-bad-exit=0", "--wait=0", "--export=ALL")
DEAF = 'trap \'\' USR1 USR2; exec "$0" "$@"'
"""The warning may come while Python starts: one that is missed costs nothing, since the leader knows the end by Slurm's clock."""
NARROWS = ("SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_EXACT")
"""With any of these, as with its own SRUN_*, srun gives the step the CPUs of its tasks only; without, all that the job has on a node."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """An srun that was started: its pid, and its start time, which tells it from a later process with that pid."""

    pid: int
    start: int


def own_pid() -> int:
    """The leader's pid, for the log."""
    return os.getpid()


def script_forgets() -> None:
    """Tell the batch script, our parent, that nothing ends the job, whatever it was told: it may start a leader after us."""
    with contextlib.suppress(OSError):
        os.kill(os.getppid(), signal.SIGURG)  # ends nobody who does not know it


def argv(nodes: Sequence[str], *, chdir: Path, overlap: bool, environ: Mapping[str, str]) -> list[str]:
    """The srun command: one task on each of the nodes, in their order. Ranks know SLURM_CPUS_PER_TASK, srun does not."""
    cpus = environ.get("SLURM_CPUS_PER_TASK")
    words = ["srun", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", f"--nodelist={','.join(nodes)}", f"--chdir={chdir}", *OPTIONS]
    words += ["--overlap"] if overlap else []
    known = ["env", f"SLURM_CPUS_PER_TASK={cpus}"] if cpus else []
    return [*words, "sh", "-c", DEAF, *known, sys.executable, "-m", "ftsup", "node"]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What srun gets of the batch script's environment. Where a site ends whole steps for one process without memory, not ours."""
    kept = {name: value for name, value in environ.items() if name not in NARROWS and not name.startswith("SRUN_")}
    return {**kept, "SLURM_OOM_KILL_STEP": "0"}


class Step:
    """The step of the node supervisors, and those started again one by one."""

    def __init__(self, local: Path, run: Path, environ: Mapping[str, str]) -> None:
        self._local, self._run, self._environ = local, run, environ
        self._file = local / f"srun.{environ.get('SLURM_RESTART_COUNT', '0')}.json"
        self._ours: list[proc.Detached] = []
        self._main: proc.Detached | None = None
        self._again: dict[str, list[proc.Detached]] = {}
        """Node -> the sruns that started its supervisor again, and live."""

    def start(self, nodes: Sequence[str], *, addresses: Sequence[str]) -> str:
        """Start all, unless an srun of this grant lives; why not, or nothing."""
        if self._adopted() or any(not process.ended() for process in self._ours):
            return ""
        again = bool(self._ours) or self._file.exists()  # a controller that was away may still make the step of one that gave up
        why = self._srun(nodes, nodes, addresses, overlap=again)
        if not why:
            self._main = self._ours[-1]
            pid = self._main.pid
            process = proctree.read(pid)
            with contextlib.suppress(OSError):  # a full disk: a new leader cannot adopt it, and the nodes' locks keep a second one out
                write_whole(self._file, msgspec.json.encode(Known(pid=pid, start=process.start if process else 0)))
        return why

    def start_one(self, node: str, nodes: Sequence[str], *, addresses: Sequence[str]) -> str:
        """Start the supervisor of one node again, beside the step that may still hold it."""
        self._again[node] = [process for process in self._again.get(node, []) if not process.ended()]
        if len(self._again[node]) >= AT_ONCE:
            return ""
        why = self._srun([node], nodes, addresses, overlap=True)
        self._again[node] += [] if why else self._ours[-1:]
        return why

    def just_ended(self) -> str | None:
        """The last lines of the step's output, once, when its srun has ended; None: it lives, or that was said."""
        if self._main is None or not self._main.ended():
            return None
        self._main = None
        try:
            with (self._local / "step.out").open("rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - 2000, 0))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return BETWEEN.join(lines[-3:])[-500:]

    def ended(self) -> bool:
        """Whether every srun is gone."""
        return all(process.ended() for process in self._ours) and not self._adopted()

    def _srun(self, targets: Sequence[str], nodes: Sequence[str], addresses: Sequence[str], *, overlap: bool) -> str:
        env = {**environment(self._environ), ADDRESSES: ",".join(addresses), NODES: ",".join(nodes), RUN: str(self._run)}
        try:
            command = argv(targets, chdir=self._run, overlap=overlap, environ=self._environ)
            self._ours.append(proc.detach(command, env=env, cwd=self._local, output=self._local / "step.out"))
        except OSError as error:
            return f"srun cannot be started: {error.strerror or error}"
        return ""

    def _adopted(self) -> bool:
        """An srun that a leader before us started lives."""
        try:
            known = msgspec.json.decode(self._file.read_bytes(), type=Known)
        except (OSError, msgspec.DecodeError):
            return False
        process = proctree.read(known.pid)
        return process is not None and process.start == known.start and process.state != "Z"
