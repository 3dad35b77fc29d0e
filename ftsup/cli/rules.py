"""`ftsup rules`: the tables by which is decided, from the code, with the numbers in force."""

from __future__ import annotations

from pathlib import Path

import click

from ftsup import eventlog
from ftsup.cli import runconfig
from ftsup.cli.group import examples
from ftsup.cli.options import run_argument, runs_dir_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.errors import RunError
from ftsup.policy.rules import Rules
from ftsup.policy.state import State
from ftsup.report import runs
from ftsup.report.replay import remembered
from ftsup.report.rulebook import Table, budget_table, judge_table, limit_table, markdown, signature_table, text
from ftsup.rundir import RunDir


@click.command(
    epilog=examples(
        "ftsup rules  # with the numbers of a configuration that changes nothing",
        "ftsup rules train  # a run's, and what is left of its budgets",
        "ftsup rules --config config.yaml",
        "ftsup rules --signatures",
    )
)
@run_argument
@runs_dir_option
@click.option("--config", "file", type=click.Path(path_type=Path), help="The numbers of this configuration.")
@click.option("--signatures", is_flag=True, help="The error messages that are known, instead.")
@click.option("--markdown", "as_markdown", is_flag=True, help="As Markdown.")
@with_ports
def rules(ports: Ports, run: str | None, runs_dir: Path, file: Path | None, *, signatures: bool, as_markdown: bool) -> None:
    """Show by which rules ftsup decides, with the numbers in force.

    RUN is a path, a name, the beginning of one, or a job id; left out: no run's.
    """
    if run is not None and file is not None:
        raise click.UsageError("a RUN has its configuration: leave out one of RUN and --config")
    if signatures:
        shown: tuple[Table, ...] = (signature_table(),)
    elif run is not None:
        shown = _of_run(runs.find(run, runs_dir=ports.cwd / runs_dir))
    else:
        shown = _tables(Rules() if file is None else runconfig.of_file(ports.cwd / file).rules())
    for n, table in enumerate(shown):
        click.echo(f"{chr(10) if n else ''}{_markdown(table) if as_markdown else text(table)}")


def _of_run(run: RunDir) -> tuple[Table, ...]:
    """With what it has measured and spent: today's machine reads its log."""
    numbers, notes = runconfig.of_json(run.config_json).rules(), []  # type: Rules, list[str]
    try:
        state = remembered(eventlog.stream(run.events, notes), numbers)
    except OSError as error:
        raise RunError(f"the event log of {run.id} cannot be read: {error.strerror}") from error
    for note in notes:
        click.echo(f"note: {note}", err=True)
    return _tables(numbers, state)


def _tables(numbers: Rules, state: State | None = None) -> tuple[Table, ...]:
    measured = State() if state is None else state
    return (
        judge_table(numbers),
        limit_table(numbers, median_s=measured.median_s, restart_s=measured.restart_s),
        budget_table(numbers, state),
    )


def _markdown(table: Table) -> str:
    return f"**{table.title}**\n\n{markdown(table)}"
