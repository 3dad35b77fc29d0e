"""Which nodes a job's next grant shall not get: merged with what the job avoids already, capped so that enough nodes remain, read back.

Built of the port's own calls, so it is the same through every client. It owns how many nodes have to remain; who is to be kept out, and
for how long, is the policy's affair.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import replace

from ftsup.errors import Refused, SlurmError
from ftsup.ports import Job, NodeState, Slurm
from ftsup.slurm.fits import Fitting, able


class KeptOut(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a wish to keep nodes out."""

    nodes: tuple[str, ...] = ()
    """These are on the job's exclusion list."""
    let_in: tuple[str, ...] = ()
    """These are not: too few nodes would remain."""
    unsure: str = ""
    """Which wish of the job's could not be judged: only nodes like its own were counted as such that can run it."""


class Requeued(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request to requeue, and of what had to follow it at once."""

    job: Job
    """The last look at it: whether it shows is for others to say."""
    kept_out: KeptOut | None = None
    """None: the list is as it was."""
    why: str = ""


LOOKS = 40
"""Most that are taken for the requeue to show; each takes as long as Slurm needs to answer."""


def requeue_without(slurm: Slurm, job_id: str, *, restarts: int, nodes: Sequence[str], drop: Sequence[str] = ()) -> Requeued:
    """Requeue the job, and keep nodes out of its next grant in the seconds in which Slurm lets us: until KillWait ends us as well.

    What takes time is asked before. `restarts`: the job's count as it was.
    """
    job = slurm.show(job_id)
    found = spared(slurm, job, nodes=nodes, others=[name for name in job.excluded if name not in {*nodes, *drop}])
    slurm.requeue(job_id)
    for _ in range(LOOKS):
        job = slurm.show(job_id)
        if job.restarts > restarts or not job.lives:
            break
    if job.restarts <= restarts or not job.lives:
        return Requeued(job=job, why="the requeue did not show")
    try:
        slurm.avoid(job_id, found.nodes, drop=[*drop, *found.let_in])
    except SlurmError as error:
        return Requeued(job=job, why=error.message)
    return Requeued(job=job, kept_out=found)


def keep_out(slurm: Slurm, job_id: str, *, nodes: Sequence[str], drop: Sequence[str] = ()) -> KeptOut:
    """Put `nodes` (the newest last) on the job's exclusion list, as many as it can spare, and take `drop` out of it."""
    job = slurm.show(job_id)
    found = spared(slurm, job, nodes=nodes, others=[name for name in job.excluded if name not in {*nodes, *drop}])
    slurm.avoid(job_id, found.nodes, drop=[*drop, *found.let_in])
    return found


def spared(slurm: Slurm, job: Job, *, nodes: Sequence[str], others: Collection[str]) -> KeptOut:
    """How many of `nodes` can be kept out beside `others`, given what the job's partition has now. What it names itself it cannot spare."""
    try:
        usable = _usable(slurm, job, known={*job.nodes, *nodes})
    except Refused:  # a partition that is not ours to see: nobody knows how many there are
        usable = None
    named = tuple(name for name in nodes if name in job.required)
    nodes = [name for name in nodes if name not in named]
    if usable is None:
        return KeptOut(nodes=tuple(nodes), let_in=named)
    found = fitting(nodes, others=others, usable=usable.nodes, needed=job.num_nodes)
    return replace(found, let_in=(*named, *found.let_in), unsure=usable.unsure if found.let_in else "")


def _usable(slurm: Slurm, job: Job, *, known: Collection[str]) -> Fitting | None:
    """The nodes of the job's partition that can run it; None where that cannot be told."""
    wanted = set(job.partition.split(","))
    names = {name for partition in slurm.partitions() if partition.name in wanted for name in partition.nodes}
    if not names:
        return None
    nodes = [node for node in slurm.nodes() if node.name in names]
    found = able(job, nodes, known=known)
    up = {node.name for node in nodes if node.state is NodeState.UP}
    return replace(found, nodes=tuple(name for name in found.nodes if name in up))


def fitting(nodes: Sequence[str], *, others: Collection[str], usable: Collection[str], needed: int) -> KeptOut:
    """Those of `nodes` that leave `needed` usable nodes beside `others`: what was kept out first is let in again first."""
    kept = [name for name in dict.fromkeys(nodes) if name not in others]
    let_in: list[str] = []
    for name in [name for name in kept if name in usable]:
        if len(set(usable) - {*others, *kept}) >= needed:
            break
        kept.remove(name)
        let_in.append(name)
    return KeptOut(nodes=tuple(name for name in nodes if name not in let_in), let_in=tuple(let_in))
