"""`ftsup init`: a first config.yaml, from flags, answers, the script's text and what the cluster says. Wiring.

Looks, and changes nothing but the one file that it writes, whole or not at all, and never over another one without --force.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from pathlib import Path

import click
import msgspec

from ftsup.cli import clusterlook
from ftsup.cli.clusterlook import Site
from ftsup.cli.draft import Draft, text
from ftsup.cli.group import Choice, Whole, examples
from ftsup.cli.guess import Ask, Flags, make
from ftsup.cli.ports import Ports, with_ports
from ftsup.config import Launch, load
from ftsup.errors import ConfigError


@click.command(
    epilog=examples(
        "ftsup init",
        "ftsup init --script train.py --nodes 4 --gpus 8 --time 1d --yes",
        "ftsup init --script 'train.py --lr 3e-4' --checkpoints ckpt -o run.yaml",
        "ftsup init --script train.py --launch command -o -",
    )
)
@click.option("--script", metavar="'SCRIPT [ARG]...'", help="What trains, as after `torchrun`.")
@click.option("--name", help="Names the job and the folder of its runs.")
@click.option("--nodes", type=Whole(min=1), help="Nodes of the job.")
@click.option("--gpus", type=Whole(min=1), help="GPUs of each node: one rank for each.")
@click.option("--time", metavar="DURATION", help="Time limit of one allocation: 12h, 2d.")
@click.option("--checkpoints", metavar="DIR", help="Where the script saves.")
@click.option("--pattern", metavar="GLOB", help="How its checkpoints are called: 'step-*.pt'.")
@click.option("--partition", help="Partition of the cluster.")
@click.option("--account", help="Account that is charged.")
@click.option(
    "--launch",
    type=Choice([each.value for each in Launch]),
    default=Launch.TORCHRUN.value,
    show_default=True,
    help="command: a command line of your own.",
)
@click.option("-o", "--output", default="config.yaml", show_default=True, metavar="FILE", help="-: to standard output.")
@click.option("--force", is_flag=True, help="Write over FILE if it is there.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask; take the guesses.")
@with_ports
def init(ports: Ports, /, *, output: str, force: bool, yes: bool, **given: str | int | None) -> None:
    """Write a first configuration, with a comment on everything that was guessed.

    Looks at the script's text (it is not run) and, where there is one, at the cluster. On a terminal it asks; otherwise the options and
    the guesses are taken.
    """
    place = None if output == "-" else ports.cwd / output
    if place and place.exists() and not force:
        raise ConfigError(f"{output} is there already", hint="--force writes over it; -o FILE writes another one; -o - only shows it")
    flags = msgspec.convert(given, type=Flags)
    ask = Ask(on=ports.terminal and not yes)
    site = clusterlook.look(ports.slurm(ports.environ), environ=ports.environ)
    draft = make(flags, site, ports=ports, ask=ask)
    written = text(draft)
    check(written)
    if place is None:
        click.echo(written, nl=False)
    else:
        write(place, written, force=force)
        click.echo(f"{output} is written", err=True)
    _say(draft, site, output)


# The file -----------------------------------------------------------------------------------------------------------------


def check(written: str) -> None:
    """What `ftsup config check` says of it, without the lines of a file that nobody has seen."""
    with tempfile.TemporaryDirectory(prefix="ftsup-") as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(written, encoding="utf-8")
        try:
            load(path)
        except ConfigError as error:
            problems = re.sub(rf"^{re.escape(str(path))}(?::\d+)?: ", "", error.message, flags=re.MULTILINE)
            raise ConfigError(f"no configuration can be made of this:\n{problems}", hint=error.hint) from None


def write(place: Path, written: str, *, force: bool) -> None:
    """Whole or not at all."""
    aside = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        try:
            aside.write_text(written, encoding="utf-8")
            if force:
                aside.replace(place)
            else:
                os.link(aside, place)  # unlike a rename, it fails where somebody was faster
        finally:
            aside.unlink(missing_ok=True)
    except FileExistsError:
        raise ConfigError(f"{place.name} is there already", hint="--force writes over it") from None
    except OSError as error:
        raise ConfigError(f"{place} cannot be written: {(error.strerror or str(error)).lower()}") from None


def _say(draft: Draft, site: Site, output: str) -> None:
    number = draft.guesses
    lines = [f"{number} of its values are guessed, and say from what"] if number else []
    lines += [site.silence] if site.silence else []
    lines += [draft.saving] if draft.saving else []
    for line in lines:
        click.echo(click.wrap_text(line, width=80), err=True)
    if output == "-":
        return
    shown = shlex.quote(output)
    click.echo("next:", err=True)
    for command, what in (
        (f"config check {shown}", "after a change"),
        (f"submit {shown} --dry-run", "the batch script"),
        (f"submit {shown} --cluster mock", "on a Slurm of four virtual nodes, here") if site.silence else (f"submit {shown}", ""),
    ):
        click.echo(f"  ftsup {command}" + (f"  # {what}" if what else ""), err=True)
