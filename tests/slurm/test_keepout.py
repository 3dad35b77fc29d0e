"""Nodes that a job's next grant shall not get: against the fake."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftsup.ports import Partition
from ftsup.slurm.fake import FakeSlurm
from ftsup.slurm.keepout import KeptOut, fitting, keep_out, requeue_without
from tests.slurm.conftest import running

ALL = ("n1", "n2", "n3", "n4")


@pytest.mark.parametrize(
    "nodes,others,usable,needed,found",
    [
        (("n1",), (), ALL, 2, (("n1",), ())),
        (("n1", "n2"), (), ALL, 2, (("n1", "n2"), ())),
        (("n1", "n2", "n3"), (), ALL, 2, (("n2", "n3"), ("n1",))),  # the oldest first
        (("n1", "n2"), ("n4",), ALL, 2, (("n2",), ("n1",))),
        (("n1", "n2"), ("n1",), ALL, 2, (("n1", "n2"), ())),  # the user's own stays, whatever follows
        (("n9", "n1"), (), ALL, 4, (("n9",), ("n1",))),  # one that is down frees nothing
        (("n1", "n2"), (), ("n3",), 2, (("n1", "n2"), ())),  # letting them in would not help
        (("n1", "n1"), (), ("n1", "n2"), 1, (("n1", "n1"), ())),
        ((), (), (), 1, ((), ())),
    ],
)
def test_enough_nodes_remain(nodes, others, usable, needed, found) -> None:
    kept, let_in = found
    assert fitting(nodes, others=others, usable=usable, needed=needed) == KeptOut(nodes=kept, let_in=let_in)


def test_merged_with_the_users_own_in_the_completing_window(script: Path) -> None:
    slurm = FakeSlurm()
    job = running(slurm, script, "--exclude=n4", "--nodes=1")
    slurm.requeue(job)
    assert slurm.show(job).completing
    assert keep_out(slurm, job, nodes=["n1"]) == KeptOut(nodes=("n1",))
    assert slurm.show(job).excluded == ("n4", "n1")
    assert keep_out(slurm, job, nodes=["n2"], drop=["n1"]) == KeptOut(nodes=("n2",))
    assert slurm.show(job).excluded == ("n4", "n2")


def test_a_job_of_all_nodes_keeps_none_out(script: Path) -> None:
    slurm = FakeSlurm()
    job = running(slurm, script, "--nodes=4")
    slurm.requeue(job)
    assert keep_out(slurm, job, nodes=["n1", "n2"]) == KeptOut(let_in=("n1", "n2"))
    assert slurm.show(job).excluded == ()


def test_a_drained_node_is_none_that_remains(script: Path) -> None:
    slurm = FakeSlurm(node_states={"n3": ("IDLE+DRAIN", "mended tomorrow")})
    job = running(slurm, script)
    slurm.requeue(job)
    assert keep_out(slurm, job, nodes=["n1", "n2"]) == KeptOut(nodes=("n2",), let_in=("n1",))
    assert slurm.show(job).excluded == ("n2",)


def test_a_partition_that_cannot_be_seen_caps_nothing(script: Path) -> None:
    slurm = FakeSlurm(partition_list=[Partition(name="other", nodes=("n1",))])
    job = running(slurm, script, "--nodes=4")
    slurm.requeue(job)
    assert keep_out(slurm, job, nodes=["n1"]) == KeptOut(nodes=("n1",))


# Requeue, and at once what has to follow ----------------------------------------------------------------------------------


def test_requeued_and_kept_out_in_one_go(script: Path) -> None:
    slurm = FakeSlurm()
    job = running(slurm, script, "--nodes=1", "--exclude=n4")
    found = requeue_without(slurm, job, restarts=0, nodes=["n1", "n2", "n3"], drop=["n4"])
    assert (found.job.completing, found.job.restarts, found.why) == (True, 1, "")
    assert found.kept_out == KeptOut(nodes=("n1", "n2", "n3"))
    slurm.advance(200)
    assert slurm.show(job).nodes == ("n4",)


def test_a_requeue_that_does_not_show_keeps_nobody_out(script: Path) -> None:
    """Somebody has cancelled it meanwhile, and `incomplete` does nothing."""
    slurm = FakeSlurm()
    job = running(slurm, script)
    slurm.cancel(job)
    found = requeue_without(slurm, job, restarts=0, nodes=["n1"])
    assert (found.kept_out, found.why, found.job.restarts) == (None, "the requeue did not show", 0)


def test_a_refused_list_does_not_undo_the_requeue(script: Path) -> None:
    slurm = FakeSlurm()
    job = running(slurm, script)
    found = requeue_without(slurm, job, restarts=0, nodes=["elsewhere"])
    assert (found.kept_out, found.job.restarts) == (None, 1)
    assert "Invalid node name" in found.why
