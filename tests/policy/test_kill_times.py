"""How long a kill may take is Slurm's to say: every attempt is launched with it, and a TERM fits into it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.policy import node as noding
from ftsup.policy import nodestate
from tests.policy.test_review import NODES, ONE, RULES, Bench, Desk


def test_what_slurm_says_reaches_each_launch_and_silence_changes_nothing() -> None:
    desk = Desk().lead()
    desk.tell(ev.SlurmSaid(state="RUNNING", kill_wait_s=7.0, unkillable_s=50.0), ev.SlurmSaid(state="RUNNING"))
    desk.tell(*(ev.NodeUp(node=node, instance=f"{node}:1") for node in NODES), ev.CheckpointPicked(epoch=ONE))
    desk.tell(*(ev.Prepared(node=node, epoch=ONE, address="a", port=1) for node in NODES))
    launches = [order for order in desk.all if isinstance(order, ev.Launch)]
    assert [(order.kill_wait_s, order.unkillable_s) for order in launches] == [(7.0, 50.0)] * 2


@pytest.mark.parametrize("kill_wait_s", [30.0, 5.0, 1.0, 600.0, None])
def test_the_grace_and_the_wait_for_a_word_fit_the_clusters_kill_wait(kill_wait_s: float | None) -> None:
    """None: Slurm did not say. Then ranks are told to end as if it were short, and killed as what the rules hold for usual.

    Half a second is the least that ranks get.
    """
    rules = replace(RULES, grace_s=60.0, kill_wait_s=20.0)
    bench = Bench()
    bench.order(ev.Prepare(node="n1", epoch=ONE, node_rank=0)).happen(nodestate.SetupEnded(t=0.0)).happen(
        nodestate.FilesSeen(t=0.0, epoch=ONE)
    )
    bench.order(ev.Launch(node="n1", epoch=ONE, node_rank=0, nodes=1, address="a", port=1, kill_wait_s=kill_wait_s))
    told, _ = noding.step(bench.state, nodestate.Signal(t=1.0, warning=False), rules)
    until_t = noding.told_until_t(told, rules)
    assert until_t is not None
    assert until_t - 1.0 == pytest.approx(min(10.0, 0.5 * (rules.short_kill_wait_s if kill_wait_s is None else kill_wait_s)))
    _, acts = noding.step(told, nodestate.Waited(t=until_t), rules)
    (grace_s,) = (act.grace_s for act in acts if isinstance(act, nodestate.EndChild))
    left_s = (20.0 if kill_wait_s is None else kill_wait_s) - rules.kill_margin_s - (until_t - 1.0)
    assert grace_s == pytest.approx(max(min(60.0, left_s), 0.5))
