"""`ftsup submit --continue RUN`: the same run, its log and its checkpoints go on in another job, with the configuration as it is by now.

What is written before sbatch is asked is taken back when sbatch says no. Where its answer is lost everything stays, and nothing is
submitted again before somebody has looked. A run whose job Slurm still has is never continued.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from ftsup import eventlog
from ftsup.cli import cluster
from ftsup.cli.cluster import Cluster
from ftsup.cli.newrun import Lost, Typed, check_script, claimed, copy_worker, how_to_find, placed, read_typed, script_of, submit_run
from ftsup.cli.ports import Ports
from ftsup.config import Config, Loaded, from_json, load, to_json
from ftsup.config.array import of_task
from ftsup.config.doc import effective
from ftsup.errors import ConfigError, Exit, FtsupError, RunError
from ftsup.events import Decide
from ftsup.plain import decode_plain, read_plain, told
from ftsup.report import runs
from ftsup.report.runs import View
from ftsup.report.story import Stage
from ftsup.report.words import one_line
from ftsup.rundir import RunDir
from ftsup.supervisor.requests import Continuation

FIXED = ("name", "runs_dir", "share")
"""What says which run it is, and who may read it."""
NOT_SET = "(not set)"


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it was left."""

    run: RunDir
    view: View
    config: Config
    """With `env`."""
    typed: Typed | None
    chosen: Cluster
    held: tuple[str, ...] = ()
    """Jobs of it that nobody but an admin can begin again."""


class After(msgspec.Struct, frozen=True, kw_only=True):
    """What it goes on with."""

    config: Config
    text: bytes
    """Of the configuration file."""
    typed: Typed | None
    changes: tuple[str, ...]
    """`key: old -> new`."""
    keys: tuple[str, ...]


def go_on(ports: Ports, name: str, *, runs_dir: Path, file: Path | None, sets: Sequence[str]) -> tuple[RunDir, str]:
    """Continue a run; its directory and the new job."""
    before = _before(ports, runs.find(name, runs_dir=ports.cwd / runs_dir))
    after = _after(before, file, tuple(sets), cwd=ports.cwd)
    for line in after.changes or ("the configuration is as it was",):
        click.echo(line, err=True)
    run = before.run
    n = max(before.view.story.continued, runs.continuation(run)) + 1
    if wrong := [key for key in after.keys if key in FIXED]:
        raise ConfigError(f"{', '.join(wrong)} cannot change within a run", hint="ftsup submit FILE begins another run")
    script = script_of(ports, after.config, run).encode("utf-8", "surrogateescape")
    continuation = Continuation(n=n, who=ports.user, wall=ports.now().isoformat(timespec="milliseconds"), changed=after.keys)
    files: dict[Path, bytes | None] = {
        run.env_json: msgspec.json.encode(after.config.env),
        run.config_yaml: after.text,
        run.config_json: to_json(after.config),
        run.script: script,
        run.continued: msgspec.json.encode(continuation),
        **({run.typed: msgspec.json.encode(after.typed)} if after.typed else {}),
        **dict.fromkeys((run.cancelled, run.paused, run.requeue, run.root / "bash-requeues"), None),
    }
    _check(run, script)
    with claimed(ports, run), _in_place(run, files, n):
        _end_held(ports, before)
        copy_worker(run)
        _set_requests_aside(run)
        job = submit_run(ports, run, before.chosen)
    return run, job


def said(view: View) -> str:
    """How it was left, and what is not carried over."""
    story = view.story
    stage = Stage.CANCELLED if view.cancelled else Stage.PAUSED if view.paused else story.stage
    ended = f"it was {stage.value}" if stage.over else f"its job {view.job or 'was never submitted'} is gone, and no leader said why"
    why = story.verdict.reason if story.verdict else ""
    ended = f"it was {why}" if stage.over and why.startswith(f"{stage.value} ") else f"{ended}{why and ': '}{why}"
    return f"{view.id}: {ended}; budgets and the hard cap begin anew"


# Whether it may -----------------------------------------------------------------------------------------------------------


def _before(ports: Ports, run: RunDir) -> Before:
    view = runs.read(run)
    if run.root.stat().st_uid != os.getuid():
        raise RunError(f"{view.id} belongs to somebody else: only its owner can continue it")
    chosen = cluster.of_run(run)
    slurm = cluster.acting(run, ports=ports)
    held: list[str] = []
    for job in dict.fromkeys(job for job in (view.job, view.story.job) if job):
        found = slurm.show(job)
        if found.held and "maxrequeue" in found.reason.lower():
            click.echo(f"its job {job} is held for good, after too many failed launches ({found.reason}): it is cancelled first", err=True)
            held.append(job)
        elif found.lives:
            state = "is ending" if found.completing else f"is {found.state.value.lower()}"
            raise RunError(
                f"{view.id} goes on by itself: its job {job} {state}", hint=f"ftsup pause {view.id} ends that job, ftsup stop as well"
            )
    _nothing_lost(run, view)
    click.echo(said(view), err=True)
    if kept_out := _kept_out(run):
        click.echo(f"kept out before, and not any more: {kept_out}; --set slurm.exclude='[{kept_out}]' keeps them out", err=True)
    return Before(run=run, view=view, config=_config(run), typed=read_typed(run), chosen=chosen, held=tuple(held))


def _end_held(ports: Ports, before: Before) -> None:
    """Two jobs of one run are one too many, even where one of them only lies there."""
    slurm = ports.slurm(before.chosen.environ(ports.environ))
    for job in before.held:
        slurm.cancel(job)
        if slurm.show(job).lives:
            raise RunError(f"{before.view.id}: job {job} was cancelled, and Slurm still has it", hint="again in a minute")


def _nothing_lost(run: RunDir, view: View) -> None:
    """A submission whose answer was lost: its leader, once there was one, has written its job down."""
    if not run.submitting.exists():
        return
    begun = view.story.grants > 0 and view.story.continued >= runs.continuation(run)
    if not begun:
        who = one_line(read_plain(run.submitting).decode(errors="replace"), width=80) or "somebody"
        raise _Doubt(f"{view.id} was handed to sbatch before ({who}), and nobody knows what became of it", hint=how_to_find(run))
    run.submitting.unlink()


class _Doubt(FtsupError):
    exit_code = Exit.AGAIN


def _config(run: RunDir) -> Config:
    try:
        env = decode_plain(read_plain(run.env_json), dict[str, str])
        return replace(from_json(read_plain(run.config_json)), env=env)
    except (OSError, ValueError) as error:
        raise RunError(f"the configuration of {run.id} cannot be read: {told(error)}") from error


def _kept_out(run: RunDir) -> str:
    lines = eventlog.read(run.events)[0]
    nodes = [node for line in lines for order in line.orders if isinstance(order, Decide) for node in order.verdict.avoid]
    return ", ".join(dict.fromkeys(nodes))


# What it goes on with -----------------------------------------------------------------------------------------------------


def _after(before: Before, file: Path | None, sets: tuple[str, ...], *, cwd: Path) -> After:
    """FILE as it is by now; without one, the file that was typed last, with what was typed beside it."""
    run, typed = before.run, before.typed
    if typed is None and file is None:
        if sets:
            raise ConfigError(
                f"{run.id} does not know from which file it was made: name one", hint=f"ftsup submit --continue {run.id} FILE"
            )
        return After(config=before.config, text=read_plain(run.config_yaml), typed=None, changes=(), keys=())
    base = Path(typed.cwd) if typed else Path(before.config.workdir)
    if file is not None:
        path, every = (cwd / file), sets
    else:
        assert typed is not None
        path, every = Path(typed.file), (*typed.sets, *sets)
        if not path.exists():
            click.echo(f"{path} is not there any more: the run's own copy counts", err=True)
            path = run.config_yaml
    text = read_plain(path)
    config = placed(load(path, sets=every).config, cwd=base)
    config = config if run.task is None else of_task(config, run.task)
    found = tuple(_differences(before.config, config))
    kept = Typed(file=str(path.absolute()) if path != run.config_yaml or typed is None else typed.file, sets=every, cwd=str(base))
    return After(
        config=config,
        text=text,
        typed=kept,
        changes=tuple(f"{key}: {old} -> {new}" for key, old, new in found),
        keys=tuple(key for key, _, _ in found),
    )


def _differences(old: Config, new: Config) -> Iterator[tuple[str, str, str]]:
    """Key, old value, new value. Values of `env` are nobody's business."""
    was, now = _written(old), _written(new)
    for key in dict.fromkeys((*was, *now)):
        if key.startswith("env."):
            name = key.removeprefix("env.")
            if old.env.get(name) != new.env.get(name):
                yield key, "(hidden)" if name in old.env else NOT_SET, "(changed)" if name in new.env else NOT_SET
        elif was.get(key) != now.get(key):
            yield key, was.get(key, NOT_SET), now.get(key, NOT_SET)


def _written(config: Config) -> dict[str, str]:
    rows = effective(Loaded(config=config, sources=defaultdict(str)))
    return {key: value for key, value, _ in rows if key != "env" and value != "{}"}


# Putting it in place ------------------------------------------------------------------------------------------------------


def _check(run: RunDir, script: bytes) -> None:
    aside = run.root / ".job.sbatch.check"
    try:
        _put(aside, script)
        check_script(aside)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def _in_place(run: RunDir, files: dict[Path, bytes | None], n: int) -> Iterator[None]:
    """The new files, each whole; taken back unless sbatch was asked and did not say no."""
    old = {path: _bytes(path) for path in files}
    kept = run.root / f"config.{n}.yaml"
    try:
        if not kept.exists() and (text := old[run.config_yaml]) is not None:
            _put(kept, text)
        for path, data in files.items():
            _put(path, data)
        yield
    except Lost:
        raise
    except BaseException:
        for path, data in old.items():
            with suppress(OSError):
                _put(path, data)
        kept.unlink(missing_ok=True)
        raise


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _put(path: Path, data: bytes | None) -> None:
    """The whole file under its name, as private as it was; None: no file."""
    if data is None:
        path.unlink(missing_ok=True)
        return
    aside = path.with_name(f".{path.name.lstrip('.')}.{os.getpid()}.part")
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, mode)
        file.write(data)
        file.flush()
        os.fsync(fd)
    aside.replace(path)


def _set_requests_aside(run: RunDir) -> None:
    """What was asked of the job that is gone is not asked of this one."""
    for path in run.requests.glob("*.json"):
        path.rename(path.with_name(f"{path.name}.old"))
