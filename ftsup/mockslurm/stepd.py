"""The daemon of one step on one node: starts the tasks, passes signals on, carries their output, ends what they leave.

Forked by the job's runner, never a child of srun: srun is only a client, told through a socket, and may go away. It ends
when nothing of the step is left on its node; when the runner is lost, everything here ends with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import msgspec

from ftsup.mockslurm import processes
from ftsup.mockslurm.model import BATCH, Signal, Task
from ftsup.mockslurm.text import instant

CHUNK = 32 * 1024
PATIENCE_S = 60.0
EXEC_FAILED = 2


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """From the runner or from srun."""

    signal: Signal | None = None
    end: bool = False
    """SIGCONT, SIGTERM, and after KillWait SIGKILL, to everything."""
    note: str = ""
    kill: bool = False
    """SIGKILL now."""


class News(msgspec.Struct, frozen=True, kw_only=True):
    """To srun (all of it) and to the runner (the exits)."""

    node: str
    rank: int = -1
    status: int | None = None
    """The task ended: its wait status."""
    over: bool = False
    """Nothing of the step is left on this node: the daemon's last word."""
    client_lost: bool = False
    """srun closed its line while tasks were running."""
    output: bytes = b""
    stream: int = 1
    ending: str = ""
    """The step is being ended from outside, in slurmstepd's words."""


class Stepd:
    """One step on one node."""

    def __init__(self, task: Task, *, node: str, runner: socket.socket) -> None:
        self.task, self.node, self.runner = task, node, runner
        self.client = self._connect()
        self.tasks: dict[int, int] = {}
        self.pidfds: dict[int, int] = {}
        self.outputs: dict[int, tuple[int, int]] = {}
        self.kill_at: float | None = None
        self.ending = False
        self.backlog: list[News] = []

    def run(self) -> None:
        """Start the tasks and stay until nothing is left."""
        if self.task.client and not self.client:
            self._tell(News(node=self.node, over=True))
            return  # srun did not wait for its step
        self._tell(News(node=self.node))
        for local, rank in enumerate(self._ranks()):
            self._start(rank, local)
        while self.tasks:
            self._turn()
        processes.end(self._below, patience_s=PATIENCE_S)
        self._drain()
        self._tell(News(node=self.node, over=True))

    # --- one turn

    def _turn(self) -> None:
        poll = select.poll()
        poll.register(self.runner, select.POLLIN)
        if self.client:
            poll.register(self.client, select.POLLIN | (select.POLLOUT if self.backlog else 0))
        for pipe in () if self.backlog else self.outputs:
            poll.register(pipe, select.POLLIN)
        for pidfd in self.pidfds.values():
            poll.register(pidfd, select.POLLIN)
        events = dict(poll.poll(self._wait_ms()))
        if self.runner.fileno() in events:
            self._hear(self.runner, lost=self._runner_lost)
        if self.client and self.client.fileno() in events:
            if events[self.client.fileno()] & ~select.POLLOUT:
                self._hear(self.client, lost=self._client_lost)
            self._send_backlog()
        for pipe in [pipe for pipe in self.outputs if pipe in events]:
            self._carry(pipe)
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            self.kill_at = None
            processes.send(self._below(), signal.SIGKILL)
        for pid, status in processes.reap().items():
            if pid in self.tasks:
                os.close(self.pidfds.pop(pid))
                self._tell(News(node=self.node, rank=self.tasks.pop(pid), status=status))

    def _wait_ms(self) -> float:
        return 1000.0 if self.kill_at is None else max(0.0, min(1000.0, (self.kill_at - time.monotonic()) * 1000 + 1))

    def _hear(self, peer: socket.socket, *, lost: Callable[[], None]) -> None:
        try:
            data = peer.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._obey(msgspec.msgpack.decode(data, type=Order))
        else:
            lost()

    def _obey(self, order: Order) -> None:
        if order.signal:
            self._signal(order.signal)
        if order.end and not self.ending:
            self.ending = True
            self._announce(order.note)
            for number in (signal.SIGCONT, signal.SIGTERM):
                self._signal(Signal(number=number))
            self.kill_at = time.monotonic() + self.task.kill_wait_s
        if order.kill:
            self.ending = True
            processes.send(self._below(), signal.SIGKILL)

    def _announce(self, note: str) -> None:
        """What the real one writes into the job's error output, once for all nodes."""
        name = f"JOB {self.task.job}" if self.task.step == BATCH else f"STEP {self.task.job}.{self.task.step}"
        line = f"slurmstepd-{self.node}: error: *** {name} ON {self.node} CANCELLED AT {instant(time.time())} {note} ***"
        line = line.replace("  ", " ")
        if self.client:
            self._tell(News(node=self.node, ending=line if self.node == self.task.nodes[0] else " "))
        elif self.task.step == BATCH:
            there = self._target(0, 0, 2)[1]
            os.write(there, f"{line}\n".encode())
            os.close(there)

    def _signal(self, wanted: Signal) -> None:
        """Pass a signal on. Process tracking by cgroup knows only the tasks themselves, except for SIGKILL."""
        own = set(self.tasks)
        if wanted.everybody:
            processes.send(self._below(), wanted.number)
            return
        if wanted.full:
            for group in own:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, wanted.number)
            return
        alone = (self.task.step == BATCH and wanted.batch) or (self.task.cgroup and wanted.number != signal.SIGKILL)
        processes.send(own if alone else self._below(), wanted.number)

    def _below(self) -> set[int]:
        return processes.below([os.getpid()])

    # --- peers

    def _connect(self) -> socket.socket | None:
        if not self.task.client:
            return None
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            client.connect("\0" + self.task.client)
        except OSError:
            client.close()
            return None
        client.setblocking(False)  # noqa: FBT003 - its signature
        return client

    def _runner_lost(self) -> None:
        """The node's daemons are gone, and so is the node: nothing here may live on."""
        processes.end(self._below, patience_s=PATIENCE_S)
        os._exit(1)

    def _client_lost(self) -> None:
        """Srun is gone: what the tasks say goes nowhere, and the runner decides whether they live on."""
        if self.client:
            self.client.close()
        self.client, self.backlog = None, []
        if self.tasks:
            self._tell(News(node=self.node, client_lost=True))

    def _tell(self, news: News) -> None:
        if news.status is not None or news.client_lost or news.over:
            with contextlib.suppress(OSError):
                self.runner.send(msgspec.msgpack.encode(news))
        if self.client and not news.over:
            self.backlog.append(news)
            self._send_backlog()

    def _send_backlog(self) -> None:
        while self.client and self.backlog:
            try:
                self.client.send(msgspec.msgpack.encode(self.backlog[0]))
            except BlockingIOError:
                return
            except OSError:
                self._client_lost()
                return
            self.backlog.pop(0)

    def _carry(self, pipe: int) -> None:
        rank, stream = self.outputs[pipe]
        data = os.read(pipe, CHUNK)
        if data:
            self._tell(News(node=self.node, rank=rank, output=data, stream=stream))
        else:
            os.close(pipe)
            del self.outputs[pipe]

    def _drain(self) -> None:
        """The last words of tasks that are gone."""
        deadline = time.monotonic() + 1.0
        for pipe in list(self.outputs):
            os.set_blocking(pipe, False)
            with contextlib.suppress(BlockingIOError):
                while pipe in self.outputs and time.monotonic() < deadline:
                    self._carry(pipe)
        if self.client:
            self.client.settimeout(1.0)
            self._send_backlog()

    # --- tasks

    def _start(self, rank: int, local: int) -> None:
        fresh = not self.task.append
        pipes = [self._target(rank, local, stream, truncate=fresh and bool(stream == 1 or self.task.stderr)) for stream in (1, 2)]
        pid = os.fork()
        if pid == 0:
            become(self.task, outputs=[there for _, there in pipes], env=self._env(rank, local))
        with contextlib.suppress(OSError):  # it does so itself; a signal for its group may come before it got to that
            os.setpgid(pid, pid)
        self.tasks[pid], self.pidfds[pid] = rank, os.pidfd_open(pid)
        for stream, (here, there) in enumerate(pipes, start=1):
            os.close(there)
            if here >= 0:
                self.outputs[here] = (rank, stream)

    def _target(self, rank: int, local: int, stream: int, *, truncate: bool = False) -> tuple[int, int]:
        """Where a task writes: a pipe of ours towards srun, or a file. (our end or -1, its end)."""
        name = self.task.stdout if stream == 1 else self.task.stderr or self.task.stdout
        if not name:
            return os.pipe()
        path = pattern(name, self.task, node=self.node, rank=rank, local=local)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        if truncate:
            flags |= os.O_TRUNC
        try:
            return -1, os.open(os.path.join(self.task.cwd, path), flags, 0o666 & ~self.task.umask)  # noqa: PTH118 - may be absolute
        except OSError:
            return -1, os.open(os.devnull, os.O_WRONLY)

    def _ranks(self) -> range:
        index = self.task.nodes.index(self.node)
        first = sum(self.task.tasks[:index])
        return range(first, first + self.task.tasks[index])

    def _env(self, rank: int, local: int) -> dict[str, str]:
        index = self.task.nodes.index(self.node)
        return self.task.env | {
            "SLURMD_NODENAME": self.node,
            "SLURM_NODEID": str(index),
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local),
            "SLURM_GTIDS": ",".join(map(str, self._ranks())),
            "SLURM_TOPOLOGY_ADDR": self.node,
            "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
        }


def pattern(name: str, task: Task, *, node: str, rank: int, local: int) -> str:
    """Fill in what is only known where the task runs: %N %n %t %s."""
    step = "batch" if task.step == BATCH else str(task.step)
    values = {"N": node, "n": str(task.nodes.index(node)), "t": str(rank), "s": step, "l": str(local)}
    for letter, value in values.items():
        name = name.replace(f"%{letter}", value)
    return name.replace("%%", "%")


def become(task: Task, *, outputs: Sequence[int], env: dict[str, str]) -> NoReturn:
    """In the forked child: turn into the task."""
    try:
        os.setpgid(0, 0)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.umask(task.umask)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream, there in enumerate(outputs, start=1):
            os.dup2(there, stream)
        os.closerange(3, 4096)
        with contextlib.suppress(OSError):
            os.chdir(task.cwd)
        os.execvpe(task.argv[0], task.argv, env | {"SLURM_TASK_PID": str(os.getpid())})  # noqa: S606 - what the user asked for
    except OSError as error:
        os.write(2, f"slurmstepd-{env['SLURMD_NODENAME']}: error: execve(): {task.argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(EXEC_FAILED)


def serve(task: Task, *, node: str, runner: socket.socket) -> NoReturn:
    """In the process that the runner forked: be the stepd."""
    os.setsid()
    keep = runner.fileno()
    os.closerange(3, keep)
    os.closerange(keep + 1, 4096)
    if task.cgroup:
        processes.adopt_orphans()
    runner.setblocking(False)  # noqa: FBT003 - its signature
    try:
        Stepd(task, node=node, runner=runner).run()
    except BaseException:  # noqa: BLE001 - the program's last line: never back into the runner's code
        sys.excepthook(*sys.exc_info())
        os._exit(70)
    os._exit(0)
