"""How Slurm's commands print a time of day and a duration."""

from __future__ import annotations

import os
import time


def instant(when: float, *, empty: str = "Unknown") -> str:
    """A time of day as Slurm's commands print it, or as SLURM_TIME_FORMAT asks (a strftime format, such as `%s`)."""
    wish = os.environ.get("SLURM_TIME_FORMAT", "standard")
    form = "%Y-%m-%dT%H:%M:%S" if wish in {"standard", "relative", ""} else wish
    return time.strftime(form, time.localtime(when)) if when else empty


def duration(seconds: float | None, *, short: bool = False) -> str:
    """`1-02:03:04`; short as in squeue: `3:04`."""
    if seconds is None:
        return "UNLIMITED"
    days, rest = divmod(int(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{rest:02d}"
    if short and not hours:
        return f"{minutes}:{rest:02d}"
    return f"{hours}:{minutes:02d}:{rest:02d}" if short else f"{hours:02d}:{minutes:02d}:{rest:02d}"
