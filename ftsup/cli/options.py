"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

from ftsup.cli import complete

file_argument = click.argument("file", type=click.Path(path_type=Path), shell_complete=complete.yaml_files)
set_option = click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key: --set slurm.nodes=4. May be repeated.")
run_argument = click.argument("run", required=False, shell_complete=complete.runs)
runs_dir_option = click.option(
    "--runs-dir", type=click.Path(path_type=Path), default=Path("ftsup-runs"), show_default=True, help="Where the runs are."
)
