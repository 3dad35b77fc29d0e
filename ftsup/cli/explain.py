"""`ftsup explain`: the whole story of a run, from its directory alone."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from ftsup import eventlog
from ftsup.cli.group import Whole, examples
from ftsup.cli.options import run_argument, runs_dir_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.config import Config, from_json
from ftsup.errors import RunError
from ftsup.plain import read_plain, told
from ftsup.report import evidence, runs
from ftsup.report.explain import Tale, explain
from ftsup.report.explaintext import markdown, text
from ftsup.report.ledger import Ledger, keep
from ftsup.rundir import RunDir


@click.command(
    "explain",
    epilog=examples(
        "ftsup explain",
        "ftsup explain train --incident 3  # with the stack of the rank that began it",
        "ftsup explain train --markdown > issue.md",
    ),
)
@run_argument
@runs_dir_option
@click.option("--incident", "number", type=Whole(min=1), metavar="N", help="Only this one, with its stack.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="For an issue or a chat.")
@with_ports
def explain_run(ports: Ports, run: str | None, runs_dir: Path, *, number: int | None, as_json: bool, as_markdown: bool) -> None:
    """Tell what happened to RUN, what it cost, and what to change.

    RUN is a path, a name, the beginning of one, or a job id; left out: the newest run.
    """
    if as_json and as_markdown:
        raise click.UsageError("--json and --markdown are two answers: choose one")
    found = runs.find(run, runs_dir=ports.cwd / runs_dir)
    tale = _tale(ports, found, name=found.named_from(ports.cwd))
    if number is not None:
        tale = _only(tale, number)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(tale), indent=1).decode())
    else:
        click.echo(markdown(tale) if as_markdown else text(tale, alone=number is not None))


def _only(tale: Tale, number: int) -> Tale:
    """The tale with one incident."""
    chosen = tuple(told for told in tale.incidents if told.number == number)
    if not chosen:
        newest = max((told.number for told in tale.incidents), default=0)
        raise RunError(f"{tale.run} has no incident {number}", hint=f"there are 1 to {newest}" if newest else "it has none at all")
    return msgspec.structs.replace(tale, incidents=chosen)


def _tale(ports: Ports, run: RunDir, *, name: str) -> Tale:
    notes: list[str] = []
    ledger = _ledger(run, notes)
    config = _config(run, notes)
    numbers = [incident.number for incident in ledger.story.incidents if incident.number]
    found = {number: one for number in numbers if (one := evidence.look(run.incident(number))) is not None}
    return explain(runs.view(run, ledger.story, notes), ledger, config=config, evidence=found, now=ports.now(), name=name)


def _ledger(run: RunDir, notes: list[str]) -> Ledger:
    try:
        return keep(eventlog.stream(run.events, notes))
    except OSError as error:
        notes.append(f"the event log cannot be read: {error.strerror}")
        return Ledger()


def _config(run: RunDir, notes: list[str]) -> Config | None:
    """None where it is of another version, or torn: what it would add is left out."""
    try:
        return from_json(read_plain(run.config_json))
    except (OSError, ValueError) as error:
        notes.append(f"config.json cannot be read, so no advice rests on it: {told(error)}")
        return None
