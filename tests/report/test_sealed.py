"""What a status page says of checkpoints: the newest that is sealed, what would be lost now, and what was set aside."""

from __future__ import annotations

from datetime import datetime, timezone

from ftsup import events as ev
from ftsup.report.page import Page, page
from ftsup.report.pagetext import text
from ftsup.report.runs import View
from tests.report.leader import Leader

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def shown(leader: Leader) -> Page:
    return page(View(id="a/1", path="/runs/a/1", story=leader.story), now=NOW)


def sealed(leader: Leader, name: str, step: int | None) -> None:
    leader.take(ev.Sealed(epoch=leader.epoch, name=name, step=step, size_bytes=5))


def test_newest_sealed_checkpoint_and_what_would_be_lost_now() -> None:
    leader = Leader()
    leader.grant()
    leader.launch()
    assert (shown(leader).sealed, shown(leader).at_risk) == (None, None)
    for name, step in (("step40", 40), ("step60", 60), ("step50", 50)):  # the newest is sealed first, older ones later
        sealed(leader, name, step)
    leader.train(67)
    facts = shown(leader)
    assert (facts.sealed, facts.sealed_step, facts.at_risk) == ("step60", 60, 7)
    assert "sealed step60, 0 s ago; 7 steps would be lost now" in " ".join(text(facts, now=NOW).split())


def test_damaged_one_is_told_with_its_place_and_the_one_before_is_the_newest() -> None:
    leader = Leader()
    leader.grant()
    leader.launch()
    sealed(leader, "step40", 40)
    sealed(leader, "step60", 60)
    leader.take(ev.Quarantined(name="step60", why="damaged: block 3", path="/c/.ftsup/quarantine/step60.1/step60"))
    facts = shown(leader)
    assert (facts.sealed, facts.sealed_step) == ("step40", 40)
    flat = " ".join(text(facts, now=NOW).split())
    assert "checkpoint step60 was set aside, damaged: block 3; it lies in /c/.ftsup/quarantine/step60.1/step60" in flat
    leader.take(ev.Pruned(names=("step40",), size_bytes=5))
    assert shown(leader).sealed is None


def test_checkpoints_without_steps_are_told_without_a_number() -> None:
    leader = Leader()
    leader.grant()
    leader.launch()
    sealed(leader, "last", None)
    leader.train(67)
    assert (shown(leader).sealed, shown(leader).at_risk) == ("last", None)
    assert "sealed last, 0 s ago\n" in text(shown(leader), now=NOW)
