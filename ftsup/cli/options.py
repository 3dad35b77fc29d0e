"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ftsup.cli import complete, patience

file_argument = click.argument("file", type=click.Path(path_type=Path), shell_complete=complete.yaml_files)
set_option = click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key: --set slurm.nodes=4. May be repeated.")
run_argument = click.argument("run", required=False, shell_complete=complete.runs)


class _Folder(click.Path):
    """A folder that the command is about to read: click itself asks the disk for it, so patience begins before."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's
        if ctx is not None and ctx.obj is None and not ctx.resilient_parsing:  # a process of its own, not a test's
            patience.watch()
        return super().convert(value, param, ctx)


runs_dir_option = click.option(
    "--runs-dir",
    type=_Folder(path_type=Path),
    default=Path("ftsup-runs"),
    show_default=True,
    help="Where the runs are.",
)
