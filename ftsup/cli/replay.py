"""`ftsup replay`: an old log before today's rules. Reads, and writes nothing."""

from __future__ import annotations

from pathlib import Path

import click

from ftsup import eventlog
from ftsup.cli import runconfig
from ftsup.cli.group import examples
from ftsup.cli.options import runs_dir_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.errors import Exit, FtsupError, RunError
from ftsup.policy.rules import Rules
from ftsup.report import runs
from ftsup.report.replay import Difference, Outcome, changes, replay, verdicts
from ftsup.report.words import count, one_line

SHOWN = 10


@click.command(
    "replay",
    epilog=examples(
        "ftsup replay train  # would an updated ftsup decide as it did?",
        "ftsup replay train --config other.yaml  # and by other budgets?",
        "ftsup replay old/events.jsonl",
    ),
)
@click.argument("log")
@runs_dir_option
@click.option("--config", "file", type=click.Path(path_type=Path), help="Decide by this configuration instead of the run's.")
@click.option("--all", "every", is_flag=True, help=f"Every difference, not only the first {SHOWN}.")
@with_ports
def replay_log(ports: Ports, log: str, runs_dir: Path, file: Path | None, *, every: bool) -> int:
    """Decide LOG again by the rules of today, and say where they differ.

    LOG is an event log, or a run. Exits with 1 if there is a difference. How long a rank may stand still is watched on the nodes, so
    other limits for hangs change nothing here.
    """
    path = ports.cwd / log if (ports.cwd / log).is_file() else runs.find(log, runs_dir=ports.cwd / runs_dir).events
    notes: list[str] = []
    rules, before = _rules(ports, path, file), _before(path, notes) if file is None else {}
    try:
        outcome = replay(eventlog.stream(path, notes), rules, before=before)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    foreign = outcome.lines == outcome.skipped
    for note in notes[: 1 if foreign else None]:
        click.echo(f"note: {note}", err=True)
    if foreign:
        raise RunError(f"{path} has no line of a leader that began: nothing can be decided again", hint="an event log is RUN/events.jsonl")
    if outcome.skipped:
        click.echo(f"note: {count(outcome.skipped, 'line')} before the first leader are passed over", err=True)
    _tell(outcome, shown=len(outcome.differences) if every else SHOWN)
    return Exit.NO if outcome.differences else Exit.OK


def _rules(ports: Ports, path: Path, file: Path | None) -> Rules:
    if file is not None:
        return runconfig.of_file(ports.cwd / file).rules()
    beside = path.with_name("config.json")
    if beside.exists():
        return runconfig.of_json(beside).rules()
    click.echo("note: no config.json beside the log: by the numbers of a configuration that changes nothing", err=True)
    return Rules()


def _before(path: Path, notes: list[str]) -> dict[int, Rules]:
    """Continuation -> by what the run went until then: a continuation may have changed its configuration."""
    found = {}
    for kept in path.parent.glob("config.*.yaml"):
        n = kept.name.split(".")[1]
        try:
            found[int(n)] = runconfig.of_file(kept).rules()
        except (FtsupError, ValueError, OSError) as error:
            notes.append(f"{kept.name}, by which the run went before it was continued, cannot be read: {one_line(str(error), width=60)}")
    return found


def _tell(outcome: Outcome, *, shown: int) -> None:
    found, lines = outcome.differences, count(outcome.lines - outcome.skipped, "event")
    if not found:
        click.echo(f"{lines}: today's rules decide as was decided")
        return
    for difference in found[:shown]:
        click.echo("\n".join(_words(difference)))
    decided = sum(_decides(difference) for difference in found)
    verdict = f"{decided} of them with another verdict" if decided else "none of them in a verdict"
    click.echo(f"{lines}: today's rules differ on {count(len(found), 'line')}, {verdict}")
    if len(found) > 1:
        click.echo("those after the first may follow from it: the log answers what was ordered then")
    if len(found) > shown:
        click.echo(f"{len(found) - shown} more: --all", err=True)


def _words(difference: Difference) -> list[str]:
    when = f"line {difference.n}, {difference.wall[:19].replace('T', ' ')}, {difference.event}"
    early = f" (by itself, {difference.early_s:.0f} s before this line)" if difference.early_s else ""
    return [when + early, *(f"  {one_line(said, width=78)}" for said in changes(difference))]


def _decides(difference: Difference) -> bool:
    then, now = ({(one.kind, one.avoid) for one in verdicts(orders)} for orders in (difference.then, difference.now))
    return then != now
