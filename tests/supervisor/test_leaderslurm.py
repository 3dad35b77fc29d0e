"""Which questions a leader asks of Slurm while others have no answer yet."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ftsup import events as ev
from ftsup import proc
from ftsup.policy.state import State
from ftsup.ports import Job, JobState
from ftsup.slurm import call
from ftsup.supervisor.leaderslurm import LeaderSlurm
from ftsup.supervisor.papers import Grant

RUNS = Job(job_id="7", state=JobState.RUNNING)


class Asked:
    """Helpers that do not end before a test lets them."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, object]] = []

    def start(self, argv, *, now, limit_s, then, env, cwd) -> None:
        self.waiting.append((argv[argv.index("ftsup.slurm") + 1], then))

    def ops(self) -> list[str]:
        return [op for op, _ in self.waiting]

    def answer(self, outcome: object = RUNS) -> list[ev.LeaderEvent]:
        """The first of them ends."""
        op, then = self.waiting.pop(0)
        return then(proc.Done(argv=(), code=0, out=call.encode(op, outcome), err=""))


@pytest.fixture
def world(tmp_path: Path):
    found = SimpleNamespace(calls=Asked(), state=State(job="7", restarts=0))
    grant = Grant(job="7", restarts=0, host="n1", nodes=("n1",), environ={})
    clock = SimpleNamespace(now=lambda: 0.0)
    script, calls = tmp_path / "job.sbatch", found.calls
    found.slurm = LeaderSlurm(
        grant, script=script, own=(), cwd=tmp_path, calls=calls, clock=clock, state=lambda: found.state, papers=SimpleNamespace()
    )
    found.slurm.kill_wait_s = 30.0
    return found


def test_a_question_is_not_asked_twice_at_once(world) -> None:
    world.slurm.look(ev.AskSlurm(), 1.0)
    world.slurm.look(ev.AskSlurm(), 2.0)
    assert world.calls.ops() == ["show"]
    (said,) = world.calls.answer()
    assert said.asked_t == 1.0
    world.slurm.look(ev.AskSlurm(), 3.0)
    assert world.calls.ops() == ["show"]


def test_told_to_end_the_job_is_looked_at_as_it_is_now_while_an_older_look_hangs(world) -> None:
    """A controller that takes half a minute, and KillWait runs."""
    world.slurm.look(ev.AskSlurm(), 1.0)
    world.state = State(job="7", restarts=0, told_t=5.0)
    for t in (5.0, 7.0):
        world.slurm.look(ev.AskSlurm(), t)
    assert world.calls.ops() == ["show", "show"]
    world.state = State(job="7", restarts=0, told_t=8.0)
    world.slurm.look(ev.AskSlurm(), 8.0)
    assert world.calls.ops() == ["show", "show"], "no crowd"
    assert [event.asked_t for event in (*world.calls.answer(), *world.calls.answer())] == [1.0, 5.0]
    world.slurm.look(ev.AskSlurm(), 9.0)
    assert world.calls.ops() == ["show"]


def test_an_answer_that_a_later_question_has_overtaken_is_dropped(world) -> None:
    world.slurm.look(ev.AskSlurm(), 1.0)
    world.state = State(job="7", restarts=0, told_t=5.0)
    world.slurm.look(ev.AskSlurm(), 5.0)
    world.calls.waiting.reverse()
    assert [event.asked_t for event in (*world.calls.answer(), *world.calls.answer())] == [5.0]


def test_what_slurm_has_ended_is_requeued_while_the_request_for_what_runs_hangs(world) -> None:
    world.slurm.requeue(ev.Requeue(), 1.0)
    world.slurm.requeue(ev.Requeue(), 2.0)
    assert world.calls.ops() == ["requeue"]
    world.state = State(job="7", restarts=0, told_t=5.0)
    world.slurm.requeue(ev.Requeue(ended=True), 5.0)
    assert world.calls.ops() == ["requeue", "requeue"]
