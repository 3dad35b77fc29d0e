"""What a run of the contract suite proved where, as a page: `pytest tests/contract --proven docs/slurm.md`.

One row for each test (its name is the sentence), one column for each world. A word stands only where a test of this very run passed,
failed or was left out; a world that was left out altogether says why below. It knows nothing of what the tests do.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest

WORLDS = {
    "fake": "in memory",
    "mock": "mock",
    "mock-cgroup": "mock, cgroup",
    "real": "Slurm {}",
    "real-cgroup": "Slurm {}, cgroup",
    "pyslurm": "Slurm {}, pyslurm",
}
WORDS = {"passed": "yes", "failed": "**no**", "skipped": "left out"}
HEADINGS = {
    "test_port": "Operations, states and refusals",
    "test_live": "Signals, limits, environments, logs, srun",
    "test_limits": "Time limits and the warning",
}
INTRO = """# What was proven about Slurm, and where

This page is written by the contract suite itself (`{how}`): a cell says `yes` where the test of that name passed in that world in the
run that wrote the page. `-`: the test is not about that world.
"""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """How one test ended in one world."""

    file: str
    test: str
    world: str
    outcome: str
    why: str = ""


def world_of(nodeid: str) -> tuple[str, str, str] | None:
    """File, test and world in `tests/contract/test_port.py::test_x[real]`; other parameters become part of the test's name."""
    found = re.fullmatch(r"(?:.*/)?(test_\w+)\.py::test_(\w+)\[(.+)\]", nodeid)
    if not found or found[1] not in HEADINGS:
        return None
    worlds = [world for world in sorted(WORLDS, key=len, reverse=True) if found[3] == world or found[3].startswith(f"{world}-")]
    worlds += [world for world in sorted(WORLDS, key=len, reverse=True) if found[3].endswith(f"-{world}")]
    if not worlds:
        return None
    rest = found[3].removeprefix(worlds[0]).removesuffix(f"-{worlds[0]}").strip("-")
    return found[1], found[2] + (f" ({rest})" if rest else ""), worlds[0]


def page(proofs: list[Proof], *, version: str, how: str) -> str:
    """The page: only worlds that any test was asked of."""
    worlds = [world for world in WORLDS if any(proof.world == world for proof in proofs)]
    lines = [INTRO.format(how=how)]
    for file in dict.fromkeys(proof.file for proof in proofs):
        mine = [proof for proof in proofs if proof.file == file]
        columns = [world for world in worlds if any(proof.world == world for proof in mine)]
        lines += ["", f"## {HEADINGS.get(file, file)}", "", "| | " + " | ".join(WORLDS[world].format(version) for world in columns) + " |"]
        lines += ["|---|" + "---|" * len(columns)]
        for test in dict.fromkeys(proof.test for proof in mine):
            cells = {proof.world: WORDS[proof.outcome] for proof in mine if proof.test == test}
            lines.append(f"| {test.replace('_', ' ')} | " + " | ".join(cells.get(world, "-") for world in columns) + " |")
    counts = Counter((proof.world, proof.outcome) for proof in proofs)
    lines += ["", "## In numbers", ""]
    lines += [f"- {WORLDS[world].format(version)}: " + ", ".join(_count(counts, world)) for world in worlds]
    reasons = sorted({(proof.world, proof.why) for proof in proofs if proof.outcome == "skipped" and proof.why})
    lines += ["", "## Left out", "", *(f"- {WORLDS[world].format(version)}: {why}" for world, why in reasons)] if reasons else []
    return "\n".join(lines).rstrip() + "\n"


def _count(counts: Counter[tuple[str, str]], world: str) -> list[str]:
    said = {"passed": "proven", "failed": "failed", "skipped": "left out"}
    return [f"{counts[world, outcome]} {word}" for outcome, word in said.items() if counts[world, outcome]]


class Recorder:
    """The plugin: collects the reports (of all workers: they arrive here), writes the page at the end."""

    def __init__(self, path: Path, *, version: str) -> None:
        self.path = path
        self.version = version
        self.proofs: dict[tuple[str, str, str], Proof] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        key = world_of(report.nodeid)
        if key is None or (report.when != "call" and report.outcome == "passed"):
            return
        why = report.longrepr[2].removeprefix("Skipped: ") if report.skipped and isinstance(report.longrepr, tuple) else ""
        known = self.proofs.get(key)
        if known is None or known.outcome == "passed":  # a teardown that fails spoils the proof
            self.proofs[key] = Proof(file=key[0], test=key[1], world=key[2], outcome=report.outcome, why=why)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.INTERRUPTED:
            return  # half a run proves half of it
        place = {file: number for number, file in enumerate(HEADINGS)}
        proofs = sorted(self.proofs.values(), key=lambda proof: (place.get(proof.file, len(place)), proof.file))
        self.path.write_text(page(proofs, version=self.version, how="make contract"))
