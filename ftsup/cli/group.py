"""How every command of ftsup answers a person: what was meant by a wrong word, and examples in the help, the same everywhere."""

from __future__ import annotations

from typing import Any

import click

from ftsup.nearest import did_you_mean


class Group(click.Group):
    """A group of commands that asks whether another one was meant."""

    def resolve_command(  # noqa: D102 - click's
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            ctx.fail(" ".join([f"No such command {args[0]!r}.", *filter(None, [did_you_mean(args[0], names, quote="'").capitalize()])]))
        return super().resolve_command(ctx, args)


class Choice(click.Choice):  # type: ignore[type-arg]  # click 8.1 has it without a parameter
    """One word of a few, which asks the same."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401, D102 - click's
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            meant = did_you_mean(str(value), [str(choice) for choice in self.choices])
            if not meant:
                raise
            raise click.BadParameter(f"{error.message.removesuffix('.')}; {meant}", ctx, param) from None


class Whole(click.IntRange):
    """A whole number; click calls it an integer range."""

    name = "whole number"


def examples(*lines: str) -> str:
    """The end of a command's help: `@click.command(epilog=examples("ftsup status", ...))`. A comment follows two spaces and a #."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
