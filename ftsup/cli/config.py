"""`ftsup config`: check a file, show what is in force and why, and print what can be written. Wiring only."""

from __future__ import annotations

from pathlib import Path

import click

from ftsup.cli.group import Group, examples
from ftsup.cli.options import file_argument, set_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.cli.warn import hook_warnings
from ftsup.config import load
from ftsup.config.doc import effective, full_yaml, schema_json


@click.group(cls=Group, epilog=examples("ftsup config check config.yaml", "ftsup config full > full.yaml  # every key with its reason"))
def config() -> None:
    """Check and explain configurations."""


@config.command(epilog=examples("ftsup config check config.yaml", "ftsup config check config.yaml --set slurm.nodes=8"))
@file_argument
@set_option
@with_ports
def check(ports: Ports, file: Path, sets: tuple[str, ...]) -> None:
    """Find every mistake in FILE. Exits with 78 if there is one."""
    loaded = load(file, sets=sets)
    for warning in hook_warnings(loaded.config, environ=ports.environ):
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{file}: no mistakes found", err=True)


@config.command(epilog=examples("ftsup config notify config.yaml"))
@file_argument
@set_option
@with_ports
def notify(ports: Ports, file: Path, sets: tuple[str, ...]) -> None:
    """Call notify.command with a test message, and show what it does.

    It gets its news as JSON on standard input: `text` is the sentence, `command` what to type, `kind` what it is about. Exits with 1 where
    it fails, hangs, or leaves something behind.
    """
    from ftsup.cli.tryout import tell  # noqa: PLC0415 - a process of its own is started by this command alone

    tell(load(file, sets=sets).config, environ=ports.environ, user=ports.user, cwd=ports.cwd)


@config.command(epilog=examples("ftsup config show config.yaml"))
@file_argument
@set_option
def show(file: Path, sets: tuple[str, ...]) -> None:
    """Show the value of every key and where it came from."""
    rows = effective(load(file, sets=sets))
    width = min(max(len(key) + len(value) for key, value, _ in rows) + 2, 60)
    for key, value, source in rows:
        click.echo(f"{f'{key}: {value}':<{width}}  # {source}")


@config.command(epilog=examples("ftsup config schema > ftsup.schema.json"))
def schema() -> None:
    """Print a JSON Schema for editors."""
    click.echo(schema_json(), nl=False)


@config.command(epilog=examples("ftsup config full > full.yaml"))
def full() -> None:
    """Print a file with every key at its default and the reason for it."""
    click.echo(full_yaml(), nl=False)
