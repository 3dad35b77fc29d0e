"""`ftsup clean`: what old runs leave behind. Lists it with sizes, asks, and removes; what is not certainly over is left alone."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import click

from ftsup.cli.group import Whole, examples
from ftsup.cli.meter import size_text
from ftsup.cli.options import runs_dir_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.errors import Exit, RunError
from ftsup.report import oldruns
from ftsup.report.oldruns import ASIDE, Left, Old
from ftsup.report.words import count
from ftsup.units import seconds

LOOK_S, WEIGH_S = 60.0, 15.0
"""The most that looking at runs, and counting bytes, may take on a slow disk."""


class Age(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has it without a parameter
    """A duration with its unit."""

    name = "age"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: D102 - click's
        if isinstance(value, float):
            return value
        try:
            return seconds(str(value))
        except ValueError as error:
            return self.fail(f"{value!r} {error}", param, ctx)


@click.command(
    epilog=examples(
        "ftsup clean --dry-run  # only the list",
        "ftsup clean --older-than 14d --keep 2",
        "ftsup clean --all --older-than 1-00:00:00 --yes",
    )
)
@runs_dir_option
@click.option("--older-than", "older_s", type=Age(), default="30d", show_default=True, help="Runs that ended so long ago.")
@click.option("--keep", type=Whole(min=0), default=0, show_default=True, help="Leave the newest N of each name alone.", metavar="N")
@click.option("--all", "whole", is_flag=True, help="The whole run directory, not only its logs and incidents.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_ports
def clean(ports: Ports, runs_dir: Path, older_s: float, keep: int, *, whole: bool, dry_run: bool, yes: bool) -> int:
    """Remove the logs and incidents of old runs.

    Their event log, configuration and decisions stay, and `ftsup explain` still works; checkpoints are never touched. Runs that are not
    over, not yours, or not readable without doubt are left alone.
    """
    folder, uid = ports.cwd / runs_dir, os.getuid()
    now = ports.now()
    found, left = oldruns.choose(folder, now=now, older_s=older_s, keep=keep, whole=whole, uid=uid, late=_after(ports, LOOK_S))
    begun = oldruns.unfinished(folder, uid=uid)
    for line in _listed(found, begun, late=_after(ports, WEIGH_S)):
        click.echo(line)
    for line in _left(left):
        click.echo(line, err=True)
    if not found and not begun:
        click.echo(f"nothing to remove in {runs_dir}", err=True)
        return Exit.OK
    if dry_run:
        return Exit.OK
    if not yes:
        _ask(len(found) + len(begun))
    return _remove_all(found, begun)


def _after(ports: Ports, limit_s: float) -> Callable[[], bool]:
    """Whether so much time has passed since now."""
    until = ports.now() + timedelta(seconds=limit_s)
    return lambda: ports.now() > until


def _listed(found: list[Old], begun: list[Path], *, late: Callable[[], bool]) -> Iterator[str]:
    total, seen = 0, True
    for name, what, paths in (*_rows(found), *((f"{path.parent.name}/{path.name}", "the rest of it", [path]) for path in begun)):
        size_bytes, whole = oldruns.size(paths, late=late)
        total, seen = total + size_bytes, seen and whole
        yield f"{_size(size_bytes, whole=whole):>12}  {name}: {what}"
    if found or begun:
        yield f"{_size(total, whole=seen):>12}  in all"


def _rows(found: list[Old]) -> Iterator[tuple[str, str, list[Path]]]:
    for old in found:
        what = "all of it" if old.whole else " and ".join(path.name for path in old.paths)
        strange = f" (it stays: {', '.join(old.strange[:3])} is none of ftsup's)" if old.strange else ""
        yield old.run.id, f"{what}{strange}", list(old.paths)


def _size(size_bytes: int, *, whole: bool) -> str:
    return size_text(size_bytes) if whole else f"> {size_text(size_bytes)}"


def _left(left: Counter[Left]) -> Iterator[str]:
    yield from (f"left alone: {count(times, 'run')} {why.value}" for why, times in left.items() if why is not Left.KEPT)


def _ask(number: int) -> None:
    """RunError unless the answer is yes."""
    hint = "--yes removes without asking, --dry-run only shows the list"
    if not sys.stdin.isatty():
        raise RunError("nothing was removed: there is no terminal to ask at", hint=hint)
    try:
        click.confirm(f"Remove this of {count(number, 'run')}?", abort=True, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise RunError("nothing was removed", hint=hint) from None


def _remove_all(found: list[Old], begun: list[Path]) -> int:
    """One after the other; what fails is said and keeps nobody from the next. Interrupted, the same command goes on."""
    failed = 0
    for old in found:
        if oldruns.fingerprint(old.run) != old.stamp:
            click.echo(f"{old.run.id} has changed since it was listed: left alone", err=True)
            failed += 1
            continue
        failed += sum(not _remove(path, aside=old.whole) for path in old.paths)
        if old.whole:
            _drop_empty(old.run.root.parent)
    for path in begun:
        failed += not _remove(path, aside=False)
        _drop_empty(path.parent)
    return Exit.NO if failed else Exit.OK


def _remove(path: Path, *, aside: bool) -> bool:
    """A folder and all below it, never through a link. `aside`: by another name first, so that no half run is ever found."""
    try:
        if aside:
            path = path.rename(path.with_name(f"{path.name}{ASIDE}"))
        shutil.rmtree(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        click.echo(f"{error.filename or path} cannot be removed: {error.strerror or error}", err=True)
        return False
    return True


def _drop_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
