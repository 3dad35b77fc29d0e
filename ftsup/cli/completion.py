"""`ftsup completion`: the shell's side of TAB, as click writes it. What is proposed is in `complete`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ftsup.cli.group import Choice, examples

SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog=examples(
        'eval "$(ftsup completion bash)"  # in ~/.bashrc',
        'eval "$(ftsup completion zsh)"  # in ~/.zshrc, after compinit',
        "ftsup completion fish > ~/.config/fish/completions/ftsup.fish",
    )
)
@click.argument("shell", type=Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes TAB complete commands, options, runs and files.

    bash 4.4 or newer, zsh or fish.
    """
    made = get_completion_class(shell)
    assert made is not None, shell
    click.echo(made(click.get_current_context().find_root().command, {}, "ftsup", "_FTSUP_COMPLETE").source())
