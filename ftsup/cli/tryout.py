"""Tries notify.command out: calls it once with a test message, exactly as the leader will, and shows what became of that."""

from __future__ import annotations

import os
import select
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from ftsup.config import Config
from ftsup.errors import ConfigError, RunError
from ftsup.report.words import one_line
from ftsup.supervisor import notices
from ftsup.supervisor.hook import Hook
from ftsup.supervisor.notices import News, Notices

_SHOWN = 20
"""Lines of its output."""


def tell(config: Config, *, environ: Mapping[str, str], user: str, cwd: Path) -> None:
    """Call it; RunError when it did not do well."""
    if not config.notify.command:
        raise ConfigError("notify.command is empty: nobody is told anything", hint="notify.command: [mail, -s, ftsup, me@example.org]")
    news = News(kind="test", text=f"a test message for {config.name}, sent by {user}: nothing has happened")
    message = notices.message(Notices(held=(news,), count=1), run=f"{config.name}/test", job="0", path=str(cwd / config.runs_dir))
    text = msgspec.json.encode(message).decode()
    click.echo(f"{' '.join(config.notify.command)} gets on its standard input:\n{msgspec.json.format(text, indent=2)}", err=True)
    with tempfile.TemporaryDirectory(prefix="ftsup-") as folder:
        began = time.monotonic()
        said = _call(config, Path(folder), text, environ=environ, cwd=cwd / config.workdir)
        took_s = time.monotonic() - began
        for name in ("out", "err"):
            for line in _lines(Path(folder) / f"notify.{name}"):
                click.echo(f"  {name}: {one_line(line, width=70)}")
    if said:
        raise RunError(said[-1], hint="a run goes on whatever becomes of notify.command; but nobody would be told")
    click.echo(f"it ended well, after {took_s:.1f} s")


def _call(config: Config, folder: Path, text: str, *, environ: Mapping[str, str], cwd: Path) -> list[str]:
    mark = f"{config.name}/test-{uuid.uuid4().hex}/0/{os.uname().nodename}/notify"
    hook = Hook(config.notify.command, folder, cwd=cwd, mark=mark, env=environ)
    said = hook.call(text, now=time.monotonic())
    try:
        while hook.busy:
            select.select(hook.fds(), [], [], 0.1)
            said += hook.poll(time.monotonic())
    finally:
        hook.close()
    return said


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"... {len(lines) - _SHOWN} more lines"]
