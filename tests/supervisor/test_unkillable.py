"""What cannot be killed, and what cannot be found: both are said, within the deadline."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

import pytest

from ftsup.supervisor import child, proctree
from tests.supervisor import freezer
from tests.supervisor.test_child import CLOCK, Attempt, alive, running, until, wait_for

pytestmark = pytest.mark.e2e

FAMILY = """
import subprocess, time
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["env", "-i", "sleep", "601"], start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""


def named(one: Attempt, word: str) -> int:
    """The process of the attempt with this in its command line."""

    def find() -> set[int]:
        below = proctree.below([one.child.guard_pid], proctree.table())
        return {pid for pid in below if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")}

    wait_for(find, one.child)
    return find().pop()


def nameless(pid: int) -> bool:
    """`env -i` has become what it starts: the mark is gone from its environment."""
    return b"FTSUP_MARK=" not in Path(f"/proc/{pid}/environ").read_bytes()


@freezer.needed
def test_what_cannot_be_killed_is_named_in_time_and_the_rest_is_gone(tmp_path) -> None:
    one = Attempt(tmp_path, FAMILY, kill_limit_s=1.0).up()
    stuck, other = named(one, "600"), named(one, "601")
    with freezer.frozen(stuck):
        one.child.stop(grace_s=0.2, now=CLOCK.now())
        gone = one.until(child.Gone)
        (left,) = gone.left
        assert left.startswith(f"{stuck} (sleep) in state D at ")
        assert 1.2 <= gone.took_s < child.KILL_LIMIT_S / 2
        assert alive({one.child.pid, stuck, other}) == {stuck}
        again = until(child.sweep(one.mark, now=CLOCK.now(), kill_limit_s=0.5), child.Gone, [])
        assert again.left == gone.left
    wait_for(lambda: not alive({stuck}))


@freezer.needed
def test_what_cannot_be_killed_is_given_up_sooner_when_less_time_is_left(tmp_path) -> None:
    one = Attempt(tmp_path, FAMILY).up()
    stuck = named(one, "600")
    with freezer.frozen(stuck):
        begun = CLOCK.now()
        one.child.stop(grace_s=0.2, now=begun)
        wait_for(lambda: alive({one.child.pid}) == set(), one.child)
        one.child.stop(grace_s=0.2, now=CLOCK.now(), kill_limit_s=1.0)
        assert one.until(child.Gone).left
        assert CLOCK.now() - begun < 10.0 < child.KILL_LIMIT_S
    wait_for(lambda: not alive({stuck}))


@freezer.needed
def test_a_guard_that_cannot_act_is_not_waited_for_without_end(tmp_path) -> None:
    one = Attempt(tmp_path, FAMILY).up()
    guard = one.child._program  # noqa: SLF001
    with freezer.frozen(one.child.guard_pid):
        one.child.stop(grace_s=0.2, now=CLOCK.now())
        (gone,) = one.child.poll(CLOCK.now() + child.KILL_LIMIT_S + 31)
    guard.reap(limit_s=10)
    assert gone.left == (f"the guard of {one.mark} does not answer",)
    until(child.sweep(one.mark, now=CLOCK.now()), child.Gone, [])


def test_what_only_a_dead_guard_knew_lives_on_and_that_is_said(tmp_path) -> None:
    one = Attempt(tmp_path, FAMILY).up()
    marked, hidden = named(one, "600"), named(one, "601")
    wait_for(lambda: nameless(hidden), one.child)
    try:
        os.kill(one.child.guard_pid, signal.SIGKILL)
        gone = one.until(child.Gone)
        assert gone.unsure
        assert alive({one.child.pid, marked, hidden}) == {hidden}
    finally:
        os.kill(hidden, signal.SIGKILL)


def test_a_sweep_that_is_killed_is_made_again() -> None:
    run = f"test/{uuid.uuid4().hex}/n1"
    with running("sleep", "600", FTSUP_MARK=f"{run}/1.1") as left:
        one = child.sweep(f"{run}/", now=CLOCK.now())
        os.kill(one.guard_pid, signal.SIGKILL)
        assert until(one, child.Gone, []).left == ()
        assert left.wait(10) == -signal.SIGKILL


def test_a_sweep_that_finds_nothing_is_sure() -> None:
    with running("sleep", "600"):
        gone = until(child.sweep(f"test/{uuid.uuid4().hex}/n1/", now=CLOCK.now()), child.Gone, [])
    assert (gone.killed, gone.unsure) == (0, False)
