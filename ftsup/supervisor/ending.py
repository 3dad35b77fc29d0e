"""What Slurm's answers about our job are to the leader's machine: its event, and sentences about nodes. Values only."""

from __future__ import annotations

from collections.abc import Iterable

from ftsup import events as ev
from ftsup.ports import Job, Node, NodeState


def said(job: Job, *, asked_t: float | None, kill_wait_s: float | None, unkillable_s: float | None) -> ev.SlurmSaid:
    """What the machine is told of a look at our job."""
    left_s = job.ends_in_s
    if left_s is None and job.limit_s is not None:
        left_s = max(job.limit_s - job.run_s, 0.0)
    return ev.SlurmSaid(
        state=job.state.value,
        completing=job.completing,
        restarts=job.restarts,
        left_s=left_s,
        asked_t=asked_t,
        kill_wait_s=kill_wait_s,
        unkillable_s=unkillable_s,
        requeueable=job.requeueable,
        reason=job.reason,
        preempted=job.preempted,
        code=f"{job.exit_code or 0}:{job.exit_signal or 0}" if job.exit_code or job.exit_signal else "",
    )


def unfit(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Why jobs are taken from these nodes, a sentence for each that is not up."""
    words = {NodeState.DRAINED: "drained", NodeState.DOWN: "down"}
    found = [(node, words[node.state]) for node in nodes if node.state in words]
    return tuple(f"{node.name} is {word}{f' ({node.reason})' if node.reason else ''}" for node, word in found)
