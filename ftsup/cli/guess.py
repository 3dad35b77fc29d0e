"""From what was said, the script and the cluster to a draft: each value said, asked for, or guessed with its reason. Wiring of `init`."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shlex
from pathlib import Path

import click
import msgspec

from ftsup.cli import checkpointlook, clusterlook, scriptlook
from ftsup.cli.clusterlook import Site
from ftsup.cli.draft import Draft, Word, saving, watching
from ftsup.cli.ports import Ports
from ftsup.cli.scriptlook import Script
from ftsup.config import Config, Launch
from ftsup.config.keys import Waits
from ftsup.errors import ConfigError
from ftsup.nearest import did_you_mean
from ftsup.units import duration, seconds

_USUAL_TIME = "12h"
_SIGNAL_MARGIN_S = 60
"""What a save may take, where nothing is known of it."""
_TRAINS = re.compile(rb"^\s*(?:import|from)\s[^\n]*\b(?:torch|lightning|pytorch_lightning|transformers|accelerate)\b", re.MULTILINE)
_MOST_SCRIPTS = 50
_SHOWN = 5


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """What the person said."""

    script: str | None
    name: str | None
    nodes: int | None
    gpus: int | None
    time: str | None
    checkpoints: str | None
    pattern: str | None
    partition: str | None
    account: str | None
    launch: str


class Ask:
    """Asks, or takes what it would propose."""

    def __init__(self, *, on: bool) -> None:
        self._on = on

    def __call__(self, question: str, word: Word, *, given: object, number: bool = False) -> Word:
        """The answer: what was given as an option, or what the person types, or the proposal with its reason."""
        if given is not None:
            return Word(value=given) if isinstance(given, int) else Word(value=str(given))
        if not self._on:
            return word
        default = "" if word.value is None else str(word.value)
        hint = f" ({word.why})" if word.why and default else ""
        said = click.prompt(f"{question}{hint}", default=default, show_default=bool(default), err=True)
        return word if said == default else Word(value=int(said) if number and said.isdigit() else said)


def make(flags: Flags, site: Site, *, ports: Ports, ask: Ask) -> Draft:
    """The draft: each value said, asked for, or guessed."""
    own = flags.launch == Launch.COMMAND.value
    command = ask("Script and its arguments", _script(ports.cwd), given=flags.script)
    words = _split(str(command.value or ""), here=command.why)
    script = scriptlook.look(words, folder=ports.cwd)
    name = ask("Name of the run", Word(value=_name(script, words), why="guessed: as the script"), given=flags.name)
    saves = _checkpoints(flags, script, ports=ports, ask=ask)
    resumes = bool(saves["dir"].value)
    return Draft(
        name=name,
        launch=Word(value=flags.launch if own else None),
        command=msgspec.structs.replace(command, value=_own(words) if own else command.value),
        resume_args=_resume(script) if resumes else Word(value=None, why="nothing to resume from while checkpoint.dir is empty"),
        python=_python(script, ports),
        saving=" ".join(filter(None, [saving(script, command=own), "" if own else watching(script)])),
        **_slurm(flags, site, ask=ask),
        **saves,
    )


# The script ---------------------------------------------------------------------------------------------------------------


def _script(folder: Path) -> Word:
    """The only file here that looks like a training script."""
    found = []
    for path in sorted(folder.glob("*.py"))[:_MOST_SCRIPTS]:
        with contextlib.suppress(OSError):
            content = path.read_bytes()
            if _TRAINS.search(content):
                found.append(path.name)
    likely = [name for name in found if name.startswith("train")] or found
    if len(likely) == 1:
        return Word(value=likely[0], why="guessed: the only training script here")
    return Word(value=None, why=f"here are {', '.join(likely[:_SHOWN])}" if likely else "")


def _split(command: str, *, here: str) -> list[str]:
    if not command.strip():
        raise ConfigError(f"which script trains?{f' ({here})' if here else ''}", hint="--script train.py, or --script 'train.py --lr 3e-4'")
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--script {command}: cannot be split into words ({str(error).lower()})") from None


def _name(script: Script, words: list[str]) -> str:
    stem = Path(script.name).stem if script.name.endswith(".py") else script.name.rpartition(".")[2] or Path(words[0]).name
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:64]
    return cleaned or "train"


def _own(words: list[str]) -> str:
    """A command line of their own is kept; a script alone gets a torchrun of its own."""
    if not words[0].endswith(".py") and words[0] != "-m":
        return shlex.join(words)
    torchrun = "torchrun --nnodes {FTSUP_NNODES} --node-rank {FTSUP_NODE_RANK} --nproc-per-node {FTSUP_NPROC_PER_NODE}"
    return f"{torchrun} --master-addr {{MASTER_ADDR}} --master-port {{MASTER_PORT}} --max-restarts 0 {shlex.join(words)}"


def _resume(script: Script) -> Word:
    """How the script is told which checkpoint to go on from."""
    if script.given:
        return Word(value=None, why=f"not needed: {script.given.where} reads the checkpoint's path from the environment")
    if script.chooses:
        why = f"{script.chooses.where} takes the newest checkpoint itself, whole or not; better: the path in FTSUP_RESUME_FROM"
        return Word(value=None, why=why)
    if script.resume and script.resume.takes_value:
        return Word(value=(script.resume.flag, "{path}"), why=f"guessed: {script.resume.where}; added when there is a checkpoint")
    if script.resume:
        why = f"guessed: {script.resume.where}, a switch: the script finds a checkpoint itself (FTSUP_RESUME_FROM names the verified one)"
        return Word(value=(script.resume.flag,), why=why)
    if script.problem:
        return Word(value=None, why=f"{script.problem}: how does it resume? For instance [--resume, '{{path}}']")
    why = (
        f"{script.name} has no option for a checkpoint to resume from (such as --resume) and does not read FTSUP_RESUME_FROM: "
        "every restart begins from the beginning. With such an option: [--resume, '{path}']"
    )
    return Word(value=None, why=why)


def _python(script: Script, ports: Ports) -> Word:
    """The environment that is active in the shell, where ftsup runs in another one."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        active = ports.environ.get(variable)
        if active and Path(active, "bin", "python").exists() and not Path(ports.python).is_relative_to(active):
            return Word(value=str(Path(active, "bin", "python")), why=f"guessed: active in this shell ({variable})")
    if script.torch and importlib.util.find_spec("torch") is None:
        return Word(value=None, why="ftsup's own has no torch: name the interpreter of the training environment here")
    return Word(value=None)


def _checkpoints(flags: Flags, script: Script, *, ports: Ports, ask: Ask) -> dict[str, Word]:
    save = script.save
    nowhere = "where does the script save? Without it ftsup resumes nothing"
    guess = Word(value=save.dir, why=f"guessed: {save.where}") if save and save.dir else Word(value=None, why=nowhere)
    folder = ask("Directory of its checkpoints", guess, given=flags.checkpoints)
    if not folder.value:
        return {"dir": Word(value=None, why=nowhere)}
    there = checkpointlook.look(ports.disk(lambda _: None), ports.cwd / str(folder.value))
    pattern, complete = Word(value=None, why="which entries are checkpoints: all, while this is left out"), Word(value=None)
    if there:
        lie = f"{there.number} {'lie' if there.number > 1 else 'lies'} there ({there.kind.value})"
        pattern = Word(value=there.glob, why=f"guessed: {lie}")
        complete = Word(value=there.complete or None, why="guessed: written last, and in those that lie there" if there.complete else "")
    elif save:
        pattern = Word(value=save.pattern, why=f"guessed: {save.where}")
        complete = Word(value=save.complete or None, why=f"guessed: Trainer writes it last ({save.where})" if save.complete else "")
    return {"dir": folder, "pattern": ask("Their names", pattern, given=flags.pattern), "complete": complete}


# The cluster --------------------------------------------------------------------------------------------------------------


def _slurm(flags: Flags, site: Site, *, ask: Ask) -> dict[str, Word]:
    best = site.best()
    guess = Word(value=best.partition.name, why="guessed: " + _praise(site)) if best and len(site.kinds) > 1 else Word(value=None)
    partition = ask("Partition", guess, given=flags.partition) if len(site.kinds) > 1 or flags.partition else guess
    kind = site.kind(str(partition.value)) if partition.value else best
    if partition.value and site.kinds and kind is None:
        known = [each.partition.name for each in site.kinds]
        meant = did_you_mean(str(partition.value), known, most=3) or f"its partitions: {', '.join(known)}"
        raise ConfigError(f"this cluster has no partition {partition.value}", hint=meant)
    where = f"partition {kind.partition.name}" if kind else ""
    limit_s = kind.partition.limit_s if kind else None
    usual = min(seconds(_USUAL_TIME), limit_s or seconds(_USUAL_TIME))
    so = f"{where} allows {duration(limit_s)}" if limit_s else "a usual one; a run may have many of them"
    gpus = Word(value=kind.gpus, why=f"guessed: {_gpus(kind)}") if kind and kind.gpus else Word(value=None)
    nodes = ask("Nodes", Word(value=1, why="guessed: one, to begin with"), given=flags.nodes, number=True)
    if kind and isinstance(nodes.value, int) and nodes.value > len(kind.partition.nodes) > 0:
        raise ConfigError(f"{where} has {len(kind.partition.nodes)} nodes, and these are {nodes.value}", hint="--nodes, or --partition")
    return {
        "nodes": nodes,
        "gpus": ask("GPUs of each node (one rank for each)", gpus, given=flags.gpus, number=True),
        "time": ask("Time limit", Word(value=duration(usual), why=f"guessed: {so}"), given=flags.time),
        "partition": partition,
        "account": ask("Account", _account(kind, site), given=flags.account) if site.enforces or flags.account else Word(value=None),
        "signal": _signal(site),
    }


def _praise(site: Site) -> str:
    best = site.best()
    assert best is not None
    return "it has GPUs" if best.gpus else "the default one" if best.partition.default else "it is up"


def _gpus(kind: clusterlook.Kind) -> str:
    counts = [str(count) for count in kind.gpu_counts]
    return f"nodes of {kind.partition.name} have {' or '.join(counts)}"


def _account(kind: clusterlook.Kind | None, site: Site) -> Word:
    """Nobody but sacctmgr knows a person's accounts; Slurm takes the default one where none is named."""
    only = f"; {kind.partition.name} takes {', '.join(kind.partition.accounts)} only" if kind and kind.partition.accounts else ""
    return Word(value=None, why=f"jobs are charged here (AccountingStorageEnforce={site.enforces}); left out: your default account{only}")


def _signal(site: Site) -> Word:
    """A longer lead, where this cluster's KillWait would eat the usual one."""
    if site.kill_wait_s is None:
        return Word(value=None)
    usual = Config(name="x", command=("x",)).slurm.warning
    needed_s = site.kill_wait_s + Waits().end_margin_s + _SIGNAL_MARGIN_S
    if usual.lead_s >= needed_s:
        return Word(value=None)
    return Word(value=f"{usual.signal}@{needed_s:.0f}", why=f"guessed: longer than usual, as KillWait is {duration(site.kill_wait_s)} here")
