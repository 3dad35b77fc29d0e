"""What Slurm's controller decides: who gets nodes, what a requeue, a hold, an update do, when time is up.

Pure: functions that change a World, told the time, knowing no file, process or clock. Every sentence in a `Refusal` is one that
a real Slurm 22.05 was seen to print.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

from ftsup.mockslurm import arrays
from ftsup.mockslurm.model import BATCH, JobRec, NodeRec, PartitionRec, PreemptMode, Signal, StepRec, StepState, World
from ftsup.ports import JobState

HELD = "JobHeldUser"
REQUEUED_HELD = "job_requeued_in_held_state"
NOT_PENDING = "Job is no longer pending execution"
FINISHED = "Job has already finished"
UNKNOWN_JOB = "Invalid job id specified"
UNKNOWN_NODE = "Invalid node name specified"
DISABLED = "Requested operation is presently disabled"
PENDING = "Job is pending execution"
IMPOSSIBLE = "Requested node configuration is not available"
REQUEUE_NOTE = "DUE TO JOB REQUEUE"
PREEMPT_NOTE = "DUE TO PREEMPTION"
NOT_RUNNING = "Requested operation is presently disabled"
ONLY_BATCH = "Only batch jobs are accepted or processed"


class Refusal(Exception):
    """The controller's no, in its words."""


def find(world: World, job_id: int) -> JobRec:
    """The job, while it is remembered."""
    if job_id not in world.jobs:
        raise Refusal(UNKNOWN_JOB)
    return world.jobs[job_id]


# --- nodes ---------------------------------------------------------------------------------------------------------------------


def holder(world: World, node: str) -> JobRec | None:
    """The job that has this node."""
    return next((job for job in world.jobs.values() if job.active and node in job.nodes), None)


def check_nodes(world: World, names: Iterable[str]) -> None:
    """All of these exist."""
    if any(name not in world.nodes for name in names):
        raise Refusal(UNKNOWN_NODE)


def candidates(world: World, job: JobRec) -> list[str]:
    """The nodes that this job could be given now, best first."""
    usable = [
        node.name
        for node in world.nodes.values()
        if not (node.down or node.drain) and node.name not in job.excluded and holder(world, node.name) is None
    ]
    return sorted(usable, key=lambda name: name not in job.required)


def possible(world: World, job: JobRec) -> None:
    """Refuse a job that no free cluster could run; a wish for more nodes than there are may wait for ever."""
    if job.num_nodes <= len(world.nodes) and len(set(world.nodes) - set(job.excluded)) < job.num_nodes:
        raise Refusal(IMPOSSIBLE)


def node_down(world: World, node: NodeRec, *, reason: str, now: float) -> None:
    """A node is lost, and with it what ran there."""
    node.down, node.reason, node.reason_at = True, reason, now
    job = holder(world, node.name)
    if job is None or job.completing:
        return
    if job.no_kill and node.name != job.batch_host:
        job.nodes.remove(node.name)
        return
    node_failed(job, now)


def node_failed(job: JobRec, now: float) -> None:
    """The job lost a node (or its batch host's daemon): requeued where it may be, else over."""
    if job.requeue and not job.interactive:
        _requeue_running(job, now, note="DUE TO NODE FAILURE")
    else:
        end_job(job, JobState.NODE_FAIL, now=now, note="DUE TO NODE FAILURE")


# --- the queue -----------------------------------------------------------------------------------------------------------------


def schedule(world: World, now: float) -> list[int]:
    """Give nodes to the jobs that can have them, in order; the ids of those that started."""
    started, waiting = [], False
    for job in sorted(world.jobs.values(), key=lambda one: (-partition(world, one).tier, *arrays.order(one))):
        if job.state is not JobState.PENDING or job.completing:
            continue
        job.reason = _obstacle(world, job, now)
        if job.reason != "None":
            continue
        free = candidates(world, job)
        if len(free) < job.num_nodes or not set(job.required) <= set(free):
            job.reason = "Priority" if waiting else "Resources"
            waiting = True
            _preempt_for(world, job, now)
            continue
        _start(job, sorted(free[: job.num_nodes], key=list(world.nodes).index), now)
        started.append(job.job)
    return started


def partition(world: World, job: JobRec) -> PartitionRec:
    """The job's."""
    return world.settings.partitions.get(job.partition, PartitionRec())


def _preempt_for(world: World, job: JobRec, now: float) -> None:
    """Take nodes from jobs of lesser partitions, if that makes enough of them."""
    victims = [
        other
        for other in world.jobs.values()
        if other.state is JobState.RUNNING
        and partition(world, other).tier < partition(world, job).tier
        and partition(world, other).preempt is not PreemptMode.OFF
    ]
    theirs = {node for other in victims for node in other.nodes}
    if len(candidates(world, job)) + len(theirs - set(job.excluded)) < job.num_nodes:
        return
    for other in victims:
        if not other.preempt_at:
            preempt(world, other, now)


def preempt(world: World, job: JobRec, now: float) -> None:
    """A preemption begins: at once, or with the partition's grace, at which the steps get SIGCONT and SIGTERM (or the warning)."""
    grace_s = partition(world, job).grace_s
    job.preempt_at, job.end_at = now, min(job.end_at or now + grace_s, now + grace_s)
    if not grace_s:
        take(world, job, now)
        return
    asked = job.warn_signal and world.settings.send_user_signal and not job.warned
    job.warned = job.warned or bool(asked)
    job.signals.append(Signal(number=signal.SIGCONT))
    job.signals.append(Signal(number=job.warn_signal if asked else signal.SIGTERM, batch=bool(asked) and job.warn_batch))


def take(world: World, job: JobRec, now: float) -> None:
    """A preemption is carried out."""
    if partition(world, job).preempt is PreemptMode.REQUEUE and job.requeue and not job.interactive:
        _requeue_running(job, now, note=PREEMPT_NOTE)
    else:
        job.preempt_at = now
        end_job(job, JobState.PREEMPTED, now=now, note=PREEMPT_NOTE)


def suspend(job: JobRec, now: float) -> None:
    """`scontrol suspend`, an operator's: the processes stop, and so does the job's time."""
    if job.state is not JobState.RUNNING or job.completing:
        raise Refusal(PENDING if job.state is JobState.PENDING else FINISHED if job.over else NOT_RUNNING)
    job.ran_s += now - (job.suspend_at or job.start_at)
    job.state, job.suspend_at = JobState.SUSPENDED, now
    job.signals.append(Signal(number=signal.SIGSTOP, everybody=True))


def resume(job: JobRec, now: float) -> None:
    """`scontrol resume`."""
    if job.state is not JobState.SUSPENDED:
        raise Refusal(NOT_RUNNING)
    job.end_at = job.end_at + now - job.suspend_at if job.end_at else 0.0
    job.state, job.suspend_at = JobState.RUNNING, now
    job.signals.append(Signal(number=signal.SIGCONT, everybody=True))


def _obstacle(world: World, job: JobRec, now: float) -> str:
    """Why this job may not even be looked at."""
    if job.held:
        return job.reason if job.reason in {HELD, REQUEUED_HELD} else HELD
    if job.eligible_at > now:
        return "BeginTime"
    if dependency := _dependency(world, job):
        return dependency
    if job.num_nodes > len(world.nodes):
        return "PartitionConfig"
    return "JobArrayTaskLimit" if arrays.full(world, job) else "None"


def _dependency(world: World, job: JobRec) -> str:
    """What other jobs it still waits for; those that are forgotten hold up nobody."""
    for kind, other in ((kind, other) for kind, name in job.after for other in arrays.named(world, name)):
        if kind == "after" and other.state is not JobState.PENDING:
            continue
        if not other.over:
            return "Dependency"
        if (kind, other.state is JobState.COMPLETED) in {("afterok", False), ("afternotok", True)}:
            return "DependencyNeverSatisfied"
    return ""


def _start(job: JobRec, nodes: list[str], now: float) -> None:
    job.state, job.nodes, job.grant = JobState.RUNNING, nodes, job.grant + 1
    job.start_at, job.end_at, job.accrue_at = now, now + job.limit_s if job.limit_s else 0.0, job.accrue_at or now
    job.warned, job.exit_status, job.kill_note, job.reason = False, 0, "", "None"
    job.preempt_at, job.suspend_at, job.ran_s = 0.0, 0.0, 0.0
    job.steps, job.next_step, job.signals = [], 0, []


def due(world: World, now: float) -> list[float]:
    """The next instants at which something happens without anybody asking."""
    times = []
    for job in world.jobs.values():
        if job.state is JobState.PENDING and not job.completing and not job.held:
            times.append(job.eligible_at)
        elif job.state is JobState.RUNNING and job.end_at:
            times.append(job.end_at)
            if job.warn_signal and not job.warned:
                times.append(_warn_at(world, job))
    return [when for when in times if when > now]


def _warn_at(world: World, job: JobRec) -> float:
    return job.end_at - job.warn_s - world.settings.signal_early_s


def watch_time(world: World, job: JobRec, now: float) -> None:
    """The warning signal and the time limit of a running job."""
    if job.state is not JobState.RUNNING or not job.end_at:
        return
    if job.preempt_at:
        if now >= job.end_at:
            take(world, job, now)
        return
    if job.warn_signal and not job.warned and now >= _warn_at(world, job):
        job.warned = True
        job.signals.append(Signal(number=job.warn_signal, batch=job.warn_batch, steps=not job.warn_batch))
    if now >= job.end_at:
        job.signals.append(Signal(number=signal.SIGTERM))  # the steps hear it twice: here, and with everybody else
        end_job(job, JobState.TIMEOUT, now=now, note="DUE TO TIME LIMIT", reason="TimeLimit")


def forget(world: World, now: float) -> list[int]:
    """Drop jobs that ended long ago; their ids."""
    old = [job.job for job in world.jobs.values() if job.over and now - job.end_at > world.settings.min_job_age_s]
    for job_id in old:
        del world.jobs[job_id]
    return old


# --- the end of a job ------------------------------------------------------------------------------------------------------------


def end_job(job: JobRec, state: JobState, *, now: float, note: str, reason: str = "None") -> None:
    """The job is over; its processes are now being ended."""
    if job.state is JobState.SUSPENDED:  # what is stopped cannot end
        job.signals.append(Signal(number=signal.SIGCONT, everybody=True))
    job.state, job.reason, job.end_at = state, reason, now
    job.completing, job.kill_note = True, note


def script_ended(job: JobRec, status: int, now: float) -> None:
    """The batch script returned (a wait status). When the job is being ended already, that does not change how."""
    job.exit_status = status
    if job.state is not JobState.RUNNING or job.completing:
        return
    reason = "None" if status == 0 else "NonZeroExitCode" if status & 0x7F == 0 else "JobLaunchFailure"
    end_job(job, JobState.COMPLETED if status == 0 else JobState.FAILED, now=now, note="", reason=reason)


def completed(world: World, job: JobRec, now: float) -> None:
    """No process of the job is left: its nodes are free."""
    job.completing, job.signals = False, []
    for step in job.steps:
        step.state = StepState.DONE
    if job.state is JobState.PENDING:
        job.nodes, job.steps = [], []
        job.submit_at, job.accrue_at = now, 0.0
        job.eligible_at = now + world.settings.begin_wait_s
        job.start_at, job.end_at = job.eligible_at, job.eligible_at + (job.limit_s or 0.0)


# --- what people ask for -----------------------------------------------------------------------------------------------------------


def requeue(world: World, job: JobRec, *, now: float, hold: bool = False, incomplete: bool = False) -> None:
    """`scontrol requeue`, `requeuehold`, `requeue incomplete`."""
    if world.faults.refuse_requeues > 0:
        world.faults.refuse_requeues -= 1
        raise Refusal(DISABLED)
    if job.interactive:
        raise Refusal(ONLY_BATCH)
    if incomplete and job.state not in {JobState.RUNNING, JobState.SUSPENDED}:
        return
    if not job.requeue:
        raise Refusal(DISABLED)
    if job.state is JobState.PENDING:
        raise Refusal(PENDING)
    if job.state in {JobState.RUNNING, JobState.SUSPENDED}:
        _requeue_running(job, now, note=REQUEUE_NOTE)
    else:  # finished or cancelled, perhaps with its processes still ending: it comes back all the same
        job.state, job.restarts, job.reason = JobState.PENDING, job.restarts + 1, "None"
        if not job.completing:
            job.exit_status, job.runner = 0, None
            completed(world, job, now)
    if hold:
        job.held, job.reason = True, REQUEUED_HELD


def _requeue_running(job: JobRec, now: float, *, note: str) -> None:
    end_job(job, JobState.PENDING, now=now, note=note)
    job.restarts += 1


def cancel(job: JobRec, now: float) -> None:
    """`scancel` without a signal."""
    if job.over:
        return
    if job.state in {JobState.RUNNING, JobState.SUSPENDED}:
        end_job(job, JobState.CANCELLED, now=now, note="")
    elif job.state is JobState.PENDING:
        job.state = JobState.CANCELLED
        job.end_at = now
        job.start_at = job.start_at if job.completing else now


def hold(job: JobRec) -> None:
    """`scontrol hold`; of a running job: nothing to see."""
    if job.over:
        raise Refusal(FINISHED)
    if job.state is JobState.PENDING:
        job.held, job.reason = True, HELD


def release(job: JobRec) -> None:
    """`scontrol release`."""
    if job.over:
        raise Refusal(FINISHED)
    job.held = False
    if job.state is JobState.PENDING:
        job.reason = "None"


def only_pending(job: JobRec) -> None:
    """Refuse what only a pending job admits; one that is being requeued is pending already."""
    if job.state is JobState.PENDING:
        return
    raise Refusal(FINISHED if job.over else NOT_PENDING)


# --- steps ---------------------------------------------------------------------------------------------------------------------------


def step_may_start(job: JobRec, step: StepRec) -> bool:
    """Its nodes are free, or it said that it shares them."""
    return step.overlap or not any(
        other.state is StepState.RUNNING and not other.overlap and other.step != BATCH and set(other.nodes) & set(step.nodes)
        for other in job.steps
    )
