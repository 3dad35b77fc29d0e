"""What the demo shows, with and without a terminal, from stories that the leader's own machine told."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ftsup.cli.demo_hands import Seat
from ftsup.cli.demo_proof import outcomes
from ftsup.cli.demo_view import Scene, View, news, table
from ftsup.monitors.heartbeat import RankSight
from ftsup.report.story import Story, tell
from ftsup.worker.beatfile import Beat, Phase
from tests.demo.stories import DAMAGED, OLDER, SAVED, SLEEP, survived


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), width=80, height=24, force_terminal=terminal, color_system="standard" if terminal else None)


def seats() -> dict[int, Seat]:
    phases = [Phase.STEP, Phase.STEP, Phase.FIRST_STEP, Phase.CHECKPOINT]
    sights = [RankSight(rank=rank, beat=Beat(step=30, phase=phase)) for rank, phase in enumerate(phases)]
    return {sight.rank: Seat(node=f"mock{1 + sight.rank // 2}", sight=sight) for sight in sights}


def told(*, at_once: bool) -> list[str]:
    """All news of a run, line by line or from the whole log at once."""
    lines = survived().lines
    ends = [len(lines)] if at_once else range(1, len(lines) + 1)
    story, said, begin = Story(), [], 0
    for end in ends:
        after = tell(lines[:end])
        said += news(story, after, lines[begin:end])
        story, begin = after, end
    return said


def test_news_are_said_once_each_and_in_order():
    said = told(at_once=False)
    starts = [text.split()[0].rstrip(":") for text in said]
    each = ["found", "decided", "attempt", "training"]
    damage = ["found", "decided", "set", "attempt", "training"]
    warning = ["Slurm's", "Slurm's", "saved", "saved", "decided", "job", "attempt", "training"]
    assert starts == ["job", "attempt", *each, *damage, "a", *warning]
    assert said[2] == f"found: no rank moves any more, at step {SLEEP.step}"
    assert f"rank {SLEEP.rank} on n2 stood still" in said[3]
    assert "SIGKILL" in said[6]
    assert said[8].startswith(f"set aside: step-{DAMAGED:06}.pt: damaged: the file, block 1")
    assert said[10] == f"training again, from step {OLDER}"
    assert said[11:16] == [
        "a new leader, while attempt 1.3 trains on",
        "Slurm's warning came to n1",
        "Slurm's warning came to n2",
        f"saved as asked: all ranks of n1, at step {SAVED}",
        f"saved as asked: all ranks of n2, at step {SAVED}",
    ]
    assert "for the second time" in said[17]


def test_who_reads_late_misses_no_incident():
    said = told(at_once=True)
    assert len([text for text in said if text.startswith("decided")]) == 3
    assert len([text for text in said if text.startswith("training again")]) == 3


def test_nothing_new_is_nothing_said():
    story = survived().story
    assert news(story, story, []) == []


def test_the_table_fits_80_columns_and_says_it_all():
    out = console(terminal=False)
    run = survived()
    out.print(table(outcomes(run.lines, run.story, run.struck)))
    lines = out.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if line.strip() and not set(line) <= set(" ─━-")]
    columns = [" ".join(line[begin:end].strip() for line in rows) for begin, end in ((0, 18), (18, 28), (28, 40), (40, 50), (50, 80))]
    assert columns[0].split()[1:3] == ["time.sleep(3600)", "in"]
    assert "restart here" in columns[4]
    words = " ".join(columns[4].split())
    assert (
        f"block 1 (at byte 4194304): other bytes than were sealed, in head.weight; quarantined, and step-{OLDER:06}.pt was taken" in words
    )
    assert "the batch script started a new leader; attempt 1.3 trained on meanwhile" in words
    assert f"the time limit is near, and training is saved at step {SAVED}: requeue; resumed there" in words


def test_without_a_terminal_there_are_plain_lines_as_it_happens():
    out = console(terminal=False)
    view = View(out, title="the demo")
    with view:
        view.say("struck: [bold]rank 1", at_s=65.2)
        view.draw(Scene(act="training", step=3, steps=120), at_s=70)
        view.draw(Scene(act="training", step=4, steps=120), at_s=71)
        view.draw(Scene(act="training", step=4, steps=120), at_s=99)
        view.draw(Scene(act="training", step=4, steps=120), at_s=120)
        text = out.file.getvalue()
    assert text.splitlines() == [
        "the demo",
        "1:05  struck: [bold]rank 1",
        "1:10    training: step 3 of 120",
        "1:39    training: step 4 of 120",
    ]
    assert out.file.getvalue() == text


@pytest.mark.parametrize("news_count", [0, 3, 200])
def test_the_live_picture_fits_the_terminal(news_count):
    out = console(terminal=True)
    view = View(out, title="the demo")
    for n in range(news_count):
        view.say(f"number {n}: " + "a long sentence about what was found " * 4, at_s=n)
    picture = console(terminal=False)
    picture.print(view.picture(Scene(act="training", step=30, steps=120, story=survived().story, seats=seats()), at_s=75))
    lines = picture.file.getvalue().splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80
    assert any("rank 0  step 30" in line and "rank 1" in line for line in lines)
    assert any("rank 2  first step" in line for line in lines)
    assert not news_count or any(f"number {news_count - 1}" in line for line in lines) or news_count == 200


def test_after_the_live_picture_all_news_stay_on_the_screen():
    out = console(terminal=True)
    with (view := View(out, title="the demo")):
        view.say("struck: rank 1", at_s=1)
        view.draw(Scene(act="training", step=3, steps=120), at_s=2)
    assert "struck: rank 1" in out.file.getvalue().rpartition("the demo")[2]
