"""The successor of a job that Slurm does not requeue: exactly one other job of the same script, which begins when this one has ended.

A successor's script is given the job that it follows as its one word. Slurm shows both, or (since 24.11) the job that it waits for: who
was killed after sbatch had taken it, or never heard the answer, finds it by these. Where it shows neither any more, a cancelled job
may be one that a person did not want, or one too many that we took back: those are written down in the run directory. Built of the
port's own calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ftsup.errors import Unavailable
from ftsup.plain import told
from ftsup.ports import Found, JobState, Slurm, is_newer, job_number
from ftsup.rundir import RunDir, add_job
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
    """Another job leads the run, or has led it, in the place that this one was submitted for: this one is one too many."""
    cancelled: bool = False
    """The job that it follows was cancelled, after this one had been submitted."""


def standing(slurm: Slurm, *, before: str, number: int, script: Path, follows: str = "") -> Standing:
    """Whether the job `number` may lead the run, which `before` led last, by our own record: what Slurm has forgotten counts as well.

    `follows`: its script's word, as the script was given it.
    """
    last, found = slurm.show(before), slurm.find(script)
    follows = follows or next((one.words[0] for one in found if int(one.job_id) == number and one.words), "")
    earlier = [one for one in found if is_newer(number, int(one.job_id))]
    elder = next((one.job_id for one in earlier if follows and one.words[:1] == (follows,)), "")
    if not elder and follows and is_newer(job_number(before), job_number(follows)):
        elder = before
    living = (job.job_id for job in (last, *(slurm.show(one.job_id) for one in earlier)) if job.lives and not job.completing)
    return Standing(elder=elder or next(living, ""), cancelled=last.state is JobState.CANCELLED)


def successor(slurm: Slurm, job_id: str, *, number: int, script: Path, nodes: Sequence[str] = (), own: Sequence[str] = ()) -> Successor:
    """See to it that one successor of the job is in Slurm's hands. `number`: the job's own plain one; of an array's task (whose script
    is another than that of those who follow it) 0 will do.

    `nodes`: those that the run keeps out; `own`: the user's list, which sbatch would take from the script alone. After Unanswered the
    successor may be there: ask again, and it is found. Two that ask at once both find nothing, and both submit: ids grow in the order
    in which Slurm takes jobs, so whoever was second sees the first when it looks again, and takes its own back.
    """
    if later := _later(slurm, job_id, number=number, script=script):
        return Successor(job=_eldest(slurm, job_id, later, script=script), found=True)
    job = slurm.show(job_id)
    others = dict.fromkeys(name for name in (*own, *job.excluded) if name not in nodes)
    kept = spared(slurm, job, nodes=nodes, others=others) if nodes and job.state is not JobState.GONE else KeptOut(nodes=tuple(nodes))
    after = [] if job.state is JobState.GONE else [f"--dependency=afterany:{job_id}"]
    out = dict.fromkeys((*others, *kept.nodes))
    args = [*after, *([f"--exclude={hostlist.compress(out)}"] if out else [])]
    ours = slurm.submit(script, args=args, words=[job_id])
    later = _later(slurm, job_id, number=number, script=script)
    if not later or not is_newer(int(ours), int(later[0].job_id)):
        return Successor(job=ours, kept_out=kept)
    _take_back(slurm, ours, script=script)  # it may have begun by now
    return Successor(job=later[0].job_id, found=True)


def _later(slurm: Slurm, job_id: str, *, number: int, script: Path) -> list[Found]:
    """Those that follow the job, or one that does. What was submitted twice for an earlier job, and ends at once, is none of them."""

    def follows(one: Found) -> bool:
        if not one.words:
            return _may_follow(slurm, one.job_id, script=script)
        return not is_newer(job_number(job_id), job_number(one.words[0]))

    return [one for one in slurm.find(script) if is_newer(int(one.job_id), number) and follows(one)]


def _may_follow(slurm: Slurm, job_id: str, *, script: Path) -> bool:
    """Of which Slurm does not show what it follows: it may be of use, or a person cancelled it, and nothing is wanted any more."""
    job = slurm.show(job_id)
    return job.lives or (job.state is JobState.CANCELLED and job_id not in _taken_back(script))


def _eldest(slurm: Slurm, job_id: str, later: Sequence[Found], *, script: Path) -> str:
    """The successor; what was submitted for the same place goes."""
    first, *others = later
    for one in others:
        if one.words[:1] == (job_id,) and slurm.show(one.job_id).state is JobState.PENDING:
            _take_back(slurm, one.job_id, script=script)
    return first.job_id


def _take_back(slurm: Slurm, job_id: str, *, script: Path) -> None:
    """Written down first. Where that cannot be done it stays in the queue: when it begins it finds the elder, and ends (`standing`)."""
    try:
        add_job(RunDir(script.parent).taken_back, job_id)
    except OSError:
        return
    slurm.cancel(job_id)


def _taken_back(script: Path) -> frozenset[str]:
    """What cannot be read is unknown: nobody is to conclude that a person cancelled anything."""
    path = RunDir(script.parent).taken_back
    try:
        return frozenset(path.read_text(errors="replace").split())
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {told(error)}") from error
