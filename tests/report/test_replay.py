"""An old log before today's rules: the same rules decide the same; others are found at the line where they do."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from ftsup import eventlog
from ftsup import events as ev
from ftsup.config import from_json
from ftsup.events import Notify, Verdict, VerdictKind
from ftsup.policy.machine import step
from ftsup.policy.rules import Budgets
from ftsup.policy.state import Stage, State
from ftsup.report.replay import changes, remembered, replay, same, verdicts
from tests.report.logs import ALL, hang_and_crash, requeued, stopped
from tests.world import RULES, World

TWO = replace(RULES, workers_per_node=2)


@pytest.mark.parametrize("made", ALL, ids=lambda made: made.__name__)
def test_the_same_rules_decide_the_same(made) -> None:
    lines = made()
    outcome = replay(lines, TWO)
    assert (outcome.lines, outcome.skipped, outcome.differences) == (len(lines), 0, ())
    state = State()
    for line in lines:
        state = step(state, line.event, TWO).state
    assert outcome.state == remembered(lines, TWO) == state


def test_other_budgets_decide_otherwise_at_the_line_of_the_verdict() -> None:
    lines = hang_and_crash()
    strict = replace(TWO, policy=Budgets(hangs=0))
    first = replay(lines, strict).differences[0]
    judged = next(line for line in lines if any(isinstance(order, ev.Incident) and order.verdict for order in line.orders))
    assert (first.n, first.wall, first.event) == (judged.n, judged.wall, "AttemptOver")
    assert {verdict.kind for verdict in verdicts(first.then)} == {VerdictKind.RESTART}
    assert {verdict.kind for verdict in verdicts(first.now)} == {VerdictKind.STOP}
    said = list(changes(first))
    assert any(one.startswith("Incident (restart:") and "verdict.kind was restart, is stop" in one for one in said)
    assert any(one.startswith("Decide (stop: 1 times without progress (policy.hangs)") and one.endswith("ordered now") for one in said)
    assert any(one.startswith("PickCheckpoint") and one.endswith("not ordered any more") for one in said)


def test_words_for_people_may_change() -> None:
    old = (Notify(kind="incident", text="it broke"), ev.Decide(verdict=Verdict(kind=VerdictKind.STOP, reason="old words", rule="a")))
    new = (Notify(kind="incident", text="something broke"), ev.Decide(verdict=Verdict(kind=VerdictKind.STOP, reason="new words", rule="b")))
    assert same(old, new)
    assert not same(old, (new[0], replace(new[1], code=1)))
    assert not same(old, (replace(new[0], kind="stop"), new[1]))
    assert not same(old, new[:1])


@pytest.fixture
def patient() -> World:
    """A rank that exits twice at one step, and a minute's back-off after the second time."""
    return World(steps=60, rules=replace(RULES, policy=Budgets(back_off_s=60.0, jitter=0.0))).strike("exit", rank=0, step=22, times=2)


def test_a_shorter_back_off_is_told_by_the_line_that_decided_on_it(patient) -> None:
    lines = patient.run().log
    assert replay(lines, patient.rules).differences == ()
    first, second, *_ = replay(lines, replace(patient.rules, policy=Budgets(back_off_s=10.0, jitter=0.0))).differences
    assert any("verdict.delay_s was 60.0, is 10.0" in said for said in changes(first))
    assert (second.event, second.early_s) == ("Tick", pytest.approx(50.0, abs=2.0))
    assert list(changes(second)) == ["PickCheckpoint: ordered now"]


def test_a_leader_that_was_dead_or_away_is_not_asked_why_it_did_nothing(patient) -> None:
    lines = patient.run().log
    waits = next(n for n, line in enumerate(lines) if isinstance(line.event, ev.Tick) and line.orders)
    late = [replace(line, event=replace(line.event, t=line.event.t + (30.0 if n >= waits else 0.0))) for n, line in enumerate(lines)]
    assert replay(late, patient.rules).differences[0].early_s == pytest.approx(30.0, abs=2.0)
    told = replace(late[waits], event=ev.Away(t=late[waits].event.t - 1.0, away_s=30.0), orders=())
    assert all(difference.early_s < 30.0 for difference in replay([*late[:waits], told, *late[waits:]], patient.rules).differences)


def test_a_log_whose_beginning_is_lost_is_decided_from_the_first_leader_on() -> None:
    lines = requeued()
    second = [n for n, line in enumerate(lines) if isinstance(line.event, ev.LeaderStarted)][-1]
    outcome = replay(lines[second - 20 :], TWO)
    assert outcome.skipped == 20
    assert outcome.differences, "the run's history is not known"
    assert outcome.state.stage is Stage.OVER
    assert replay(lines[1:second], TWO).state.stage is not Stage.OVER
    assert replay([], TWO).lines == 0


def test_what_today_has_no_rule_for_is_said_and_the_rest_goes_on() -> None:
    """A state in which the machine itself is at a loss: its sentence is the difference."""
    lines = stopped()
    verdict = next(n for n, line in enumerate(lines) if any(True for _ in verdicts(line.orders)))
    holed = [line for n, line in enumerate(lines) if not isinstance(line.event, ev.RankEnded) or n > verdict]
    outcome = replay(holed, TWO)
    assert outcome.lines == len(holed)
    assert all(list(changes(difference)) for difference in outcome.differences)
    assert outcome.differences


def test_a_real_log_gets_the_verdicts_that_it_got() -> None:
    """The demo's, with a hang, a crash and a requeue by somebody else, as real supervisors and a real torchrun made it."""
    folder = Path(__file__).parents[1] / "data" / "runs" / "demo"
    notes: list[str] = []
    outcome = replay(eventlog.stream(folder / "events.jsonl", notes), from_json((folder / "config.json").read_bytes()).rules())
    assert (outcome.lines, outcome.skipped, notes) == (214, 0, [])
    decided = [[[(each.kind, each.rule) for each in verdicts(orders)] for orders in (diff.then, diff.now)] for diff in outcome.differences]
    assert [then for then, now in decided if then != now] == []
    assert outcome.state.verdict is not None
    assert outcome.state.verdict.kind is VerdictKind.FINISHED


def test_until_a_continuation_a_run_went_by_its_configuration_of_then() -> None:
    strict = replace(TWO, policy=Budgets(hangs=0))
    lines = hang_and_crash()
    judged = next(line for line in lines if any(isinstance(order, ev.Incident) and order.verdict for order in line.orders))
    at = lines.index(judged) + 1
    lines[at:at] = [replace(judged, event=ev.Continued(t=judged.event.t, n=1, who="ada"), orders=())]
    assert replay(lines, strict).differences[0].n == judged.n
    assert judged.n not in [one.n for one in replay(lines, strict, before={1: TWO}).differences]
