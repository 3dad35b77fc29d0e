"""How times and foreign words are said to people, the same in every report. Pure text; never looks at a clock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime


def short_time(value_s: float | None) -> str:
    """A duration in the two units that matter: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `1 d 3 h`."""
    if value_s is None:
        return "?"
    if value_s < 9.95:  # noqa: PLR2004 - two digits from here on
        return f"{max(value_s, 0.0):.1f} s"
    whole = round(value_s)
    for size, name, smaller, less in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            more, rest = whole // size, whole % size // smaller
            return f"{more} {name} {rest} {less}" if rest else f"{more} {name}"
    return f"{whole} s"


def one_line(text: str, *, width: int) -> str:
    """Text without control characters (a terminal would obey them), cut to a width."""
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= width else text[: width - 3] + "..."


def parsed(wall: str) -> datetime | None:
    """A time as the log has it; None: not readable, or without its zone."""
    try:
        when = datetime.fromisoformat(wall)
    except ValueError:
        return None
    return when if when.tzinfo else None


def clock(when: datetime, *, now: datetime) -> str:
    """The time on the reader's wall; with the day where that is another one."""
    when = when.astimezone(now.tzinfo)
    return f"{when:%H:%M}" if when.date() == now.date() else f"{when:%Y-%m-%d %H:%M}"


def names(found: Sequence[str], *, most: int = 4) -> str:
    """Names in a row, cut to a few: `n1, n2, n3, n4 and 12 more`."""
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def count(number: int, noun: str) -> str:
    """`1 step`, `3 steps`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ago(past_s: float) -> str:
    """`3 s ago`, `2 h 5 min ago`: nobody wants tenths of the past."""
    return f"{to_the_minute(past_s)} ago"


def to_the_minute(value_s: float) -> str:
    """Whole seconds below a minute, then whole minutes."""
    whole = max(round(value_s), 0)
    return f"{whole} s" if whole < 60 else short_time(whole // 60 * 60)  # noqa: PLR2004 - seconds of a minute


def ended(how: str, why: str) -> str:
    """`stopped (why)`; a reason that says it already stands alone: `stopped by ada, saved step 80`."""
    return why if why.startswith(f"{how} ") else f"{how} ({why})" if why else how
