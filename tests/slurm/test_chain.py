"""The job that follows one which Slurm does not requeue: one, whoever asks for it at once, and whoever is killed at whichever moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest

from ftsup.errors import Unanswered, Unavailable
from ftsup.ports import JobState
from ftsup.rundir import RunDir
from ftsup.slurm.chain import Standing, Successor, standing, successor
from ftsup.slurm.fake import FakeSlurm
from tests.slurm.conftest import running


def ask(slurm: object, job: str, script: Path) -> Successor:
    return successor(slurm, job, number=int(job), script=script)  # type: ignore[arg-type]


def test_one_successor_however_often_it_is_asked_for(script: Path) -> None:
    slurm = FakeSlurm()
    job = running(slurm, script, "--exclude=n4", "--nodes=1")
    first = successor(slurm, job, number=int(job), script=script, nodes=["n1"], own=["n4"])
    again = successor(slurm, job, number=int(job), script=script, nodes=["n1"], own=["n4"])
    assert (first.found, again.found, again.job) == (False, True, first.job)
    assert set(slurm.show(first.job).excluded) == {"n4", "n1"}
    slurm.advance(60)
    assert slurm.show(first.job).state is JobState.PENDING, "it waits for the end of the other"
    slurm.finish(job)
    slurm.advance(60)
    assert slurm.show(first.job).nodes == ("n2", "n3")
    assert [(one.job_id, one.words) for one in slurm.find(script)] == [(job, ()), (first.job, (job,))]


def test_one_that_was_cancelled_while_it_waited_is_not_submitted_again(script: Path) -> None:
    slurm = FakeSlurm()
    job = running(slurm, script)
    first = successor(slurm, job, number=int(job), script=script)
    slurm.cancel(first.job)
    assert successor(slurm, job, number=int(job), script=script).job == first.job


def test_an_answer_that_is_lost_is_found(script: Path) -> None:
    class Lossy(FakeSlurm):
        def submit(self, *args, **more):
            super().submit(*args, **more)
            raise Unanswered("sbatch: Socket timed out")

    slurm = Lossy()
    with pytest.raises(Unanswered):
        slurm.submit(script)
    slurm.advance(1)
    with pytest.raises(Unanswered):
        successor(slurm, "1", number=1, script=script)
    assert successor(slurm, "1", number=1, script=script).job == "2"
    assert len(slurm.jobs) == 2


def test_a_controller_that_goes_away_right_after_it_took_the_job_is_asked_again(script: Path) -> None:
    class Leaving(FakeSlurm):
        def submit(self, *args, **more):
            job = super().submit(*args, **more)
            self.away = True
            return job

    slurm = Leaving()
    FakeSlurm.submit(slurm, script)
    slurm.advance(1)
    with pytest.raises(Unavailable):
        ask(slurm, "1", script)
    slurm.away = False
    assert ask(slurm, "1", script) == Successor(job="2", found=True)


def test_nothing_is_submitted_while_the_controller_is_away(script: Path) -> None:
    slurm = FakeSlurm()
    job = running(slurm, script)
    slurm.away = True
    with pytest.raises(Unavailable):
        successor(slurm, job, number=int(job), script=script)
    assert list(slurm.jobs) == [job]


def test_the_end_of_a_job_that_is_forgotten_is_not_waited_for(script: Path) -> None:
    slurm = FakeSlurm()
    follows = successor(slurm, "77", number=0, script=script, nodes=["n1"], own=["n2"])
    assert slurm.jobs[follows.job].after == ()
    assert set(slurm.show(follows.job).excluded) == {"n2", "n1"}


def test_one_whose_disk_is_mounted_elsewhere_is_found(script: Path) -> None:
    """Watch on a login node where the runs have another path."""
    slurm = FakeSlurm()
    job = running(slurm, script)
    first = ask(slurm, job, script)
    elsewhere = Path("/net/export", *script.parts[-3:])
    assert ask(slurm, job, elsewhere) == Successor(job=first.job, found=True)


def test_its_own_successor_is_not_taken_for_one_too_many(script: Path) -> None:
    """A leader that was away for long: what it asked for ran, and has a successor itself."""
    slurm = FakeSlurm()
    job = running(slurm, script)
    first = ask(slurm, job, script)
    slurm.finish(job)
    slurm.advance(5)
    second = ask(slurm, first.job, script)
    assert ask(slurm, job, script) == Successor(job=first.job, found=True)
    assert slurm.show(second.job).state is JobState.PENDING
    slurm.forget(first.job)
    assert ask(slurm, job, script) == Successor(job=second.job, found=True), "what has a successor was there"


@pytest.mark.parametrize("shows_words", [True, False])
@pytest.mark.parametrize("last", [1, 2])
def test_slurm_may_begin_to_count_again_within_a_run(script: Path, last: int, *, shows_words: bool) -> None:
    """So many of the run's jobs have ids from before that; all are still known."""
    ids = [str(number) for number in (*range(LAST_ID + 1 - last, LAST_ID + 1), *range(1, 5))]
    slurm = FakeSlurm(shows_words=shows_words, ids=map(int, ids))
    job = running(slurm, script, "--nodes=1")
    for follows in ids[1:3]:
        assert ask(slurm, job, script) == Successor(job=follows)
        assert ask(slurm, job, script) == Successor(job=follows, found=True)
        slurm.finish(job)
        slurm.advance(5)
        assert standing(slurm, before=job, number=int(follows), script=script, follows=job) == Standing()
        job = follows
    late = slurm.submit(script, args=["--nodes=1"], words=[ids[1]])
    assert standing(slurm, before=job, number=int(late), script=script, follows=ids[1]) == Standing(elder=job)


# Whoever asks at once, whoever is killed ----------------------------------------------------------------------------------

LAST_ID = 67043327
"""Slurm's MaxJobId; FirstJobId comes next."""
CALLS = 6
"""One more than there are: find, show, submit, find, cancel."""


class Actor:
    """Somebody who asks for the successor, one call of Slurm's at a time; it may be killed between two of them."""

    def __init__(self, slurm: FakeSlurm, job: str, script: Path) -> None:
        self.slurm, self.killed, self.over = slurm, False, False
        self.said: Successor | None = None
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(job, script))
        self._thread.start()
        self._paused.acquire()

    def step(self) -> None:
        """Until its next call; the answer of the last one has come."""
        if not self.over:
            self._go.release()
            self._paused.acquire()

    def end(self, *, kill: bool) -> None:
        self.killed = kill
        while not self.over:
            self.step()
        self._thread.join()

    def _run(self, job: str, script: Path) -> None:
        try:
            self.said = ask(self, job, script)
        except KilledError:
            pass
        finally:
            self.over = True
            self._paused.release()

    def __getattr__(self, name: str) -> object:
        def call(*args: object, **more: object) -> object:
            self._paused.release()
            self._go.acquire()
            if self.killed:
                raise KilledError
            return getattr(self.slurm, name)(*args, **more)

        return call


class KilledError(Exception):
    """By SIGKILL."""


def schedules(first: int, second: int) -> Iterator[tuple[bool, ...]]:
    """Every order of so many calls of the first and so many of the second."""
    for chosen in combinations(range(first + second), first):
        yield tuple(n in chosen for n in range(first + second))


@pytest.mark.parametrize("shows_words, first_calls", [*((True, calls) for calls in range(CALLS)), (False, CALLS - 2)])
def test_two_ask_and_either_may_be_killed_at_every_moment(script: Path, first_calls: int, *, shows_words: bool) -> None:
    """The leader's helper goes on after it was killed, its successor asks as well, and so does watch: 923 orders."""
    for second_calls in range(CALLS):
        for order in schedules(first_calls, second_calls):
            slurm = FakeSlurm(shows_words=shows_words)
            RunDir(script.parent).taken_back.unlink(missing_ok=True)  # another order's, with the same ids
            job = running(slurm, script)
            two = Actor(slurm, job, script), Actor(slurm, job, script)
            for is_first in order:
                two[0 if is_first else 1].step()
            said = [actor.said.job for actor in two if actor.said]  # before anybody is killed
            for actor in two:
                actor.end(kill=True)
            last = ask(slurm, job, script)
            waits = [record.job_id for record in slurm.jobs.values() if record.state is JobState.PENDING]
            assert waits == [last.job], (order, slurm.jobs)
            assert set(said) <= {last.job}, (order, said)


class TwoAtOnce(FakeSlurm):
    """Another one had looked as well, and is the first to submit."""

    def submit(self, script, **more):
        super().submit(script, **more)
        job = super().submit(script, **more)
        self.advance(5)
        return job


def two_at_once(script: Path, *, shows_words: bool = True) -> FakeSlurm:
    """Job 1 has ended, 2 and 3 are submitted to follow it, and there is nothing that they wait for."""
    slurm = TwoAtOnce(shows_words=shows_words)
    FakeSlurm.submit(slurm, script, args=["--nodes=1"])
    slurm.advance(1)
    slurm.finish("1", exit_code=1)
    assert ask(slurm, "1", script) == Successor(job="2", found=True)
    slurm.advance(5)
    assert slurm.show("2").state is JobState.RUNNING
    return slurm


def then(slurm: FakeSlurm, job: str, script: Path) -> Successor:
    """The successor of this one, asked for by nobody else."""
    return ask(Alone(slurm), job, script)


class Alone:
    """A `TwoAtOnce` in which nobody else submits any more."""

    def __init__(self, slurm: FakeSlurm) -> None:
        self.slurm = slurm

    def __getattr__(self, name: str) -> object:
        return partial(FakeSlurm.submit, self.slurm) if name == "submit" else getattr(self.slurm, name)


def test_the_younger_one_is_taken_back_also_where_it_runs_already(script: Path) -> None:
    """The job that it follows has ended, and nothing has to be waited for."""
    slurm = two_at_once(script)
    assert slurm.show("3").state is JobState.CANCELLED


@pytest.mark.parametrize("shows_words", [True, False])
def test_what_was_taken_back_is_not_taken_for_what_a_person_cancelled(script: Path, *, shows_words: bool) -> None:
    """The elder one asks for its own successor while Slurm still knows the younger."""
    slurm = two_at_once(script, shows_words=shows_words)
    assert slurm.show("3").state is JobState.CANCELLED
    assert then(slurm, "2", script) == Successor(job="4")
    slurm.cancel("4")
    assert then(slurm, "2", script) == Successor(job="4", found=True), "that one a person cancelled"


@pytest.mark.parametrize("shows_words", [True, False])
def test_what_watch_took_back_is_not_taken_for_what_a_person_cancelled(script: Path, *, shows_words: bool) -> None:
    """Whoever submitted the younger one was killed before it looked again."""
    slurm = FakeSlurm(shows_words=shows_words)
    job = running(slurm, script, "--nodes=1")
    for _ in range(2):
        slurm.submit(script, args=["--nodes=1", f"--dependency=afterany:{job}"], words=[job])
    assert ask(slurm, job, script) == Successor(job="2", found=True)
    assert slurm.show("3").state is JobState.CANCELLED
    slurm.finish(job)
    slurm.advance(5)
    assert ask(slurm, "2", script) == Successor(job="4")


@pytest.mark.parametrize("shows_words", [True, False])
def test_what_cannot_be_written_down_is_not_taken_back_and_ends_by_itself(script: Path, *, shows_words: bool) -> None:
    RunDir(script.parent).taken_back.mkdir()
    slurm = two_at_once(script, shows_words=shows_words)
    assert slurm.show("3").state is JobState.RUNNING
    assert standing(slurm, before="1", number=3, script=script, follows="1") == Standing(elder="2")
    slurm.finish("3")
    assert then(slurm, "2", script) == Successor(job="4")


def test_nobody_concludes_that_it_was_a_person_where_the_record_cannot_be_read(script: Path) -> None:
    slurm = FakeSlurm(shows_words=False)
    job = running(slurm, script)
    slurm.cancel(ask(slurm, job, script).job)
    RunDir(script.parent).taken_back.mkdir()
    with pytest.raises(Unavailable, match="taken-back cannot be read: Is a directory"):
        ask(slurm, job, script)


@pytest.mark.parametrize("shows_words", [True, False])
def test_what_slurm_takes_when_everybody_has_looked_ends_by_itself_and_is_nobodys_successor(script: Path, *, shows_words: bool) -> None:
    """sbatch of one that was killed hung with the controller: two are in the queue. The younger one finds the elder, alive or over."""
    slurm = FakeSlurm(shows_words=shows_words)
    job = running(slurm, script, "--nodes=1")
    first = ask(slurm, job, script)
    late = slurm.submit(script, args=["--nodes=1", f"--dependency=afterany:{job}"], words=[job])
    slurm.finish(job)
    slurm.advance(5)
    assert slurm.show(late).state is JobState.RUNNING
    assert standing(slurm, before=job, number=int(first.job), script=script) == Standing()
    for before in (job, first.job):
        assert standing(slurm, before=before, number=int(late), script=script, follows=job) == Standing(elder=first.job)
    slurm.finish(late)
    second = ask(slurm, first.job, script)
    assert second.job not in {first.job, late}
    slurm.finish(first.job)
    slurm.advance(5)
    assert standing(slurm, before=first.job, number=int(second.job), script=script) == Standing()


@pytest.mark.parametrize("shows_words", [True, False])
def test_one_too_many_that_begins_when_slurm_has_forgotten_the_other_knows_it_from_the_runs_own_log(
    script: Path, *, shows_words: bool
) -> None:
    slurm = FakeSlurm(shows_words=shows_words)
    job = running(slurm, script)
    first = ask(slurm, job, script)
    late = slurm.submit(script, words=[job])
    slurm.finish(job)
    slurm.advance(5)
    slurm.forget(job)
    slurm.forget(first.job)
    assert standing(slurm, before=first.job, number=int(late), script=script, follows=job) == Standing(elder=first.job)


def test_a_successor_that_was_cancelled_is_not_followed_by_another_one_where_slurm_shows_no_words(script: Path) -> None:
    slurm = FakeSlurm(shows_words=False)
    job = running(slurm, script)
    first = ask(slurm, job, script)
    slurm.cancel(first.job)
    assert ask(slurm, job, script) == Successor(job=first.job, found=True)
