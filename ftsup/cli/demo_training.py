"""What the demo trains: configs/demo.yaml and its script, in a folder of its own for each run; and the undisturbed run, by plain torchrun.

Owns the folders, the digest of the final weights, and the mark by which the undisturbed run's processes are found. Knows no fault.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import msgspec

import ftsup
from ftsup import proc
from ftsup.cli.demo_cleaning import sweep
from ftsup.config import Config, load
from ftsup.errors import ConfigError, RunError
from ftsup.slurm.commands import scrubbed
from ftsup.worker import places

FILE = Path(ftsup.__file__).parent / "configs" / "demo.yaml"
UNDISTURBED = "undisturbed"


class Training(msgspec.Struct, frozen=True):
    """The training of a demo that lies in `home`."""

    home: Path
    file: Path
    """What `config` was read from; the script lies beside it."""
    config: Config

    @property
    def steps(self) -> int:
        """How long it is."""
        return self._number("--steps")

    @property
    def every(self) -> int:
        """Steps between two checkpoints."""
        return self._number("--every")

    def _number(self, option: str) -> int:
        words = self.config.command
        try:
            return int(words[words.index(option) + 1])
        except (ValueError, IndexError):
            raise ConfigError(f"{self.file}: command has no number behind {option}, which the demo needs to know") from None

    @property
    def ranks(self) -> int:
        """Of all nodes."""
        return self.config.slurm.nodes * self.config.workers

    def folder(self, name: str) -> Path:
        """A new working directory with the script in it."""
        place, script = self.home / name, self.config.command[0]
        place.mkdir()
        shutil.copyfile(self.file.parent / script, place / script)
        return place

    def checkpoints(self, name: str) -> Path:
        """Where a run's checkpoints are."""
        return self.home / name / self.config.checkpoint.dir

    def saved(self, name: str) -> int:
        """The step of a run's newest checkpoint."""
        found = self.checkpoints(name).glob(self.config.checkpoint.pattern)
        return max((int(path.stem.partition("-")[2]) for path in found), default=0)

    def weights(self, name: str) -> str:
        """The digest of a run's final weights, as its script wrote it; RunError when there are none."""
        try:
            end = json.loads((self.checkpoints(name) / "final.json").read_bytes())
            step, digest = int(end["step"]), str(end["weights_sha256"])
        except (OSError, ValueError, KeyError):
            raise RunError("the run did not come to its end, so there are no final weights") from None
        if step != self.steps:
            raise RunError(f"the run ended at step {step} of {self.steps}")
        return digest

    # The undisturbed run --------------------------------------------------------------------------------------------------

    def start_undisturbed(self) -> proc.Running:
        """As many ranks as the other run has, without ftsup and without faults."""
        launch = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(self.ranks)]
        environ = {**scrubbed(os.environ), **self.config.env, places.MARK: self._mark}
        argv = [self.config.python or sys.executable, *launch, *self.config.command]
        running = proc.start(argv, env=environ, cwd=self.folder(UNDISTURBED))
        if isinstance(running, proc.Done):
            raise RunError(f"the undisturbed run could not start: {running.why}")
        return running

    def end_undisturbed(self) -> None:
        """Nothing of it is left."""
        sweep(self._mark)

    @property
    def _mark(self) -> str:
        return f"{self.home / UNDISTURBED}/"


def read(home: Path, file: Path = FILE) -> Training:
    """The demo's own configuration, or one like it."""
    return Training(home, file, load(file).config)
