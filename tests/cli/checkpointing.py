"""`ftsup checkpoints` typed in a folder of a test: the real program with its exit codes, a Slurm in memory, a disk that may break."""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
from click.testing import CliRunner

from ftsup import cli
from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.manifest import Manifest, decode, encode
from ftsup.checkpoint.owner import Life, Owner, claim
from ftsup.cli.checkpoints import checkpoints
from ftsup.cli.ports import Ports
from ftsup.slurm.fake import FakeSlurm
from tests.checkpoint.folders import saved, sealed

BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


class _Program:
    """What click's runner calls; goes through ftsup's own main, which says what becomes of errors."""

    name = "ftsup checkpoints"

    def main(self, *, args, prog_name, obj):
        class Bound:
            def main(self, **more):
                return checkpoints.main(**more | {"prog_name": prog_name, "obj": obj})

        sys.exit(cli.main(list(args), program=Bound()))


class Desk:
    """Where somebody types. The clock goes on by a minute with each look."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home / "ck"
        self.slurm = FakeSlurm()
        minutes = itertools.count()
        self.ports = Ports(
            environ=dict(os.environ),
            slurm=lambda environ: self.slurm,
            now=lambda: BEGAN + timedelta(minutes=next(minutes)),
            sleep=lambda _: None,
            token=lambda: "0001",
            python=sys.executable,
            cwd=home,
            user="me",
        )

    def type(self, *words, disk=None, stdin=None):
        """The result: exit_code, stdout, stderr."""
        ports = replace(self.ports, disk=lambda each: disk) if disk else self.ports
        return CliRunner().invoke(_Program(), [str(word) for word in words], obj=ports, input=stdin)

    def save(self, *steps, seal=True, writer=""):
        """Real torch.save files, sealed as a run or a person would."""
        for step in steps:
            path = saved(self.folder / f"step-{step}.pt", value=step)
            if seal:
                sealed(self.folder, path.name, writer=writer)

    def owned(self, *, job="1", run="runs/one/20260102-030405-0001", found=()):
        """A run owns the directory."""
        owner = Owner(run=run, job=job, host="n1", folder=str(self.home / run), found=found)
        claim(RealDisk(), Home(self.folder), owner, life=lambda _: Life.OVER)

    def manifest(self, name) -> Path:
        return Home(self.folder).manifest(name)

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}


def rewrite(path: Path, **changes) -> Manifest:
    """A manifest that says something else, its digest with it."""
    manifest = msgspec.structs.replace(decode(path.read_bytes()), **changes)
    path.write_bytes(encode(manifest))
    return manifest


def rot(path: Path, offset: int) -> None:
    """A bit flips on the disk: no clock of the file system notices."""
    facts = path.stat()
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
