"""Renders a batch template of the user's own, with all of Jinja. Ours needs less, and no Jinja (`sbatch.fill`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import jinja2

from ftsup.errors import ConfigError

DEAF = "trap '' USR1 USR2"
"""Our template's first command. With `B:`, or scancel --batch, Slurm warns bash alone, and bash dies of what it has no trap for."""
_HEAD = re.compile(r"(?:[ \t]*(?:#.*)?\n)*")
"""Up to the first command: sbatch reads #SBATCH lines so far."""


def fill(path: Path, values: Mapping[str, str]) -> str:
    """The script; ConfigError for a template that cannot be read or rendered, or that starts no leader."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - shell, not HTML: the values are quoted words of bash
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    try:
        script = environment.from_string(path.read_text(encoding="utf-8")).render(values)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"slurm.template: {path} cannot be read: {error}") from None
    except jinja2.TemplateError as error:
        line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise ConfigError(f"slurm.template: {path}{line}: {error.message}", hint=f"it may use {', '.join(sorted(values))}") from None
    if not re.search(r"ftsup[\"']? +lead\b", script):
        raise ConfigError(f"slurm.template: {path} starts no leader", hint="it must run {{ python }} -m ftsup lead {{ run }}")
    return _deaf(script)


def _deaf(script: str) -> str:
    """With that first command, where it is not there yet. Traps that follow stand, and a leader that does not hear it watches EndTime."""
    head = _HEAD.match(script)
    assert head is not None
    head_text, rest = script[: head.end()], script[head.end() :]
    return script if rest.startswith(DEAF) else f"{head_text}{DEAF} # by ftsup: bash would die of a warning without a trap\n{rest}"
