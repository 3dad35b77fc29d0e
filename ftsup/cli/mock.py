"""`ftsup mock`: a Slurm for one machine, for trying things out: put its commands into a shell, look at it, order faults. Wiring only."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ftsup.cli.cluster import MOCK_STATE, mock_state
from ftsup.cli.group import Group, Whole, examples
from ftsup.errors import ConfigError, Exit
from ftsup.mockslurm import control as mockslurm

state_option = click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help=f"The mock's directory (default: ${MOCK_STATE}, else ftsup/mock under your cache directory).",
)


def _where(state: Path | None) -> Path:
    return state or mock_state(os.environ)


@click.group(cls=Group, epilog=examples('eval "$(ftsup mock env)"', "ftsup mock status", "ftsup mock fault node-down mock2"))
def mock() -> None:
    """A Slurm for one machine.

    sbatch, salloc, srun, squeue, scontrol, scancel and sinfo over virtual nodes.
    """


@mock.command(epilog=examples('eval "$(ftsup mock env)"', 'eval "$(ftsup mock env --nodes 8 --set begin_wait_s=2)"'))
@state_option
@click.option("--nodes", type=Whole(1, 1000), default=4, show_default=True, help="How many virtual nodes, mock1, mock2, ...")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="A setting, such as begin_wait_s=2. May be repeated.")
def env(state: Path | None, nodes: int, sets: tuple[str, ...]) -> None:
    """Print what puts the mock's commands first on PATH: eval "$(ftsup mock env)"."""
    settings: dict[str, object] = {}
    for pair in sets:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair}: not NAME=VALUE")
        settings[name] = value
    variables = mockslurm.create(_where(state), nodes=nodes)
    mockslurm.configure(_where(state), **settings)
    click.echo(mockslurm.shell_text(variables))


@mock.command(epilog=examples("ftsup mock status"))
@state_option
def status(state: Path | None) -> None:
    """Show nodes, faults, settings and jobs."""
    click.echo(mockslurm.status(_where(state)))


@mock.command(epilog=examples("ftsup mock stop"))
@state_option
def stop(state: Path | None) -> None:
    """End every job with everything it started.

    Exits with 1 if something could not be ended.
    """
    if not mockslurm.stop(_where(state)):
        click.echo("some processes of the mock's jobs could not be ended", err=True)
        raise SystemExit(Exit.NO)


@mock.group(cls=Group, epilog=examples("ftsup mock fault away 30", "ftsup mock fault node-down mock2"))
def fault() -> None:
    """Order a fault."""


@fault.command(epilog=examples("ftsup mock fault away 30"))
@state_option
@click.argument("seconds", type=click.FloatRange(min=0))
def away(state: Path | None, seconds: float) -> None:
    """The controller answers nobody for SECONDS."""
    mockslurm.away(_where(state), seconds=seconds)


@fault.command("refuse-requeue", epilog=examples("ftsup mock fault refuse-requeue 2"))
@state_option
@click.argument("count", type=Whole(min=0))
def refuse_requeue(state: Path | None, count: int) -> None:
    """The next COUNT requeues are refused."""
    mockslurm.refuse_requeues(_where(state), count=count)


@fault.command("node-down", epilog=examples("ftsup mock fault node-down mock2"))
@state_option
@click.argument("node")
def node_down(state: Path | None, node: str) -> None:
    """NODE is lost, with everything that runs on it."""
    mockslurm.node_down(_where(state), node)


@fault.command("node-up", epilog=examples("ftsup mock fault node-up mock2"))
@state_option
@click.argument("node")
def node_up(state: Path | None, node: str) -> None:
    """NODE is back."""
    mockslurm.node_up(_where(state), node)


@fault.command("set", epilog=examples("ftsup mock fault set begin_wait_s 2"))
@state_option
@click.argument("name")
@click.argument("value")
def set_(state: Path | None, name: str, value: str) -> None:
    """Change a setting of the living mock."""
    mockslurm.configure(_where(state), **{name: value})
