"""What is impossible although each value alone is possible: found when a file is read, said with the line of the key to blame."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import PurePath

from ftsup.config.array import TASK, tasks
from ftsup.config.keys import Config, Handlers, Launch, SlurmOptions, To
from ftsup.config.read import Finding
from ftsup.config.values import close
from ftsup.policy.rules import key_name
from ftsup.units import duration


def findings(config: Config) -> Iterator[Finding]:
    """All of it."""
    yield from _warning_findings(config)
    yield from _command_findings(config)
    yield from _extra_findings(config)
    yield from _array_findings(config)
    for name in config.env:
        if name in _TORCHRUN or name.startswith("FTSUP_"):
            yield Finding(f"env.{name}", f"is set by {'torchrun' if name in _TORCHRUN else 'ftsup'} for each rank; leave it out")
    if config.policy.back_off_s > config.policy.back_off_max_s:
        yield Finding("policy.back_off", "longer than policy.back_off_max", ("policy.back_off_max",))


_TORCHRUN = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"})
PLACEHOLDERS = (
    "FTSUP_NODE_RANK", "FTSUP_NNODES", "FTSUP_NPROC_PER_NODE", "FTSUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "FTSUP_RESUME_FROM",
)  # fmt: skip
"""What stands in braces in the command of `launch: command`, and is in its environment."""
_WARNINGS = ("SIGUSR1", "SIGUSR2")
_LONGEST_LEAD_S = 65535
"""Slurm's own bound."""


def _warning_findings(config: Config) -> Iterator[Finding]:
    given = config.slurm.signal
    parts = re.fullmatch(r"(?P<where>[BR]+:)?(?P<name>[A-Za-z0-9+-]+)(?:@(?P<lead>\d{1,9}))?", given)
    if not parts or not parts["lead"]:
        yield Finding("slurm.signal", f"{given}: allowed is a signal and its lead in seconds, such as SIGUSR1@120")
        return
    if parts["where"] not in {None, "B:"}:
        yield Finding("slurm.signal", f"{given}: write it without {parts['where']}, or with B: for the batch script alone")
        return
    nobody = given.startswith(f"{To.NOBODY.value}@")
    name = _WARNINGS[0] if nobody else "SIG" + parts["name"].removeprefix("SIG")
    if name not in signal.Signals.__members__:
        yield Finding("slurm.signal", f"{given}: no such signal{close(name, _WARNINGS)}")
    elif name not in _WARNINGS:
        yield Finding(
            "slurm.signal", f"{given}: {name} means something else to torchrun or to the kernel; allowed are {', '.join(_WARNINGS)}"
        )
    elif not 0 < int(parts["lead"]) <= _LONGEST_LEAD_S:
        yield Finding("slurm.signal", f"{given}: allowed are 1 to {_LONGEST_LEAD_S} seconds (Slurm's bound)")
    else:
        yield from _lead_findings(config)


def _lead_findings(config: Config) -> Iterator[Finding]:
    warning, limit_s = config.slurm.warning, config.slurm.time_s
    lead_s = warning.lead_s
    if config.slurm.handlers is Handlers.PLAIN and warning.to is not To.STEPS:
        text = f"{config.slurm.signal}: no rank gets this signal, and slurm.handlers: plain wants it for each: write it as"
        yield Finding("slurm.signal", f"{text} {warning.signal}@{lead_s}", ("slurm.handlers",))
    if limit_s is not None and lead_s >= limit_s:
        text = f"{config.slurm.signal}: the warning would come before the job begins: slurm.time is {duration(limit_s)}"
        yield Finding("slurm.signal", text, ("slurm.time",))
    if too_short := short_warning(config, kill_wait_s=0.0):
        yield Finding("slurm.signal", f"{config.slurm.signal}: {too_short}", ("waits.end_margin",))


def short_warning(config: Config, *, kill_wait_s: float) -> str:
    """Why the warning comes too late to save anything, where this is Slurm's KillWait; empty when it does not."""
    needed_s = config.waits.end_margin_s + kill_wait_s
    if config.slurm.warning.lead_s > needed_s:
        return ""
    waits = f"waits.end_margin ({duration(config.waits.end_margin_s)})" + (
        f" and KillWait ({duration(kill_wait_s)})" if kill_wait_s else ""
    )
    return f"no time is left to save: the requeue is asked {waits} before the end"


_LAUNCHERS = {"torchrun", "srun", "mpirun", "accelerate", "deepspeed"}


def _command_findings(config: Config) -> Iterator[Finding]:
    first = PurePath(config.command[0]).name
    if config.launch is Launch.TORCHRUN and (re.fullmatch(r"python[0-9.]*", first) or first in _LAUNCHERS):
        yield Finding("command", f"{first}: torchrun starts the script: begin with the script, or with -m and a module", ("launch",))
    elif config.command == ("-m",):
        yield Finding("command", "-m: which module?")
    if config.launch is Launch.COMMAND:
        for name in dict.fromkeys(re.findall(r"\{((?:FTSUP|MASTER)_[A-Z_]*)\}", " ".join(config.command))):
            if name not in PLACEHOLDERS:
                meant = close(name, PLACEHOLDERS) or f"; allowed are {', '.join(PLACEHOLDERS)}"
                yield Finding("command", f"{{{name}}}: no such placeholder{meant}", ("launch",))
    unknown = {word for text in config.resume_args for word in re.findall(r"\{[^{}]*\}", text)} - {"{path}"}
    if unknown:
        yield Finding("resume_args", f"{', '.join(sorted(unknown))}: the only placeholder is {{path}}")
    if config.resume_args and not config.checkpoint.dir:
        yield Finding("resume_args", "there is nothing to resume from: checkpoint.dir is empty", ("checkpoint.dir",))


def _array_findings(config: Config) -> Iterator[Finding]:
    spec, folder = config.slurm.array, config.checkpoint.dir
    if spec and not tasks(spec):
        yield Finding("slurm.array", f"{spec}: there is no task in it")
    elif len(tasks(spec)) > 1 and folder and TASK not in folder:
        text = f"{folder}: the tasks of slurm.array would share one directory: put {TASK} into it, which stands for a task's number"
        yield Finding("checkpoint.dir", text, ("slurm.array",))
    elif not spec and TASK in folder:
        yield Finding("checkpoint.dir", f"{folder}: {TASK} stands for a task's number, and slurm.array is empty", ("slurm.array",))


def _extra_findings(config: Config) -> Iterator[Finding]:
    for flag, value in config.slurm.flags:
        key = f"slurm.extra.{flag}"
        if instead := OWNED.get(flag):
            yield Finding(key, f"not as an extra option; instead: {instead}")
        elif value is not None and not value.isprintable():
            yield Finding(key, f"{value!r}: a line break or control character cannot stand in an #SBATCH line")


OWNED = {
    "chdir": "workdir",
    "clusters": "a run lives on one cluster: submit there",
    "error": "the script's output lies in the run directory",
    "het-group": "all nodes of a run are alike: a heterogeneous job cannot be one",
    "job-name": "name",
    "no-requeue": "slurm.requeue",
    "ntasks": "ftsup runs one task on each node: workers_per_node",
    "ntasks-per-node": "ftsup runs one task on each node: workers_per_node",
    "open-mode": "a requeue must not truncate the output",
    "output": "the script's output lies in the run directory",
    "propagate": "the login node's limits must not reach the ranks",
    "wrap": "command",
} | {
    key_name(field).replace("_", "-"): f"slurm.{key_name(field)}"
    for field in SlurmOptions.__struct_fields__
    if field not in {"extra", "template"}
}
"""Options of sbatch that are not the user's to give as `slurm.extra`, and the key or the reason instead."""
