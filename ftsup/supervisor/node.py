"""The node supervisor: senses one node's ranks, reports to the leader, and does what it orders. `policy.node` has its rules.

One turn: wait, turn what came into happenings, step them, act. What touches the shared disk is the clerk's; what reads or ends
processes is the guard's; evidence is a process of its own; nothing here blocks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq
from msgspec.structs import replace

from ftsup import events as ev
from ftsup import proc
from ftsup.config import Config, Launch
from ftsup.errors import SlurmError
from ftsup.events import Fault, How
from ftsup.incident.collect import Job as Evidence
from ftsup.monitors import exits
from ftsup.policy import node as machine
from ftsup.policy import nodestate, votes
from ftsup.policy.nodestate import Happening, Stage, State
from ftsup.ports import Clock
from ftsup.rundir import LocalDir, RunDir
from ftsup.slurm import call
from ftsup.supervisor import child as children
from ftsup.supervisor import launch, rankenv
from ftsup.supervisor.alone import Alone
from ftsup.supervisor.attempt import Attempt
from ftsup.supervisor.clerk import Clerk, ClerkFailed, nothing
from ftsup.supervisor.keys import read_keys
from ftsup.supervisor.link import own_addresses
from ftsup.supervisor.lock import NodeLock
from ftsup.supervisor.loop import Calls, Loop, Signals, Turn, soonest
from ftsup.supervisor.nodelink import NodeLink

LEAVE_S = 5.0
"""The most that leaving waits for the leader to take the last events, and for the last output to reach the run directory."""
TOLD_LEAVE_S = 2.0
"""The same where we were told to end: KillWait runs."""
LOGS_S = 1.0
SEE_S = 1.0
"""Between two looks at files that are not there yet."""
SOON_S = 0.2
UNSURE = (
    "the guard of the attempt was killed. Its processes are gone, but for those that cleared their environment, if there are any: "
    "nothing but a cgroup would find them"
)
PROOF = "gone.json"
"""In an attempt's folder: its guard lived to the end, and ended all of it."""
ENDINGS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where this supervisor runs, as Slurm's environment and the leader say."""

    node: str
    nodes: tuple[str, ...]
    job: str
    addresses: tuple[str, ...]
    environ: dict[str, str]
    env: dict[str, str]
    """The `env` of the configuration."""
    held: int = 0
    """A predecessor that is stopped or well, and not ours to end."""


class NodeSupervisor:
    """One supervisor of one node, from its start to its exit."""

    def __init__(self, run: RunDir, config: Config, place: Place, clock: Clock, lock: NodeLock, *, local: LocalDir) -> None:
        self.run_dir, self.config, self.place, self.clock, self.lock = run, config, place, clock, lock
        self.rules = config.rules()
        self.local = local
        now = clock.now()
        self.state = State(node=place.node, index=place.nodes.index(place.node) if place.node in place.nodes else 0)
        warning = launch.warning(config)
        self.signals = Signals(*ENDINGS, warning)
        self.loop = Loop(clock, tick_s=config.waits.tick_s, late_s=config.waits.late_s)
        self.calls: Calls[list[Happening]] = Calls()
        self.clerk: Clerk[list[Happening]] = Clerk(now=now, run=str(run.root))
        self.child: children.Child | None = None
        self.meeting: socket.socket | None = None
        """Holds the port of the attempt's meeting for torchrun."""
        self.attempt: Attempt | None = None
        """The newest."""
        self.env: dict[str, str] = dict(place.environ)
        self.left: tuple[str, ...] = ()
        """What a predecessor left behind, and cannot be killed."""
        self.instance = f"{place.node}:{os.getpid()}:{now:.3f}"
        self.link = NodeLink(read_keys(run.keys), addresses=place.addresses, up=self._up(), now=now)
        self.seeing: tuple[nodestate.LookAt, float] | None = None
        """A checkpoint that is not yet here as it was picked, and until when it is waited for."""
        self.see_t: float | None = None
        """When to look at it again."""
        self.looked_t = now
        self.glanced_t = now
        self.logs: deque[str] = deque()
        """Attempts of which lines may not lie in the run directory yet."""
        self.logs_t = now
        """When it is time for the next of them."""
        self.logs_busy = False
        self.alone = Alone(
            job=place.job,
            leader=run.leader,
            environ=place.environ,
            cwd=local.root,
            link=self.link,
            calls=self.calls,
            clerk=self.clerk,
            clock=clock,
            rules=self.rules,
        )
        self.leave_t: float | None = None
        self.ending = False
        """Slurm, or whoever, told us to end."""

    def _up(self) -> ev.NodeUp:
        running = self.state.epoch if self.state.stage in {Stage.RUNNING, Stage.ENDING} else None
        return ev.NodeUp(node=self.place.node, instance=self.instance, running=running, held=self.place.held, left=self.left)

    # One turn -------------------------------------------------------------------------------------------------------------

    def _sources(self) -> list[zmq.Socket[bytes] | int]:
        child = self.child.fds() if self.child else []
        ranks = self.attempt.fds() if self.attempt else []
        return [*self.link.sockets(), *self.calls.sources(), *self.clerk.sources(), *child, *ranks, self.signals.fileno()]

    def _until(self) -> float | None:
        child_t = self.child.due_at() if self.child else None
        attempt = self._running()
        look_t = self._look_t(attempt) if attempt else None  # whatever else wakes us meanwhile
        return soonest(
            self.calls.deadline_t(),
            self.clerk.deadline_t(),
            child_t,
            look_t,
            self._glance_t(),
            self.leave_t,
            self.alone.due_at(),
            self.see_t,
            machine.told_until_t(self.state, self.rules),
        )

    def _look_t(self, attempt: Attempt) -> float:
        return self.looked_t + (SOON_S if attempt.vanished else self.config.waits.tick_s)

    def _turn(self, turn: Turn) -> None:
        now = turn.now
        if turn.away_s:
            self.link.forget_time(now)
            self.calls.forgive(turn.away_s)
            if self.child:
                self.child.forgive(turn.away_s)
            self._happen(nodestate.WasAway(t=now))
        orders = self.link.receive(now)
        for order in () if self.place.held else orders:  # they are for the one that has the ranks
            self.ending = self.ending and not isinstance(order, ev.GoOn)
            self._happen(nodestate.Ordered(t=now, order=order))
        for number in self.signals.take():
            self.ending = self.ending or number in ENDINGS
            self._happen(nodestate.Signal(t=now, warning=number not in ENDINGS))
        for found in (*self.calls.take(now), *self.clerk.take(now)):
            for happening in found:
                self._happen(replace(happening, t=now))
        told_until_t = machine.told_until_t(self.state, self.rules)
        if told_until_t is not None and now >= told_until_t:
            self._happen(nodestate.Waited(t=now))
        self._see(now)
        self._glance(now)
        self._look(now)
        self._hear_child(now)
        self._bring_logs(now)
        self._lonely(now)
        notes = [replace(note, node=self.place.node) for note in (*self.link.notes(), *self.clerk.notes())]
        if notes:
            self.link.report(notes, now)
        if self.link.asked:
            attempt = self._running()
            self.link.answer(attempt.counters() if attempt else [], now)

    def _happen(self, happening: Happening) -> None:
        self.state, acts = machine.step(self.state, happening, self.rules)
        self.link.up = self._up()
        for act in acts:
            ACTS[type(act)](self, act, happening.t)

    # Sensing --------------------------------------------------------------------------------------------------------------

    def _running(self) -> Attempt | None:
        return self.attempt if self.state.stage is Stage.RUNNING else None

    def _look(self, now: float) -> None:
        """Once a tick, or at once when a rank has died: beats, processes, exit records."""
        attempt = self._running()
        if attempt is None:
            return
        died = attempt.died()
        if not died and now < self._look_t(attempt):
            return
        since_s, self.looked_t = min(now - self.looked_t, self.config.waits.tick_s), now  # more: we were away, and torchrun perhaps too
        seen = attempt.look(since_s)
        self._happen(nodestate.Looked(t=now, sights=seen.sights if self.rules.watched else attempt.command()))
        self._hear(attempt, now, final=died or seen.silent)
        if seen.ended:
            self._glance(now, died=True)
            self._happen(nodestate.RanksEnded(t=now, faults=attempt.explained(seen.ended)))

    def _glance_t(self) -> float | None:
        soon_s = votes.look_s(self.state.save) if self._running() else None
        return None if soon_s is None else self.glanced_t + soon_s

    def _glance(self, now: float, *, died: bool = False) -> None:
        """While a save is open: the beats alone, often, and once more when a rank has died: what it took up is known before its end."""
        due_t = self._glance_t()
        if self.attempt is None or due_t is None or (now < due_t and not died):
            return
        self.glanced_t = now
        self._happen(nodestate.Glanced(t=now, beats=self.attempt.read_beats()))

    def _hear(self, attempt: Attempt, now: float, *, final: bool) -> None:
        if found := attempt.hear(now, final=final):
            self._happen(nodestate.Heard(t=now, reports=found))

    def _hear_child(self, now: float) -> None:
        if self.child is None or self.attempt is None:
            return
        for event in self.child.poll(now):
            if isinstance(event, children.Started):
                self.attempt.torchrun = event.pid
                self._happen(nodestate.Started(t=now, pid=event.pid, ranks=self.attempt.ranks))
            elif isinstance(event, children.Ended):
                self._child_ended(self.attempt, event.code, now)
            else:
                self._child_gone(self.attempt, event, now)

    def _child_ended(self, attempt: Attempt, code: int, now: float) -> None:
        ended, killed = attempt.ended(code), attempt.killed(code)
        name = exits.signal_name(-code) if code < 0 else ""
        self._hear(attempt, now, final=True)
        self._happen(nodestate.ChildEnded(t=now, code=code, signal=name, killed=killed, ended=attempt.explained(ended)))

    def _child_gone(self, attempt: Attempt, gone: children.Gone, now: float) -> None:
        self.child = None
        self._let_port_go()
        attempt.close()
        self.logs_t = now
        self._say_unsure(gone, now)
        self._happen(nodestate.Gone(t=now, left=gone.left, took_s=gone.took_s, step=attempt.reached()))
        if not gone.left:
            children.clean([attempt.beats])

    def _say_unsure(self, gone: children.Gone, now: float) -> None:
        if gone.unsure:
            self.link.report([ev.Noted(node=self.place.node, text=UNSURE)], now)

    # Places ---------------------------------------------------------------------------------------------------------------

    def _beats(self) -> Path:
        return self.local.beats(str(self.state.epoch))

    def _out(self) -> Path:
        return self.local.out(str(self.state.epoch))

    # Acting ---------------------------------------------------------------------------------------------------------------

    def _tell(self, act: nodestate.Tell, now: float) -> None:
        self.link.report([act.event], now)

    def _run_setup(self, _act: nodestate.RunSetup, now: float) -> None:
        if not self.config.node_setup:
            self._happen(nodestate.SetupEnded(t=now))
            return

        def done(done: proc.Done) -> list[Happening]:
            env = launch.setup_environment(done.out)
            if done.ok and env is not None:
                self.env = env
                return [nodestate.SetupEnded(t=now)]
            said = (done.err.strip() or done.out.strip()).splitlines()
            why = done.why or f"exit code {done.code}"
            return [nodestate.SetupEnded(t=now, why=f"node_setup: {why}{': ' + said[-1][:300] if said else ''}")]

        limit_s = self.rules.setup_s * 0.95
        env = {**self.place.environ, **self.place.env, "FTSUP_NODE_SETUP": self.config.node_setup}
        self.calls.start(launch.setup_argv(), now=now, limit_s=limit_s, then=done, env=env, cwd=Path(self.config.workdir))

    def _look_at(self, act: nodestate.LookAt, now: float) -> None:
        self.seeing, self.see_t = (act, now + self.config.waits.files_s), now
        self._see(now)

    def _see(self, now: float) -> None:
        """A look is the clerk's: a disk that hangs must not hang us."""
        if self.seeing is None or self.see_t is None or now < self.see_t:
            return
        act, until_t = self.seeing
        self.see_t = None

        def seen(answer: object) -> list[Happening]:
            if self.seeing is None or self.seeing[0] is not act or self.state.stage is not Stage.LOOK:
                return []
            now = self.clock.now()
            if answer is None or (isinstance(answer, ClerkFailed) and answer.late):  # nobody is to blame: the leader's limit ends it
                self.seeing, self.see_t = (act, now + self.config.waits.files_s), now + SEE_S
                return []
            if answer and now < until_t and not isinstance(answer, ClerkFailed):
                self.see_t = min(now + SEE_S, until_t)
                return []
            self.seeing = None
            waited = f"after {self.config.waits.files_s:g} s (waits.files): " if answer else ""
            return [nodestate.FilesSeen(t=now, epoch=act.epoch, why=f"{waited}{answer}" if answer else "")]

        self.clerk.ask("see", now=now, limit_s=max(until_t - now, SEE_S), then=seen, worker=str(self.run_dir.worker), **self._files(act))

    def _files(self, act: nodestate.LookAt) -> dict[str, Any]:
        """The checkpoint's, for the clerk."""
        if act.path is None or act.files is None:
            return {}
        folder = Path(self.config.workdir) / self.config.checkpoint.dir
        return {"folder": str(folder), "name": str(Path(act.path).relative_to(folder)), "files": msgspec.to_builtins(act.files)}

    def _find_port(self, act: nodestate.FindPort, now: float) -> None:
        address = launch.meeting_address(own_addresses(), nodes=len(self.place.nodes), hint=act.hint)
        self._let_port_go()
        try:
            self.meeting = launch.held_port(address)
        except OSError as error:
            fault = Fault(how=How.SETUP, node=self.place.node, error=f"no free port on {address}: {error.strerror}")
            self._happen(nodestate.NotStarted(t=now, fault=fault))
            return
        port = self.meeting.getsockname()[1]
        if self.config.launch is not Launch.TORCHRUN:  # who listens there may not reuse addresses
            self._let_port_go()
        self._happen(nodestate.PortFound(t=now, address=address, port=port))

    def _let_port_go(self) -> None:
        if self.meeting is not None:
            self.meeting.close()
            self.meeting = None

    def _start_child(self, act: nodestate.StartChild, now: float) -> None:
        self.looked_t = now
        self.logs.append(str(act.order.epoch))
        at = {"worker": self.run_dir.worker, "beats": self._beats(), "out": self._out()}
        ranks = launch.rank_numbers(act.order, self.config.workers)
        self.attempt = Attempt(act.order, node=self.place.node, ranks=ranks, beats=at["beats"], out=at["out"])
        env = rankenv.environment(self.env, self.config, act.order, own=self.place.env, at=at)
        try:
            rankenv.forget_locks(self.local.cache)
            launch.make_places(at["beats"], at["out"], ranks if self.rules.watched else ())
            spec = children.Spec(
                argv=launch.argv(self.config, act.order, python=self.config.python or sys.executable, at=at),
                env=env,
                cwd=Path(self.config.workdir),
                mark=self.local.mark(str(act.order.epoch)),
                out=at["out"] / "torchrun.out",
                err=at["out"] / "torchrun.err",
                proof=at["out"] / PROOF,
                ignored=(launch.warning(self.config),),
            )
            unkillable_s = children.KILL_LIMIT_S if act.order.unkillable_s is None else act.order.unkillable_s
            self.child = children.start(spec, kill_limit_s=min(children.KILL_LIMIT_S, unkillable_s))
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            fault = Fault(how=How.SETUP, node=self.place.node, error=f"{error.strerror or error}{where}")
            self._happen(nodestate.NotStarted(t=now, fault=fault))

    def _tell_ranks(self, act: nodestate.TellRanks, _now: float) -> None:
        if self.attempt is not None:
            self.attempt.ask(act.order)

    def _forward_warning(self, _act: nodestate.ForwardWarning, now: float) -> None:
        """Under linuxproc Slurm has sent it to every process itself: a second one would come in the middle of the save."""
        number = launch.warning(self.config)

        def said(done: proc.Done) -> list[Happening]:
            with contextlib.suppress(SlurmError):
                if "linuxproc" in call.decode(done.out).get("ProctrackType", ""):
                    return []
            if self.attempt is not None:
                self.attempt.pass_on(number)
            return []

        self.calls.start(call.argv("config"), now=now, limit_s=call.DEADLINE_S, then=said, env=self.place.environ, cwd=self.local.root)

    def _gather(self, act: nodestate.Gather, now: float) -> None:
        folder = self.local.root / "incidents" / str(act.incident)
        job = Evidence(node=self.place.node, epoch=str(act.epoch), beats=str(self._beats()), out=str(self._out()), folder=str(folder))

        def done(done: proc.Done) -> list[Happening]:
            target = self.run_dir.incident(act.incident) / self.place.node
            if folder.exists():
                self.clerk.ask("copy", now=self.clock.now(), limit_s=60.0, then=nothing, source=str(folder), target=str(target))
            if not done.ok:
                return [nodestate.Gathered(t=now, incident=act.incident, missing=done.why or done.err.strip()[-300:])]
            try:
                found = tuple(msgspec.json.decode(done.out, type=list[Fault]))
            except msgspec.DecodeError as error:
                return [nodestate.Gathered(t=now, incident=act.incident, missing=f"unreadable: {error}")]
            return [nodestate.Gathered(t=now, incident=act.incident, faults=found)]

        argv = [sys.executable, "-m", "ftsup.incident", "collect", msgspec.json.encode(job).decode()]
        self.calls.start(argv, now=now, limit_s=act.limit_s, then=done, cwd=self.local.root)

    def _end_child(self, act: nodestate.EndChild, now: float) -> None:
        if self.child is not None:
            # What does not die of SIGKILL then is the kernel's, and Slurm's to wait for; the rest of the margin is for saying so.
            kill_limit_s = self.rules.kill_margin_s / 2 if self.ending else None
            self.child.stop(grace_s=act.grace_s, now=now, linger=self._owes(), kill_limit_s=kill_limit_s)

    def _owes(self) -> bool:
        """Whether what we started has something left to do or to tell when its ranks are gone."""
        return self.config.launch is not Launch.TORCHRUN or self.attempt is None or self.attempt.owes()

    def _exit(self, _act: nodestate.Exit, now: float) -> None:
        """What is ours in node-local memory goes first: KillWait may be over before a disk that hangs has let us go."""
        self.leave_t = now + (TOLD_LEAVE_S if self.ending else LEAVE_S)
        if not self.place.held and self.state.stage is Stage.IDLE:
            self._forget_places()

    # Without a leader -----------------------------------------------------------------------------------------------------

    def _lonely(self, now: float) -> None:
        if self.link.quiet_s(now) < self.rules.node_grace_s and not self.place.held:
            self.lock.show_life()
        for happening in self.alone.poll(now):
            self._happen(happening)

    def _ask_batch_host(self, _act: nodestate.AskBatchHost, now: float) -> None:
        self.alone.ask_batch_host(now)

    def _requeue_alone(self, act: nodestate.RequeueAlone, now: float) -> None:
        self.alone.requeue(now, delay_s=act.delay_s)

    # The ranks' output ----------------------------------------------------------------------------------------------------

    def _bring_logs(self, now: float) -> None:
        """A piece of one attempt's output after the other. One that is over goes on until all of it is there."""
        if self.logs_busy or not self.logs or now < self.logs_t:
            return
        self.logs_t, self.logs_busy = now + LOGS_S, True
        epoch = self.logs[0]
        over = self.child is None or epoch != str(self.state.epoch)

        def brought(answer: object) -> list[Happening]:
            self.logs_busy = False
            if answer is True:  # there is more
                self.logs_t = 0.0
            elif over and answer is False:
                self.logs.popleft()
                self.logs_t = 0.0
            else:
                self.logs.rotate(-1)
            return []

        out, target = self.local.out(epoch), self.run_dir.log(epoch, self.place.node)
        self.clerk.ask("logs", now=now, limit_s=60.0, then=brought, out=str(out), target=str(target), final=over)

    # The end --------------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Supervise until told to leave; first end what a predecessor left behind."""
        if strange := self.local.strange:
            self.link.report([ev.Noted(node=self.place.node, text=text, trouble=text) for text in strange], self.clock.now())
        if not self.place.held:
            self._sweep()
            self.logs.extend(sorted(out.name for out in self.local.root.glob("out/*")))  # a predecessor may not have brought all
        while not self._may_go():
            self._turn(self.loop.wait(self._sources(), until_t=self._until()))
        if not self.place.held and self.state.stage is Stage.IDLE:
            self._forget_places()
            self.local.leave()
        self._let_port_go()
        self.calls.end()
        self.link.close()
        self.clerk.close()
        return 0

    def _sweep(self) -> None:
        """Nothing of this job may live on this node but us. Its guard has mostly done it already."""
        lost = [out for out in self.local.root.glob("out/*") if (out / "torchrun.out").exists() and not (out / PROOF).exists()]
        sweep = children.sweep(self.local.mark(), now=self.clock.now())
        while not sweep.over:
            now = self.loop.wait(sweep.fds(), until_t=sweep.due_at()).now
            for event in sweep.poll(now):
                if isinstance(event, children.Gone):
                    self.left = event.left
                    killed = [out for out in lost if not (out / PROOF).exists()]  # else it was at work when we began
                    for out in killed:
                        (out / PROOF).touch()
                    self._say_unsure(replace(event, unsure=event.unsure or bool(killed)), now)
        self.link.up = self._up()
        self._forget_places()

    def _forget_places(self) -> None:
        """Node-local memory is not ours to fill: what earlier attempts of this job left, and folders that are empty now."""
        node = self._beats().parent
        children.clean([node])
        for folder in (node.parent, node.parent.parent):
            with contextlib.suppress(OSError):  # another node of this machine, another job of this run
                folder.rmdir()

    def _may_go(self) -> bool:
        if self.place.held:
            return self.link.unsent == 0 and self.link.leader != ""
        if self.leave_t is None:
            return False
        return (self.link.unsent == 0 and not self.logs) or self.clock.now() >= self.leave_t


ACTS: dict[type, Callable[[NodeSupervisor, Any, float], None]] = {
    nodestate.Tell: NodeSupervisor._tell,  # noqa: SLF001 - the table of this class
    nodestate.RunSetup: NodeSupervisor._run_setup,  # noqa: SLF001
    nodestate.LookAt: NodeSupervisor._look_at,  # noqa: SLF001
    nodestate.FindPort: NodeSupervisor._find_port,  # noqa: SLF001
    nodestate.StartChild: NodeSupervisor._start_child,  # noqa: SLF001
    nodestate.TellRanks: NodeSupervisor._tell_ranks,  # noqa: SLF001
    nodestate.ForwardWarning: NodeSupervisor._forward_warning,  # noqa: SLF001
    nodestate.Gather: NodeSupervisor._gather,  # noqa: SLF001
    nodestate.EndChild: NodeSupervisor._end_child,  # noqa: SLF001
    nodestate.AskBatchHost: NodeSupervisor._ask_batch_host,  # noqa: SLF001
    nodestate.RequeueAlone: NodeSupervisor._requeue_alone,  # noqa: SLF001
    nodestate.Exit: NodeSupervisor._exit,  # noqa: SLF001
}
