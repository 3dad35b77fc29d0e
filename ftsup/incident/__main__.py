"""`python -m ftsup.incident JSON` collects one node's evidence and prints its faults as one line of JSON. Started by node supervisors."""

from __future__ import annotations

import sys

import msgspec

from ftsup.incident.collect import Job, collect


def main(words: list[str]) -> int:
    """Collect."""
    job = msgspec.json.decode(words[0], type=Job)
    sys.stdout.write(msgspec.json.encode(collect(job)).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
