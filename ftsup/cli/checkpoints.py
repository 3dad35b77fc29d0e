"""`ftsup checkpoints`: look at, read back, seal, choose, hold and remove checkpoints in any directory, without a run.

Wiring: the rules are in ftsup/checkpoint/, the words in checkpointwords.py. Data goes to standard output, all else to standard error.
"""

from __future__ import annotations

import os

import click
import msgspec

from ftsup.checkpoint import byhand, keep
from ftsup.checkpoint.attempts import pending
from ftsup.checkpoint.byhand import Finding, Vouched
from ftsup.checkpoint.moves import Removed
from ftsup.checkpoint.pick import Ask
from ftsup.checkpoint.pick import pick as pick_newest
from ftsup.checkpoint.seal import Outcome, Sealing, Sign
from ftsup.checkpoint.survey import survey
from ftsup.cli import checkpointwords as words
from ftsup.cli.checkpointdir import Given, Where, chosen, free, may_change, resumed_from, where
from ftsup.cli.checkpointoptions import dir_argument, dry_run_option, json_option, plain_errors
from ftsup.cli.checkpointwork import examined, label, newest_verified, only_look, remembering, sealed
from ftsup.cli.group import Group, Whole, examples
from ftsup.cli.meter import Meter, size_text
from ftsup.cli.ports import Ports, with_ports
from ftsup.errors import CheckpointError, Exit
from ftsup.ports import Disk
from ftsup.report.words import one_line


@click.group(
    cls=Group,
    epilog=examples(
        "ftsup checkpoints list ckpt",
        "ftsup checkpoints verify --config config.yaml",
        'python train.py --resume "$(ftsup checkpoints pick ckpt)"',
    ),
)
def checkpoints() -> None:
    """Look at and mend a directory of checkpoints, with or without a run.

    DIR is the directory that holds them, NAME is one of them. With --config FILE the directory and how checkpoints are known come from
    FILE's checkpoint section, and every argument is a NAME.
    """


@checkpoints.command("list", epilog=examples("ftsup checkpoints list ckpt", "ftsup checkpoints list ckpt --pattern 'step-*.pt'"))
@dir_argument(names=False)
@json_option
@with_ports
@plain_errors
def list_(ports: Ports, *, given: Given, as_json: bool) -> None:
    """List the checkpoints of DIR, the newest first.

    Also what is in quarantine, and what lies about. Nothing big is read; `verify` reads.
    """
    with Meter() as meter:
        disk = ports.disk(meter.read)
        found = where(given, ports=ports, disk=disk)
        held = survey(disk, found.home, pattern=found.pattern, complete=found.complete)
    for line in [_as_json(held)] if as_json else words.table(held):
        click.echo(line)
    for line in [] if as_json else words.beside(held, pattern=found.pattern):
        click.echo(line, err=True)


@checkpoints.command(epilog=examples("ftsup checkpoints verify ckpt", "ftsup checkpoints verify ckpt step-500.pt --json"))
@dir_argument(names=True)
@json_option
@with_ports
@plain_errors
def verify(ports: Ports, *, given: Given, as_json: bool) -> None:
    """Read checkpoints back and say what is damaged.

    All of DIR, or the named ones. Damage is told by file and block, and by the tensor where that is known. A sealed one is held against
    its manifest, another one against the checksums of its own kind, which may not see everything. Exits with 1 when something is
    damaged or unreadable, or when one that was named is incomplete.
    """
    results: list[Finding] = []
    with Meter() as meter:
        disk = ports.disk(meter.read)
        found = where(given, ports=ports, disk=disk)
        wanted = chosen(disk, found, ports=ports)
        with remembering(disk, found.home) as backs:
            for entry in wanted:
                results.append(examined(disk, found, entry, meter, backs=backs, ports=ports))
                if not as_json:
                    meter.say(words.finding(results[-1]))
    if as_json:
        click.echo(_as_json(words.Examined(dir=found.shown, checkpoints=tuple(results), read_bytes=meter.read_bytes)))
    click.echo(words.verified(results, found, summary=meter.summary()), err=True)
    if any(result.broken or (found.names and not result.good) for result in results):
        click.get_current_context().exit(Exit.NO)


@checkpoints.command(epilog=examples("ftsup checkpoints seal ckpt", "ftsup checkpoints seal ckpt final --force  # you vouch for it"))
@dir_argument(names=True)
@json_option
@dry_run_option
@click.option("--force", is_flag=True, help="You vouch for each NAME that it is whole as it is now, and that no run uses DIR.")
@with_ports
@plain_errors
def seal(ports: Ports, *, given: Given, as_json: bool, dry_run: bool, force: bool) -> None:
    """Seal checkpoints, so that later damage shows.

    All of DIR, or the named ones: what each file is made of is written to DIR/.ftsup/sealed. Only what is complete by its kind and
    sound by its checksums is sealed. What has no such rule is sealed once --complete finds its file in it, a newer one exists, or you
    name it with --force. The incomplete and the damaged never are. Exits with 1 when something is damaged, or when one that was named
    is not sealed.
    """
    results: list[Sealing] = []
    with Meter() as meter:
        disk = ports.disk(meter.read)
        found = where(given, ports=ports, disk=disk)
        if force and not found.names:
            raise click.UsageError("--force vouches for checkpoints by name: give NAMEs")
        if not dry_run:
            may_change(found, uid=os.geteuid())
            free(disk, found, ports=ports, force=force)
        signs = {one.entry.name: one.sign for one in pending(disk, found.home, pattern=found.pattern)}
        vouched = Vouched.YES if force else Vouched.NO
        for entry in chosen(disk, found, ports=ports):
            sign = Sign.SAID if force else signs.get(entry.name, Sign.NONE)
            results.append(sealed(disk, found, entry, meter, sign=sign, vouched=vouched, dry_run=dry_run, ports=ports))
            if not as_json:
                meter.say(words.sealing(results[-1], dry_run=dry_run))
    if as_json:
        click.echo(_as_json(words.Sealed(dir=found.shown, checkpoints=tuple(results), read_bytes=meter.read_bytes)))
    click.echo(words.sealed(results, found, summary=meter.summary()), err=True)
    good, bad = {Outcome.SEALED, Outcome.ALREADY}, {Outcome.DAMAGED, Outcome.CHANGED}
    if any(result.outcome in bad or (found.names and result.outcome not in good) for result in results):
        click.get_current_context().exit(Exit.NO)


@checkpoints.command(epilog=examples('python train.py --resume "$(ftsup checkpoints pick ckpt)"', "ftsup checkpoints pick ckpt --dry-run"))
@dir_argument(names=False)
@json_option
@dry_run_option
@with_ports
@plain_errors
def pick(ports: Ports, *, given: Given, as_json: bool, dry_run: bool) -> None:
    """Print the path of the newest good checkpoint.

    The newest that verifies, and nothing else on standard output, for scripts; the reason goes to standard error. Newer ones that are
    damaged are moved to DIR/.ftsup/quarantine, never deleted, and what is taken is sealed. In a directory of a run that lives, or of
    somebody else, nothing is moved or sealed. Exits with 1 when there is none.
    """
    with Meter() as meter:
        disk = ports.disk(meter.read)
        found = where(given, ports=ports, disk=disk)
        why_not = only_look(disk, found, ports)
        ask = Ask(pattern=found.pattern, complete=found.complete, label=label(ports), act=not (dry_run or why_not))
        meter.begin("reading", found.shown, None)
        picked = pick_newest(disk, found.home.folder, ask)
    if why_not and not dry_run:
        click.echo(f"nothing is moved or sealed: {why_not}", err=True)
    click.echo(one_line(picked.why, width=2000), err=True)
    if as_json:
        click.echo(_as_json(picked))
    elif picked.path is not None:
        click.echo(os.fsencode(picked.path))
    if picked.path is None:
        click.get_current_context().exit(Exit.NO)


@checkpoints.command(epilog=examples("ftsup checkpoints pin ckpt step-10000.pt"))
@dir_argument(names=True)
@with_ports
@plain_errors
def pin(ports: Ports, *, given: Given) -> None:
    """Never remove NAME, whatever its age."""
    disk, found = _named(ports, given)
    for entry in chosen(disk, found, ports=ports):
        keep.pin(disk, found.home, entry.name)
        click.echo(f"{one_line(entry.name, width=200)}: pinned")


@checkpoints.command(epilog=examples("ftsup checkpoints unpin ckpt step-10000.pt"))
@dir_argument(names=True)
@with_ports
@plain_errors
def unpin(ports: Ports, *, given: Given) -> None:
    """Take a pin back."""
    disk, found = _named(ports, given)
    held = keep.pins(disk, found.home)
    lost = tuple(name for name in found.names if name in held)
    others = msgspec.structs.replace(found, names=tuple(name for name in found.names if name not in held))
    names = [*lost, *(entry.name for entry in (chosen(disk, others, ports=ports) if others.names else []))]
    for name in names:
        keep.unpin(disk, found.home, name)
        click.echo(f"{one_line(name, width=200)}: {'unpinned' if name in held else 'was not pinned'}")


@checkpoints.command(epilog=examples("ftsup checkpoints prune ckpt --keep 5 --dry-run", "ftsup checkpoints prune ckpt --yes"))
@dir_argument(names=False)
@click.option("--keep", "number", type=Whole(min=1), help="So many verified ones stay. Default: 3, or checkpoint.keep of --config.")
@click.option("--found", "found_too", is_flag=True, help="Also those that no run of ftsup wrote: sealed by hand, or found and sealed.")
@click.option("--force", is_flag=True, help="Although a run that may live owns DIR.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@json_option
@with_ports
@plain_errors
def prune(ports: Ports, *, given: Given, number: int | None, found_too: bool, force: bool, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove old checkpoints.

    Those that a run of ftsup wrote, are sealed, not pinned, and older than the newest that verify. The newest ones are read back first.
    Without --yes it shows the list and asks. What an earlier prune left half removed goes too.
    """
    with Meter() as meter:
        disk = ports.disk(meter.read)
        found = where(given, ports=ports, disk=disk)
        if not dry_run:
            may_change(found, uid=os.geteuid())
            free(disk, found, ports=ports, force=force)
        kept = number or found.keep
        held = survey(disk, found.home, pattern=found.pattern, complete=found.complete)
        readings = newest_verified(disk, found, held, number=kept, meter=meter, ports=ports)
    fates = byhand.plan(
        held.checkpoints,
        readings,
        keep=kept,
        found_too=found_too,
        needed=resumed_from(held.owner, found),
        before=held.owner.found if held.owner else (),
    )
    going = [fate.name for fate in fates if fate.goes]
    if not as_json:
        click.echo("\n".join(words.fates(fates)), nl=bool(fates))
    removed = Removed()
    if not dry_run:
        if going and not yes:
            _ask(f"remove {words.count(len(going), 'checkpoint')}, {size_text(sum(fate.size_bytes for fate in fates if fate.goes))}?")
        free(disk, found, ports=ports, force=force)
        removed = keep.prune(disk, found.home, going)
    if as_json:
        click.echo(_as_json(words.Pruned(dir=found.shown, dry_run=dry_run, plan=tuple(fates), removed=removed)))
    for line in words.pruned(fates, removed, held, dry_run=dry_run):
        click.echo(line, err=True)


def _named(ports: Ports, given: Given) -> tuple[Disk, Where]:
    """For what needs a NAME and writes."""
    disk = ports.disk(lambda _: None)
    found = where(given, ports=ports, disk=disk)
    if not found.names:
        raise click.UsageError("which checkpoint? Give a NAME after DIR")
    may_change(found, uid=os.geteuid())
    return disk, found


def _ask(question: str) -> None:
    """CheckpointError unless the answer is yes."""
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise CheckpointError("nothing was removed", hint="--yes removes without asking, --dry-run only shows the list") from None


def _as_json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=1).decode()
