"""One fake world for the policy: a clock, a Slurm, nodes, ranks that train in step, and both real machines between them.

A story is written by rank and step and reads like its title:

    world = World(nodes=2, ranks=2).strike("hang", rank=3, step=100)
    world.run()
    assert world.verdicts() == [...]

Simulated time only. Nothing here inherits what it imitates.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Any

from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Ask, Epoch, Fault, How, Line, Request, VerdictKind
from ftsup.policy import machine as leading
from ftsup.policy import node as noding
from ftsup.policy import nodestate
from ftsup.policy import votes as voting
from ftsup.policy.rules import Hang, Rules
from ftsup.policy.state import Stage, State
from ftsup.policy.watch import Process, Sight
from ftsup.worker.beatfile import Phase
from tests.worldparts import HOLD_S, Node, Rank, Strike

RULES = Rules(hang=Hang(step_s=20.0, init_s=60.0, first_step_s=60.0, shutdown_s=30.0), grace_s=5.0, kill_wait_s=5.0, warning_s=60.0)


class World:
    """Everything. Times are seconds; one look a second, as the real ones."""

    def __init__(  # noqa: PLR0915 - all that a test may set
        self, *, nodes: int = 2, ranks: int = 2, steps: int = 60, save_every: int = 10, rules: Rules = RULES, script: str = "deaf"
    ) -> None:
        self.rules = replace(rules, workers_per_node=ranks)
        self.script = script
        self.t = 1000.0
        self.dt = self.step_s = 1.0
        self.save_s = 2.0
        self.exit_code = 0
        self.saves: dict[tuple[Epoch, int], dict[int, int]] = {}
        """(attempt, N) -> rank -> the beat at which its script got the request."""
        self.die_after: Callable[[Line], bool] | None = None
        """The leader logs such a line, and dies before it acts."""
        self.names = tuple(f"n{i + 1}" for i in range(nodes))
        self.spares = count(nodes + 1)
        self.per_node, self.total, self.save_every = ranks, steps, save_every
        self.nodes: dict[str, Node] = {}
        self.log: list[Line] = []
        self.state: State = State()
        self.leader_alive = False
        self.leader_stopped = False
        self.quit: int | None = None
        self.deadline: float | None = None
        self.strikes: list[Strike] = []
        self.later: list[tuple[float, int, Callable[[], None]]] = []
        self._ids: Iterator[int] = count(1)
        self.stored: list[int] = []
        """The steps of the checkpoints, as they were written."""
        self.stamps: dict[int, int] = {}
        """Step -> which write of it lies there."""
        self.picks: list[int] = []
        """The steps that attempts resumed from."""
        self.late_s: dict[str, float] = {}
        """Node -> how long its disk needs to show a checkpoint's files."""
        self.broken: dict[str, str] = {}
        """Checkpoint -> what happens to an attempt that resumes from it: error, kill, exit, port or hang."""
        self.base = 0
        self.jitter: Random | None = None
        """Ranks take each step in a time of their own, one ahead of the others at most (they meet in the backward pass)."""
        self.apart = False
        """Ranks do not wait for each other."""
        # Slurm
        self.job, self.continues = "7", 0
        self.job_state, self.completing, self.restarts = "RUNNING", False, 0
        self.granted = 0
        """The restart count that this grant began with."""
        self.requeueable = True
        self.usable = 99
        """So many nodes there are; those that are kept out have to leave enough."""
        self.successors: list[str] = []
        self.deaf_to_avoid = False
        """Slurm refuses to keep nodes out."""
        self.excluded: set[str] = set()
        self.refusals = 0
        self.slurm_away = False
        self.slurm_takes_s = 0.0
        self.slurm_asked = False
        self.limit_t: float | None = None
        self.requeues: list[float] = []
        self.launches: list[tuple[Epoch, tuple[str, ...]]] = []
        self.news: list[str] = []

    # The story -----------------------------------------------------------------------------------------------------------

    def strike(self, what: str, *, rank: int, step: int, times: int = 1, error: str = "ValueError: no") -> World:
        """hang | stop | kill | error | exit | stuck-end, once the rank has done the step."""
        self.strikes.append(Strike(what, rank, step, times, error))
        return self

    def at(self, seconds: float, action: Callable[[], None]) -> World:
        """Do something so many seconds from now."""
        heapq.heappush(self.later, (self.t + seconds, next(self._ids), action))
        return self

    def start(self) -> World:
        """A grant begins: its leader starts."""
        self.job_state, self.completing, self.granted = "RUNNING", False, self.restarts
        if self.excluded & set(self.names):
            self.names = tuple(name if name not in self.excluded else f"n{next(self.spares)}" for name in self.names)
        self.nodes = {name: Node(name) for name in self.names}
        self.start_leader()
        return self

    def start_leader(self) -> None:
        """A leader begins, and replays."""
        state = State()
        for line in self.log:
            state = leading.step(state, line.event, self.rules).state
        assert state == self.state or not self.leader_alive, "replaying the log gives the same state"
        self.state, self.leader_alive, self.quit = state, True, None
        if sum(isinstance(line.event, ev.Continued) for line in self.log) < self.continues:
            self.tell(ev.Continued(n=self.continues, who="ada"))
        self.tell(ev.LeaderStarted(job=self.job, restarts=self.granted, host=self.names[0], pid=next(self._ids), nodes=self.names))

    def kill_leader(self) -> None:
        self.leader_alive = False

    def run(self, *, limit_s: float = 3000.0, until: Callable[[], bool] | None = None) -> World:
        """Until the leader quits for good, or `until`; AssertionError when it takes longer than limit_s."""
        if not self.log:
            self.start()
        end = self.t + limit_s
        done = until or (lambda: self.quit is not None and not self.completing and self.job_state != "PENDING")
        while not done():
            assert self.t < end, f"still {self.state.stage} after {limit_s} s: {self.log[-5:]}"
            self.second()
        return self

    # Time ----------------------------------------------------------------------------------------------------------------

    def second(self) -> None:
        """One second of everything."""
        self.t = round(self.t + self.dt, 6)
        while self.later and self.later[0][0] <= self.t:
            heapq.heappop(self.later)[2]()
        self._serve()
        if self.jitter or int(self.t / self.step_s + 1e-6) > int((self.t - self.dt) / self.step_s + 1e-6):
            self._train()
        for node in list(self.nodes.values()):
            self._node_turn(node)
        if self.limit_t is not None and self.t >= self.limit_t and self.job_state == "RUNNING" and not self.completing:
            self._end_job("TIMEOUT")
        if self.leader_alive and not self.leader_stopped and self.quit is None:
            self._leader_turn()

    def _leader_turn(self) -> None:
        for node in list(self.nodes.values()):
            if node.outbox:
                node.heard_t = self.t
            for event in self._take(node):
                self.tell(event)
            if node.state is not None and not node.stopped:
                node.heard_t = self.t
            quiet_s = self.t - node.heard_t
            known = node.name in self.state.instances
            if known and quiet_s >= self.rules.node_grace_s and self.t - node.silent_t >= self.rules.node_grace_s:
                node.silent_t = self.t
                self.tell(ev.NodeSilent(node=node.name, quiet_s=quiet_s))
        self.tell(ev.Tick())

    def _take(self, node: Node) -> list[Any]:
        now = [event for due_t, event in node.outbox if due_t <= self.t]
        node.outbox = [(due_t, event) for due_t, event in node.outbox if due_t > self.t]
        return now

    def tell(self, event: Any) -> None:
        """The leader takes an event in, logs it and acts, as supervisor/lead.py does."""
        if not self.leader_alive or self.quit is not None:
            return
        event = replace(event, t=self.t)
        out = leading.step(self.state, event, self.rules)
        if isinstance(event, ev.Tick) and out.state == self.state and not out.orders:
            return
        self.state = out.state
        self.log.append(Line(n=len(self.log) + 1, event=event, orders=out.orders))
        if self.die_after is not None and self.die_after(self.log[-1]):
            self.die_after = None
            self.kill_leader()
            self.at(5.0, self.start_leader)
            return
        for order in out.orders:
            self._order(order)

    # Orders --------------------------------------------------------------------------------------------------------------

    def _order(self, order: Any) -> None:  # noqa: C901, PLR0912 - a dispatcher
        if isinstance(order, ev.StartStep):
            for name in self.names:
                if self.nodes[name].state is None and not self.nodes[name].gone:
                    self.at(1.0, lambda name=name: self._start_supervisor(name))  # type: ignore[misc]
        elif isinstance(order, ev.StartNode):
            self.at(1.0, lambda: self._start_supervisor(order.node))
        elif isinstance(order, ev.PickCheckpoint):
            self._pick(order)
        elif isinstance(order, (ev.Prepare, ev.Launch, ev.AskRanks, ev.Collect, ev.Stop, ev.Leave)):
            if isinstance(order, ev.Launch):
                self._check_launch(order)
            if isinstance(order, ev.AskRanks) and order.ask is Ask.COMMIT:
                self._check_commit(order)
            node = self.nodes[order.node]
            node.inbox.append((self.t + node.delay_s, order))
        elif isinstance(order, ev.AskSlurm):
            self.ask_slurm()
        elif isinstance(order, ev.Decide):
            self.at(0.0, lambda: self.tell(ev.Decided(mirrored=True)))
        elif isinstance(order, ev.Requeue):
            self._requeue(order)
        elif isinstance(order, ev.Avoid):
            self._avoid(order)
        elif isinstance(order, ev.Notify):
            self.news.append(order.text)
        elif isinstance(order, ev.Quit):
            self.quit = order.code
            if self.successors and self.successors[-1] != self.job and self.job_state == "RUNNING":
                self.job_state = "PENDING"
                self.at(5.0, self._follow)

    def _pick(self, order: ev.PickCheckpoint) -> None:
        good = [step for step in sorted(self.stored, reverse=True) if f"step{step}.pt" not in order.suspects]
        left, refused, found = None, "", None
        if order.from_step is not None:
            found = next((step for step in good if step <= order.from_step), None)
            refused = "" if found else f"no checkpoint of step {order.from_step} at most"
            left = tuple(self._left(step) for step in sorted(self.stored) if step > order.from_step) if found else None
        if found is None:
            found = next((step for step in good if self._left(step) not in order.left), 0)
        self.base = found
        name = f"step{self.base}.pt" if self.base else ""
        path, files = (f"/c/{name}", ev.Files(count=1, size_bytes=self.base, digest=name)) if name else (None, None)
        picked = ev.CheckpointPicked(
            epoch=order.epoch, path=path, step=self.base or None, name=name, files=files, left=left, refused=refused
        )
        self.picks.append(self.base)
        self.at(0.0, lambda: self.tell(picked))

    def _left(self, step: int) -> ev.Left:
        return ev.Left(name=f"step{step}.pt", stamp=str(self.stamps[step]))

    def _store(self, step: int) -> None:
        """A checkpoint is written, and sealed in the background."""
        self.stamps[step] = next(self._ids)
        if step not in self.stored:
            self.stored.append(step)
        self.at(2.0, lambda: self.tell(ev.Sealed(epoch=self.state.epoch, name=f"step{step}.pt", step=step)))

    def _check_launch(self, order: ev.Launch) -> None:
        """Never a Launch before all of the old attempt is gone."""
        live = [rank for node in self.nodes.values() for rank in node.ranks if rank.alive]
        began = [epoch for epoch, _ in self.launches if epoch == order.epoch]
        assert began or not live, f"launch of {order.epoch} while {live} live"
        if not began:
            self.launches.append((order.epoch, self.names))

    def _check_commit(self, order: ev.AskRanks) -> None:
        """Never a COMMIT without every rank's agreement; only a rank that waited for too long may have taken it back."""
        ranks = [rank for node in self.nodes.values() for rank in node.ranks if rank.alive]
        assert all(order.beats in {rank.ack, rank.gave_up} for rank in ranks), f"commit of {order.beats} without {ranks}"

    # Slurm ---------------------------------------------------------------------------------------------------------------

    def ask_slurm(self) -> None:
        """One question at a time; a busy controller answers with the limit that was set when it was asked."""
        if not self.slurm_takes_s:
            self.at(0.0, self._answer)
        elif not self.slurm_asked:
            self.slurm_asked, asked_t, limit_t = True, self.t, self.limit_t
            self.at(self.slurm_takes_s, lambda: self._answer(asked_t=asked_t, limit_t=limit_t))

    def _answer(self, *, asked_t: float | None = None, limit_t: float | None = None) -> None:
        self.slurm_asked = False
        if self.slurm_away:
            self.tell(ev.SlurmFailed(op="show", kind="Unavailable", why="controller away"))
            return
        limit_t = self.limit_t if asked_t is None else limit_t
        left = None if limit_t is None else max(limit_t - self.t, 0.0)
        state = "UNKNOWN" if self.completing else self.job_state  # it hides whether the job ends or comes back
        said = ev.SlurmSaid(state=state, completing=self.completing, restarts=self.restarts, left_s=left, kill_wait_s=5.0)
        said = replace(said, requeueable=self.requeueable, reason="TimeLimit" if self.job_state == "TIMEOUT" else "")
        self.tell(replace(said, asked_t=self.t if asked_t is None else asked_t))

    def _requeue(self, order: ev.Requeue) -> None:
        op = "successor" if order.chain else "requeue"
        if not order.chain:
            self.requeues.append(self.t)
        if self.slurm_away:
            self.at(1.0, lambda: self.tell(ev.SlurmFailed(op=op, kind="Unavailable", why="controller away")))
        elif self.refusals > 0 or not (self.requeueable or order.chain):
            self.refusals -= 1
            self.at(0.0, lambda: self.tell(ev.SlurmFailed(op=op, kind="Refused", why="no")))
        elif order.chain:
            if self.successors[-1:] == [self.job] or not self.successors:  # one that is there is found
                self.successors.append(str(int(self.job) + 1))
            self.at(1.0, lambda: self.tell(ev.Chained(job=self.successors[-1])))
        else:
            self.at(0.0, lambda: self.tell(ev.RequeueAsked()))
            if order.ended and self.completing and self.job_state != "PENDING":  # what has ended comes back as well
                assert self.job_state != "CANCELLED", "a cancelled job is never brought back"
                self.job_state, self.restarts = "PENDING", self.restarts + 1
            self.requeue_job()

    def requeue_job(self) -> None:
        """`scontrol requeue`, by whomever."""
        if self.job_state == "RUNNING" and not self.completing:
            self._end_job("PENDING")

    def warn(self, seconds: float = 0.0) -> World:
        """Slurm's warning, so many seconds from now."""

        def come() -> None:
            for node in self.nodes.values():
                self._happen(node, nodestate.Signal(t=self.t, warning=True))

        return self.at(seconds, come)

    def limit(self, seconds: float, *, early_s: float = 0.0) -> World:
        """A time limit so far from now, and the warning before it."""
        self.limit_t = self.t + seconds
        return self.warn(seconds - self.rules.warning_s - early_s)

    def ask(
        self, request: str, *, seconds: float = 0.0, from_step: int | None = None, avoid: tuple[str, ...] = (), who: str = "ada"
    ) -> World:
        """A person asks for something, so many seconds from now; whatever the leader is doing, the request waits for one."""
        asked = ev.Asked(request=Request(request), who=who, from_step=from_step, avoid=avoid, id=str(next(self._ids)))

        def come() -> None:
            if self.leader_alive and self.quit is None:
                self.tell(asked)
            elif self.over is None:
                self.at(1.0, come)

        return self.at(seconds, come)

    def continued(self) -> World:
        """`ftsup submit --continue`: another job of the same run."""
        n = sum(isinstance(line.event, ev.Continued) for line in self.log) + 1
        self.job, self.restarts, self.limit_t, self.continues = str(int(self.job) + 1), 0, None, n
        return self.start()

    def cancel_job(self) -> None:
        """`scancel`."""
        if self.job_state == "RUNNING" and not self.completing:
            self._end_job("CANCELLED")
        elif self.job_state in {"PENDING", "RUNNING"}:
            self.job_state = "CANCELLED"

    def _end_job(self, state: str) -> None:
        self.job_state, self.completing = state, True
        self.restarts += state == "PENDING"  # at once, as Slurm counts
        for node in self.nodes.values():
            if node.state is not None and not node.stopped:
                self._happen(node, nodestate.Signal(t=self.t, warning=False))
        self.at(0.0, lambda: self.tell(ev.Signalled(signal="SIGTERM")))
        self.at(5.0, self._swept)

    def _follow(self) -> None:
        """The successor begins."""
        self._swept()
        self.job, self.restarts, self.limit_t = self.successors[-1], 0, None
        self.start()

    def _swept(self) -> None:
        self.leader_alive = False
        for node in self.nodes.values():
            node.state, node.ranks = None, []
        self.completing = False
        if self.job_state == "PENDING" and self.restarts > self.granted:
            self.at(10.0, self._begin_again)

    def _begin_again(self) -> None:
        """A new grant has its time limit far away."""
        self.limit_t = None
        if self.job_state == "PENDING":
            self.start()

    def _avoid(self, order: ev.Avoid) -> None:
        if self.job_state != "PENDING" or self.deaf_to_avoid:
            self.at(0.0, lambda: self.tell(ev.SlurmFailed(op="keep_out", kind="Refused", why="running")))
            return
        room = max(self.usable - len(self.names), 0)
        nodes = order.nodes[max(len(order.nodes) - room, 0) :]
        let_in = tuple(node for node in order.nodes if node not in nodes)
        self.excluded = (self.excluded - {*order.drop, *let_in}) | set(nodes)
        self.at(0.0, lambda: self.tell(ev.AvoidSet(nodes=nodes, let_in=let_in)))

    # Nodes ---------------------------------------------------------------------------------------------------------------

    def _start_supervisor(self, name: str) -> None:
        node = self.nodes[name]
        if node.gone or self.completing:
            return
        if node.state is not None:
            if node.stopped:
                self._say(node, ev.NodeUp(node=name, instance=f"{name}:{next(self._ids)}", held=1))
            return
        node.ranks = []  # its predecessor's guard has ended them
        node.instance = f"{name}:{next(self._ids)}"
        node.state = nodestate.State(node=name, index=self.names.index(name))
        node.outbox = []
        self._say(node, ev.NodeUp(node=name, instance=node.instance))

    def _say(self, node: Node, event: Any) -> None:
        node.outbox.append((self.t + node.delay_s, event))

    def kill_supervisor(self, name: str) -> None:
        self.nodes[name].state = None
        self.nodes[name].ranks = []
        self.nodes[name].inbox = []

    def kill_torchrun(self, name: str) -> None:
        """SIGKILL at torchrun; its ranks vanish with it, and are seen first."""
        node = self.nodes[name]
        for rank in node.ranks:
            rank.process = Process.GONE
        vanished = tuple(Fault(how=How.SIGNAL, node=name, rank=rank.rank) for rank in node.ranks)
        self._happen(node, nodestate.RanksEnded(t=self.t, faults=vanished))
        self._happen(node, nodestate.ChildEnded(t=self.t, code=-9, signal="SIGKILL"))

    def _node_turn(self, node: Node) -> None:
        if node.state is None or node.stopped:
            return
        orders = [order for due_t, order in node.inbox if due_t <= self.t]
        node.inbox = [(due_t, order) for due_t, order in node.inbox if due_t > self.t]
        for order in orders:
            self._happen(node, nodestate.Ordered(t=self.t, order=order))
        if node.state is None or node.state.stage is not nodestate.Stage.RUNNING:
            return
        if voting.look_s(node.state.save) is not None:
            self._happen(node, nodestate.Glanced(t=self.t, beats={rank.rank: rank.beat() for rank in node.ranks}))
        ended = tuple(rank.fault for rank in node.ranks if rank.fault is not None)
        if ended:
            self._happen(node, nodestate.RanksEnded(t=self.t, faults=ended))
        if any(fault.how is not How.RETURNED for fault in ended):
            for rank in node.ranks:  # torchrun ends the others at once
                rank.process = Process.GONE
            self._happen(node, nodestate.ChildEnded(t=self.t, code=1, ended=ended))
        elif node.ranks and not any(rank.alive for rank in node.ranks) and not node.torchrun_hangs:
            self._happen(node, nodestate.ChildEnded(t=self.t, code=0, ended=ended))
        if self.t - node.looked_t >= 1.0:
            node.looked_t = self.t
            sights = {rank.rank: Sight(beat=rank.beat(), process=rank.process) for rank in node.ranks}
            self._happen(node, nodestate.Looked(t=self.t, sights=sights))

    def _happen(self, node: Node, happening: nodestate.Happening) -> None:
        if node.state is None:
            return
        node.state, acts = noding.step(node.state, happening, self.rules)
        for act in acts:
            self._act(node, act)

    def _act(self, node: Node, act: Any) -> None:  # noqa: C901, PLR0912 - a dispatcher
        if isinstance(act, nodestate.Tell):
            self._say(node, act.event)
        elif isinstance(act, nodestate.ForwardWarning):
            for rank in node.ranks:
                if rank.script == "plain" and rank.saving_t is None:
                    rank.saving_t = self.t + self.save_s + rank.rank
        elif isinstance(act, nodestate.TellRanks):
            for rank in node.ranks:
                rank.word = act.order
        elif isinstance(act, nodestate.RunSetup):
            self._happen(node, nodestate.SetupEnded(t=self.t))
        elif isinstance(act, nodestate.LookAt):
            self._see(node, act)
        elif isinstance(act, nodestate.FindPort):
            self._happen(node, nodestate.PortFound(t=self.t, address=node.name, port=29500))
        elif isinstance(act, nodestate.StartChild):
            first = act.order.node_rank * self.per_node
            node.ranks = [Rank(first + i, node.name, self.script) for i in range(self.per_node)]
            self._happen(node, nodestate.Started(t=self.t, pid=1, ranks=tuple(rank.rank for rank in node.ranks)))
            self._load(node, act.order)
        elif isinstance(act, nodestate.Gather):
            faults = tuple(
                Fault(how=How.QUIET if rank.hangs or self.apart else How.WAITING, node=node.name, rank=rank.rank)
                for rank in node.ranks
                if rank.alive
            )
            self._happen(node, nodestate.Gathered(t=self.t, incident=act.incident, faults=faults))
        elif isinstance(act, nodestate.EndChild):
            self.at(1.0, lambda: self._ended(node))
        elif isinstance(act, nodestate.Exit):
            node.state = None

    def _see(self, node: Node, act: nodestate.LookAt) -> None:
        late_s = self.late_s.get(node.name, 0.0) if act.path else 0.0
        why = f"{act.path}: 0 files here" if late_s > 60.0 else ""
        seen = nodestate.FilesSeen(t=self.t, epoch=act.epoch, why=why)
        if late_s:
            self.at(min(late_s, 60.0), lambda: self._happen(node, replace(seen, t=self.t)))
        else:
            self._happen(node, seen)

    def _load(self, node: Node, order: ev.Launch) -> None:
        """What the first rank makes of a checkpoint that it cannot load."""
        what = self.broken.get((order.path or "").rpartition("/")[2])
        if what is None or order.node_rank:
            return
        if what == "hang":
            node.ranks[0].hangs = True
        elif what == "port":
            fault = Fault(how=How.PORT, node=node.name, code=1)
            self._happen(node, nodestate.ChildEnded(t=self.t, code=1, ended=(fault,)))
        else:
            self._strike(node.ranks[0], Strike(what, 0, 0, error=f"RuntimeError: {order.path} has no key epoch"))

    def _ended(self, node: Node) -> None:
        """Our stop ends those ranks that still live, and torchrun tells of it."""
        ended = tuple(Fault(how=How.SIGNAL, node=node.name, rank=rank.rank, signal="SIGTERM") for rank in node.ranks if rank.alive)
        for rank in node.ranks:
            rank.process = Process.GONE
        if node.state is not None:
            if ended:
                self._happen(node, nodestate.ChildEnded(t=self.t, code=-15, ended=ended))
            self._happen(node, nodestate.Gone(t=self.t, took_s=1.0))

    # Training ------------------------------------------------------------------------------------------------------------

    def _train(self) -> None:
        """One step a second, if every rank of the job takes part."""
        ranks = sorted((rank for node in self.nodes.values() for rank in node.ranks), key=lambda rank: rank.rank)
        if len(ranks) < len(self.names) * self.per_node:
            return
        able = [rank for rank in ranks if rank.alive and not rank.hangs and not rank.busy and rank.process is Process.RUNNING]
        if self.jitter is not None:
            able = self._in_turn(ranks, able, self.jitter)
        elif len(able) < len(ranks) and not self.apart:
            return
        for rank in able:
            if rank.phase is Phase.SHUTDOWN:
                rank.process = Process.GONE
                continue
            rank.beats += 1
            rank.phase = Phase.STEP
            done = self.base + rank.beats
            self._hear(rank)
            self._struck(rank, done)
            if done >= self.total and rank.alive and not rank.hangs:
                rank.phase = Phase.SHUTDOWN
                rank.fault = Fault(how=How.RETURNED, node=rank.node, rank=rank.rank, code=0)
        step_now = self.base + ranks[0].beats
        if step_now % self.save_every == 0 and all(rank.alive for rank in ranks):
            self._store(step_now)

    def _in_turn(self, ranks: list[Rank], able: list[Rank], jitter: Random) -> list[Rank]:
        """Those whose step is through now: nobody is through step k before everybody else is in it."""
        met = [rank for rank in able if all(o.beats > rank.beats or (o.beats == rank.beats and not o.busy) for o in ranks)]
        through = [rank for rank in met if self.t >= rank.step_t]
        for rank in through:
            rank.step_t = self.t + self.step_s * jitter.uniform(0.7, 1.3)
        return through

    # A rank's part of "save at beat N" (worker/rank.py has the real one) ---------------------------------------------------

    def _hear(self, rank: Rank) -> None:
        """After a beat."""
        word, n = rank.word, rank.word.beats if rank.word else 0
        if word is None:
            return
        if word.ask is Ask.PROPOSE and rank.beats <= n and rank.gave_up != n:
            rank.took = rank.took and rank.ack == n
            rank.ack = n
            rank.held_t = self.t if rank.beats == n else None
        elif word.ask is Ask.COMMIT and rank.beats == n == rank.ack:
            self._take_up(rank, word)

    def _take_up(self, rank: Rank, word: ev.AskRanks) -> None:
        rank.held_t = None
        if rank.script == "asks" or (word.handlers and rank.script not in {"deaf", "plain"}):
            assert not rank.took, "a script gets each request once"
            rank.took, rank.saving_t, rank.phase = True, self.t + self.save_s, Phase.CHECKPOINT
            self.saves.setdefault((word.epoch, word.beats), {})[rank.rank] = rank.beats

    def _serve(self) -> None:
        """Ranks that wait for a word, or save."""
        ranks = [rank for node in self.nodes.values() for rank in node.ranks if rank.alive and rank.process is Process.RUNNING]
        for rank in ranks:
            rank.life += rank.busy
            if rank.held_t is not None and (rank.word is None or rank.word.ask is not Ask.PROPOSE or rank.word.beats != rank.ack):
                rank.held_t = None
                self._hear(rank)
            elif rank.held_t is not None and self.t - rank.held_t >= HOLD_S:
                rank.held_t, rank.gave_up, rank.ack = None, rank.ack, 0
            if rank.saving_t is not None and self.t >= rank.saving_t:
                rank.saving_t, rank.phase = None, Phase.STEP
                self._saved(rank)

    def _saved(self, rank: Rank) -> None:
        if rank.script in {"exits", "plain"}:
            rank.process = Process.GONE
            how = How.EXIT if self.exit_code else How.RETURNED
            rank.fault = Fault(how=how, node=rank.node, rank=rank.rank, code=self.exit_code)
        ranks = [one for node in self.nodes.values() for one in node.ranks]
        if len(ranks) == len(self.names) * self.per_node and all(one.took and one.saving_t is None for one in ranks):
            self._store(self.base + min(one.beats for one in ranks))

    def partial(self) -> list[tuple[Epoch, int]]:
        """Saves that some ranks made and others did not."""
        whole = len(self.names) * self.per_node
        return [key for key, taken in self.saves.items() if len(taken) != whole or len(set(taken.values())) != 1]

    def asked(self, ask: Ask) -> list[ev.AskRanks]:
        """What the nodes were ordered, each word once for all nodes."""
        found = [order for line in self.log for order in line.orders if isinstance(order, ev.AskRanks) and order.ask is ask]
        return list({(order.epoch, order.save, order.beats): order for order in found}.values())

    def _struck(self, rank: Rank, done: int) -> None:
        for strike in self.strikes:
            if strike.rank != rank.rank or strike.step != done or strike.times <= 0:
                continue
            strike.times -= 1
            self._strike(rank, strike)

    def _strike(self, rank: Rank, strike: Strike) -> None:
        if strike.what == "hang":
            rank.hangs = True
        elif strike.what == "stuck-end":
            rank.hangs, rank.phase = True, Phase.SHUTDOWN
            rank.fault = Fault(how=How.RETURNED, node=rank.node, rank=rank.rank, code=0)
        elif strike.what == "stop":
            rank.process = Process.STOPPED
        else:
            rank.process = Process.GONE
            how, extra = {
                "kill": (How.SIGNAL, {"signal": "SIGKILL"}),
                "error": (How.EXCEPTION, {"error": strike.error, "fingerprint": strike.error, "code": 1}),
                "exit": (How.EXIT, {"code": 3}),
            }[strike.what]
            rank.fault = Fault(how=how, node=rank.node, rank=rank.rank, **extra)

    # What happened -------------------------------------------------------------------------------------------------------

    def answers(self) -> dict[str, int]:
        """Request -> sentences that it was answered with at once."""
        return {
            line.event.id: sum(isinstance(order, ev.Notify) and order.kind in {"asked", "refused"} for order in line.orders)
            for line in self.log
            if isinstance(line.event, ev.Asked)
        }

    def verdicts(self) -> list[tuple[VerdictKind, str]]:
        """The verdicts of all incidents, with the row that gave them."""
        return [
            (order.verdict.kind, order.verdict.rule)
            for line in self.log
            for order in line.orders
            if isinstance(order, ev.Incident) and order.verdict
        ]

    def roots(self) -> list[Fault]:
        """The root fault of each judged incident."""
        return [order.root for line in self.log for order in line.orders if isinstance(order, ev.Incident) and order.root]

    @property
    def over(self) -> ev.Verdict | None:
        """What ended the run."""
        return self.state.verdict if self.state.stage is Stage.OVER else None
