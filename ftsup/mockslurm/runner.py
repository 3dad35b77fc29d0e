"""The process behind one job: waits for its nodes, starts its steps' daemons, keeps its time, ends it.

Started by sbatch, detached; for its job it is the controller's arm and the nodes' daemon. What is decided is in `rules`; here are
the processes. It sleeps on a pipe that every command may write to. When it is lost, the next command says so (`recovery`).
"""

from __future__ import annotations

import contextlib
import getpass
import os
import select
import socket
import time
from pathlib import Path
from typing import NoReturn

import msgspec

from ftsup.mockslurm import arrays, processes, recovery, rules, stepd
from ftsup.mockslurm.model import BATCH, Ident, JobRec, Proctrack, Signal, StepRec, StepState, Task, World
from ftsup.mockslurm.stepd import News, Order
from ftsup.mockslurm.store import Store
from ftsup.ports import JobState
from ftsup.slurm.hostlist import compress

IDLE_S = 1.0
"""How often to look at the world when nobody wakes us."""
OVERDUE_S = 5.0
"""How long after KillWait a stepd may still be there before it is killed with all that it has."""


class Daemon(msgspec.Struct, kw_only=True):
    """A stepd of ours."""

    step: int
    node: str
    who: Ident
    pidfd: int
    line: socket.socket
    over: bool = False
    """It has said its last word."""
    ending: bool = False
    overdue_at: float = 0.0


class Runner:
    """The runner of one job."""

    def __init__(self, store: Store, job_id: int) -> None:
        self.store, self.job_id = store, job_id
        self.daemons: list[Daemon] = []
        self.children: set[int] = set()
        self.script_status: int | None = None
        self.script_lost = False
        self.orphaned: set[int] = set()
        self.next_look = 0.0
        wake = store.wake_file(job_id)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(wake, 0o600)
        self.wake = os.open(wake, os.O_RDWR | os.O_NONBLOCK)

    def run(self) -> None:
        """Until the job is over for good."""
        while self._turn():
            self._sleep()

    def _turn(self) -> bool:
        """Look at the world and do what it asks; False when the job is over or forgotten."""
        world = self.store.read()
        if world.faults.away_until > time.time():
            self.next_look = world.faults.away_until
            return True
        with self.store.change() as world:
            now = time.time()
            job = world.jobs.get(self.job_id)
            if job is None or job.runner is None or job.runner.pid != os.getpid():
                return False
            self._serve(world, job, now)
            self.children |= recovery.revive(self.store, world, now)
            started = rules.schedule(world, now)
            self._serve(world, job, now)
            self.store.discard(rules.forget(world, now))
            self.next_look = min([*rules.due(world, now), now + IDLE_S])
            over = job.over
        for other in started:
            self.store.wake(other)
        if over:
            self._wake_waiting(world)
        return not over

    def _wake_waiting(self, world: World) -> None:
        for other in world.jobs.values():
            if not other.over and other.job != self.job_id:
                self.store.wake(other.job)

    def _serve(self, world: World, job: JobRec, now: float) -> None:
        if self.script_status is not None:
            rules.script_ended(job, self.script_status, now)
            self.script_status = None
        if self.script_lost and job.state is JobState.RUNNING:
            rules.node_failed(job, now)
        self.script_lost = False
        rules.watch_time(world, job, now)
        self._lost_nodes(world, job)
        if job.state is JobState.RUNNING and not job.completing:
            self._launch(world, job)
        for wanted in job.signals:
            self._pass_on(wanted)
        job.signals = []
        self._end_orphaned(world, job)
        for step in job.steps:
            if step.state is StepState.RUNNING and not any(one.step == step.step for one in self.daemons):
                step.state = StepState.DONE
        if job.completing:
            self._end(world, job, now)

    # --- starting

    def _launch(self, world: World, job: JobRec) -> None:
        if job.launched != job.grant:
            job.launched = job.grant
            if not job.interactive:
                job.steps.append(StepRec(step=BATCH, nodes=[job.batch_host], overlap=True))
        for step in job.steps:
            if step.state in {StepState.WAITING, StepState.BUSY}:
                step.state = StepState.RUNNING if rules.step_may_start(job, step) else StepState.BUSY
                if step.state is StepState.RUNNING:
                    self._launch_step(world, job, step)

    def _launch_step(self, world: World, job: JobRec, step: StepRec) -> None:
        task = self.store.load_task(job.job, step.step)
        task = msgspec.structs.replace(
            task,
            nodes=step.nodes,
            kill_wait_s=world.settings.kill_wait_s,
            cgroup=world.settings.proctrack is Proctrack.CGROUP,
            env=batch_env(task.env, store=self.store, world=world, job=job) if step.step == BATCH else task.env,
        )
        for node in step.nodes:
            step.stepds[node] = self._fork(task, node)

    def _fork(self, task: Task, node: str) -> Ident:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            stepd.serve(task, node=node, runner=theirs)
        theirs.close()
        ours.setblocking(False)  # noqa: FBT003 - its signature
        who = processes.identify(pid)
        self.daemons.append(Daemon(step=task.step, node=node, who=who, pidfd=os.pidfd_open(pid), line=ours))
        return who

    # --- signals and the end

    def _pass_on(self, wanted: Signal) -> None:
        for daemon in self.daemons:
            if wanted.everybody:
                meant = True
            elif wanted.step is not None:
                meant = daemon.step == wanted.step
            elif daemon.step == BATCH:
                meant = wanted.batch or wanted.full
            else:
                meant = wanted.steps
            if meant:
                self._order(daemon, Order(signal=wanted))

    def _end_orphaned(self, world: World, job: JobRec) -> None:
        """A step whose srun was killed is ended at once. Where srun went down with its node, the tasks live on."""
        if not (job.batch_host and world.nodes[job.batch_host].down):
            for daemon in self.daemons:
                if daemon.step in self.orphaned:
                    self._order(daemon, Order(kill=True))
        self.orphaned.clear()

    def _order(self, daemon: Daemon, order: Order) -> None:
        with contextlib.suppress(OSError):
            daemon.line.send(msgspec.msgpack.encode(order))

    def _end(self, world: World, job: JobRec, now: float) -> None:
        """Everything of the job gets SIGTERM, later SIGKILL; when nothing is left, its nodes are free."""
        for daemon in self.daemons:
            if not daemon.ending:
                daemon.ending, daemon.overdue_at = True, now + world.settings.kill_wait_s + OVERDUE_S
                self._order(daemon, Order(end=True, note=job.kill_note))
            elif now > daemon.overdue_at:
                self._kill(daemon, job)
        if not self.daemons:
            self._sweep(world, job)
            rules.completed(world, job, now)
            self._wake_waiting(world)

    def _lost_nodes(self, world: World, job: JobRec) -> None:
        """A node that is down takes its processes with it."""
        for daemon in self.daemons:
            if world.nodes[daemon.node].down:
                self._kill(daemon, job)

    def _kill(self, daemon: Daemon, job: JobRec) -> None:
        processes.send({daemon.who.pid} | processes.below([daemon.who.pid]), 9)
        recovery.sweep(self.store, job.job, node=daemon.node)

    def _sweep(self, world: World, job: JobRec) -> None:
        """Nothing of a job outlives it under cgroups: strays whose stepd is gone are ours now."""
        if world.settings.proctrack is Proctrack.CGROUP:
            spare = self.children
            processes.end(lambda: processes.below([os.getpid()], spare=spare), patience_s=OVERDUE_S)
            recovery.sweep_nodes(self.store, world, job)

    # --- waiting

    def _sleep(self) -> None:
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        for daemon in self.daemons:
            poll.register(daemon.pidfd, select.POLLIN)
            poll.register(daemon.line, select.POLLIN)
        poll.poll(max(0.0, (self.next_look - time.time()) * 1000 + 1))
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        processes.reap()
        self.children = {pid for pid in self.children if (seen := processes.look(pid)) and not seen.zombie}
        for daemon in list(self.daemons):
            self._listen(daemon)
            if not processes.alive(daemon.who):
                self._buried(daemon)

    def _listen(self, daemon: Daemon) -> None:
        with contextlib.suppress(OSError):
            while data := daemon.line.recv(stepd.CHUNK * 2):
                news = msgspec.msgpack.decode(data, type=News)
                if daemon.step == BATCH and news.status is not None:
                    self.script_status = news.status
                daemon.over = daemon.over or news.over
                if news.client_lost:
                    self.orphaned.add(daemon.step)

    def _buried(self, daemon: Daemon) -> None:
        """A stepd is gone. Without a word about its script it was killed, and what it had goes too."""
        self._listen(daemon)
        self.daemons.remove(daemon)
        os.close(daemon.pidfd)
        daemon.line.close()
        if daemon.step == BATCH:
            self.script_lost = not daemon.over and self.script_status is None
        elif not daemon.over:
            recovery.sweep(self.store, self.job_id, node=daemon.node, step=daemon.step)


def batch_env(env: dict[str, str], *, store: Store, world: World, job: JobRec) -> dict[str, str]:
    """The environment of a batch script: what was exported, and what this grant is."""
    told = arrays.env(job) | ({"SLURM_RESTART_COUNT": str(job.restarts)} if job.restarts else {}) | asked_env(job)
    batch = {"ENVIRONMENT": "BATCH", "HOSTNAME": job.batch_host, recovery.STATE: str(store.root)}
    return env | batch | job_env(world, job) | told


def asked_env(job: JobRec) -> dict[str, str]:
    """What only those hear of who asked for it."""
    told: dict[str, str] = {}
    if job.options.keys() & {"ntasks", "ntasks-per-node"}:
        total = job.options.get("ntasks") or str(len(job.nodes) * job.tasks_per_node)
        told |= {"SLURM_NTASKS": total, "SLURM_NPROCS": total}
    if "ntasks-per-node" in job.options:
        told["SLURM_NTASKS_PER_NODE"] = job.options["ntasks-per-node"]
    if "cpus-per-task" in job.options:
        told["SLURM_CPUS_PER_TASK"] = job.options["cpus-per-task"]
    if "open-mode" in job.options:
        told["SLURM_OPEN_MODE"] = "a" if job.append else "t"
    return told


def job_env(world: World, job: JobRec) -> dict[str, str]:
    """What Slurm tells every process of a job about it."""
    count, nodes = len(job.nodes), compress(job.nodes)
    cpus = os.cpu_count() or 1
    suffix = f"(x{count})" if count > 1 else ""
    return {
        "SLURM_CLUSTER_NAME": world.settings.cluster_name,
        "SLURM_CPUS_ON_NODE": str(cpus),
        "SLURM_JOBID": str(job.job),
        "SLURM_JOB_CPUS_PER_NODE": f"{cpus}{suffix}",
        "SLURM_JOB_GID": str(os.getgid()),
        "SLURM_JOB_ID": str(job.job),
        "SLURM_JOB_NAME": job.name,
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": str(count),
        "SLURM_JOB_PARTITION": job.partition or world.settings.partition,
        "SLURM_JOB_UID": str(os.getuid()),
        "SLURM_JOB_USER": getpass.getuser(),
        "SLURM_NNODES": str(count),
        "SLURM_NODELIST": nodes,
        "SLURM_NODE_ALIASES": "(null)",
        "SLURM_SUBMIT_DIR": job.options.get("submit_dir", job.workdir),
        "SLURM_SUBMIT_HOST": os.uname().nodename,
        "SLURM_TASKS_PER_NODE": f"{job.tasks_per_node}{suffix}",
        "SLURM_WORKING_CLUSTER": f"{world.settings.cluster_name}:127.0.0.1:0:9728:109",
    }


def main(root: str, job: str) -> NoReturn:
    """The runner's program."""
    os.umask(0o077)
    os.chdir("/")
    store = Store(Path(root))
    world = store.read()
    if world.settings.proctrack is Proctrack.CGROUP:
        processes.adopt_orphans()
    if world.jobs[int(job)].options.get("propagate") == "NONE":
        processes.set_soft_limits(world.limits)
    Runner(store, int(job)).run()
    os._exit(0)
