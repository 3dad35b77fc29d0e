"""What every `ftsup checkpoints` command takes, and what becomes of a disk's errors and of Ctrl-C. Wiring."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from ftsup.checkpoint.trouble import told
from ftsup.cli import complete
from ftsup.cli.checkpointdir import Given
from ftsup.errors import CheckpointError

P = ParamSpec("P")
R = TypeVar("R")


def dir_argument(*, names: bool) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """What every command takes: DIR or --config, and how checkpoints are known."""

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        @click.argument("args", nargs=-1, metavar="DIR [NAME]..." if names else "DIR", shell_complete=complete.checkpoints)
        @click.option(
            "--config", type=click.Path(path_type=Path), metavar="FILE", help="Take checkpoint.dir, pattern, complete and keep from it."
        )
        @click.option(
            "--pattern", metavar="GLOB", help="Which entries are checkpoints: 'step-*.pt', 'epoch*/step={step}.ckpt'. Default: all."
        )
        @click.option("--complete", metavar="GLOB", help="A file inside a checkpoint that is written last: 'trainer_state.json'.")
        @wraps(command)
        def wrapped(
            *call: object, args: tuple[str, ...], config: Path | None, pattern: str | None, complete: str | None, **options: object
        ) -> R:
            if len(args) > (config is None) and not names:
                raise click.UsageError(
                    f"one DIR is allowed, and no NAME: {' '.join(args)}" + (" (DIR comes from --config)" if config else "")
                )
            given = Given(words=args, config=config, pattern=pattern, complete=complete)
            return command(*call, given=given, **options)

        return wrapped

    return decorate


def plain_errors(command: Callable[P, R]) -> Callable[P, R]:
    """What a disk says becomes a sentence; an interrupt leaves nothing half done, and that is said."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CheckpointError(told(error, worked_before=False)) from error
        except KeyboardInterrupt:
            click.echo("interrupted: what was done stands, nothing is half done, and the same command goes on from there", err=True)
            raise

    return wrapped


json_option = click.option("--json", "as_json", is_flag=True, help="As JSON.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would be done.")
