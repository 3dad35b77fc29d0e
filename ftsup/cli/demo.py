"""`ftsup demo`: trains on a mock Slurm of this machine, breaks it five times, and compares the end with an undisturbed run.

The command and its folder, which is gone afterwards unless it is asked for or something failed; demo_run.py does the work.
"""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import tempfile
from pathlib import Path

import click
from rich.console import Console

from ftsup.cli import COMMANDS
from ftsup.cli.demo_faults import KINDS, Kind
from ftsup.cli.demo_run import Demo
from ftsup.cli.demo_training import FILE, read
from ftsup.cli.group import Choice, Whole, examples
from ftsup.errors import ConfigError, FtsupError


@click.command(
    epilog=examples("ftsup demo", "ftsup demo --seed 7 --dir /tmp/demo  # the folder stays", "ftsup demo --only kill --only flip")
)
@click.option("--seed", type=Whole(min=0), envvar="DEMO_SEED", help="Where the faults strike; also DEMO_SEED. Default: anew each time.")
@click.option(
    "--only",
    "names",
    type=Choice([kind.name.lower() for kind in KINDS]),
    multiple=True,
    help="Only this fault; may be repeated. A bit is flipped when a rank is killed.",
)
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    default=FILE,
    help="Train this instead of configs/demo.yaml. Its script lies beside it and takes the options of demo_train.py.",
)
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path), help="An empty folder for all of it, which stays. Default: a temporary one."
)
@click.option("--keep", is_flag=True, help="Keep the temporary folder.")
def demo(seed: int | None, names: tuple[str, ...], file: Path, folder: Path | None, keep: bool) -> int:  # noqa: FBT001 - click's signature
    """Watch a run survive faults on this machine.

    It trains twice, once undisturbed by plain torchrun and once on a Slurm that runs inside this machine, where a rank hangs, another is
    killed, a checkpoint is damaged, the leader is killed and the time limit comes near. Exits with 1 unless every fault was survived as
    it should be, and the final weights of both are equal, bit for bit.
    """
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("the demo trains with PyTorch, which is not installed here", hint="pip install 'ftsup[train]', or `make demo`")
    seed = secrets.randbelow(1000) if seed is None else seed
    kinds = {Kind[name.upper()] for name in names} or KINDS
    home = _home(folder)
    stays = folder is not None or keep
    try:
        training = read(home, file.absolute())
        good = Demo(training, seed=seed, kinds=kinds, console=Console(highlight=False)).run()
        stays = stays or not good
    except FtsupError:
        stays = True
        raise
    finally:
        if stays:
            _point_out(home)
        else:
            shutil.rmtree(home, ignore_errors=True)
    return 0 if good else 1


def _home(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="ftsup-demo-"))
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(f"--dir {folder}: is not empty")
    return folder


def _point_out(home: Path) -> None:
    """Where it is, and how to look at it again."""
    click.echo(f"all of it lies in {home}", err=True)
    run = next((jobs.parent for jobs in home.glob("runs/*/*/jobs")), None)
    if run is not None and "explain" in COMMANDS:
        click.echo(f"look at it again: ftsup explain {run}", err=True)
