"""The leader: senses, logs, lets `policy.machine` decide, and acts. It runs in the batch step, and decides nothing itself.

One turn of the loop: wait, turn what came into events, step them through the machine, put events and orders on the local disk
with one fsync, acknowledge, act. A Launch or a Requeue also waits, bounded, until the run directory's mirror of the log holds it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, get_args

import msgspec
import zmq
from msgspec.structs import replace

from ftsup import eventlog, proc
from ftsup import events as ev
from ftsup.config import Config
from ftsup.events import LeaderEvent, LeaderOrder, Line
from ftsup.policy.ending import AT_END
from ftsup.policy.machine import next_deadline, step
from ftsup.policy.outlook import outlook
from ftsup.policy.rules import Rules
from ftsup.policy.state import Stage, State
from ftsup.ports import Clock
from ftsup.rundir import LocalDir, RunDir
from ftsup.slurm.chain import Standing
from ftsup.supervisor import launch, requeueing, starter
from ftsup.supervisor.checkpoints import LAST_S, Checkpoints
from ftsup.supervisor.clerk import Clerk, ClerkFailed
from ftsup.supervisor.inbox import Inbox
from ftsup.supervisor.keepwords import Me
from ftsup.supervisor.keys import read_keys
from ftsup.supervisor.leaderlink import LeaderLink
from ftsup.supervisor.leaderslurm import LeaderSlurm
from ftsup.supervisor.loop import Calls, Loop, Signals, Turn, soonest
from ftsup.supervisor.notices import Notices, follow
from ftsup.supervisor.papers import TOLD_S, Grant, Papers
from ftsup.supervisor.requests import continuation
from ftsup.supervisor.teller import Teller

MIRROR_S = 10.0
"""The most that a Launch or a Requeue waits for the mirror, or an order for a local disk that is full."""
STATUS_S = 5.0
ANSWER_S = 1.5
"""So long before, the nodes are asked how far their ranks are."""
REQUESTS_S = 2.0
LEAVE_S = 15.0
"""The most that quitting waits for the nodes' goodbye and the mirror: longer than nodes take, since our end is theirs."""
TOLD_LEAVE_S = 2.0
"""The same where Slurm told us to end: KillWait runs."""
TOLD_MARGIN_PART = 0.5
"""Of `kill_margin`, in which the nodes are done: so long before the end of KillWait we are gone, and have heard their last words."""
CAREFUL = (ev.Launch, ev.Requeue)
ENDINGS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
HUNG_UP, TYPED = "the terminal going away (SIGHUP)", "SIGINT at the terminal"
"""Who wants the end of what was started in the foreground."""
TO_NODES = get_args(ev.NodeOrder)


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """An order that waits for the disk."""

    order: LeaderOrder
    n: int
    """Number of its line."""
    until_t: float


class Lead:
    """One leader of one run, from its start to its exit code."""

    def __init__(self, run: RunDir, config: Config, grant: Grant, clock: Clock, local: LocalDir) -> None:
        self.run_dir, self.config, self.grant, self.clock = run, config, grant, clock
        self.rules: Rules = config.rules()
        self.local, self.strange = local.root, local.strange
        self.local.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.log, self.state, self.inbox, held = self._resume()
        self.mirrored = 0
        self.mirror_asked = False
        self.unwritten: list[Line] = []
        self.pending: list[Pending] = []
        self.silent_t: dict[str, float] = {}
        self.status_t = self.requests_t = 0.0
        self.counted = False
        """The nodes were asked for what the next status.json tells."""
        self.port = 0
        """Where nodes look for us."""
        self.quit: int | None = None
        self.quit_t: float | None = None
        self.quitting_t = 0.0
        """When we were ordered to quit."""
        self.told_t: float | None = None
        """When we were told to end for the first time: KillWait runs from then."""
        self.interrupted = False
        """A person at our terminal has asked for the end."""
        self.warning = launch.warning(config)
        """Comes here where Slurm sends it to the batch script: slurm.signal with B:, or a person's scancel --batch."""
        self.signals = Signals(*ENDINGS, self.warning)
        self.loop = Loop(clock, tick_s=config.waits.tick_s, late_s=config.waits.late_s)
        self.calls: Calls[list[LeaderEvent]] = Calls()
        self.clerk: Clerk[list[LeaderEvent]] = Clerk(now=clock.now(), run=str(run.root))
        self.papers = Papers(grant, clerk=self.clerk, clock=clock, run=run, folder=self.local)
        self.slurm = LeaderSlurm(
            grant,
            script=run.script,
            own=config.slurm.exclude,
            cwd=self.local,
            calls=self.calls,
            clock=clock,
            state=lambda: self.state,
            papers=self.papers,
        )
        me = Me(run=run.id, job=grant.job, host=grant.host, folder=str(run.root), wall=clock.wall(), force=config.checkpoint.force)
        self.checkpoints = Checkpoints(config, me, now=clock.now())
        keys = read_keys(run.keys)
        self.link = LeaderLink(keys, instance=f"{grant.host}:{clock.now():.3f}", port=self._port(), nodes=len(grant.nodes))
        self.step = starter.Step(self.local, run.root, grant.environ)
        self.teller = Teller(config, held, self.local, run=run, job=grant.job, env=grant.environ)

    # Beginning ------------------------------------------------------------------------------------------------------------

    def _resume(self) -> tuple[eventlog.Log, State, Inbox, Notices]:
        """The memory of the run, and the log in which it goes on."""
        us = (self.grant.job, self.grant.restarts)

        def current(lines: Sequence[Line]) -> bool:
            begun = [(line.event.job, line.event.restarts) for line in lines if isinstance(line.event, ev.LeaderStarted)]
            return bool(begun) and begun[-1] == us

        log, lines, notes = eventlog.resume(self.local / "events.jsonl", self.run_dir.events, current=current)
        for note in notes:
            say(note)
        state = State()
        for line in lines:
            if state.stage is Stage.NEW and not isinstance(line.event, ev.LeaderStarted):
                continue  # the lines before it are damaged; what is left still tells where we are
            state = step(state, line.event, self.rules).state
        return log, state, Inbox(lines), reduce(follow, lines, Notices())

    def _port(self) -> int:
        """The port of our predecessor in this grant, which the nodes know; else any."""
        path = self.local / f"port.{self.grant.restarts}"
        return int(path.read_text()) if path.exists() else 0

    def run(self) -> int:
        """Lead until the machine says quit."""
        grant = self.grant
        continued = self._continued()
        follows = self._follows() if self.state.job not in {"", grant.job} and not continued else Standing()
        if follows.elder:
            say(f"job {follows.elder} leads this run already: this one, {grant.job}, is one too many, and ends")
            self.papers.one_too_many(follows.elder)  # or bash would start us again
            self._close()
            return 0
        self._show_port()
        self.slurm.ask_config()
        self._record_code()
        before = self.state.job
        started = ev.LeaderStarted(
            job=grant.job,
            restarts=grant.restarts,
            host=grant.host,
            pid=starter.own_pid(),
            nodes=grant.nodes,
            address=self.link.addresses[0],
            foreground=grant.foreground,
        )
        now = self.clock.now()
        strange = [ev.Noted(t=now, text=f"{grant.host}: {text}", trouble=text) for text in self.strange]
        self._take([*(replace(event, t=now) for event in continued), replace(started, t=now), *strange], now)
        if follows.cancelled:
            self._take([ev.Asked(t=now, request=ev.Request.CANCEL, who=f"scancel of job {before}", wall=self.clock.wall())], now)
        self.papers.list_job(grant.job)
        if self.state.stage not in {Stage.CLOSE, Stage.REQUEUE}:  # we are what was spooled
            self.papers.unspool()
        if self.state.stage is not Stage.TERMED:
            self.papers.explained()
        while not self._may_go():
            self._turn(self.loop.wait(self._sources(), until_t=self._until()))
        self._close()
        return self.quit or 0

    def _continued(self) -> list[ev.Continued]:
        """`ftsup submit --continue`, where the log does not have it yet."""
        found = continuation(self.run_dir.continued)
        if found is None or found.n <= self.state.continued:
            return []
        return [ev.Continued(n=found.n, who=found.who, wall=found.wall, changed=found.changed)]

    def _follows(self) -> Standing:
        """Another job than that of the log: a successor, or one too many. Asked before anything is done; nobody waits for us yet."""
        return requeueing.standing(self.state, environ=self.grant.environ, script=self.run_dir.script, cwd=self.local)

    def _close(self) -> None:
        self.calls.end()
        self.link.close()
        self.clerk.close()
        self.checkpoints.close()
        self.teller.close()

    # One turn -------------------------------------------------------------------------------------------------------------

    def _sources(self) -> list[zmq.Socket[bytes] | int]:
        children = (*self.calls.sources(), *self.clerk.sources(), *self.checkpoints.sources(), *self.teller.sources())
        return [*self.link.sockets(), *children, self.signals.fileno()]

    def _until(self) -> float | None:
        children = (self.calls.deadline_t(), self.clerk.deadline_t(), self.checkpoints.deadline_t(), self.teller.deadline_t())
        return soonest(next_deadline(self.state), *children, *(pending.until_t for pending in self.pending))

    def _turn(self, turn: Turn) -> None:
        now = turn.now
        events: list[LeaderEvent] = []
        if turn.away_s:
            self.link.forget_time(now)
            self.calls.forgive(turn.away_s)
            self.teller.forgive(turn.away_s)
            events.append(ev.Away(away_s=turn.away_s))
        events += [event for heard in self.link.receive(now) for event in heard.events]
        if self.link.port != self.port:
            self._show_port()
        events += [
            *self.link.notes(),
            *(ev.Noted(text=note) for note in self.teller.poll(now)),
            *self.clerk.notes(),
            *self.checkpoints.notes(),
        ]
        events += self._silences(now)
        answers = (*self.calls.take(now), *self.clerk.take(now), *self.checkpoints.take(now))
        events += [event for found in answers for event in found]
        text = self.step.just_ended()
        events += self.slurm.step_ended(text) if text is not None else []
        came = self.signals.take()
        events += [ev.Warned(node=self.grant.host)] if self.warning in came else []
        told = [number for number in came if number in ENDINGS]
        events += [self._told(number) for number in told]
        if told and self.told_t is None:
            self.told_t = now
        if told and self.quit_t is not None:
            self.quit_t = min(self.quit_t, self._told_quit_t(now))
        self._routine(now)
        self._take([*(replace(event, t=now) for event in events), ev.Tick(t=now)], now)
        if due := self.teller.due(now):
            self._take([due], now)
            self._take([ev.Noted(t=now, text=text) for text in self.teller.tell(now)], now)

    def _take(self, events: list[LeaderEvent], now: float) -> None:
        """Step events through the machine, log them, act."""
        for event in events:
            if isinstance(event, ev.Noted):
                self.papers.say(f"{event.node}: {event.text}" if event.node else event.text)
            out = step(self.state, event, self.rules)
            if isinstance(event, ev.Tick) and out.state == self.state and not out.orders:
                continue
            if isinstance(event, (ev.Saved, ev.SaveOver)):
                self.checkpoints.saved()
            if out.state.best_step != self.state.best_step:
                self.papers.progress(out.state.best_step)
            if out.state.epoch != self.state.epoch:  # what the nodes told was of the ranks before
                self.link.counters.clear()
            self.state = out.state
            n = self.log.next_n + len(self.unwritten)
            if isinstance(event, ev.Asked):
                self.inbox.logged(event, n)
            self.unwritten.append(Line(n=n, wall=self.clock.wall(), event=event, orders=out.orders))
            self.teller.logged(self.unwritten[-1])
            wait_s = MIRROR_S
            self.pending += [Pending(order=order, n=n, until_t=now + wait_s) for order in out.orders]
        self._write(now)
        self._act(now)

    def _write(self, now: float) -> None:
        if self.unwritten:
            try:
                self.log.append(self.unwritten)
            except OSError as error:
                self.papers.say(f"the event log cannot be written: {self.log.path}: {error.strerror}")
            else:
                self.unwritten = []
        if not self.unwritten:
            self.link.ack(now)
        if self.mirrored < self.log.next_n - 1 and not self.mirror_asked:
            self.mirror_asked = True
            self.clerk.ask("mirror", now=now, limit_s=60.0, then=self._mirrored, source=str(self.log.path), target=str(self.run_dir.events))

    def _mirrored(self, answer: object) -> list[LeaderEvent]:
        if isinstance(answer, str):  # and nothing of ours goes there any more
            return [ev.Superseded(why=answer)]
        self.mirror_asked = False
        if isinstance(answer, ClerkFailed):
            return []
        self.mirrored = int(str(answer))
        return []

    def _act(self, now: float) -> None:
        """Carry out the orders whose lines are safe, in their order."""
        written = self.log.next_n - 1
        while self.pending:
            first = self.pending[0]
            safe = self.mirrored if isinstance(first.order, CAREFUL) else written
            if first.n > safe and now < first.until_t:
                return
            self.pending.pop(0)
            self._order(first.order, now)

    def _show_port(self) -> None:
        """A stranger may have the one that we had."""
        self.port = self.link.port
        self.papers.port(self.port, self.link.addresses)

    # Sensing --------------------------------------------------------------------------------------------------------------

    def _silences(self, now: float) -> list[LeaderEvent]:
        if not self.link.bound:  # somebody else has our port: no node can reach us, and its silence proves nothing
            self.link.forget_time(now)
        found: list[LeaderEvent] = []
        if self.state.stage in AT_END:  # nodes that have left say nothing more, while we see to the last checkpoints
            return found
        for node in self.state.instances:
            quiet_s = self.link.quiet_s(node, now)
            if quiet_s is None:  # a new leader: counts from its own beginning
                self.link.heard_at[node] = now
            elif quiet_s < self.rules.node_grace_s:
                self.silent_t.pop(node, None)
            elif now - self.silent_t.get(node, -1e9) >= self.rules.node_grace_s:
                self.silent_t[node] = now
                found.append(ev.NodeSilent(node=node, quiet_s=round(quiet_s, 1)))
        return found

    def _told(self, number: int) -> LeaderEvent:
        """A signal: of Slurm's, or (in the foreground) of a person who wants an end, and the second time at once."""
        if not self.grant.foreground or number == signal.SIGTERM:
            return ev.Signalled(signal=signal.Signals(number).name)
        again = self.interrupted and number == signal.SIGINT
        self.interrupted = True
        request = ev.Request.CANCEL if again else ev.Request.STOP
        return ev.Asked(request=request, who=HUNG_UP if number == signal.SIGHUP else TYPED, wall=self.clock.wall())

    def _routine(self, now: float) -> None:
        """What comes round by itself: people's requests, and their view of now."""
        if now - self.requests_t >= REQUESTS_S:
            self.requests_t = now
            self.clerk.ask(
                "requests",
                now=now,
                limit_s=30.0,
                then=lambda answer: self.inbox.hear(answer, wall=self.clock.wall()),
                folder=str(self.run_dir.requests),
                known=self.inbox.known(mirrored=self.mirrored),
                cancelled=str(self.run_dir.cancelled),
                paused=str(self.run_dir.paused),
            )
        self.checkpoints.look(self.state, now)
        if not self.counted and now - self.status_t >= STATUS_S - ANSWER_S:
            self.counted = True
            self.link.ask_counters()
        if now - self.status_t >= STATUS_S:
            self.status_t, self.counted = now, False
            self.checkpoints.saving({counter.phase for counters in self.link.counters.values() for counter in counters})
            told = [counter.asks for counters in self.link.counters.values() for counter in counters]
            asks = all(told) and len(told) == len(self.state.nodes) * self.rules.workers_per_node
            self.papers.status(self.state, self.link.counters, ahead=outlook(self.state, self.rules, now=now, asks=asks))

    # Acting ---------------------------------------------------------------------------------------------------------------

    def _order(self, order: LeaderOrder, now: float) -> None:
        if isinstance(order, (ev.Collect, ev.Stop)):
            self.checkpoints.hush()
        if isinstance(order, TO_NODES):
            self.link.send(order.node, [order], now)
            return
        actions: dict[type, Callable[[Any, float], None]] = {
            ev.StartStep: self._start_step,
            ev.StartNode: self._start_node,
            ev.PickCheckpoint: self._pick,
            ev.AskSlurm: self.slurm.look,
            ev.Decide: self._decide,
            ev.Unexplained: self._unexplained,
            ev.Requeue: self.slurm.requeue,
            ev.Shown: lambda _order, _now: self.papers.unspool(),
            ev.Avoid: self.slurm.avoid,
            ev.Incident: lambda order, _now: self.papers.incident(order),
            ev.Notify: self._notify,
            ev.Quit: self._quit,
        }
        actions[type(order)](order, now)

    def _start_step(self, _order: ev.StartStep, now: float) -> None:
        why = self.step.start(self.grant.nodes, addresses=self.link.addresses)
        if why:
            self._take([ev.StepEnded(t=now, text=why)], now)

    def _start_node(self, order: ev.StartNode, now: float) -> None:
        why = self.step.start_one(order.node, self.grant.nodes, addresses=self.link.addresses)
        if why:
            self._take([ev.StartFailed(t=now, node=order.node, why=why)], now)

    def _pick(self, order: ev.PickCheckpoint, now: float) -> None:
        known = self.checkpoints.pick(order, now)
        if known:
            self._take([replace(event, t=now) for event in known], now)

    def _record_code(self) -> None:
        """Which code this grant runs; a change since the last one is said."""

        def recorded(done: proc.Done) -> list[LeaderEvent]:
            return [ev.Noted(text=done.out.strip())] if done.ok and done.out.strip() else []

        grant = self.state.epoch.grant + (0 if self.state.job == self.grant.job and self.state.restarts == self.grant.restarts else 1)
        job = {"folder": self.config.workdir, "record_dir": str(self.run_dir.root / "git"), "grant": grant}
        argv = [sys.executable, "-m", "ftsup.incident", "code", msgspec.json.encode(job).decode()]
        self.calls.start(argv, now=self.clock.now(), limit_s=60.0, then=recorded, cwd=self.local)

    def _unexplained(self, order: ev.Unexplained, _now: float) -> None:
        if order.back:
            starter.script_forgets()
        if order.over:
            self.papers.explained()
        else:
            self.papers.unexplained(self.slurm.silence)

    def _decide(self, order: ev.Decide, _now: float) -> None:
        def mirrored(answer: object) -> list[LeaderEvent]:
            return [ev.Decided(mirrored=not isinstance(answer, ClerkFailed))]

        limit_s = TOLD_S if self.state.signalled or self.state.termed else MIRROR_S
        self.papers.decide(order, self.state, limit_s=limit_s, then=mirrored)

    def _notify(self, order: ev.Notify, _now: float) -> None:
        """The batch script's output has it at once; notify.command gets it once its time has come."""
        self.papers.say(order.text)

    def _quit(self, order: ev.Quit, now: float) -> None:
        self.quit = order.code
        self.quitting_t = now
        self.teller.leaving = True
        self.quit_t = self._told_quit_t(now) if self.state.signalled or self.state.termed else now + LEAVE_S
        if self.state.stage is Stage.OVER:
            self.checkpoints.finish(self.state, now)
            self.quit_t += 0.0 if self.checkpoints.over or self.state.signalled else LAST_S

    def _told_quit_t(self, now: float) -> float:
        """Our end is the nodes': ranks that save when they are told to end have their time. What does not end by itself is killed then."""
        began_t = now if self.told_t is None else self.told_t
        wait_s = self.rules.kill_wait_s if self.state.kill_wait_s is None else self.state.kill_wait_s
        return max(now + TOLD_LEAVE_S, began_t + wait_s - TOLD_MARGIN_PART * self.rules.kill_margin_s)

    def _may_go(self) -> bool:
        """Quit once the mirror holds the end and the nodes are gone, or after a while."""
        if self.quit is None or self.quit_t is None:
            return False
        now = self.clock.now()
        told = self.state.signalled or self.state.termed
        if told and {*self.state.nodes} <= {*self.state.over}:  # the step may not end: clerks hang with their disks
            self.quit_t = min(self.quit_t, self.quitting_t + TOLD_LEAVE_S)
        if self.teller.busy and not (self.state.signalled and now >= self.quit_t):
            return False  # the last news are those that people wait for
        ended = self.mirrored >= self.log.next_n - 1 and not self.unwritten and not self.papers.saying and self.step.ended()
        ended = ended and (self.checkpoints.over or self.state.stage is not Stage.OVER)
        return ended or now >= self.quit_t


def say(text: str) -> None:
    """For the batch script's output, before there is a clerk: full or gone, it must not cost the leader."""
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"ftsup: {text}\n".encode(errors="replace"))
