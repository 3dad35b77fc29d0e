"""Which nodes can run a job; and that keeping nodes out leaves enough of those, not of all that there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ftsup.ports import Job, JobState, Node, NodeState
from ftsup.slurm import jobs
from ftsup.slurm.fake import FakeSlurm
from ftsup.slurm.fits import able
from ftsup.slurm.keepout import KeptOut, spared

JOB = Job(job_id="7", state=JobState.RUNNING, num_nodes=1, nodes=("a1",), partition="main")
A100, V100, CPU = "gpu:a100:4(S:0-1),shard:16", "gpu:v100:8", ""


def node(name: str, features: str = "", gres: str = "") -> Node:
    return Node(name=name, state=NodeState.UP, features=tuple(filter(None, features.split(","))), gres=gres)


SITE = [node("a1", "a100,ib", A100), node("a2", "a100,ib", A100), node("a3", "a100", A100), node("v1", "v100,ib", V100), node("c1")]


@pytest.mark.parametrize(
    "constraint, gres, found",
    [
        ("", "", "a1 a2 a3 v1 c1"),
        ("ib", "", "a1 a2 v1"),
        ("a100&ib", "", "a1 a2"),
        ("a100,ib", "", "a1 a2"),
        ("a100|v100", "", "a1 a2 a3 v1"),
        ("", "gres:gpu:4", "a1 a2 a3 v1"),
        ("", "gres/gpu:8", "v1"),
        ("", "gpu", "a1 a2 a3 v1"),
        ("", "gres:gpu:a100:2", "a1 a2 a3"),
        ("", "gres:gpu:a100:4,gres:shard:16", "a1 a2 a3"),
        ("ib", "gres:gpu:v100:1", "v1"),
    ],
)
def test_by_what_each_node_has(constraint: str, gres: str, found: str) -> None:
    able_ = able(replace(JOB, constraint=constraint, gres=gres), SITE, known=())
    assert (able_.nodes, able_.unsure) == (tuple(found.split()), "")


@pytest.mark.parametrize(
    "wish, unsure",
    [
        ({"constraint": "[rack1|rack2]"}, "--constraint=[rack1|rack2]"),
        ({"constraint": "a100&ib|v100"}, "--constraint=a100&ib|v100"),
        ({"constraint": "ib*2"}, "--constraint=ib*2"),
        ({"gres": "gres:gpu:a100:2:3"}, "--gres=gres:gpu:a100:2:3"),
        ({"unclear": "Reservation=spring"}, "Reservation=spring"),
        ({"constraint": "nowhere"}, "nowhere"),  # Slurm took it
        ({"gres": "gres:gpu:99"}, "gres:gpu:99"),
    ],
)
def test_what_cannot_be_judged_counts_only_what_the_run_had(wish: dict[str, str], unsure: str) -> None:
    job = replace(JOB, **wish)
    assert (able(job, SITE, known={"a1"}).nodes, able(job, SITE, known={"a1"}).unsure) == (("a1", "a2"), unsure)
    assert able(job, SITE, known={"a3", "gone"}).nodes == ("a1", "a2", "a3")
    assert able(job, SITE, known={"c1"}).nodes == ("a1", "a2", "a3", "v1", "c1"), "whatever has as much"
    assert able(job, SITE, known=()).nodes == ()


class Site(FakeSlurm):
    def nodes(self, names=()):
        return [replace(one, state=super(Site, self).nodes([one.name])[0].state) for one in SITE]


@pytest.mark.parametrize(
    "wish, nodes, kept",
    [
        ({}, ("a1", "a2"), KeptOut(nodes=("a1", "a2"))),
        ({"constraint": "a100&ib"}, ("a1", "a2"), KeptOut(nodes=("a2",), let_in=("a1",))),  # c1 and v1 do not help
        ({"gres": "gres:gpu:8"}, ("v1",), KeptOut(let_in=("v1",))),
        ({"constraint": "[a|b]"}, ("a1", "a2"), KeptOut(nodes=("a2",), let_in=("a1",), unsure="--constraint=[a|b]")),
        ({"constraint": "[a|b]"}, ("a1",), KeptOut(nodes=("a1",))),
        ({"required": ("a1",)}, ("a1", "a2"), KeptOut(nodes=("a2",), let_in=("a1",))),  # or it would never start
    ],
)
def test_enough_of_those_remain_that_can_run_it(wish: dict[str, object], nodes: tuple[str, ...], kept: KeptOut) -> None:
    slurm = Site(names=[one.name for one in SITE])
    assert spared(slurm, replace(JOB, **wish), nodes=nodes, others=()) == kept  # type: ignore[arg-type]


def test_a_drained_node_is_none_of_them_and_a_partition_that_is_hidden_says_nothing() -> None:
    slurm = Site(names=[one.name for one in SITE], node_states={"a2": ("IDLE+DRAIN", "disk")})
    job = replace(JOB, constraint="a100&ib")
    assert spared(slurm, job, nodes=("a1",), others=()) == KeptOut(let_in=("a1",))
    hidden = replace(job, partition="hidden", required=("a2",))
    assert spared(slurm, hidden, nodes=("a1", "a2"), others=()) == KeptOut(nodes=("a1",), let_in=("a2",))


TEXTS = Path(__file__).parent / "texts"


def test_slurms_own_words() -> None:
    text = (TEXTS / "job-begintime.txt").read_text()
    (job,) = jobs.parse_jobs(text)
    assert (job.constraint, job.gres, job.required, job.unclear) == ("", "", (), "")
    wishes = text.replace("Features=(null)", "Features=a100&ib").replace("ReqNodeList=(null)", "ReqNodeList=n[1-2]")
    assert "   Power=\n" in wishes
    (job,) = jobs.parse_jobs(wishes.replace("   Power=\n", "   Power=\n   TresPerJob=gres:gpu:8\n   TresPerNode=gres:gpu:2\n"))
    assert (job.constraint, job.gres, job.required, job.unclear) == ("a100&ib", "gres:gpu:2", ("n1", "n2"), "TresPerJob=gres:gpu:8")
