"""A node supervisor whose leader is silent: it looks for it elsewhere, asks Slurm about the batch host, and requeues where there is none.

When that is called for is the policy's; here are the questions, each bounded, and none twice at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ftsup import proc
from ftsup.errors import SlurmError
from ftsup.policy import nodestate
from ftsup.policy.nodestate import Happening
from ftsup.policy.rules import Rules
from ftsup.ports import Clock, Job, JobState, Node, NodeState
from ftsup.slurm import call
from ftsup.supervisor.clerk import Clerk
from ftsup.supervisor.loop import Calls, soonest
from ftsup.supervisor.nodelink import RETRY_S, NodeLink


class Alone:
    """What one node does without a leader. Call `poll` each turn, and at `due_at`."""

    def __init__(
        self,
        *,
        job: str,
        leader: Path,
        environ: Mapping[str, str],
        cwd: Path,
        link: NodeLink,
        calls: Calls[list[Happening]],
        clerk: Clerk[list[Happening]],
        clock: Clock,
        rules: Rules,
    ) -> None:
        """`leader`: the file in which a leader says where it is."""
        self.job, self.leader, self.environ, self.cwd = job, leader, environ, cwd
        self.link, self.calls, self.clerk, self.clock, self.rules = link, calls, clerk, clock, rules
        self._asked_t = self._seek_t = clock.now()
        self._requeue_t: float | None = None

    def due_at(self) -> float | None:
        """When `poll` has to look even if nothing comes."""
        return self._requeue_t

    def poll(self, now: float) -> list[Happening]:
        """Look for the leader, carry out what is due; that it is silent is told once in `lead_grace_s`."""
        self._seek(now)
        quiet_s = self.link.quiet_s(now)
        if self._requeue_t is not None and quiet_s < self.rules.lead_grace_s:
            self._requeue_t = None  # a leader is there again, and decides
        if self._requeue_t is not None and now >= self._requeue_t:
            self._requeue_t = None
            self._slurm("requeue", now, lambda _: [], job_id=self.job)
        if quiet_s >= self.rules.lead_grace_s and now - self._asked_t >= self.rules.lead_grace_s:
            self._asked_t = now
            return [nodestate.LeaderQuiet(t=now)]
        return []

    def requeue(self, now: float, *, delay_s: float) -> None:
        """Requeue the job then, unless a leader is back before."""
        self._requeue_t = soonest(self._requeue_t, now + delay_s)

    def ask_batch_host(self, now: float) -> None:
        """The job first, for the name of its batch host, then that node."""

        def node_said(nodes: list[Node]) -> list[Happening]:
            return [nodestate.BatchHost(t=now, alive=not nodes or nodes[0].state is not NodeState.DOWN)]

        def job_said(job: Job) -> list[Happening]:
            if job.state is JobState.RUNNING and job.batch_host:
                self._slurm("nodes", self.clock.now(), node_said, names=[job.batch_host])
            return []

        self._slurm("show", now, job_said, job_id=self.job)

    def _seek(self, now: float) -> None:
        """A leader that is silent may be at another port: a stranger has the one that we know."""
        seek_s = min(RETRY_S, self.rules.node_grace_s / 2)
        if self.link.quiet_s(now) < seek_s or now < self._seek_t:
            return

        def found(answer: object) -> list[Happening]:
            now = self.clock.now()
            self._seek_t = now + seek_s
            if self.link.quiet_s(now) >= seek_s and isinstance(answer, list):
                self.link.learn(answer)
            return []

        self._seek_t = now + 60.0
        self.clerk.ask("leader", now=now, limit_s=60.0, then=found, path=str(self.leader))

    def _slurm(self, op: str, now: float, then: Callable[[Any], list[Happening]], **args: object) -> None:
        def done(done: proc.Done) -> list[Happening]:
            try:
                return then(call.decode(done.out))
            except SlurmError:
                return [nodestate.BatchHost(t=now, alive=None)]

        self.calls.start(call.argv(op, **args), now=now, limit_s=call.DEADLINE_S, then=done, env=self.environ, cwd=self.cwd)
