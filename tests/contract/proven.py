"""What runs of the contract suite proved where, as a page: `pytest tests/contract --proven docs/slurm.md`.

A run writes what it proved beside the page (`proven/<version of Slurm>.json`), and the page anew from all that lies there: so runs on
machines with other Slurms add their columns (`python -m tests.contract.proven docs/slurm.md` after their files were copied).
One row for each test (its name is the sentence), one column for each world. A word stands only where a test of a run passed,
failed or was left out; a world that was left out altogether says why below. It knows nothing of what the tests do.
"""

from __future__ import annotations

import platform
import re
import sys
from collections import Counter
from datetime import date
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
    "test_arrays": "Job arrays",
    "test_salloc": "Allocations by hand (salloc)",
    "test_preemption": "Preemption",
    "test_limits": "Time limits and the warning",
}
INTRO = """# What was proven about Slurm, and where

This page is written by the contract suite itself (`{how}`): a cell says `yes` where the test of that name passed in that world, in the
newest run on a machine with that Slurm. `-`: the test is not about that world, or was not there yet.
"""
HOW = "make contract"
SAME_EVERYWHERE = ("fake", "mock", "mock-cgroup")
"""Worlds that need no Slurm."""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """How one test ended in one world."""

    file: str
    test: str
    world: str
    outcome: str
    why: str = ""


def world_of(nodeid: str) -> tuple[str, str, str] | None:
    """File, test and world in `tests/contract/test_port.py::test_x[real]`; other parameters become part of the test's name."""
    found = re.fullmatch(r"(?:[^\[]*/)?(test_\w+)\.py::test_(\w+)\[(.+)\]", nodeid)
    if not found or found[1] not in HEADINGS:
        return None
    worlds = [world for world in sorted(WORLDS, key=len, reverse=True) if found[3] == world or found[3].startswith(f"{world}-")]
    worlds += [world for world in sorted(WORLDS, key=len, reverse=True) if found[3].endswith(f"-{world}")]
    if not worlds:
        return None
    rest = found[3].removeprefix(worlds[0]).removesuffix(f"-{worlds[0]}").strip("-")
    return found[1], found[2] + (f" ({rest})" if rest else ""), worlds[0]


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One run: on which Slurm, when, under which Python, and what it proved."""

    version: str
    day: str
    python: str
    proofs: tuple[Proof, ...]
    note: str = ""
    """What else a reader has to know of it."""


class Column(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A world, on one version of Slurm where that matters."""

    place: int
    version: str
    world: str

    @property
    def title(self) -> str:
        """What stands above it."""
        return WORLDS[self.world].format(self.version)


def page(sessions: list[Session], *, how: str) -> str:
    """The page: only worlds that any test was asked of."""
    found = {(column(session, proof), proof.file, proof.test): proof for session in sessions for proof in session.proofs}
    lines = [INTRO.format(how=how)]
    for file, heading in HEADINGS.items():
        mine = {key: proof for key, proof in found.items() if key[1] == file}
        columns = sorted({column for column, _, _ in mine})
        lines += ["", f"## {heading}", "", "| | " + " | ".join(column.title for column in columns) + " |"] if mine else []
        lines += ["|---|" + "---|" * len(columns)] if mine else []
        for test in sorted({test for _, _, test in mine}):
            cells = {column: WORDS[proof.outcome] for (column, _, named), proof in mine.items() if named == test}
            lines.append(f"| {test.replace('_', ' ')} | " + " | ".join(cells.get(column, "-") for column in columns) + " |")
    columns = sorted({column for column, _, _ in found})
    counts = Counter((column, proof.outcome) for (column, _, _), proof in found.items())
    lines += ["", "## In numbers", "", *(f"- {column.title}: " + ", ".join(_count(counts, column)) for column in columns)]
    lines += ["", *(f"- Slurm {each.version}: {_run(each)}" for each in sessions)]
    reasons = sorted({(column, proof.why) for (column, _, _), proof in found.items() if proof.outcome == "skipped" and proof.why})
    lines += ["", "## Left out", "", *(f"- {column.title}: {why}" for column, why in reasons)] if reasons else []
    return "\n".join(lines).rstrip() + "\n"


def column(session: Session, proof: Proof) -> Column:
    """Where a proof stands."""
    version = "" if proof.world in SAME_EVERYWHERE else session.version
    return Column(place=list(WORLDS).index(proof.world), version=version, world=proof.world)


def _run(session: Session) -> str:
    return f"run of {session.day}, Python {session.python}" + (f"; {session.note}" if session.note else "")


def _count(counts: Counter[tuple[Column, str]], where: Column) -> list[str]:
    said = {"passed": "proven", "failed": "failed", "skipped": "left out"}
    return [f"{counts[where, outcome]} {word}" for outcome, word in said.items() if counts[where, outcome]]


def write(path: Path, *, how: str) -> None:
    """The page anew, from all runs beside it."""
    files = sorted((path.parent / "proven").glob("*.json"), key=lambda file: [int(part) for part in re.findall(r"\d+", file.stem)])
    path.write_text(page([msgspec.json.decode(file.read_bytes(), type=Session) for file in files], how=how))


class Recorder:
    """The plugin: collects the reports (of all workers: they arrive here), writes the page at the end."""

    def __init__(self, path: Path, *, version: str, note: str = "") -> None:
        self.path = path
        self.version = version
        self.note = note
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
        proofs = sorted(self.proofs.values(), key=lambda proof: (proof.file, proof.test, proof.world))
        session = Session(
            version=self.version,
            day=date.today().isoformat(),  # noqa: DTZ011 - for people
            python=platform.python_version(),
            proofs=tuple(proofs),
            note=self.note,
        )
        folder = self.path.parent / "proven"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.version}.json").write_bytes(msgspec.json.format(msgspec.json.encode(session), indent=1) + b"\n")
        write(self.path, how=HOW)


if __name__ == "__main__":
    write(Path(sys.argv[1]), how=HOW)
