"""A folder with runs, and a person who types: for tests of commands that read run directories, and of those that ask for something."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from click.testing import CliRunner

from ftsup import events as ev
from ftsup.cli.ports import Ports
from ftsup.config import Config, to_json
from ftsup.rundir import RunDir
from ftsup.slurm.fake import FakeSlurm
from tests.report.leader import BEGAN, NODES, Leader


class World:
    """A folder with runs, a Slurm in memory, and a person who types."""

    def __init__(self, home: Path) -> None:
        self.home, self.slurm, self.calls = home, FakeSlurm(), 0
        self.now: datetime = BEGAN + timedelta(seconds=30)
        self.asleep = lambda: None

    def ports(self) -> Ports:
        def slurm(_environ):
            self.calls += 1
            return self.slurm

        return Ports(
            environ={"PATH": "/nowhere"},
            slurm=slurm,
            now=lambda: self.now,
            sleep=lambda _: self.asleep(),
            token=lambda: "beef",
            python="/opt/py/bin/python",
            cwd=self.home,
            user="me",
        )

    def type(self, command, *args):
        result = CliRunner().invoke(command, [*args], obj=self.ports())
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result

    def run(self, name: str = "demo", stamp: str = "20260102-030405-00aa", *, jobs: str = "7\n", leader: Leader | None = None) -> RunDir:
        run = RunDir(self.home / "ftsup-runs" / name / stamp)
        run.root.mkdir(parents=True, exist_ok=True)
        run.config_json.write_bytes(to_json(Config(name=name, command=("x",))))
        if jobs:
            run.jobs.write_text(jobs)
        if leader:
            run.events.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in leader.lines))
        return run


def hang_and_restart(leader: Leader) -> None:
    leader.after(5).hang()
    leader.after(1).end_attempt()
    leader.launch(checkpoint=100)
    leader.after(4).train(101)


def finish(leader: Leader) -> None:
    for node in NODES:
        leader.take(ev.AttemptOver(node=node, epoch=leader.epoch, code=0))
