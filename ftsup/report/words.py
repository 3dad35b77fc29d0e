"""How times and foreign words are said to people, the same in every report. Pure text; never looks at a clock."""

from __future__ import annotations


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
