"""What `ftsup watch` does about one run: a table over what the run directory says, Slurm's row for its job, and what watch did before.

Pure. The first row of the table that fits wins. It acts only where it is certain, within limits and with a back-off, and never for a run
that was cancelled, stopped, paused or finished; everything else is said to people, once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

import msgspec

from ftsup.policy.spool import Carry, Spool, carry
from ftsup.policy.told import Unexplained
from ftsup.ports import Job, JobState, is_newer, job_number
from ftsup.report.words import short_time

LEFT_S = 60.0
"""A run in whose directory nothing moves for so long: whoever could have acted does not."""
SILENT_S = 300.0
"""A job that runs while nothing moves for so long is told."""
DAY_S = 86400.0
FORGETS_S = 240.0
"""Slurm remembers what has ended for five minutes on most clusters (MinJobAge): what was asked for longer ago cannot be looked up."""
SOON_S, WAIT_MOST_S = 5.0, 600.0
"""A requeued job that starts so soon gains nothing; one that waits so long was given its time by a person."""
SLURMS_OWN = frozenset({JobState.PREEMPTED, JobState.NODE_FAIL, JobState.BOOT_FAIL})
"""How a job ends that nobody wanted to end."""
_PER_JOB = re.compile(r"(?:assoc|qos)max\w*perjob")


class Do(Enum):
    """What is done."""

    NOTHING = "nothing"
    SAY = "say"
    REQUEUE = "requeue"
    SUCCEED = "succeed"
    """See to it that one successor of the job is in the queue."""
    RELEASE = "release"
    START = "start now"
    CANCEL = "cancel"


class Deed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of `RUN/watch.jsonl`: what watch said, or was about to do."""

    wall: str
    at_s: float
    """Seconds of the wall clock where watch ran."""
    do: Do
    about: str
    job: str
    restarts: int
    text: str
    failed: str = ""
    """Why it came to nothing; the line before it told of the attempt."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the run directory says."""

    name: str
    """What people type for it."""
    job: str = ""
    """The newest, by the list of its jobs and by its log; empty: it was never submitted."""
    over: bool = False
    """It has ended by a verdict: finished, stopped, cancelled or paused."""
    unwanted: str = ""
    """`cancelled` or `paused`, where somebody has marked it as that."""
    begun: bool = False
    """A leader has led it in this job."""
    comes_back: bool = True
    """slurm.requeue is not off."""
    spool: Spool | None = None
    told: Unexplained | None = None
    """A grant of it was told to end, and nobody has said why."""
    quiet_s: float = 0.0
    """How long watch has seen nothing move in it."""
    deeds: tuple[Deed, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one look came to."""

    do: Do
    about: str = ""
    """Which row of the table; empty: nothing to tell."""
    text: str = ""
    hint: str = ""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """How often something is done for one job within a day, and how long the pause is after the first time; it doubles."""

    tries: int
    first_s: float
    most_s: float = 3600.0


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What the rows look at."""

    seen: Seen
    job: Job
    """Its newest, as Slurm has it."""
    spooled: Job
    """That of its spool, mostly the same."""
    start_now: bool


LIMITS = {
    Do.REQUEUE: Limit(tries=5, first_s=60.0),
    Do.SUCCEED: Limit(tries=5, first_s=60.0),
    Do.RELEASE: Limit(tries=5, first_s=120.0),
    Do.START: Limit(tries=20, first_s=10.0, most_s=10.0),
    Do.CANCEL: Limit(tries=10, first_s=60.0),
}
NOTHING = Finding(do=Do.NOTHING)


def decide(seen: Seen, row: Job | None, *, now_s: float, start_now: bool = False, spooled: Job | None = None) -> Finding:
    """What is to be done about it now. `row`: its newest job; `spooled`: that of its spool; None: Slurm has answered, and lists none."""
    if not seen.job:
        return NOTHING
    job = row or Job(job_id=seen.job, state=JobState.GONE)
    apart = seen.spool is not None and seen.spool.job != seen.job
    other = (spooled or Job(job_id=seen.spool.job, state=JobState.GONE)) if seen.spool is not None and apart else job
    case = Case(seen=seen, job=job, spooled=other, start_now=start_now)
    found = next((answer for rule in TABLE if (answer := rule(case)) is not None), NOTHING)
    return _within_limits(found, case, now_s=now_s)


def is_new(finding: Finding, seen: Seen, row: Job | None) -> bool:
    """Whether it was not said of this grant before."""
    restarts = row.restarts if row else 0
    return not any((deed.about, deed.job, deed.restarts) == (finding.about, seen.job, restarts) for deed in seen.deeds)


def _before(seen: Seen, do: Do) -> list[Deed]:
    """What was done before, the oldest first; a try that failed has two lines. Successors are counted over all jobs: each has its own."""
    return [deed for deed in seen.deeds if deed.do is do and (do is Do.SUCCEED or deed.job == seen.job)]


def tries(seen: Seen, finding: Finding) -> int:
    """How often it was tried, ever."""
    return sum(not deed.failed for deed in _before(seen, finding.do))


def _within_limits(found: Finding, case: Case, *, now_s: float) -> Finding:
    if found.do not in LIMITS:
        return found
    limit, name, job = LIMITS[found.do], case.seen.name, case.seen.job
    same = _before(case.seen, found.do)
    done = [deed for deed in same if now_s - deed.at_s < DAY_S and not deed.failed]
    if len(done) >= limit.tries:
        text = f"{found.text}: that was done {len(done)} times within a day, and is not done again"
        return Finding(do=Do.SAY, about=f"{found.about} given up", text=text, hint=_elsewhere(name, case.job.job_id))
    if found.do is Do.SUCCEED and same and same[-1].job == job and not same[-1].failed and now_s - same[-1].at_s >= FORGETS_S:
        text = f"{found.text}; that was begun {short_time(now_s - same[-1].at_s)} ago, and nobody wrote down what came of it"
        return Finding(do=Do.SAY, about=f"{found.about} begun", text=text, hint=_tells(case))
    if done:
        wait_s = min(limit.first_s * 2.0 ** (len(done) - 1), limit.most_s) - max(now_s - done[-1].at_s, 0.0)
        if wait_s > 0:
            return Finding(do=Do.NOTHING, about=found.about, text=f"{found.text}: done again in {short_time(wait_s)}, if it must be")
    return found


# The table ----------------------------------------------------------------------------------------------------------------


def _never(case: Case) -> Finding | None:
    """A run that nobody wants to go on: its job is cancelled where that did not get through; nothing else is done about it, ever."""
    seen, job = case.seen, case.job
    if seen.unwanted and job.lives and not job.completing and (job.state is JobState.PENDING or seen.quiet_s >= SILENT_S):
        text = f"it is {seen.unwanted}, and its job {job.job_id} is still {job.state.value.lower()}: scancel"
        return Finding(do=Do.CANCEL, about=f"{seen.unwanted}, not told", text=text)
    return NOTHING if seen.over or seen.unwanted else None


def _spooled(case: Case) -> Finding | None:
    """A requeue that was decided and did not get through."""
    seen, spool, other = case.seen, case.seen.spool, case.spooled
    if spool is None or is_newer(job_number(seen.job), job_number(spool.job)):  # it has its successor, whatever Slurm remembers of that
        return None
    left = carry(spool, state=other.state.value, completing=other.completing, restarts=other.restarts)
    why = f"its leader decided to requeue job {spool.job} ({spool.reason}) and did not get through"
    if left is Carry.NOTHING:
        return None
    if left is Carry.LOOK_AGAIN:
        return NOTHING
    if seen.quiet_s < LEFT_S:
        return Finding(do=Do.NOTHING, about="spooled", text=f"{why}; watch sees to it if nothing moves for {LEFT_S:g} s")
    if left is Carry.SUBMIT and other.state is JobState.RUNNING and seen.quiet_s < SILENT_S:
        return NOTHING  # its leader may do it in this moment: two successors would be one too many
    if left is Carry.TELL:
        return _gone(case, f"{why}, and Slurm does not know the job any more")
    if left is Carry.REQUEUE:
        return Finding(do=Do.REQUEUE, about="spooled", text=f"{why}: scontrol requeue incomplete")
    return Finding(do=Do.SUCCEED, about="spooled", text=f"{why}: one successor of it is submitted")


def _slurms_own(case: Case) -> Finding | None:
    """Slurm itself ended it, and its leader did not live to hear that. Whatever may have been somebody's wish is left as it is."""
    seen, job = case.seen, case.job
    told = seen.told is not None and (seen.told.job, seen.told.restarts) == (job.job_id, job.restarts)
    if job.state not in SLURMS_OWN or not seen.comes_back or not (told or seen.begun):
        return None
    why = f"its job {job.job_id} was ended by Slurm itself ({job.state.value}), and no leader heard why"
    return (
        Finding(do=Do.SUCCEED, about="unexplained", text=f"{why}: one successor of it is submitted") if seen.quiet_s >= LEFT_S else NOTHING
    )


def _ended(case: Case) -> Finding | None:
    """Its job is over, and no leader has said why."""
    seen, job = case.seen, case.job
    if job.completing:
        return NOTHING
    if job.lives:
        return None
    if seen.quiet_s < LEFT_S:
        return NOTHING  # the last lines of its log may be on their way
    if job.state is JobState.GONE:
        return _gone(case, f"Slurm does not know its job {job.job_id} any more, and no leader said how it ended")
    if job.state is JobState.CANCELLED:
        text = f"its job {job.job_id} was cancelled in Slurm: nothing follows by itself"
        return Finding(do=Do.SAY, about="cancelled in Slurm", text=text, hint=f"ftsup submit --continue {seen.name} goes on")
    return Finding(
        do=Do.SAY, about="ended", text=f"its job {job.job_id} ended ({job.state.value}), and no leader said why", hint=_tells(case)
    )


def _held(case: Case) -> Finding | None:
    """It waits for somebody's release."""
    job = case.job
    if not job.held:
        return None
    reason = job.reason.replace("_", " ").lower()
    if "maxrequeue" in reason:
        text = (
            f"Slurm holds its job {job.job_id} for good: its launches failed too often (MaxBatchRequeue), and only an admin may release it"
        )
        return Finding(do=Do.SAY, about="max requeue", text=text, hint=f"ftsup submit --continue {case.seen.name} goes on in another job")
    if "launch failed" in reason:
        return Finding(
            do=Do.RELEASE, about="launch failed", text=f"a node could not launch its job {job.job_id}, and Slurm holds it: release"
        )
    who = "an administrator" if "admin" in reason else "somebody" if "user" in reason else "Slurm"
    hint = "the site can say why" if "admin" in reason else f"scontrol release {job.job_id}"
    return Finding(do=Do.SAY, about="held", text=f"{who} holds its job {job.job_id} ({job.reason})", hint=hint)


def _waits(case: Case) -> Finding | None:
    """It is in the queue."""
    job = case.job
    if job.state is not JobState.PENDING:
        return None
    reason = job.reason.replace("_", "").replace(" ", "").lower()
    worth_it = job.starts_in_s is None or SOON_S < job.starts_in_s <= WAIT_MOST_S
    if case.start_now and reason == "begintime" and job.restarts > 0 and worth_it:
        return Finding(do=Do.START, about="begin time", text=f"its job {job.job_id} waits after its requeue: StartTime=now")
    found = next((row for row in IN_VAIN if reason.startswith(row[0])), _OVER_LIMIT if _PER_JOB.match(reason) else None)
    if found is None:
        return NOTHING
    words, what, hint = found
    hint = hint.replace("RUN", case.seen.name).replace("JOB", job.job_id)
    text = f"its job {job.job_id} waits in vain: it {what} ({job.reason.replace('_', ' ')})"
    return Finding(do=Do.SAY, about=f"waits: {words}", text=text, hint=hint)


def _runs(case: Case) -> Finding | None:
    """Slurm runs it, and nothing moves in its directory."""
    seen, job = case.seen, case.job
    if job.state is not JobState.RUNNING or seen.quiet_s < LEFT_S:
        return None
    quiet = f"nothing has moved in its directory for {short_time(seen.quiet_s)}"
    if job.nodes and job.batch_host and job.batch_host not in job.nodes:
        text = f"its job {job.job_id} runs without its batch host {job.batch_host}, which Slurm has lost, and {quiet}"
        return Finding(do=Do.REQUEUE, about="batch host lost", text=f"{text}: scontrol requeue incomplete")
    if seen.quiet_s < SILENT_S:
        return None
    where = f" on {job.batch_host}" if job.batch_host else ""
    what = "its leader is gone or cannot write there" if seen.begun else "no leader has begun"
    hint = (
        f"slurm-{job.job_id}.out in the run directory has its own words; if nothing of it lives{where}, "
        f"scontrol requeue incomplete {job.job_id} gives it back to the queue"
    )
    return Finding(do=Do.SAY, about="silent", text=f"its job {job.job_id} is running{where}, and {quiet}: {what}", hint=hint)


TABLE: tuple[Callable[[Case], Finding | None], ...] = (_never, _spooled, _slurms_own, _ended, _held, _waits, _runs)
"""Read from the top; where none fits nothing is done: it is suspended, trains, or Slurm says a word that we do not know."""


def _gone(case: Case, text: str) -> Finding:
    return Finding(do=Do.SAY, about="gone", text=text, hint=_tells(case))


def _tells(case: Case) -> str:
    return f"ftsup explain {case.seen.name} tells what is known, ftsup submit --continue {case.seen.name} goes on"


def _elsewhere(name: str, job: str) -> str:
    return f"scontrol show job {job} tells more; ftsup pause {name} && ftsup submit --continue {name} goes on in another job"


_AGAIN = "ftsup pause RUN && ftsup submit --continue RUN {}"
_BACK = "sinfo -R says why; it starts when they are back"
IN_VAIN: tuple[tuple[str, str, str], ...] = (
    ("dependencyneversatisfied", "depends on a job that did not end as it should have", _AGAIN.format("once slurm.extra has it no more")),
    ("badconstraints", "asks for nodes of which too few are left to it", "scontrol update JobId=JOB ExcNodeList= lets in what is kept out"),
    ("reqnodenotavail", "needs nodes that are down, drained or reserved", _BACK),
    ("nodesrequiredforjobaredown", "needs more nodes than are up", _BACK),
    ("partitionnodelimit", "asks for more nodes than its partition allows", _AGAIN.format("--set slurm.nodes=N")),
    ("partitiontimelimit", "asks for more time than its partition allows", "scontrol update JobId=JOB TimeLimit=TIME lowers it"),
    ("partitiondown", "is in a partition that is down", "sinfo -s shows others; it starts when that is up again"),
    ("partitioninactive", "is in a partition that is inactive", "sinfo -s shows others"),
    ("invalidaccount", "has an account that is not valid any more", _AGAIN.format("--set slurm.account=NAME")),
    ("accountnotallowed", "has an account that may not use its partition", _AGAIN.format("--set slurm.account=NAME")),
    ("invalidqos", "has a QOS that is not valid any more", _AGAIN.format("--set slurm.qos=NAME")),
    ("qosnotallowed", "has a QOS that may not be used there", _AGAIN.format("--set slurm.qos=NAME")),
)
"""How a reason of Slurm's begins (without blanks), what it means, what a person can do."""
_OVER_LIMIT = ("perjob", "asks for more than its account or QOS allows one job", _AGAIN.format("--set slurm.nodes=N"))
