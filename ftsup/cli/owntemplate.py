"""Renders a batch template of the user's own, with all of Jinja. Ours needs less, and no Jinja (`sbatch.fill`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jinja2

from ftsup.errors import ConfigError


def fill(path: Path, values: Mapping[str, str]) -> str:
    """The script; ConfigError for a template that cannot be read or rendered."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - shell, not HTML: the values are quoted words of bash
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    try:
        return environment.from_string(path.read_text(encoding="utf-8")).render(values)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"slurm.template: {path} cannot be read: {error}") from None
    except jinja2.TemplateError as error:
        line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise ConfigError(f"slurm.template: {path}{line}: {error.message}", hint=f"it may use {', '.join(sorted(values))}") from None
