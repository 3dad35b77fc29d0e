"""Preemption and suspension in the mock's rules, as a real Slurm 22.05 was seen to do them."""

from __future__ import annotations

import signal

import pytest

from ftsup.mockslurm import rules, show
from ftsup.mockslurm.model import JobRec, NodeRec, PartitionRec, PreemptMode, Settings, World
from ftsup.ports import JobState
from ftsup.slurm import jobs

GRACE_S = 20.0
START = 1000.0


def world(mode: PreemptMode, *, grace_s: float = 0.0, **settings: object) -> World:
    """A job of the lesser partition has both nodes, and one of the better partition wants them."""
    partitions = {"low": PartitionRec(preempt=mode, grace_s=grace_s), "high": PartitionRec(tier=10)}
    made = World(settings=Settings(partitions=partitions, **settings))
    made.nodes = {name: NodeRec(name=name) for name in ("n1", "n2")}
    made.jobs[1] = job(1, "low")
    rules.schedule(made, START)
    made.jobs[2] = job(2, "high")
    rules.schedule(made, START + 5)
    return made


def job(number: int, partition: str) -> JobRec:
    return JobRec(
        job=number, name=f"j{number}", num_nodes=2, partition=partition, submit_at=0, eligible_at=0, limit_s=600, warn_signal=10, warn_s=60
    )


def seen(made: World, now: float) -> jobs.Job:
    lines = show.show_job(made, made.jobs[1], now=now, details=False)
    return jobs.parse_jobs("\n".join([lines[0], *(f"   {line}" for line in lines[1:])]) + "\n\n")[0]


def test_without_grace_it_is_requeued_at_once() -> None:
    made = world(PreemptMode.REQUEUE)
    now = seen(made, START + 5)
    assert (now.completing, now.restarts, now.preempted) == (True, 1, False)


def test_cancel_without_grace_shows_what_it_was() -> None:
    made = world(PreemptMode.CANCEL)
    now = seen(made, START + 5)
    assert (now.completing, now.restarts, now.preempted) == (True, 0, True)
    rules.completed(made, made.jobs[1], START + 6)
    assert seen(made, START + 6).state is JobState.PREEMPTED
    assert rules.schedule(made, START + 7) == [2]


def test_with_grace_the_steps_are_told_and_the_end_moves() -> None:
    made = world(PreemptMode.REQUEUE, grace_s=GRACE_S)
    first = made.jobs[1]
    now = seen(made, START + 8)
    assert (now.state, now.preempted, now.ends_in_s, now.restarts) == (JobState.RUNNING, True, GRACE_S - 3, 0)
    assert [(one.number, one.steps, one.batch) for one in first.signals] == [(signal.SIGCONT, True, False), (signal.SIGTERM, True, False)]
    rules.schedule(made, START + 9)
    assert len(first.signals) == 2, "told once"
    assert START + 5 + GRACE_S in rules.due(made, START + 9)
    rules.watch_time(made, first, START + 5 + GRACE_S)
    assert (seen(made, START + 30).completing, first.restarts) == (True, 1)


def test_what_cannot_be_requeued_is_cancelled() -> None:
    made = world(PreemptMode.REQUEUE, grace_s=GRACE_S)
    made.jobs[1].requeue = False
    rules.watch_time(made, made.jobs[1], START + 5 + GRACE_S)
    assert (made.jobs[1].state, made.jobs[1].completing) == (JobState.PREEMPTED, True)


def test_a_site_may_send_the_warning_instead() -> None:
    made = world(PreemptMode.REQUEUE, grace_s=GRACE_S, send_user_signal=True)
    assert [one.number for one in made.jobs[1].signals] == [signal.SIGCONT, signal.SIGUSR1]


def test_a_partition_that_is_not_preempted_keeps_its_nodes() -> None:
    made = world(PreemptMode.OFF)
    assert (made.jobs[1].state, made.jobs[2].reason, made.jobs[1].preempt_at) == (JobState.RUNNING, "Resources", 0.0)
    assert "Preempt" not in "".join(show.show_job(made, made.jobs[1], now=START + 5, details=False))


def test_nobody_is_preempted_in_vain() -> None:
    made = world(PreemptMode.OFF)
    made.settings.partitions["low"].preempt = PreemptMode.REQUEUE
    made.jobs[2].excluded = ["n2"]
    rules.schedule(made, START + 6)
    assert made.jobs[1].preempt_at == 0.0


def test_suspended_time_is_none_of_the_jobs() -> None:
    made = world(PreemptMode.OFF)
    first = made.jobs[1]
    rules.suspend(first, START + 10)
    now = seen(made, START + 30)
    assert (now.state, now.run_s, now.ends_in_s) == (JobState.SUSPENDED, 10.0, None)
    with pytest.raises(rules.Refusal):
        rules.suspend(first, START + 30)
    rules.resume(first, START + 40)
    now = seen(made, START + 45)
    assert (now.state, now.run_s, now.ends_in_s) == (JobState.RUNNING, 15.0, 585.0)
    assert [(one.number, one.everybody) for one in first.signals] == [(signal.SIGSTOP, True), (signal.SIGCONT, True)]
    with pytest.raises(rules.Refusal):
        rules.resume(first, START + 50)


def test_what_is_suspended_can_be_ended() -> None:
    made = world(PreemptMode.OFF)
    first = made.jobs[1]
    rules.suspend(first, START + 10)
    rules.cancel(first, START + 20)
    assert (first.state, first.completing, first.signals[-1].number) == (JobState.CANCELLED, True, signal.SIGCONT)
    with pytest.raises(rules.Refusal):
        rules.suspend(first, START + 21)
