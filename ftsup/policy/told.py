"""Why are we being told to stop? TERM has six causes; each is told apart, first by what we did ourselves, then by one answer of Slurm's.

Part of the leader's machine, pure as the rest.
"""

from __future__ import annotations

import msgspec


class Unexplained(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`unexplained.json`: a grant that was told to end, and nobody has said why. Nothing was requeued."""

    job: str
    """As scontrol takes it: `123`, or `120_7`."""
    restarts: int
    """Its restart count then: a higher one shows that it was requeued all the same."""
    signal: str = "SIGTERM"
    wall: str = ""
    """When, for people."""
    why: str = ""
    """Why nobody knows: what Slurm said instead of an answer; empty: it was not heard yet."""
