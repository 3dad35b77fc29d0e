"""The configuration that a run goes by, as commands need it: from its directory, or from a file that a person names instead."""

from __future__ import annotations

from pathlib import Path

from ftsup.config import Config, from_json, load
from ftsup.errors import RunError
from ftsup.plain import read_plain


def of_file(file: Path) -> Config:
    """A YAML file as `ftsup submit` reads it (ConfigError), or a run's `config.json`."""
    return of_json(file) if file.suffix == ".json" else load(file).config


def of_json(path: Path) -> Config:
    """What `ftsup submit` wrote down; RunError where that is gone, torn, or of another version."""
    try:
        return from_json(read_plain(path))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}", hint="--config FILE names another configuration") from error
    except ValueError as error:
        raise RunError(
            f"{path} is torn, or of another version of ftsup: {error}", hint="--config FILE names another configuration"
        ) from error
