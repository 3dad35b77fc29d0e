"""The command line: which commands there are, and what becomes of errors. Wiring only; nobody imports it.

A command's module is imported when it runs, so that `ftsup --help` stays light: no rich, no zmq, and never torch.
"""

from __future__ import annotations

try:
    import os
    import sys
    import traceback
    from importlib import import_module
    from pathlib import Path
    from typing import Any

    import click
    from click.shell_completion import CompletionItem

    from ftsup.cli.group import Group
    from ftsup.errors import Exit, FtsupError
except KeyboardInterrupt:  # Ctrl-C while Python still imports: no traceback of whatever library it was in
    raise SystemExit(130) from None

COMMANDS = {
    "init": ("ftsup.cli.init", "init", "Write a first configuration, with a comment on each guess."),
    "submit": ("ftsup.cli.submit", "submit", "Check a configuration, write the batch script and submit it."),
    "run": ("ftsup.cli.run", "run", "Train inside an allocation that this shell has (salloc)."),
    "render": ("ftsup.cli.submit", "render", "Write the batch script to standard output."),
    "status": ("ftsup.cli.show", "status", "Show how a run is doing."),
    "top": ("ftsup.cli.top", "top", "Watch a run over the whole terminal."),
    "logs": ("ftsup.cli.logs", "logs", "Show what the ranks print."),
    "list": ("ftsup.cli.show", "list_runs", "List the runs."),
    "explain": ("ftsup.cli.explain", "explain_run", "Tell what happened to a run, what it cost, and what to change."),
    "rules": ("ftsup.cli.rules", "rules", "Show by which rules ftsup decides, with the numbers in force."),
    "replay": ("ftsup.cli.replay", "replay_log", "Decide an old log again, by the rules of today."),
    "stop": ("ftsup.cli.steer", "stop", "Save where the script can, then end a run."),
    "restart": ("ftsup.cli.steer", "restart", "Begin a run's next attempt, also from an earlier step."),
    "requeue": ("ftsup.cli.steer", "requeue", "Give a run's job back to the queue, also without some nodes."),
    "pause": ("ftsup.cli.steer", "pause", "Save where the script can, then release a run's job."),
    "cancel": ("ftsup.cli.steer", "cancel", "End a run for good."),
    "watch": ("ftsup.cli.watch", "watch", "Look after runs from a login node: see to what no leader can."),
    "checkpoints": ("ftsup.cli.checkpoints", "checkpoints", "Look at, verify, seal, choose and prune checkpoints."),
    "clean": ("ftsup.cli.clean", "clean", "Remove the logs and incidents of old runs."),
    "doctor": ("ftsup.cli.doctor", "doctor", "Look for what will not work here, and say what to set."),
    "config": ("ftsup.cli.config", "config", "Check and explain configurations."),
    "demo": ("ftsup.cli.demo", "demo", "Watch a run survive faults on this machine."),
    "completion": ("ftsup.cli.completion", "completion", "Print what makes TAB complete commands, runs and files."),
    "mock": ("ftsup.cli.mock", "mock", "A Slurm for one machine."),
    "lead": ("ftsup.cli.lead", "lead", "The leader; the batch script starts it."),
    "node": ("ftsup.cli.lead", "node", "The node supervisor; the leader starts it."),
}
"""Name -> (module, attribute, short help)."""
INTERNAL = {"lead", "node"}
"""Nobody types these."""


class _Lazy(Group):
    """The commands of the table, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        """TAB after `ftsup`: from the table, without importing what is proposed."""
        names = [name for name in COMMANDS if name.startswith(incomplete) and name not in INTERNAL]
        return [CompletionItem(name, help=COMMANDS[name][2]) for name in names] + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value:
        from importlib import metadata  # noqa: PLC0415 - takes as long to import as everything else of --help

        click.echo(f"ftsup {metadata.version('ftsup')}")
        ctx.exit()


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit.")
def ftsup() -> None:
    """Keep a long PyTorch training job alive on a Slurm cluster."""


def main(args: list[str] | None = None, *, program: click.Command = ftsup) -> int:
    """The program: runs one command; its exit code. What a person should read goes to standard error, without a traceback."""
    try:
        code = program.main(args=args, prog_name="ftsup", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort as error:
        return 130 if isinstance(error.__cause__, KeyboardInterrupt) else Exit.NO
    except KeyboardInterrupt:
        return 130
    except FtsupError as error:
        click.echo(str(error), err=True)
        return error.exit_code
    except BrokenPipeError:  # the reader has gone (`| head`): nobody to tell, and nothing more to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.NO
    except OSError as error:  # a disk that is full, a folder that is not ours: nothing that we did wrong
        click.echo(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error), err=True)
        return Exit.NO
    except Exception as error:  # noqa: BLE001 - the program's last line
        click.echo(_bug(error), err=True)
        return Exit.BUG


def _bug(error: Exception) -> str:
    """Our own bug, in lines that can be reported: the error, and where in ftsup it was, without paths of this machine."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "ftsup" in Path(frame.filename).parts]
    places = [f"  at {'/'.join(_below(frame.filename))}:{frame.lineno} in {frame.name}" for frame in frames[-8:]]
    return "\n".join([f"ftsup has a bug: {type(error).__name__}: {error}", *places, "hint: please report this with the lines above"])


def _below(filename: str) -> tuple[str, ...]:
    parts = Path(filename).parts
    return parts[len(parts) - 1 - parts[::-1].index("ftsup") :]
