"""What comes next, in one sentence, and what a person can type: pure functions of what was read.

It says what the leader told in `status.json` or Slurm said once; it decides nothing, and promises nothing that nobody has planned.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from ftsup.policy.state import Stage as At
from ftsup.ports import Job, JobState
from ftsup.report.runs import Now
from ftsup.report.story import Saving, Stage
from ftsup.report.words import clock, names, parsed, short_time, to_the_minute

SOON_S = 3600.0
"""What is due later than this is told by the clock on the wall."""

_ACTS = {
    At.GATHER: "waits for the node supervisor on {}",
    At.PICK: "the checkpoint for attempt {} is being chosen and read back",
    At.PREPARE: "{} get ready",
    At.LAUNCH: "torchrun is being started on {}",
    At.RUN: "the ranks of attempt {} start",
    At.COLLECT: "evidence is being taken on {}",
    At.STOP: "what is left of the attempt is being ended on {}",
    At.CLOSE: "what was decided is being written down",
    At.REQUEUE: "Slurm is asked for the requeue until it shows",
    At.TERMED: "the job was told to end: Slurm is asked why",
}
_AT = {stage.value: stage for stage in At}


def queue(job: Job) -> str:
    """A job that says nothing itself, as Slurm sees it."""
    if job.state is JobState.PENDING:
        starts = f", starts in about {short_time(job.starts_in_s)}" if job.starts_in_s else ""
        return f"job {job.job_id} is pending{f' ({job.reason})' if job.reason else ''}{starts}"
    if job.state in {JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN}:
        return f"job {job.job_id} is {job.state.value.lower()}"
    said = "is not known to Slurm any more" if job.state is JobState.GONE else f"ended ({job.state.value})"
    return f"job {job.job_id} {said}"


def over(stage: Stage, *, name: str) -> str:
    """A run for which nothing follows by itself."""
    if stage is Stage.STOPPED:
        return f"nothing by itself; ftsup explain {name} says why it ended, ftsup submit --continue {name} goes on"
    if stage is Stage.PAUSED:
        return f"nothing by itself; ftsup submit --continue {name} goes on"
    return "nothing: it is done" if stage is Stage.FINISHED else "nothing: it was cancelled, and does not come back"


def gone(job: Job | None, *, name: str, begun: bool, asked: bool) -> str:
    """A run whose leader says nothing. `asked`: Slurm was, whatever it said."""
    if not asked:
        return f"it depends on Slurm, which ftsup status {name} asks"
    if job is None or job.state is JobState.UNKNOWN:
        return "not known: its leader says nothing, and Slurm's answer is missing"
    if job.state is JobState.PENDING and job.held:
        return _held(job, name=name)
    if job.state is JobState.PENDING:
        return f"it {'goes on' if begun else 'starts'} when Slurm gives it nodes"
    if job.state is JobState.RUNNING:
        return "the leader starts, or cannot reach the run directory: its own output is in slurm-" + job.job_id + ".out there"
    if job.lives:
        return "not known: it depends on Slurm"
    hint = (
        f"ftsup explain {name} tells what is known, ftsup submit --continue {name} goes on"
        if begun
        else "slurm-*.out in the run directory says why"
    )
    return f"nothing by itself; {hint}"


def _held(job: Job, *, name: str) -> str:
    reason = job.reason.replace("_", " ").lower()
    if "maxrequeue" in reason:
        return f"nothing by itself: its launches failed too often; ftsup submit --continue {name} goes on in another job"
    how = "ftsup watch releases it, and so does" if "launch failed" in reason else "somebody has to release it:"
    return f"it is held: {how} scontrol release {job.job_id}"


def under_way(now: Now, *, saving: Saving | None, epoch: str, trains: bool, at: datetime) -> str:
    """A run whose leader speaks: what it does, or what is due. `epoch`: the log's; where `now` has another, it is a little older."""
    stage = _AT.get(now.stage) if trains or _order(now.epoch) >= _order(epoch) else At.RUN
    written = parsed(now.wall) or at
    ahead = now.ahead
    if stage is At.BACK_OFF and ahead.until_s is not None:
        return f"the next attempt begins {_when(written, ahead.until_s, at)} (back-off)"
    if stage is not None and stage is not At.RUN and stage in _ACTS:
        return _ACTS[stage].format(now.epoch if stage is At.PICK else names(ahead.waiting) or "the nodes")
    if not trains:
        return _ACTS[At.RUN].format(epoch or now.epoch)
    due = [str(saving)] if saving else []
    if ahead.save_s is not None and not saving:
        due.append(f"a save is asked for {_when(written, ahead.save_s, at)}")
    if ahead.end_s is not None:
        due.append(f"requeue before the time limit {_when(written, ahead.end_s, at)}")
    return "; ".join(due) or "training goes on to its end"


def _when(told: datetime, after_s: float, now: datetime) -> str:
    """`in 12 min`, or `at 14:32`, or with the day where it is not today."""
    ahead_s = (told - now).total_seconds() + after_s
    if ahead_s < 1.0:
        return "now"
    if ahead_s < SOON_S:
        return f"in {to_the_minute(ahead_s)}"
    try:
        return f"at {clock(now + timedelta(seconds=ahead_s), now=now)}"
    except OverflowError:  # behind the end of the calendar: whoever wrote this was no leader
        return "some day"


def _order(epoch: str) -> tuple[int, ...]:
    """What epochs are compared by."""
    return tuple(int(part) for part in epoch.split(".") if part.isdecimal())
