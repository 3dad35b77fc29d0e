"""What the leader asks of Slurm: one question of a kind at a time, each in a child with a deadline, and what the answers are as events.

Where we are told to end meanwhile, the answer on its way is of before: one more is asked beside it, since KillWait runs. A Slurm that
does not answer is told once, until it does. What is decided from the answers is `policy.machine`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ftsup import events as ev
from ftsup import proc
from ftsup.errors import Refused, SlurmError
from ftsup.events import LeaderEvent
from ftsup.policy.state import Stage, State
from ftsup.ports import Clock, Job, Node
from ftsup.slurm import call
from ftsup.slurm.chain import Successor
from ftsup.slurm.commands import no_answer
from ftsup.slurm.jobs import config_s
from ftsup.slurm.keepout import KeptOut, Requeued
from ftsup.supervisor import ending, requeueing, starter
from ftsup.supervisor.loop import Calls
from ftsup.supervisor.papers import Grant, Papers

TIMELY = frozenset({"show", "requeue"})
"""What has another answer once we are told to end."""
AT_ONCE = 2
SLURM = "slurm"
"""The kind of the trouble when Slurm does not answer."""


class LeaderSlurm:
    """Slurm, as one leader sees it."""

    def __init__(
        self,
        grant: Grant,
        *,
        script: Path,
        own: Sequence[str],
        cwd: Path,
        calls: Calls[list[LeaderEvent]],
        clock: Clock,
        state: Callable[[], State],
        papers: Papers,
    ) -> None:
        """`own`: the nodes that the user keeps out; `state` at the time of an answer."""
        self.grant, self.script, self.own, self.cwd, self.calls, self.clock = grant, script, own, cwd, calls, clock
        self.state, self.papers = state, papers
        self.kill_wait_s: float | None = None
        self.unkillable_s: float | None = None
        self.silence = ""
        """Why Slurm did not answer the last question."""
        self._asking: dict[str, list[float]] = {}
        """Questions that have no answer yet, and when they were asked."""
        self._shown_t = 0.0
        """When the newest look at our job was asked for that has been answered."""
        self._unanswered = False
        """Slurm did not answer the last question, and that was told."""

    # The orders ------------------------------------------------------------------------------------------------------------

    def look(self, _order: ev.AskSlurm, now: float) -> None:
        """At our job."""
        self._show(now)
        if self.kill_wait_s is None:  # Slurm did not answer when we began
            self.ask_config()

    def _said(self, job: Job, *, asked_t: float | None = None) -> list[LeaderEvent]:
        found = ending.said(job, asked_t=asked_t, kill_wait_s=self.kill_wait_s, unkillable_s=self.unkillable_s)
        if self.state().stage is not Stage.TERMED or self.state().preempted or job.restarts <= self.grant.restarts:
            return [found]
        self._unfit(found)  # somebody else requeues it: perhaps for a node
        return []

    def _show(self, now: float) -> None:
        def said(job: Job) -> list[LeaderEvent]:
            if now < self._shown_t:  # what was asked later was answered sooner
                return []
            self._shown_t = now
            return self._said(job, asked_t=now)

        self._ask("show", now, said, job_id=self.grant.job)

    def _unfit(self, found: ev.SlurmSaid) -> None:
        def said(nodes: list[Node]) -> list[LeaderEvent]:
            return [replace(found, unfit=ending.unfit(nodes))]

        self._ask("nodes", self.clock.now(), said, otherwise=found, names=list(self.grant.nodes))

    def requeue(self, order: ev.Requeue, now: float) -> None:
        """By Slurm, or by a successor."""
        if order.chain:
            self._chain(now)
        elif not order.ended and (args := requeueing.requeue_without(self.state())) is not None:
            self._ask("requeue_without", now, self._requeued, limit_s=requeueing.SUCCESSOR_S, **args)
        else:
            self._ask("requeue", now, lambda _: [ev.RequeueAsked()], job_id=self.grant.job, ended=order.ended)

    def _requeued(self, found: Requeued) -> list[LeaderEvent]:
        kept = [] if found.kept_out is None else self._kept(found.kept_out)
        return [*kept, ev.RequeueAsked(), *self._said(found.job)]

    def _kept(self, found: KeptOut) -> list[LeaderEvent]:
        self.papers.kept_out()
        return [avoided(found)]

    def _chain(self, now: float) -> None:
        """The same script once more, after us: looked for before it is submitted, whoever did that."""

        def follows(found: Successor) -> list[LeaderEvent]:
            self.papers.list_job(found.job)
            kept = found.kept_out
            return [*([avoided(kept)] if kept.nodes or kept.let_in else []), ev.Chained(job=found.job)]

        number = self.grant.environ.get("SLURM_JOB_ID", self.grant.job)
        args = requeueing.successor(self.state(), number=number, script=self.script, own=self.own)
        self._ask("successor", now, follows, limit_s=requeueing.SUCCESSOR_S, **args)

    def avoid(self, order: ev.Avoid, now: float) -> None:
        """Nodes are kept out of the next allocation."""
        self._ask("keep_out", now, self._kept, **requeueing.keep_out(order, self.state()))

    # Questions ------------------------------------------------------------------------------------------------------------

    def step_ended(self, text: str) -> list[LeaderEvent]:
        """What srun said at the end of the step; it may be that it got no answer."""
        why = no_answer(text.split(starter.BETWEEN))
        return [ev.StepEnded(text=text, unanswered=bool(why)), *(self._silence(why) if why else [])]

    def ask_config(self) -> None:
        """How long a kill may take is Slurm's to say. An answer about the job that was sooner is asked for again: it is told with it."""

        def said(config: Mapping[str, str]) -> list[LeaderEvent]:
            self.kill_wait_s, self.unkillable_s = (config_s(config.get(key, "")) for key in ("KillWait", "UnkillableStepTimeout"))
            self._show(self.clock.now())
            return []

        self._ask("config", self.clock.now(), said)

    def _ask(
        self,
        op: str,
        now: float,
        then: Callable[[Any], list[LeaderEvent]],
        *,
        limit_s: float = call.DEADLINE_S,
        otherwise: LeaderEvent | None = None,
        **args: object,
    ) -> None:
        """One question, or one request; `then` makes events of the answer, and `otherwise` stands in for one that does not come."""
        asking = self._asking.setdefault(op, [])
        before = op in TIMELY and self.state().told_t > max(asking, default=now)
        if asking and not (before and len(asking) < AT_ONCE):
            return  # that answer is for both: a controller that hangs must not find a crowd when it goes on

        def done(done: proc.Done) -> list[LeaderEvent]:
            asking.remove(now)
            try:
                found = then(call.decode(done.out))
            except SlurmError as error:
                said = done.err.strip().splitlines()[-1:] if not done.out else []  # the helper itself could not go on
                why = "; ".join([error.message if done.code is not None else f"{error.message} ({done.why})", *said])
                told = self._answered() if isinstance(error, Refused) else self._silence(why)
                if otherwise is not None:
                    return [otherwise, *told]
                return [ev.SlurmFailed(op=op, kind=type(error).__name__, why=why), *told]
            return [*found, *self._answered()]

        asking.append(now)
        self.calls.start(call.argv(op, **args), now=now, limit_s=limit_s, then=done, env=self.grant.environ, cwd=self.cwd)

    def _silence(self, why: str) -> list[LeaderEvent]:
        """Slurm does not answer: told once, until it does."""
        self.silence = why
        if self._unanswered:
            return []
        self._unanswered = True
        return [ev.Noted(text=f"Slurm does not answer: {why}", trouble=SLURM)]

    def _answered(self) -> list[LeaderEvent]:
        self.silence = ""
        if not self._unanswered:
            return []
        self._unanswered = False
        return [ev.Noted(text="Slurm answers again", trouble=SLURM, over=True)]


def avoided(found: KeptOut) -> ev.AvoidSet:
    """Who is kept out now."""
    return ev.AvoidSet(nodes=found.nodes, let_in=found.let_in, unsure=found.unsure)
