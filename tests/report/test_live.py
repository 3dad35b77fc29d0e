"""The picture of `ftsup top`: whole scenes word for word, and what holds at every size."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.events import Fault, How
from ftsup.report.live import Frame, Size, Track, frame
from ftsup.report.rankmap import ASCII, UNICODE
from ftsup.report.runs import View
from tests.report.leader import NODES, Leader
from tests.report.scenes import RUN, seen, trained, wall


def picture(
    leader: Leader, view: View | None = None, *, columns: int = 80, rows: int = 24, glyphs=UNICODE, scroll: int = 0, **how
) -> Frame:
    view = view or seen(leader, **how)
    size = Size(columns=columns, rows=rows)
    return frame(view, Track().after(view), now=wall(leader), size=size, glyphs=glyphs, scroll=scroll)


def lines(found: Frame) -> list[str]:
    """Without the empty ones."""
    return [line.plain.rstrip() for line in found.lines if line.plain.strip()]


def test_a_run_that_trains():
    assert lines(picture(trained(), phases={3: "checkpoint"})) == [
        "demo/20260102-030405-00aa                                               03:12:08",
        "training; job 7, attempt 1.1, 2 nodes; 9 h 52 min of the grant left",
        "next: a save is asked for in 30 min; requeue before the time limit at 13:03",
        "step 484, 60 steps/min         ▂██████████████████████████████  last 10 min",
        "sealed step420, 0 s ago; 64 steps (1 min 4 s) would be lost now",
        "budgets left: attempts 199 of 200, the others full",
        "─ 4 ranks on 2 nodes, a symbol a rank ──────────────────────────────────────────",
        "n1 ■■  n2 ■◆",
        "◆ 1 saving   ■ 3 training",
        "─ 0 incidents, 1 attempt in 1 grant ────────────────────────────────────────────",
        "q quits  ↑↓ scroll  ftsup explain demo/20260102-030405-00aa tells all of it",
    ]


def test_a_hang_among_8192_ranks_in_ascii():
    leader = trained()
    leader.after(9).hang(at=484)
    leader.take(ev.Noted(node="n1", text="the disk is slow"))
    assert lines(picture(leader, nodes=1024, per_node=8, blame=4711, glyphs=ASCII)) == [
        "demo/20260102-030405-00aa                                               03:12:17",
        "recovering; job 7, attempt 1.1, 1024 nodes; 9 h 51 min of the grant left",
        "next: evidence is being taken on n1, n2",
        "step 484            =#########################################  last 10 min",
        "sealed step420, 9 s ago",
        "budgets left: attempts 199 of 200, the others full",
        "- 8192 ranks on 1024 nodes, a symbol for 4 nodes: its worst rank ---------------",
        "n0001 " + "#" * 74,
        "n0297 " + "#" * 73 + "X",
        "n0593 " + "#" * 74,
        "n0889 " + "#" * 34,
        "X 1 fault   # 8191 training",
        "X rank 4711 on n0589 stood still for 5.2 s (limit 5 s) at step 484",
        "- 1 incident, 1 attempt in 1 grant ---------------------------------------------",
        "incident 1, 0 s ago, attempt 1.1: rank 4711 on n0589 stood still for 5.2 s",
        "  (limit 5 s) at step 484; found after 5.2 s; not back at work",
        "- notes ------------------------------------------------------------------------",
        "n1: the disk is slow",
        "q quits  up/down scroll  ftsup explain demo/20260102-030405-00aa tells all of it",
    ]


def story_of_many() -> Leader:
    """Eight incidents that were survived, and one that was not yet."""
    leader = trained()
    for number in range(8):
        step = 1000 + 100 * number
        leader.after(600).train(step)
        leader.take(ev.RankEnded(node="n1", epoch=leader.epoch, fault=Fault(how=How.EXIT, node="n1", rank=1, step=step, code=3)))
        leader.end_attempt()
        leader.launch(checkpoint=step)
        leader.after(5).train(step + 1)
    leader.after(60).hang(at=1999)
    return leader


@pytest.mark.parametrize("nodes, per_node", [(1, 1), (2, 2), (2, 8), (125, 8), (1024, 8)])
@pytest.mark.parametrize("columns, rows", [(80, 24), (81, 40), (200, 50)])
def test_it_fills_every_size_and_the_culprit_is_always_named(nodes, per_node, columns, rows):
    leader, last = story_of_many(), nodes * per_node - 1
    found = picture(leader, nodes=nodes, per_node=per_node, blame=last, columns=columns, rows=rows)
    assert len(found.lines) == rows
    assert max(line.cell_len for line in found.lines) <= columns
    text = [line.plain for line in found.lines]
    assert any(f"✖ rank {3 if nodes == 2 else last} on " in line for line in text)
    assert any("✖ 1 fault" in line for line in text)
    assert any(line.startswith("incident 9") for line in text)
    assert text[-1].startswith("q quits")


def test_incidents_are_scrolled_to_the_oldest_and_no_further():
    leader = story_of_many()
    top = picture(leader)
    assert top.most > 0
    assert any("0 to" in line for line in lines(top))
    for far in (top.most, top.most + 100):
        text = "\n".join(lines(picture(leader, scroll=far)))
        assert "incident 1, 1 h 11 min ago, attempt 1.1" in text
        assert "incident 9" not in text


@pytest.mark.parametrize("columns, rows", [(79, 24), (80, 23), (20, 5), (1, 1)])
def test_a_terminal_that_is_too_small_is_told_so_politely(columns, rows):
    found = picture(trained(), columns=columns, rows=rows)
    assert len(found.lines) == rows
    assert max(line.cell_len for line in found.lines) <= columns
    if columns > 1:
        assert f"ftsup top needs 80 columns and 24 rows; here are {columns} and {rows}" in " ".join(lines(found))


def test_a_run_that_is_over_has_a_sentence_and_no_ranks():
    leader = trained()
    for node in NODES:
        leader.take(ev.AttemptOver(node=node, epoch=leader.epoch, code=0))
    assert lines(picture(leader))[1:4] == ["finished; job 7, attempt 1.1, 2 nodes", "training finished", "next: nothing: it is done"]
    assert not any("symbol a rank" in line for line in lines(picture(leader)))


@pytest.mark.parametrize(
    "view, said",
    [
        (View(id=RUN, path="/r"), "next: nothing: it was never submitted"),
        (View(id=RUN, path="/r", jobs=("7",)), f"next: it depends on Slurm, which ftsup status {RUN} asks"),
        (View(id=RUN, path="/r", jobs=("7",), cancelled=True), "next: nothing: it was cancelled, and does not come back"),
        (View(id=RUN, path="/r", jobs=("7",), notes=("the event log cannot be read: no",)), "note: the event log cannot be read: no"),
    ],
)
def test_a_run_of_which_nothing_is_known_has_a_sentence(view, said):
    assert said in lines(picture(Leader(), view))


def test_a_leader_that_fell_silent_has_no_training_ranks():
    leader = trained()
    view = seen(leader)
    text = lines(picture(leader.after(100), view))
    assert "the leader has said nothing for 1 min 40 s" in text
    assert "? 4 not heard of" in text


def test_nothing_that_a_terminal_would_obey_gets_through():
    leader = trained()
    leader.take(ev.Sealed(epoch=leader.epoch, name="step\x1b[2Jx", step=430))
    leader.take(ev.Noted(text="a\x1b]0;title\x07b\nc"))
    leader.take(ev.RankEnded(node="n1", epoch=leader.epoch, fault=Fault(how=How.EXCEPTION, node="n1", rank=0, error="E: \x1b[31mred\r")))
    assert all(line.plain.isprintable() for line in picture(leader).lines)


def test_a_track_has_a_point_a_look_and_begins_with_the_log():
    leader = trained().after(3)
    track = Track().after(seen(leader))
    assert [point.step for point in track.points][-3:] == [421, 481, 484]
    assert track.after(seen(leader)) == track
    leader.after(5).train(490)
    later = track.after(seen(leader))
    assert [point.step for point in later.points][-2:] == [484, 493]
    assert later.after(replace(seen(leader.after(5)), now=None)) == later


def test_little_changes_on_an_idle_screen():
    """What a slow connection has to carry each second: the clock, and ages below a minute."""
    leader = trained()
    view = seen(leader)
    track = Track().after(view)
    size = Size(columns=80, rows=24)
    first = frame(view, track, now=wall(leader.after(1)), size=size, glyphs=UNICODE)
    second = frame(view, track, now=wall(leader.after(1)), size=size, glyphs=UNICODE)
    changed = [a.plain for a, b in zip(first.lines, second.lines, strict=True) if a != b]
    assert len(changed) <= 3
