"""A run directory in which a leader writes while a real command looks at it on a terminal of its own."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from ftsup.rundir import RunDir
from tests.cli.terminal import Terminal, terminal
from tests.report.leader import Leader
from tests.report.scenes import seen

ROOT = Path(__file__).parents[2]
ENV = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONWARNINGS": "error"}
FTSUP = [sys.executable, "-m", "ftsup"]


class Lived:
    """A run directory in which a leader writes."""

    def __init__(self, folder: Path, leader: Leader) -> None:
        self.folder, self.leader = folder, leader
        self.place = RunDir(folder / "ftsup-runs" / "demo" / "20260102-030405-00aa")
        self.place.root.mkdir(parents=True)
        self.place.config_json.write_text("{}")
        self.place.jobs.write_text("7\n")
        self.write()

    def write(self, **how: object) -> None:
        """What it tells now."""
        wall = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        with self.place.events.open("ab") as file:
            for line in self.leader.lines[self.place.events.read_bytes().count(b"\n") :]:
                file.write(msgspec.json.encode(line) + b"\n")
        part = self.place.status.with_name("part")
        part.write_bytes(msgspec.json.encode(msgspec.structs.replace(seen(self.leader, **how).now, wall=wall)))
        part.replace(self.place.status)

    def on_a_terminal(
        self, *argv: str, columns: int = 80, rows: int = 24, encoding: str = "utf-8", **env: str
    ) -> AbstractContextManager[Terminal]:
        """The command."""
        return terminal([*FTSUP, *argv], cwd=self.folder, env={**ENV, **env}, columns=columns, rows=rows, encoding=encoding)
