"""`python -m ftsup.incident collect|code JSON`: one piece of work in a process of its own, for a supervisor that must not wait for it.

collect prints a node's faults as one line of JSON; code prints what changed in the code since the last grant, or nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from ftsup.incident import git
from ftsup.incident.collect import Job, collect


class CodeJob(msgspec.Struct, frozen=True, kw_only=True):
    """Which code a grant runs."""

    folder: str
    record_dir: str
    grant: int


def main(words: list[str]) -> int:
    """Do it."""
    if words[0] == "collect":
        sys.stdout.write(msgspec.json.encode(collect(msgspec.json.decode(words[1], type=Job))).decode() + "\n")
        return 0
    job = msgspec.json.decode(words[1], type=CodeJob)
    sys.stdout.write(git.record(Path(job.folder), record_dir=Path(job.record_dir), grant=job.grant))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
