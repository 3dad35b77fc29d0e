"""Durations and sizes as people write them, both ways.

Owns what `20min`, `1-12:00:00` and `512MiB` mean. Knows neither YAML nor any key; what it refuses is a ValueError that says
what is allowed.
"""

from __future__ import annotations

import math
import re

DURATION = "a duration with its unit, such as 90s, 20min, 1h30m, 2d or 1-12:00:00"
SIZE = "a size with its unit, such as 512MiB or 64GiB"

_SECONDS = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "hr": 3600, "d": 86400, "day": 86400, "days": 86400}
_NUMBER = r"\d{1,20}(?:\.\d{1,9})?"
_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)\s*")
DURATION_PATTERN = (
    rf"^\s*(?:{_NUMBER}\s*(?:ms|sec|s|min|m|hr|h|days|day|d)\s*)+$"
    r"|^\s*\d{1,6}-\d{1,2}(?::[0-5]?\d){0,2}\s*$|^\s*\d{1,6}:[0-5]?\d:[0-5]?\d\s*$"
)
"""For the JSON Schema; `seconds` is the judge."""
_SLURM = re.compile(r"(?:(?P<d>\d{1,6})-)?(?P<h>\d{1,6})(?::(?P<m>[0-5]?\d))?(?::(?P<s>[0-5]?\d))?")

_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_SIZE = re.compile(rf"({_NUMBER})\s*([KMGTP]?)(iB|B|)", re.IGNORECASE)
SIZE_PATTERN = rf"^\s*{_NUMBER}\s*(?:[KMGTPkmgtp](?:[iI]?[bB])?|[bB])\s*$"
"""For the JSON Schema; `size_bytes` is the judge."""


def seconds(text: str) -> float:
    """Seconds of a duration.

    Slurm's own forms are read where they can mean one thing only: `d-h`, `d-h:m`, `d-h:m:s` and `h:m:s`. A bare number would be
    minutes to Slurm and seconds to most people, and `1:30` is minutes and seconds to Slurm: both are refused.
    """
    text = text.strip()
    if (slurm := _SLURM.fullmatch(text)) and (slurm["d"] or slurm["s"]):
        if slurm["d"] and int(slurm["h"]) > 23:  # noqa: PLR2004 - hours of a day
            raise ValueError(f"after the days come hours from 0 to 23; allowed is {DURATION}")
        return float(int(slurm["d"] or 0) * 86400 + int(slurm["h"]) * 3600 + int(slurm["m"] or 0) * 60 + int(slurm["s"] or 0))
    if slurm and slurm["m"]:
        raise ValueError(f"could be hours and minutes or minutes and seconds; allowed is {DURATION}")
    total, at, smallest = 0.0, 0, math.inf
    while part := _PART.match(text, at):
        unit = _SECONDS.get(part[2])
        if unit is None:
            raise ValueError(f"has no unit {part[2]!r}; allowed is {DURATION}")
        if unit >= smallest:
            raise ValueError(f"has its units out of order; allowed is {DURATION}")
        total, at, smallest = total + float(part[1]) * unit, part.end(), unit
    if not at or at != len(text):
        raise ValueError(f"allowed is {DURATION}")
    return round(total, 9)


def duration(value_s: float) -> str:
    """The shortest way to write a duration that `seconds` reads back, to the microsecond."""
    whole, rest = divmod(round(value_s * 1_000_000), 1_000_000)
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        count, whole = divmod(whole, size)
        parts.append(f"{count}{unit}" if count else "")
    if rest and not whole:
        parts.append(f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "ms")
    elif rest:
        parts.append(f"{whole}.{rest:06d}".rstrip("0") + "s")
    elif whole:
        parts.append(f"{whole}s")
    return "".join(parts) or "0s"


def size_bytes(text: str) -> int:
    """Bytes of a size. `KiB` and Slurm's `K` are 1024, `kB` is 1000; a bare number is refused, only 0 means one thing."""
    found = _SIZE.fullmatch(text.strip())
    if not found or not (found[2] or found[3] or float(found[1]) == 0):
        raise ValueError(f"allowed is {SIZE}")
    letter, suffix = found[2].upper(), found[3].lower()
    if suffix == "ib" and not letter:
        raise ValueError(f"allowed is {SIZE}")
    decimal = suffix == "b" and letter
    unit = 1000 ** "KMGTP".find(letter) * 1000 if decimal else _BYTES[letter]
    return round(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit


def size(value_bytes: int) -> str:
    """The shortest way to write a size that `size_bytes` reads back exactly."""
    for letter in "PTGMK":
        if value_bytes and value_bytes % _BYTES[letter] == 0:
            return f"{value_bytes // _BYTES[letter]}{letter}iB"
    return f"{value_bytes}B"
