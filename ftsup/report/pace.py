"""How fast a run goes: a rate that pauses do not spoil, and its course over time for a line of bars. Pure.

It knows points (when, how far) of attempts, and nothing of where they came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from ftsup.events import Epoch
from ftsup.report.story import Pace, Story
from ftsup.report.words import parsed

RECENT = 10
"""So many stretches, about a minute each, make the rate."""
LEAST_S = 5.0
"""A shorter stretch says little."""
LIVE_S = 20.0
"""And one that ends with the leader's last look at its ranks even less: their answers are some seconds old."""


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Steps between two points of one attempt."""

    took_s: float
    steps: int
    epoch: Epoch

    @property
    def per_min(self) -> float:
        """Its rate."""
        return self.steps / self.took_s * 60


def stretches(pace: Sequence[Pace]) -> tuple[Stretch, ...]:
    """What lies between neighbours; over the border of two attempts or grants lies nothing."""
    found = (
        Stretch(took_s=b.at.t - a.at.t, steps=b.step - a.step, epoch=b.epoch)
        for a, b in pairwise(pace)
        if (a.epoch, a.at.grant) == (b.epoch, b.at.grant)
    )
    return tuple(one for one in found if one.took_s >= LEAST_S and one.steps >= 0)


def rate_per_min(story: Story, *, since_s: float | None = None, step_now: int | None = None) -> float | None:
    """Steps a minute of this attempt: the median of its last minutes in which it stepped, so that a save or an evaluation does not count.

    `step_now` was reached `since_s` after the last point of the log. None: not known yet.
    """
    own = [one for one in stretches(story.pace) if one.epoch == story.epoch]
    last = story.pace[-1] if story.pace else None
    if last and last.epoch == story.epoch and since_s is not None and step_now is not None and since_s >= LIVE_S and step_now > last.step:
        own.append(Stretch(took_s=since_s, steps=step_now - last.step, epoch=last.epoch))
    moved = [one.per_min for one in own[-RECENT:] if one.steps]
    return _median(sorted(moved)) if moved else None


def course(track: Sequence[Pace], *, end_s: float, span_s: float, slots: int) -> list[float]:
    """The rate in each of so many equal parts of the time before `end_s`, in steps a minute; nothing where it did not step."""
    width_s = span_s / slots
    steps = [0.0] * slots
    for a, b in pairwise(track):
        took_s = b.at.t - a.at.t
        if (a.epoch, a.at.grant) != (b.epoch, b.at.grant) or took_s <= 0 or b.step <= a.step:
            continue
        first, last = (int((t - end_s + span_s) // width_s) for t in (a.at.t, b.at.t))
        for slot in range(max(first, 0), min(last, slots - 1) + 1):
            begin_s = end_s - span_s + slot * width_s
            within_s = min(b.at.t, begin_s + width_s) - max(a.at.t, begin_s)
            steps[slot] += (b.step - a.step) * max(within_s, 0.0) / took_s
    return [done / width_s * 60 for done in steps]


def on_the_wall(pace: Pace) -> Pace | None:
    """The same point by the wall clock, which goes on over grants; None: its time cannot be read."""
    when = parsed(pace.at.wall)
    return None if when is None else replace(pace, at=replace(pace.at, t=when.timestamp()))


def bars(values: Sequence[float], *, glyphs: str) -> str:
    """Values as bars from nothing to the greatest; only nothing at all is the lowest bar."""
    top = max(values, default=0.0)
    steps = len(glyphs) - 1
    return "".join(glyphs[0 if value <= 0 else max(1, round(value / top * steps))] for value in values)


def _median(values: Sequence[float]) -> float:
    """Of sorted ones. To import the library's takes 5 ms, and people wait for `ftsup status`."""
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2
