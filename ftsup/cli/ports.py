"""What commands reach the world through, as one bundle: a test hands in another (click's `obj`), nothing is patched."""

from __future__ import annotations

import os
import pwd
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import click

from ftsup.ports import Disk, Slurm

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The world, as commands see it."""

    environ: Mapping[str, str]
    slurm: Callable[[Mapping[str, str]], Slurm]
    """The port to the Slurm whose commands this environment finds."""
    now: Callable[[], datetime]
    sleep: Callable[[float], object]
    token: Callable[[], str]
    """Four hex digits."""
    python: str
    """The interpreter that runs ftsup, here and on the nodes."""
    cwd: Path
    user: str
    disk: Callable[[Callable[[int], None]], Disk] = field(default_factory=lambda: _disk)
    """The disk, which tells the size of each piece that is read."""
    slurm_within: Callable[[Mapping[str, str], float], Slurm] = field(default_factory=lambda: _commands)
    """As `slurm`, with so many seconds for each call."""
    become: Callable[[Sequence[str], Mapping[str, str]], int] = field(default_factory=lambda: _become)
    """This process goes on as another program, in that environment."""
    terminal: bool = False
    """A person sits there, who can be asked."""


def real() -> Ports:
    """The real ones."""
    return Ports(
        environ=dict(os.environ),
        slurm=_commands,
        now=lambda: datetime.now(timezone.utc).astimezone(),
        sleep=time.sleep,
        token=lambda: os.urandom(2).hex(),
        python=sys.executable,
        cwd=Path.cwd(),
        user=_user(),
        terminal=sys.stdin.isatty() and sys.stderr.isatty(),
    )


def _commands(environ: Mapping[str, str], deadline_s: float | None = None) -> Slurm:
    from ftsup.slurm.commands import DEADLINE_S, Commands  # noqa: PLC0415 - most commands ask Slurm nothing

    return Commands(environ=environ, deadline_s=DEADLINE_S if deadline_s is None else deadline_s)


def _disk(each: Callable[[int], None]) -> Disk:
    from ftsup.checkpoint.disk import RealDisk  # noqa: PLC0415 - as above

    return RealDisk(each=each)


def _become(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    sys.stdout.flush()
    os.execvpe(argv[0], list(argv), dict(environ))  # noqa: S606 - our own lines


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without this user
        return str(os.getuid())


def with_ports(command: Callable[Concatenate[Ports, P], R]) -> Callable[P, R]:
    """Give a command its ports: click's `obj` where a test passed one, else the real ones."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        obj = click.get_current_context().obj
        return command(obj if isinstance(obj, Ports) else real(), *args, **kwargs)

    return wrapped
