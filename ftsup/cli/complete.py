"""What TAB proposes: runs, configurations, nodes, attempts, checkpoints. Looks at names only, and says nothing where it cannot look.

click calls these with what stands on the line so far; what they need is imported when they are called.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

_MOST = 50
"""More is no help."""


def runs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
    """Names of runs, the newest first; with a / the single runs of that name."""
    found = _runs(ctx)
    names = [run.root.parent.name for run in found]
    return _beginning([run.id for run in found] if "/" in incomplete else names, incomplete)


def nodes(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
    """Nodes that the run has used."""
    return _beginning(sorted({name for _, name in _logs(ctx)}), incomplete)


def epochs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
    """Attempts of the run, the newest first."""
    found = {epoch for epoch, _ in _logs(ctx) if epoch.replace(".", "").isdigit()}
    return _beginning(sorted(found, key=lambda epoch: [int(part) for part in epoch.split(".")], reverse=True), incomplete)


def yaml_files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
    """*.yaml and *.yml here; else the shell's own proposal, which knows folders."""
    folder, _, start = incomplete.rpartition("/")
    place = Path(f"{folder}/" if incomplete.startswith("/") else folder or ".")
    shown = f"{folder}/" if "/" in incomplete else ""
    try:
        found = sorted(path.name for path in place.iterdir() if path.suffix in {".yaml", ".yml"} and path.name.startswith(start))
    except OSError:
        found = []
    return [CompletionItem(f"{shown}{name}") for name in found[:_MOST]] or [CompletionItem(incomplete, type="file")]


def checkpoints(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem[Any]]:
    """A directory first, then names of checkpoints in it."""
    words = ctx.params.get("args") or ()
    if not words or ctx.params.get("config"):
        return [CompletionItem(incomplete, type="dir")]
    from ftsup.checkpoint.disk import RealDisk  # noqa: PLC0415 - only where checkpoints are asked for
    from ftsup.checkpoint.entries import entries  # noqa: PLC0415
    from ftsup.checkpoint.home import Home  # noqa: PLC0415

    try:
        there = entries(RealDisk(), Home(Path(words[0])), pattern=ctx.params.get("pattern") or "*")
    except OSError:
        return []
    return _beginning([entry.name for entry in there if entry.name not in words[1:]], incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[CompletionItem[Any]]:
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)][:_MOST]


def _runs(ctx: click.Context) -> Sequence[Any]:
    from ftsup.report.runs import all_runs  # noqa: PLC0415 - only where runs are asked for

    try:
        return all_runs(Path(ctx.params.get("runs_dir") or "ftsup-runs"))
    except OSError:
        return []


def _logs(ctx: click.Context) -> list[tuple[str, str]]:
    """Attempt and node of each log of the run that the line names, or of the newest."""
    wanted = ctx.params.get("run") or ""
    found = [run for run in _runs(ctx) if not wanted or wanted in {run.id, run.root.parent.name, run.root.name} or str(run.root) == wanted]
    try:
        return [(path.parent.name, path.stem.split(".")[0]) for path in found[0].root.glob("logs/*/*.log")] if found else []
    except OSError:
        return []
