"""What people are told about what is ahead, from states that the machine itself came to."""

from __future__ import annotations

import pytest

from ftsup import events as ev
from ftsup.events import Ears, Fault, How
from ftsup.policy.outlook import Budget, Outlook, outlook
from ftsup.policy.rules import Rules
from tests.report.leader import NODES, Leader


@pytest.fixture
def leader() -> Leader:
    one = Leader()
    one.grant()
    return one


def seen(leader: Leader, *, asks: bool = True) -> Outlook:
    return outlook(leader.state, Rules(), now=leader.t, asks=asks)


def test_a_grant_begins_with_full_budgets_and_waits_for_its_nodes():
    leader = Leader()
    leader.take(ev.LeaderStarted(job="7", restarts=0, host="n1", pid=1, nodes=NODES))
    first = seen(leader)
    assert first.waiting == NODES
    assert first.until_s == Rules().hello_s / 2  # then those that are missing are started once more
    assert first.budgets == {
        "hangs": Budget(left=3, of=3),
        "errors": Budget(left=3, of=3),
        "crashes": Budget(left=4, of=4),
        "starts": Budget(left=4, of=4),
        "requeues": Budget(left=5, of=5),
        "hard_cap": Budget(left=200, of=200),
    }


def test_training_the_next_save_and_the_requeue_before_the_limit_are_ahead(leader):
    leader.launch()
    leader.after(3).train(100)
    leader.after(60).take(ev.SlurmSaid(state="RUNNING", left_s=3600.0, kill_wait_s=30.0))
    found = seen(leader)
    assert (found.waiting, found.until_s) == ((), None)
    assert found.save_s == Rules().every_s - 60
    assert seen(leader, asks=False).save_s is None
    assert found.end_s == 3600 - 30 - Rules().end_margin_s
    leader.take(ev.Warned(node="n1"))
    assert seen(leader).save_s is None
    for node in NODES:
        leader.take(ev.Counted(node=node, epoch=leader.epoch, save=1, least=5, most=6, ears=Ears.NONE))
    assert seen(leader).save_s is not None


def test_what_is_spent_without_progress_and_how_long_a_back_off_lasts(leader):
    for _ in range(2):
        leader.launch()
        leader.after(3).take(
            ev.RankEnded(node="n1", epoch=leader.epoch, fault=Fault(how=How.EXIT, node="n1", rank=1, code=3, phase="init"))
        )
        leader.end_attempt()
    found = seen(leader)
    assert (found.budgets["errors"], found.budgets["hangs"]) == (Budget(left=1, of=3), Budget(left=3, of=3))
    assert found.budgets["hard_cap"] == Budget(left=198, of=200)
    assert 10.0 <= found.until_s <= 12.5
    leader.after(4)
    assert seen(leader).until_s == pytest.approx(found.until_s - 4)
    leader.after(500)
    assert seen(leader).until_s == 0.0


def test_what_is_over_has_no_end_before_it(leader):
    leader.launch()
    leader.take(ev.SlurmSaid(state="RUNNING", left_s=3600.0))
    for node in NODES:
        leader.take(ev.AttemptOver(node=node, epoch=leader.epoch, code=0))
    assert leader.state.end_t is not None
    assert seen(leader).end_s is None
