"""The successor of a job that Slurm does not requeue: exactly one other job of the same script, which begins when this one has ended.

What was submitted is looked up in Slurm by its script before anything is submitted: a leader that was killed after sbatch had taken it,
or never heard the answer, finds it. Built of the port's own calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ftsup.ports import JobState, Slurm
from ftsup.slurm import hostlist
from ftsup.slurm.keepout import KeptOut, spared


class Successor(msgspec.Struct, frozen=True, kw_only=True):
    """The job that follows."""

    job: str
    found: bool = False
    """It was in Slurm's hands before: submitted by somebody whose answer was lost."""
    kept_out: KeptOut = KeptOut()


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a job stands to those of the same run before it."""

    elder: str = ""
    """Another job of the run lives, and was there first: this one is one too many."""
    cancelled: bool = False
    """The job that it follows was cancelled, after this one had been submitted."""


def standing(slurm: Slurm, *, before: str, number: int, script: Path) -> Standing:
    """Whether the job `number`, which follows `before`, may lead the run."""
    last = slurm.show(before)
    earlier = [slurm.show(one) for one in slurm.find(script) if int(one) < number]
    elder = next((job.job_id for job in (last, *earlier) if job.lives and not job.completing), "")
    return Standing(elder=elder, cancelled=last.state is JobState.CANCELLED)


def successor(slurm: Slurm, job_id: str, *, number: int, script: Path, nodes: Sequence[str] = (), own: Sequence[str] = ()) -> Successor:
    """See to it that one successor of the job is in Slurm's hands. `number`: the job's own plain one; of an array's task (whose script
    is another than that of those who follow it) 0 will do.

    `nodes`: those that the run keeps out; `own`: the user's list, which sbatch would take from the script alone. After Unanswered the
    successor may be there: ask again, and it is found.
    """
    later = [one for one in slurm.find(script) if int(one) > number]
    if later:
        return Successor(job=later[0], found=True)
    job = slurm.show(job_id)
    others = dict.fromkeys(name for name in (*own, *job.excluded) if name not in nodes)
    kept = spared(slurm, job, nodes=nodes, others=others) if nodes and job.state is not JobState.GONE else KeptOut(nodes=tuple(nodes))
    after = [] if job.state is JobState.GONE else [f"--dependency=afterany:{job_id}"]
    out = dict.fromkeys((*others, *kept.nodes))
    args = [*after, *([f"--exclude={hostlist.compress(out)}"] if out else [])]
    return Successor(job=slurm.submit(script, args=args), kept_out=kept)
