"""The map of the ranks: what each does, how it folds, and that nobody who is to blame is folded away."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.report.rankmap import ASCII, UNICODE, Seats, Seen, draw, legend, seats
from ftsup.report.runs import Now
from tests.report.leader import NODES
from tests.report.scenes import seen, trained


def many(nodes: int, per_node: int = 8, *, fault: int | None = None) -> Seats:
    ranks = {f"n{n:04d}": [Seen.TRAINING] * per_node for n in range(nodes)}
    if fault is not None:
        ranks[f"n{fault:04d}"][3] = Seen.FAULT
    return Seats(nodes={node: tuple(row) for node, row in ranks.items()})


def plain(seated: Seats, width: int, height: int) -> tuple[list[str], str]:
    rows, unit = draw(seated, width=width, height=height, glyphs=ASCII)
    return [row.plain.rstrip() for row in rows], unit


def test_what_each_rank_does():
    phases = {0: "import", 1: "checkpoint", 2: "evaluation", 3: "shutdown", 4: "step", 5: "a phase of the future"}
    found = seats(seen(trained(), per_node=3, phases=phases))
    assert found.nodes == {"n1": (Seen.STARTING, Seen.SAVING, Seen.EVALUATING), "n2": (Seen.ENDED, Seen.TRAINING, Seen.SILENT)}
    assert legend(found, ASCII).plain == "? 1 not heard of   o 1 starting   s 1 saving   E 1 evaluating   # 1 training   . 1 ended"


def test_who_is_to_blame_is_marked_until_the_next_attempt():
    leader = trained()
    leader.hang(rank=3)
    assert seats(seen(leader)).nodes["n2"] == (Seen.TRAINING, Seen.FAULT)
    leader.end_attempt()
    leader.launch(checkpoint=420)
    assert Seen.FAULT not in seats(seen(leader)).nodes["n2"]


def test_a_node_that_is_to_blame_is_so_with_all_its_ranks():
    leader = trained()
    view = seen(leader)
    leader.take(ev.NodeUp(node="n2", instance="another"))
    assert seats(replace(seen(leader), now=view.now)).nodes["n2"] == (Seen.FAULT, Seen.FAULT)


def test_what_nobody_told_of_is_not_shown_as_training():
    leader = trained()
    assert seats(replace(seen(leader), now=None)).nodes == {"n1": (), "n2": ()}
    assert seats(replace(seen(leader), now=Now(epoch="9.9", ranks=seen(leader).now.ranks))).nodes == {"n1": (), "n2": ()}
    assert set(seats(seen(leader), silent=True).nodes["n1"]) == {Seen.SILENT}


def test_a_grant_that_ended_has_no_ranks():
    leader = trained()
    for node in NODES:
        leader.take(ev.AttemptOver(node=node, epoch=leader.epoch, code=0))
    assert seats(seen(leader)).nodes == {}
    assert draw(Seats(nodes={}), width=80, height=5, glyphs=ASCII) == ([], "")


def test_a_symbol_a_rank_as_long_as_they_fit():
    assert plain(many(2), 80, 5) == (["n0000 ########  n0001 ########"], "a symbol a rank")
    rows, unit = plain(many(25, fault=7), 80, 5)
    assert (len(rows), unit) == (5, "a symbol a rank")
    assert rows[2] == "n0002 ########  n0007 ###X####  n0012 ########  n0017 ########  n0022 ########"


def test_then_a_symbol_a_node_and_then_one_for_some_the_worst_of_them():
    rows, unit = plain(many(128, fault=100), 80, 5)
    assert rows == ["n0000 " + "#" * 74, "n0074 " + "#" * 26 + "X" + "#" * 27]
    assert unit == "a symbol a node: its worst rank"
    rows, unit = plain(many(1024, fault=1000), 80, 5)
    assert [len(row) for row in rows] == [80, 80, 80, 40]
    assert rows[3] == "n0888 " + "#" * 28 + "X" + "#" * 5
    assert unit == "a symbol for 4 nodes: its worst rank"


@pytest.mark.parametrize("nodes", [1, 2, 16, 128, 1024, 4096])
@pytest.mark.parametrize("width, height", [(80, 1), (80, 5), (200, 20)])
def test_it_always_fits_and_the_culprit_is_never_folded_away(nodes, width, height):
    rows, _ = draw(many(nodes, fault=nodes - 1), width=width, height=height, glyphs=UNICODE)
    assert 1 <= len(rows) <= height
    assert max(row.cell_len for row in rows) <= width
    assert sum(row.plain.count(UNICODE.ranks[Seen.FAULT]) for row in rows) == 1


def test_symbols_differ_without_colour():
    for glyphs in (UNICODE, ASCII):
        assert len(set(glyphs.ranks)) == len(Seen)
    assert all(ord(char) < 128 for char in ASCII.ranks + ASCII.bars + ASCII.rule + ASCII.arrows)
