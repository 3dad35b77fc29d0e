"""The recordings of tests/data/slurm, by version, and a runner that answers with them."""

from __future__ import annotations

import json
from pathlib import Path

from ftsup.proc import Done

DATA = Path(__file__).parent.parent / "data" / "slurm"
VERSIONS = ("22.05", "24.11", "26.05")


def text(version: str, name: str) -> str:
    return (DATA / version / name).read_bytes().decode("utf-8", "replace")


def failures(version: str) -> list[dict]:
    return json.loads(text(version, "failures.json"))


def done(failure: dict) -> Done:
    return Done(argv=tuple(failure["argv"]), code=failure["code"], out=failure["out"], err=failure["err"])


class Answering:
    """Runs nothing: the same outcome for every command, or by a command's words."""

    def __init__(self, outcome: Done | None = None, **by_word: Done) -> None:
        self.outcome = outcome
        self.by_word = by_word
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, argv, *, deadline_s, env=None):
        self.calls.append(tuple(argv))
        found = next((self.by_word[word] for word in argv if word in self.by_word), self.outcome)
        assert found is not None, argv
        return found
