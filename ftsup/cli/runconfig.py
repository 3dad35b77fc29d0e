"""The configuration that a run goes by, as commands need it: from its directory, or from a file that a person names instead."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ftsup.config import Config, from_json, load
from ftsup.errors import RunError


def of_file(file: Path) -> Config:
    """A YAML file as `ftsup submit` reads it (ConfigError), or a run's `config.json`."""
    return of_json(file) if file.suffix == ".json" else load(file).config


def of_json(path: Path) -> Config:
    """What `ftsup submit` wrote down; RunError where that is gone, torn, or of another version."""
    try:
        return from_json(path.read_bytes())
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}", hint="--config FILE names another configuration") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunError(
            f"{path} is torn, or of another version of ftsup: {error}", hint="--config FILE names another configuration"
        ) from error
