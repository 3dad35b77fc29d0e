"""What it takes to be satisfied: a story told by the leader's own machine; and its twins gone wrong, each with its sentence."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ftsup import events as ev
from ftsup.cli.demo_faults import KINDS, Struck
from ftsup.cli.demo_proof import missing, outcomes, recovered
from ftsup.events import Epoch, Line, VerdictKind
from ftsup.report.story import tell
from tests.demo.stories import DAMAGED, KILL, LEADER, OLDER, PLAN, REACHED, SAVED, SLEEP, last, survived, warned


def judged(lines: list[Line], struck: list[Struck], plan=PLAN):
    story = tell(lines)
    found = outcomes(lines, story, struck)
    return found, missing(story, plan, found)


def twin(change) -> list[str]:
    """What is missing when events are otherwise: `change` gets each, and its line's distance from the quarantine."""
    run = survived()
    flipped = next(n for n, line in enumerate(run.lines) if isinstance(line.event, ev.Quarantined))
    changed = [(n - flipped, line, change(line.event, n - flipped)) for n, line in enumerate(run.lines)]
    return judged([replace(line, event=event) for _, line, event in changed if event is not None], run.struck)[1]


def without(kind: type, *, where=lambda event: True, after: int = 0):
    """No such events, from the quarantine on."""
    return lambda event, n: None if isinstance(event, kind) and n >= after and where(event) else event


def other(kind: type, *, after: int = 0, where=lambda event: True, **fields):
    """Such events with other words in them."""
    return lambda event, n: replace(event, **fields) if isinstance(event, kind) and n >= after and where(event) else event


def test_nothing_is_missing_when_every_fault_was_seen_and_survived():
    run = survived()
    found, said = judged(run.lines, run.struck)
    assert said == []
    assert recovered(tell(run.lines), found)
    assert [one.struck.strike.kind for one in found] == list(KINDS)
    assert [one.replayed for one in found] == [
        str(SLEEP.step - 12),
        str(KILL.step - OLDER),
        f"{DAMAGED - OLDER} of these",
        "0",
        str(REACHED - SAVED),
    ]
    assert all(one.found and one.back and one.found <= one.back for one in found)
    words = [
        "restart here",
        "restart here",
        f"block 1 (at byte 4194304): other bytes than were sealed, in head.weight; quarantined, and step-{OLDER:06}.pt was taken",
        "a new leader; attempt 1.3 trained on",
        f"training is saved at step {SAVED}: requeue; resumed there",
    ]
    assert all(word in one.made for word, one in zip(words, found, strict=True))


# Ranks --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{"slept": (SLEEP.rank + 1) % 4}, {"killed": (KILL.rank + 1) % 4}, {"signal_name": "SIGSEGV"}],
    ids=["another rank is said to sleep", "another rank is said to be killed", "another signal"],
)
def test_a_rank_that_is_taken_for_another_is_missing(change):
    run = survived(**change)
    _, said = judged(run.lines, run.struck)
    assert len(said) == 2, said
    assert said[0].startswith("was not seen as what it was")
    assert said[1].startswith("nobody struck, and yet")


@pytest.mark.parametrize("number", range(5))
def test_a_fault_that_did_not_strike_is_missing(number):
    run = survived()
    struck = [one for n, one in enumerate(run.struck) if n != number]
    said = judged(run.lines, struck)[1]
    assert said[0] == f"did not strike: {PLAN[number].text}"
    opened = {0: "rank 1 on n2 stood still", 1: "rank 0 on n1 was ended by SIGKILL", 4: "the job was requeued"}.get(number)
    assert [text.startswith(f"nobody struck, and yet: {opened}") for text in said[1:]] == ([True] if opened else [])


def test_training_that_did_not_come_back_is_missing():
    run = survived()
    lines = run.lines[: last(run.lines, ev.LeaderStarted)]
    found, said = judged(lines, run.struck)
    assert said == ["training did not come back after Slurm's warning"]
    assert not recovered(tell(lines), found)


def test_another_verdict_than_expected_is_missing():
    run = survived()
    number = next(n for n, line in enumerate(run.lines) if isinstance(line.event, ev.AttemptOver) and line.orders)
    stop = ev.Verdict(kind=VerdictKind.STOP, reason="had enough")
    orders = tuple(replace(order, verdict=stop) if isinstance(order, ev.Incident) else order for order in run.lines[number].orders)
    run.lines[number] = replace(run.lines[number], orders=orders)
    said = judged(run.lines, run.struck)[1]
    assert said == [f"restart should have been decided after {SLEEP.text}; decided: had enough"]


def test_an_incident_too_many_is_said():
    run = survived()
    run.hang(rank=0, at=95)
    run.end_attempt()
    run.pick(SAVED)
    (said,) = judged(run.lines, run.struck)[1]
    assert said.startswith("nobody struck, and yet: rank 0 on n2 stood still")


# A checkpoint -------------------------------------------------------------------------------------------------------------

NAME = f"step-{DAMAGED:06}.pt"


def first_pick(event, n: int) -> bool:
    return isinstance(event, ev.CheckpointPicked) and n == 1


@pytest.mark.parametrize(
    "change, expected",
    [
        (without(ev.Quarantined), f"{NAME} is damaged, and was not quarantined"),
        (other(ev.Quarantined, name="step-000012.pt"), f"{NAME} is damaged, and was not quarantined"),
        (
            other(ev.Quarantined, why="the file, block 11 (at byte 0): bytes"),
            f"the bit was flipped in block 1 of {NAME}; it was quarantined with these words: the file, block 11 (at byte 0): bytes",
        ),
        (
            lambda event, n: replace(event, name="step-000012.pt", step=12) if first_pick(event, n) else event,
            f"step-{OLDER:06}.pt should have been taken instead of {NAME}; taken: step-000012.pt",
        ),
        (
            lambda event, n: replace(event, name="", path=None, step=None) if first_pick(event, n) else event,
            f"step-{OLDER:06}.pt should have been taken instead of {NAME}; taken: none",
        ),
        (
            lambda event, n: replace(event, name=NAME, step=DAMAGED) if first_pick(event, n) else event,
            f"training was resumed from {NAME}, which is damaged",
        ),
    ],
    ids=["not quarantined", "another", "another block", "an older one", "none", "the damaged one"],
)
def test_a_damaged_checkpoint(change, expected):
    assert twin(change) == [expected]


def test_a_damaged_checkpoint_that_is_taken_later_on():
    change = other(ev.CheckpointPicked, after=2, name=NAME, step=DAMAGED)
    assert f"training was resumed from {NAME}, which is damaged" in twin(change)


def test_steps_lost_with_a_checkpoint_are_counted():
    def change(event, n: int):
        return replace(event, fault=replace(event.fault, step=DAMAGED - 9)) if isinstance(event, ev.RankEnded) else event

    run = survived()
    run.lines = [replace(line, event=change(line.event, 0)) for line in run.lines]
    run.lines = [line for line in run.lines if not (isinstance(line.event, ev.Progressed) and line.event.step == KILL.step)]
    orders = [tuple(_shorter(order) for order in line.orders) for line in run.lines]
    lines = [replace(line, orders=those) for line, those in zip(run.lines, orders, strict=True)]
    assert f"12 steps were lost with {NAME}; counted as replayed: {DAMAGED - 9 - OLDER}" in judged(lines, run.struck)[1]


def _shorter(order):
    """The incident of the kill, as if it had been found at an earlier step."""
    if not isinstance(order, ev.Incident) or order.epoch != Epoch(1, 2):
        return order
    faults = tuple(replace(fault, step=DAMAGED - 9) for fault in order.faults)
    return replace(order, faults=faults, root=order.root and replace(order.root, step=DAMAGED - 9))


# The leader ---------------------------------------------------------------------------------------------------------------


def second(event) -> bool:
    return isinstance(event, ev.LeaderStarted) and event.pid == 2


@pytest.mark.parametrize(
    "change, expected",
    [
        (without(ev.NodeUp, where=lambda event: event.node == "n2", after=5), "the new leader did not find attempt 1.3 at work on n2"),
        (other(ev.NodeUp, running=Epoch(1, 4), after=5), "the new leader did not find attempt 1.3 at work on n1, n2"),
        (
            without(ev.Progressed, where=lambda event: event.step > LEADER.step and event.epoch == Epoch(1, 3)),
            "attempt 1.3 did not train on after kill -9 of the leader",
        ),
    ],
    ids=["a node is gone", "another attempt", "no step"],
)
def test_training_that_did_not_go_on_without_the_leader(change, expected):
    assert twin(change) == [expected]


def test_a_leader_that_nobody_started_again():
    run = survived()
    number = next(n for n, line in enumerate(run.lines) if second(line.event))
    found, said = judged(run.lines[:number], run.struck[:4], PLAN[:4])
    assert said == ["no new leader was started after kill -9 of the leader"]
    assert not recovered(tell(run.lines[:number]), found)
    run.lines = run.lines[:number]
    run.hang(rank=0, at=LEADER.step + 1)
    run.end_attempt()
    run.pick(60)
    found, said = judged(run.lines, run.struck[:4], PLAN[:4])
    assert recovered(tell(run.lines), found), "the next strike must not wait for ever"
    assert len(said) == 2


def test_the_next_fault_waits_for_the_new_leader():
    run = survived()
    up = last(run.lines, ev.Warned) - 3
    for n, ready in ((up - 1, False), (up, True)):
        lines = run.lines[: n + 1]
        assert recovered(tell(lines), outcomes(lines, tell(lines), run.struck[:4])) is ready, lines[-1].event


# The time limit -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, expected",
    [
        (without(ev.Warned), ["Slurm's warning did not reach ftsup"]),
        (without(ev.SaveOver), ["nothing was saved because of Slurm's warning"]),
        (
            without(ev.SaveOver, where=lambda event: event.node == "n2"),
            ["the save because of Slurm's warning was not on all ranks: none on n2"],
        ),
        (
            other(ev.SaveOver, where=lambda event: event.node == "n2", missed=(3, 2)),
            ["the save because of Slurm's warning was not on all ranks: without rank 2, 3"],
        ),
        (
            other(ev.SaveOver, where=lambda event: event.node == "n2", step=94),
            ["the ranks saved at different steps because of Slurm's warning: 93, 94"],
        ),
        (other(ev.SaveOver, step=None), ["the ranks saved at different steps because of Slurm's warning: None"]),
        (
            other(ev.CheckpointPicked, after=5, step=84, name="step-000084.pt"),
            ["the save at step 93 was not resumed from, but step 84 (steps replayed: 9)"],
        ),
    ],
    ids=["not heard of", "no save", "not on a node", "without ranks", "at two steps", "at no known step", "resumed elsewhere"],
)
def test_a_warning_that_was_not_used(change, expected):
    assert twin(change) == expected


def test_a_node_that_looks_late_tells_the_scripts_own_next_save():
    run = survived()
    late = other(ev.SaveOver, where=lambda event: event.node == "n2", step=96)
    run.lines = [replace(line, event=late(line.event, 0)) for line in run.lines]
    assert judged(run.lines, run.struck)[1] == ["the ranks saved at different steps because of Slurm's warning: 93, 96"]
    run.seal(96)
    assert judged(run.lines, run.struck)[1] == []


def test_a_later_save_of_the_scripts_own_is_as_good():
    run = survived()
    picked = last(run.lines, ev.CheckpointPicked)
    run.lines[picked] = replace(run.lines[picked], event=replace(run.lines[picked].event, step=96, name="step-000096.pt"))
    found, said = judged(run.lines, run.struck)
    assert said == []
    assert "resumed at step 96, which the script saved later still" in found[-1].made


def test_a_requeue_by_somebody_else_is_not_ours():
    run = warned()
    run.take(ev.Signalled(signal="SIGTERM"))
    run.after(1).take(ev.SlurmSaid(state="PENDING", restarts=1))
    run.grant(1, waited_s=2)
    run.pick(84)
    said = judged(run.lines, run.struck)[1]
    assert said == ["was not seen as what it was: Slurm's warning", "nobody struck, and yet: the job was requeued"]
