"""The printed rules are the rules: each number in the judge's words is the one at which its row decides."""

from __future__ import annotations

from string import Formatter

import pytest
from msgspec.structs import replace

from ftsup.events import Epoch, Fault, How, VerdictKind
from ftsup.policy.judge import TABLE, Case, History, Past, back_off_s, judge
from ftsup.policy.rules import Budgets, Hang, Rules
from ftsup.policy.state import State
from ftsup.report.rulebook import Table, budget_table, judge_table, limit_table, markdown, signature_table, text

NODES = ("n1", "n2")


def rules(**limits: int) -> Rules:
    return Rules(policy=Budgets(**limits))


def case(root: Fault, *past: Fault, attempts: int = 1, row: tuple[str, ...] = ()) -> Case:
    before = tuple(Past(epoch=Epoch(1, n), root=one) for n, one in enumerate(past, 1))
    return Case(epoch=Epoch(1, 9), faults=(root,), nodes=NODES, history=History(attempts=attempts, past=before, row=row))


def fault(how: How, step: int = 0, node: str = "n1") -> Fault:
    return Fault(how=how, node=node, rank=0, step=step, error=str(step))


def row_of(one: Case, limits: Rules) -> str:
    return judge(one, limits).rule


@pytest.mark.parametrize("number", [2, 5])
def test_the_numbers_of_the_judges_words_are_those_at_which_it_decides(number) -> None:
    """`at` decides by the row, one less does not."""
    cap = rules(hard_cap=number)
    assert [row_of(case(fault(How.EXIT), attempts=n), cap) == "hard cap" for n in (number - 1, number)] == [False, True]
    ports = rules(ports=number)
    taken = [fault(How.PORT)] * number
    assert [row_of(case(fault(How.PORT), *taken[:n]), ports) == "port" for n in (number - 1, number)] == [True, False]
    spent = {"errors": How.EXIT, "hangs": How.QUIET, "crashes": How.SIGNAL, "starts": How.TORCHRUN}
    for key, how in spent.items():
        limits = replace(rules(**{key: number}), can_requeue=False)
        before = [fault(how, step=n, node=NODES[n % 2]) for n in range(number)]
        found = [row_of(case(fault(how, step=99), *before[:n]), limits) == "budget" for n in (number - 1, number)]
        assert found == [False, True], key
    same = rules(same_node=number, crashes=99)
    assert [row_of(case(fault(How.SIGNAL), row=("n1",) * n), same) == "bad node" for n in (number - 2, number - 1)] == [False, True]
    assert row_of(case(fault(How.DEVICE), row=("n1",)), same) == "bad node", "2 where its GPU failed"


def test_the_last_rows_wait_is_the_one_that_is_printed() -> None:
    limits = Rules(policy=Budgets(back_off_s=7.0, back_off_max_s=20.0, jitter=0.5))
    waits = [back_off_s(case(fault(How.EXIT), *[fault(How.EXIT, step=k) for k in range(n)]), limits) for n in range(5)]
    assert waits[0] == 0.0
    assert 7.0 <= waits[1] <= 10.5
    assert 20.0 <= waits[4] <= 30.0
    *_, (_, _, then) = judge_table(limits).rows
    assert then == "restart here; without progress since the last one, after 7s, doubling up to 20s, and up to 50% more"


def test_every_row_has_its_words_and_every_number_is_filled_in() -> None:
    table = judge_table(rules(hard_cap=77, same_node=6))
    assert [name for name, _, _ in table.rows] == [row.name for row in TABLE]
    shown = text(table)
    assert "77 attempts were made" in shown
    assert "6 hangs or crashes" in shown
    assert "{" not in shown
    for row in TABLE:
        assert row.when
        assert row.then
        assert not {name for _, name, _, _ in Formatter().parse(row.name)} - {None}


def test_without_requeue_the_words_are_others() -> None:
    off = replace(Rules(), can_requeue=False)
    shown = " ".join(text(judge_table(off)).split())
    assert "requeue without" not in shown
    assert "slurm.requeue is off: nothing is requeued." in shown
    verdict = judge(case(fault(How.SIGNAL), row=("n1",) * 2), off)
    assert (verdict.rule, verdict.kind) == ("bad node", VerdictKind.RESTART)


def test_limits_by_phase_with_what_a_run_has_measured() -> None:
    def step(limits: Rules, **measured: float) -> str:
        return next(limit for phase, limit, _ in limit_table(limits, **measured).rows if phase == "step")

    assert step(Rules()) == "30min"
    assert step(Rules(), median_s=10.0) == "3min20s"
    assert step(Rules(), median_s=1.0, restart_s=250.0) == "4min10s"
    assert step(Rules(hang=Hang(step_s=45.0)), median_s=10.0) == "45s"
    assert "20 x the measured median of 10 s, a restart's 4 min 10 s" in limit_table(Rules(), median_s=10.0, restart_s=250.0).note
    assert "as hang.step says" in limit_table(Rules(hang=Hang(step_s=45.0))).note
    keys = {words.split(":")[0] for _, _, words in limit_table(Rules()).rows}
    assert {f"hang.{field.removesuffix('_s')}" for field in Hang.__struct_fields__ if field.endswith("_s")} - keys == {"hang.step_floor"}
    assert all(len(words.split(": ", 1)[1]) > 20 for _, _, words in limit_table(Rules()).rows), "each has its reason"


def test_budgets_and_what_is_left_of_them() -> None:
    spent = State(history=History(attempts=12, past=(Past(epoch=Epoch(1, 1), root=fault(How.EXIT)),), requeues=2))
    left = {key: rest for key, _, rest, _ in budget_table(Rules(), spent).rows}
    assert (left["errors"], left["hangs"], left["requeues"], left["hard_cap"]) == ("2", "3", "3", "188")
    assert left["jitter"] == ""
    assert {len(row) for row in budget_table(Rules()).rows} == {3}
    assert all(row[-1] for row in budget_table(Rules()).rows)


@pytest.mark.parametrize("table", [judge_table(Rules()), limit_table(Rules()), budget_table(Rules(), State()), signature_table()])
def test_every_table_fits_80_columns_and_is_a_table_in_markdown(table: Table) -> None:
    assert max(map(len, text(table).splitlines())) <= 80
    rows = [line for line in markdown(table).splitlines() if line.startswith("|")]
    assert len(rows) == len(table.rows) + 2
    bars = {row.replace("\\|", "").count("|") for row in rows}
    assert bars == {len(table.head) + 1}
