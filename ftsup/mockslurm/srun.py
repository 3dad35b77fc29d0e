"""`srun`: ask for a step of the job we are in, print what its tasks say, and return the highest of their codes.

Only a client: the tasks are children of the step's daemons. Where srun is killed, the runner ends the step, as the real one does.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from ftsup.errors import FtsupError
from ftsup.mockslurm import options, rules, steps
from ftsup.mockslurm.client import CONNECT, VERSION, Away, controller
from ftsup.mockslurm.model import Signal, StepRec, StepState
from ftsup.mockslurm.options import Parsed, fail
from ftsup.mockslurm.stepd import CHUNK, News, Order
from ftsup.mockslurm.store import Store
from ftsup.slurm.hostlist import compress

FROM_ENV = {
    "SLURM_NNODES": "nodes", "SLURM_JOB_NUM_NODES": "nodes", "SLURM_NTASKS": "ntasks", "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_EXPORT_ENV": "export", "SRUN_EXPORT_ENV": "export", "SLURM_KILL_BAD_EXIT": "kill-on-bad-exit", "SLURM_WAIT": "wait",
    "SLURM_NO_KILL": "no-kill", "SLURM_LABELIO": "label", "SLURM_OVERLAP": "overlap", "SLURM_OPEN_MODE": "open-mode",
}  # fmt: skip
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGCONT, signal.SIGALRM, signal.SIGQUIT)
FATAL = (signal.SIGINT, signal.SIGTERM)
ASK_S = 0.3


class Srun:
    """One step, seen from its client."""

    def __init__(self, store: Store, given: Parsed, job_id: int) -> None:
        self.store, self.given, self.job_id = store, given, job_id
        self.address = f"ftsup-mock-{os.urandom(12).hex()}"
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.server.bind("\0" + self.address)
        self.server.listen(64)
        self.peers: dict[int, socket.socket] = {}
        self.node_of: dict[int, str] = {}
        self.shape = steps.Shape(nodes=[], tasks=[])
        self.step = -1
        self.running: set[int] = set()
        self.codes: dict[int, int] = {}
        self.joined = 0
        self.first_exit_at: float | None = None
        self.ended = False
        self.interrupted_at = -1.0e9
        self.wait_s = float(given.get("wait") or 0)
        self.kill_on_bad_exit = given.has("kill-on-bad-exit") and given.get("kill-on-bad-exit") != "0"
        self.wake, waker = os.pipe()
        os.set_blocking(waker, False)
        os.set_blocking(self.wake, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in (*PASSED_ON, *FATAL):
            signal.signal(number, lambda *_: None)

    # --- asking for the step

    def ask(self) -> None:
        """Put the step into the job."""
        with controller(self.store) as (world, _):
            job = world.jobs.get(self.job_id)
            if job is None or job.state.value != "RUNNING":
                raise rules.Refusal("Job/step already completing or completed" if job else "Invalid job id specified")
            self.shape = steps.shape(self.given, job)
            self.running = set(range(sum(self.shape.tasks)))
            self.step, job.next_step = job.next_step, job.next_step + 1
            job.steps.append(
                StepRec(step=self.step, nodes=self.shape.nodes, overlap=self.given.has("overlap"), no_kill=self.given.has("no-kill"))
            )
            self.store.save_task(steps.task(self.given, job, step=self.step, shape=self.shape, store=self.store, client=self.address))

    # --- living with it

    def run(self) -> int:
        """Until every daemon of the step has closed its line."""
        told = False
        while self.joined < len(self.shape.nodes) or self.peers:
            self._turn()
            if self.joined < len(self.shape.nodes):
                told = self._ask_about(told=told)
        if not self.codes:
            return 1
        return max(_shell_code(status) for status in self.codes.values())

    def _ask_about(self, *, told: bool) -> bool:
        """The step has not started on all nodes: why?"""
        job = self.store.read().jobs.get(self.job_id)
        step = next((one for one in job.steps if one.step == self.step), None) if job else None
        if step is None or step.state is StepState.DONE or (job and job.completing and step.state in {StepState.WAITING, StepState.BUSY}):
            while select.select([self.server], [], [], 0)[0]:  # we were slow: they came, did it all and left before we looked
                self._accept()
            if not self.codes and not self.peers:
                fail("srun", f"Unable to create step for job {self.job_id}: Job/step already completing or completed")
            self.joined = len(self.shape.nodes)
        elif step.state is StepState.BUSY and not told:
            print(f"srun: Job {self.job_id} step creation temporarily disabled, retrying (Requested nodes are busy)", file=sys.stderr)
            return True
        elif step.state is StepState.RUNNING and told and self.joined:
            print(f"srun: Step created for job {self.job_id}", file=sys.stderr)
            return False
        return told

    def _turn(self) -> None:
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        if self.joined < len(self.shape.nodes):
            poll.register(self.server, select.POLLIN)
        for fd in self.peers:
            poll.register(fd, select.POLLIN)
        events = [fd for fd, _ in poll.poll(self._wait_ms())]
        if self.wake in events:
            for number in os.read(self.wake, 64):
                self._own_signal(number)
        if self.server.fileno() in events:
            self._accept()
        for fd in events:
            if fd in self.peers:
                self._hear(fd)
        if self.first_exit_at is not None and self.wait_s and not self.ended and time.monotonic() > self.first_exit_at + self.wait_s:
            print(f"srun: First task exited {self.wait_s:g}s ago", file=sys.stderr)
            self._end_step()

    def _accept(self) -> None:
        peer, _ = self.server.accept()
        self.peers[peer.fileno()] = peer
        self.joined += 1

    def _wait_ms(self) -> float:
        return 1000 * (ASK_S if self.joined < len(self.shape.nodes) or self.wait_s else 3600)

    def _hear(self, fd: int) -> None:
        try:
            data = self.peers[fd].recv(CHUNK * 2)
        except OSError:
            data = b""
        if not data:
            self.peers.pop(fd).close()
            self._closed(fd)
            return
        news = msgspec.msgpack.decode(data, type=News)
        self.node_of[fd] = news.node
        if news.output:
            self._print(news)
        elif news.ending:
            self._aborted(news.ending)
        elif news.status is not None:
            self._exited(news.node, news.rank, news.status)

    def _closed(self, fd: int) -> None:
        """A daemon's line is closed. Tasks of which nothing was said went down with it."""
        if node := self.node_of.get(fd):
            for rank in self.shape.ranks(node):
                if rank in self.running:
                    self._exited(node, rank, signal.SIGKILL)

    def _print(self, news: News) -> None:
        stream = sys.stdout if news.stream == 1 else sys.stderr
        data = news.output
        if self.given.has("label"):
            width = len(str(sum(self.shape.tasks) - 1))
            data = b"".join(f"{news.rank:>{width}}: ".encode() + line for line in data.splitlines(keepends=True))
        stream.buffer.write(data)
        stream.flush()

    def _aborted(self, line: str) -> None:
        if line.strip():
            print(line, file=sys.stderr)
        if not self.ended:
            self.ended = True
            wait_s = int(self.store.read().settings.kill_wait_s) + 2
            print(f"srun: Job step aborted: Waiting up to {wait_s} seconds for job step to finish.", file=sys.stderr)

    def _exited(self, node: str, rank: int, status: int) -> None:
        self.running.discard(rank)
        self.codes[rank] = status
        if self.first_exit_at is None:
            self.first_exit_at = time.monotonic()
        if not status:
            return
        killed_by = status & 0x7F
        how = signal.strsignal(killed_by) if killed_by else f"Exited with exit code {status >> 8}"
        print(f"srun: error: {node}: task {rank}: {how}", file=sys.stderr)
        if self.kill_on_bad_exit and not self.ended:
            print(f"srun: launch/slurm: _step_signal: Terminating StepId={self.job_id}.{self.step}", file=sys.stderr)
            self._end_step()

    def _end_step(self) -> None:
        self.ended = True
        self._order(Order(end=True))

    def _own_signal(self, number: int) -> None:
        """Signals to srun are meant for its tasks."""
        if number in FATAL and not self.joined:
            self._withdraw(number)
        elif number == signal.SIGINT and time.monotonic() > self.interrupted_at + 1:
            self.interrupted_at = time.monotonic()
            print("srun: interrupt (one more within 1 sec to abort)", file=sys.stderr)
            ranks = f"task {min(self.running)}" if len(self.running) == 1 else f"tasks {compress_ranks(self.running)}"
            print(f"srun: StepId={self.job_id}.{self.step} {ranks}: running", file=sys.stderr)
        elif number in FATAL:
            if number == signal.SIGINT:
                print(f"srun: sending Ctrl-C to StepId={self.job_id}.{self.step}", file=sys.stderr)
                self._order(Order(signal=Signal(number=number)))
            print("srun: forcing job termination", file=sys.stderr)
            self._order(Order(kill=True))
        elif number in PASSED_ON:
            self._order(Order(signal=Signal(number=number)))

    def _withdraw(self, number: int) -> NoReturn:
        """Take the request back: the step has not started."""
        print(f"srun: Cancelled pending job step with signal {number}", file=sys.stderr)
        with contextlib.suppress(Away), controller(self.store) as (world, _):
            job = world.jobs.get(self.job_id)
            if job:
                job.steps = [step for step in job.steps if step.step != self.step or step.state is StepState.RUNNING]
        fail("srun", f"Unable to create step for job {self.job_id}: Job/step already completing or completed")

    def _order(self, order: Order) -> None:
        for peer in self.peers.values():
            try:
                peer.send(msgspec.msgpack.encode(order))
            except OSError:
                continue


def main(store: Store, arguments: Sequence[str]) -> int:
    """The program."""
    env = {name: os.environ[variable] for variable, name in FROM_ENV.items() if variable in os.environ}
    typed = options.parse(options.SRUN, arguments)
    if typed.has("version"):
        print(f"slurm-wlm {VERSION}")
        return 0
    if not typed.rest:
        fail("srun", "No command given to execute.")
    given = Parsed(values=env | typed.values, rest=typed.rest)
    job = typed.get("jobid") or os.environ.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        fail("srun", "Unable to allocate resources: the mock runs srun only inside a job")
    srun = Srun(store, given, int(job))
    try:
        srun.ask()
    except Away:
        options.say("srun", f"Unable to confirm allocation for job {job}: {CONNECT}")
        print(f"srun: Check SLURM_JOB_ID environment variable. Expired or invalid job {job}", file=sys.stderr)
        return 1
    except (rules.Refusal, FtsupError) as refusal:
        fail("srun", f"Unable to create step for job {job}: {refusal}")
    return srun.run()


def _shell_code(status: int) -> int:
    killed_by = status & 0x7F
    return 128 + killed_by if killed_by else status >> 8


def compress_ranks(ranks: set[int]) -> str:
    """0 1 2 5 -> `0-2,5`."""
    return compress(f"r{rank}" for rank in ranks).removeprefix("r").strip("[]")
