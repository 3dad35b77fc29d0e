"""Makes a run directory with all that the leader needs, and submits its script. A failure before that leaves nothing behind.

Where the answer of sbatch is lost, the job may be in the queue: its run directory stays, and so does a mark of it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

import ftsup
from ftsup import proc, sbatch
from ftsup.cli import cluster
from ftsup.cli.cluster import Cluster
from ftsup.cli.ports import Ports
from ftsup.config import Config, Share, to_json
from ftsup.config.array import of_task, tasks
from ftsup.errors import ConfigError, Exit, FtsupError, RunError, Unanswered, Unreadable
from ftsup.incident import git
from ftsup.plain import decode_plain, read_plain, told
from ftsup.rundir import RunDir, add_job

CHECK_S = 20.0
_ELSEWHERE = "runs_dir: /some/where/else in the configuration, or --set runs_dir=/some/where/else"


class Typed(msgspec.Struct, frozen=True, kw_only=True):
    """What `ftsup submit` was given, and where: a continuation reads it again."""

    file: str
    sets: tuple[str, ...] = ()
    cwd: str = ""


def read_typed(run: RunDir) -> Typed | None:
    """What it was submitted with; None where that cannot be read."""
    try:
        return decode_plain(read_plain(run.typed), Typed)
    except (OSError, ValueError):
        return None


class Lost(FtsupError):
    """sbatch was asked, and nobody knows what it did: never ask again before somebody has looked."""

    exit_code = Exit.AGAIN

    def __init__(self, run: RunDir, *, why: str) -> None:
        super().__init__(f"{run.id} may be in the queue, or may not: {why}", hint=how_to_find(run))


def placed(config: Config, *, cwd: Path) -> Config:
    """The configuration with paths that mean the same from everywhere."""
    local_dir = str(cwd / config.local_dir) if config.local_dir else ""
    return replace(config, workdir=str(cwd / config.workdir), runs_dir=str(cwd / config.runs_dir), local_dir=local_dir)


def run_dir(ports: Ports, config: Config) -> RunDir:
    """A new name for a run."""
    return RunDir(Path(config.runs_dir) / config.name / f"{ports.now():%Y%m%d-%H%M%S}-{ports.token()}")


def script_of(ports: Ports, config: Config, run: RunDir) -> str:
    """Its batch script, from our template or the user's own."""
    values = sbatch.values(config, run=run, python=ports.python)
    if not config.slurm.template:
        return sbatch.fill(sbatch.default_template(), values)
    from ftsup.cli import owntemplate  # noqa: PLC0415 - brings Jinja along

    return owntemplate.fill(Path(config.workdir) / config.slurm.template, values)


@contextmanager
def new_runs(ports: Ports, config: Config, file: Path, *, sets: Sequence[str] = ()) -> Iterator[list[RunDir]]:
    """The run directories of a submission: one, or one for each task of `slurm.array`, of which the first has the script of all."""
    if not config.slurm.array:
        with new_run(ports, config, file, sets=sets) as run:
            yield [run]
        return
    base = run_dir(ports, config)
    script = script_of(ports, config, base)
    with ExitStack() as stack:
        runs = [
            stack.enter_context(new_run(ports, of_task(config, task), file, sets=sets, run=base.of_task(task)))
            for task in tasks(config.slurm.array)
        ]
        _write(runs[0].array_script, script.encode("utf-8", "surrogateescape"), mode=0o600)
        check_script(runs[0].array_script)
        yield runs


@contextmanager
def new_run(ports: Ports, config: Config, file: Path, *, sets: Sequence[str] = (), run: RunDir | None = None) -> Iterator[RunDir]:
    """A new run directory with all that the leader needs; removed again when anything fails before the job is submitted.

    `sets`: what was typed beside the file. `run`: the one to make; left out, a new name.
    """
    workdir = Path(config.workdir)
    if not workdir.is_dir():
        raise ConfigError(f"workdir: {workdir} is no directory here")
    run = run_dir(ports, config) if run is None else run
    script = script_of(ports, config, run)
    mode = 0o750 if config.share is Share.GROUP else 0o700
    above = [path for path in reversed(run.root.parents) if not path.exists()]
    try:
        for path in above:
            _folder(path, mode=mode)
        _folder(run.root, mode=mode, new=True)
        with _removed_on_failure(run.root):
            given = Typed(file=str(file.absolute()), sets=tuple(sets), cwd=str(ports.cwd))
            try:
                _fill(run, config, file, given=given, script=script)
            except OSError as error:  # a full disk, a quota: mostly without a name
                raise ConfigError(f"runs_dir: {run.root} cannot be filled: {told(error)}; nothing was submitted", hint=_ELSEWHERE) from None
            check_script(run.script)
            with claimed(ports, run):
                yield run
    except BaseException:
        for path in reversed(above):
            with suppress(OSError):  # another run may have come to lie in it
                path.rmdir()
        raise


@contextmanager
def _removed_on_failure(folder: Path) -> Iterator[None]:
    try:
        yield
    except Lost:
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _folder(path: Path, *, mode: int, new: bool = False) -> None:
    try:
        path.mkdir(mode=0o700, exist_ok=not new)
        path.chmod(mode)  # whatever the umask is
    except OSError as error:
        raise ConfigError(f"runs_dir: {path} cannot be made: {error.strerror}", hint=_ELSEWHERE) from None


def _fill(run: RunDir, config: Config, file: Path, *, given: Typed, script: str) -> None:
    from ftsup.supervisor.keys import make_keys  # noqa: PLC0415 - zmq takes as long as the rest of `submit --dry-run`

    copy_worker(run)
    make_keys(run.keys)
    run.requests.mkdir(mode=0o700)
    _write(run.config_yaml, file.read_bytes(), mode=0o600)  # `env` stands in it
    _write(run.config_json, to_json(config), mode=0o640)
    _write(run.env_json, msgspec.json.encode(config.env), mode=0o600)
    _write(run.typed, msgspec.json.encode(given), mode=0o600)
    _write(run.script, script.encode("utf-8", "surrogateescape"), mode=0o600)
    if code := git.look(Path(config.workdir)):
        (run.root / "git").mkdir(mode=0o700)
        _write(run.root / "git" / "submit.json", msgspec.json.encode(code), mode=0o600)


def _write(path: Path, data: bytes, *, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, mode)
        file.write(data)


def copy_worker(run: RunDir) -> None:
    """What the ranks import: of this ftsup, whatever was there before."""
    there, aside = run.worker / "ftsup_worker", run.worker / ".ftsup_worker.new"
    shutil.rmtree(aside, ignore_errors=True)
    run.worker.mkdir(mode=0o700, exist_ok=True)
    aside.mkdir(mode=0o700)
    for path in (Path(ftsup.__file__).parent / "worker").glob("*.py"):  # copytree's error would be a list of errors
        _write(aside / path.name, path.read_bytes(), mode=0o600)
    if there.exists():
        shutil.rmtree(there)
    aside.rename(there)


def check_script(path: Path) -> None:
    """bash reads it without a word: also its warnings (an open here-document) would swallow what follows."""
    done = proc.run(["bash", "-n", str(path)], deadline_s=CHECK_S)
    if not done.ok or done.err:
        said = (done.err or done.why).strip().replace(f"{path}: ", "")
        raise ConfigError(
            f"the batch script is not good bash: {said}", hint="look at `setup` (and slurm.template); `ftsup render` shows the script"
        )


def submit_runs(ports: Ports, runs: Sequence[RunDir], chosen: Cluster) -> list[str]:
    """Hand one script to Slurm for all of them; their job ids, of which an array's have their task."""
    if runs[0].task is None:
        return [submit_run(ports, run, chosen) for run in runs]
    for run in runs[1:]:
        cluster.remember(run, chosen)
    array = _submitted(ports, runs[0], chosen, script=runs[0].array_script)
    jobs = [f"{array}_{run.task}" for run in runs]
    for run, job in zip(runs, jobs, strict=True):
        _write_down(run, job)
    return jobs


def submit_run(ports: Ports, run: RunDir, chosen: Cluster) -> str:
    """Hand the script to Slurm; the job id, written down. Lost: nobody knows whether it is in the queue."""
    job = _submitted(ports, run, chosen, script=run.script)
    _write_down(run, job)
    return job


def _submitted(ports: Ports, run: RunDir, chosen: Cluster, *, script: Path) -> str:
    environ = chosen.environ(ports.environ)
    cluster.remember(run, chosen)
    try:
        return ports.slurm(environ).submit(script, env=environ)
    except (Unanswered, Unreadable, KeyboardInterrupt) as error:
        raise Lost(run, why=getattr(error, "message", "") or "interrupted") from error


def _write_down(run: RunDir, job: str) -> None:
    with suppress(OSError):  # the job is in the queue: nothing may make us remove its directory now
        add_job(run.jobs, job)
        run.jobs.chmod(0o640)


@contextmanager
def claimed(ports: Ports, run: RunDir) -> Iterator[None]:
    """Nobody else submits this run meanwhile; where sbatch's answer is lost, nobody does before somebody has looked."""
    try:
        _write(run.submitting, f"{ports.now().isoformat(timespec='seconds')} {ports.user}\n".encode(), mode=0o600)
    except FileExistsError:
        raise RunError(f"{run.id} is being submitted by somebody else", hint=how_to_find(run)) from None
    try:
        yield
    except Lost:
        raise
    except BaseException:
        run.submitting.unlink(missing_ok=True)
        raise
    run.submitting.unlink(missing_ok=True)


def how_to_find(run: RunDir) -> str:
    """What a person can do about a job of which nobody knows whether it is in the queue."""
    name = run.root.parent.name
    return f"squeue --me --name={name} shows it if it is; if it is not: rm {run.submitting}, and ftsup submit --continue {run.root}"
