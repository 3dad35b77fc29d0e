"""`ftsup doctor`: what of this cluster, this host and this configuration will not work, and what to set. Wiring; it changes nothing."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from ftsup.cli import cluster, complete, doctorlook
from ftsup.cli.cluster import Kind
from ftsup.cli.group import examples
from ftsup.cli.newrun import placed
from ftsup.cli.options import set_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.cli.submit import cluster_option
from ftsup.config import Config, load
from ftsup.report import doctor as judge

NOBODY = Config(name="doctor", command=("train.py",))
"""Every key at its default, where no configuration is named."""


@click.command(
    epilog=examples(
        "ftsup doctor  # the cluster and this host",
        "ftsup doctor config.yaml  # and whether this run can live there",
        "ftsup doctor config.yaml --json",
        "ftsup doctor config.yaml --cluster slurm",
    )
)
@click.argument("file", metavar="[CONFIG]", type=click.Path(path_type=Path), required=False, shell_complete=complete.yaml_files)
@set_option
@cluster_option
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@with_ports
def doctor(ports: Ports, file: Path | None, sets: tuple[str, ...], *, kind: str, as_json: bool) -> int:
    """Look for what will not work here, and say what to set.

    Asks Slurm, the disks, this host and the training's Python, in less than 20 seconds; inside a job also the node. Exit code: 0 fine, 1
    something will not work, 75 Slurm did not answer and the rest is fine.
    """
    if file is None and sets:
        raise click.UsageError("--set changes a CONFIG: name one")
    config = placed(NOBODY if file is None else load(file, sets=sets).config, cwd=ports.cwd)
    wanted = Kind.SLURM if kind == Kind.AUTO.value and "SLURM_JOB_ID" in ports.environ else Kind(kind)  # sbatch may be hidden from a job
    chosen, choice = cluster.choose(wanted, environ=ports.environ, nodes=config.slurm.nodes)
    facts = doctorlook.look(ports, doctorlook.Asked(config=config, given=file is not None, chosen=chosen, choice=choice))
    found = judge.findings(facts)
    click.echo(msgspec.json.format(msgspec.json.encode(judge.report(facts, found)), indent=1) if as_json else judge.text(found))
    return judge.exit_code(facts, found)
