"""`ftsup submit` and `ftsup render`: configuration -> run directory and batch script -> Slurm. Wiring; a failure leaves nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

import ftsup
from ftsup import proc, sbatch
from ftsup.cli import cluster
from ftsup.cli.cluster import Cluster, Kind
from ftsup.cli.config import file_argument, set_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.cli.warn import warnings
from ftsup.config import Config, Share, load, to_json
from ftsup.errors import ConfigError
from ftsup.incident import git
from ftsup.rundir import RunDir

CHECK_S = 20.0


class _DryRun(click.Command):
    """`--dry-run` may have a value, and must not take the file after it for one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["--dry-run=script" if arg == "--dry-run" else arg for arg in args])


cluster_option = click.option(
    "--cluster",
    "kind",
    type=click.Choice([kind.value for kind in Kind]),
    default=Kind.AUTO.value,
    help="slurm; mock: this machine plays the cluster; auto: slurm where sbatch is on PATH, else mock.",
)


@click.command(cls=_DryRun)
@file_argument
@set_option
@cluster_option
@click.option(
    "--dry-run",
    type=click.Choice(["script", "mock"]),
    metavar="[=mock]",
    help="Show the script and what there is to say about it; submit nothing. =mock: also run two steps of it on this machine.",
)
@with_ports
def submit(ports: Ports, file: Path, sets: tuple[str, ...], kind: str, dry_run: str | None) -> None:
    """Check FILE, write the batch script, submit it."""
    config = placed(load(file, sets=sets).config, cwd=ports.cwd)
    if dry_run:
        _dry_run(ports, config, Kind(kind))
        if dry_run == "mock":
            from ftsup.cli.rehearse import rehearse  # noqa: PLC0415 - brings the mock along

            rehearse(ports, config, file)
        return
    chosen, sentence = cluster.choose(Kind(kind), environ=ports.environ, nodes=config.slurm.nodes)
    if sentence:
        click.echo(sentence, err=True)
    with new_run(ports, config, file) as run:
        for warning in warnings(config, python=ports.python, one_machine=bool(chosen.state)):
            click.echo(f"warning: {warning}", err=True)
        job = submit_run(ports, run, chosen)
    click.echo(f"job {job}: {run.id}")
    name = _typed(run, ports.cwd)
    for command, what in (("status", "how it is doing"), ("logs -f", "what it prints"), ("cancel", "ends it for good")):
        click.echo(f"  ftsup {command} {name}  # {what}", err=True)


@click.command()
@file_argument
@set_option
@with_ports
def render(ports: Ports, file: Path, sets: tuple[str, ...]) -> None:
    """Write the batch script of FILE to standard output."""
    config = placed(load(file, sets=sets).config, cwd=ports.cwd)
    click.echo(_script(ports, config, _run_dir(ports, config)), nl=False)


def placed(config: Config, *, cwd: Path) -> Config:
    """The configuration with paths that mean the same from everywhere."""
    local_dir = str(cwd / config.local_dir) if config.local_dir else ""
    return replace(config, workdir=str(cwd / config.workdir), runs_dir=str(cwd / config.runs_dir), local_dir=local_dir)


def _run_dir(ports: Ports, config: Config) -> RunDir:
    return RunDir(Path(config.runs_dir) / config.name / f"{ports.now():%Y%m%d-%H%M%S}-{ports.token()}")


def _script(ports: Ports, config: Config, run: RunDir) -> str:
    template = sbatch.default_template()
    if own := config.slurm.template:
        try:
            template = (Path(config.workdir) / own).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"slurm.template: {own} cannot be read: {error}") from None
    return sbatch.render(config, run=run, python=ports.python, template=template)


@contextmanager
def new_run(ports: Ports, config: Config, file: Path) -> Iterator[RunDir]:
    """A new run directory with all that the leader needs; removed again when anything fails before the job is submitted."""
    workdir = Path(config.workdir)
    if not workdir.is_dir():
        raise ConfigError(f"workdir: {workdir} is no directory here")
    run = _run_dir(ports, config)
    script = _script(ports, config, run)
    made = _folders(run.root, mode=0o750 if config.share is Share.GROUP else 0o700)
    try:
        _fill(run, config, file)
        _write(run.script, script.encode("utf-8", "surrogateescape"), mode=0o600)
        check_script(run.script)
        yield run
    except BaseException:
        shutil.rmtree(run.root, ignore_errors=True)
        for folder in reversed(made[:-1]):
            with suppress(OSError):  # another run may have come to lie in it
                folder.rmdir()
        raise


def _folders(root: Path, *, mode: int) -> list[Path]:
    """Make the run directory and what is missing above it; what was made, outermost first."""
    missing = [path for path in (*reversed(root.parents), root) if not path.exists()]
    for path in missing:
        try:
            path.mkdir(mode=0o700)
            path.chmod(mode)  # whatever the umask is
        except OSError as error:
            raise ConfigError(f"runs_dir: {path} cannot be made: {error.strerror}") from None
    return missing


def _fill(run: RunDir, config: Config, file: Path) -> None:
    from ftsup.supervisor.keys import make_keys  # noqa: PLC0415 - zmq takes as long as the rest of `submit --dry-run`

    shutil.copytree(
        Path(ftsup.__file__).parent / "worker",
        run.worker / "ftsup_worker",
        ignore=shutil.ignore_patterns("__pycache__"),
        copy_function=shutil.copyfile,
    )
    make_keys(run.keys)
    run.requests.mkdir(mode=0o700)
    _write(run.config_yaml, file.read_bytes(), mode=0o600)  # `env` stands in it
    _write(run.config_json, to_json(config), mode=0o640)
    _write(run.env_json, msgspec.json.encode(config.env), mode=0o600)
    if code := git.look(Path(config.workdir)):
        (run.root / "git").mkdir(mode=0o700)
        _write(run.root / "git" / "submit.json", msgspec.json.encode(code), mode=0o600)


def _write(path: Path, data: bytes, *, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, mode)
        file.write(data)


def check_script(path: Path) -> None:
    """bash reads it without a word: also its warnings (an open here-document) would swallow what follows."""
    done = proc.run(["bash", "-n", str(path)], deadline_s=CHECK_S)
    if not done.ok or done.err:
        said = (done.err or done.why).strip().replace(f"{path}: ", "")
        raise ConfigError(
            f"the batch script is not good bash: {said}", hint="look at `setup` (and slurm.template); `ftsup render` shows the script"
        )


def submit_run(ports: Ports, run: RunDir, chosen: Cluster) -> str:
    """Hand the script to Slurm; the job id, written down."""
    environ = chosen.environ(ports.environ)
    cluster.remember(run, chosen)
    job = ports.slurm(environ).submit(run.script, env=environ)
    with suppress(OSError):  # the job is in the queue: nothing may make us remove its directory now
        _write(run.jobs, f"{job}\n".encode(), mode=0o640)
    return job


def _dry_run(ports: Ports, config: Config, kind: Kind) -> None:
    """Print the script, then what was checked. Slurm is asked only where it was named: a controller may be away for long."""
    script = _script(ports, config, _run_dir(ports, config))
    click.echo(script, nl=False)
    with tempfile.TemporaryDirectory(prefix="ftsup-") as folder:
        path = Path(folder) / "job.sbatch"
        path.write_bytes(script.encode("utf-8", "surrogateescape"))
        check_script(path)
        said, chosen = ["the script is good bash"], Cluster()
        if kind is not Kind.AUTO:
            chosen, _ = cluster.choose(kind, environ=ports.environ, nodes=config.slurm.nodes)
            environ = chosen.environ(ports.environ)
            said.append(ports.slurm(environ).submit(path, env=environ, test_only=True))
    said += [f"warning: {warning}" for warning in warnings(config, python=ports.python, one_machine=bool(chosen.state))]
    for line in said:
        click.echo(line, err=True)


def _typed(run: RunDir, cwd: Path) -> str:
    """The shortest way to name the run from here."""
    return run.id if run.root.parent.parent == cwd / "ftsup-runs" else str(run.root)
