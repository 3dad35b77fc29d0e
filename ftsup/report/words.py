"""How faults, times and verdicts are said to people: one sentence each, the same in every report.

Pure text. Knows events, decides nothing, and never looks at a clock.
"""

from __future__ import annotations

from ftsup.events import Fault, How

_ENDED = {
    How.RETURNED: "ended well",
    How.EXIT: "ended with exit code {code}",
    How.EXCEPTION: "ended with {error}",
    How.PEER: "lost its peers: {error}",
    How.SIGNAL: "was ended by {signal}",
    How.QUIET: "hung: nothing for {quiet} (limit {limit})",
    How.STORAGE: "waited for storage for {quiet} (limit {limit})",
    How.WAITING: "waited for other ranks for {quiet} (limit {limit})",
    How.STOPPED: "was stopped (SIGSTOP) for {quiet} (limit {limit})",
    How.NODE: "lost its supervisor",
    How.TORCHRUN: "lost torchrun: {error}",
    How.PORT: "found the rendezvous port taken",
    How.SETUP: "could not be set up: {error}",
    How.HELLO: "never said hello",
    How.UNKILLABLE: "holds what cannot be killed: {error}",
    How.WARNED: "was warned by Slurm",
}


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


def fault_sentence(fault: Fault) -> str:
    """`rank 3 on n2 hung: nothing for 5.2 s (limit 5.0 s), in step 118, at train.py:41 in forward`."""
    who = f"rank {fault.rank} on {fault.node}" if fault.rank is not None else fault.node or "the job"
    what = _ENDED[fault.how].format(
        code="?" if fault.code is None else fault.code,
        error=fault.error or "an error that left no words",
        signal=fault.signal or "a signal",
        quiet=short_time(fault.quiet_s),
        limit=short_time(fault.limit_s),
    )
    place = [f"after step {fault.step}" if fault.step is not None else f"in phase {fault.phase}" if fault.phase else ""]
    place.append(f"at {fault.where}" if fault.where else "")
    return ", ".join([f"{who} {what}", *(part for part in place if part)])


def one_line(text: str, *, width: int) -> str:
    """Text without control characters (a terminal would obey them), cut to a width."""
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= width else text[: width - 3] + "..."
