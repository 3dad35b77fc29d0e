"""The batch script: configuration in, text out.

Owns the #SBATCH lines and how a value is written so that it arrives as it was, in bash and in sbatch's own reader of those lines.
Knows nothing of submitting. The script's own words are in `sbatch_templates/job.sbatch.j2`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from ftsup.config import Config, Requeue, To
from ftsup.errors import ConfigError
from ftsup.rundir import RunDir

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\\": r"\\", "'": r"\'"}
_PLAIN = re.compile(r"[A-Za-z0-9_./:@,%+=\[\]-]*")


def shell_word(value: str) -> str:
    """One word of bash that is this value, on one line: sbatch refuses scripts with DOS line ends, wherever they stand."""
    if not _CONTROL.search(value):
        return shlex.quote(value)
    if "\0" in value:
        raise ConfigError(f"a NUL byte cannot be given to a program: {value!r}")
    return "$'" + re.sub(r"[\x00-\x1f\x7f\\']", lambda found: _NAMED.get(found[0], f"\\x{ord(found[0]):02x}"), value) + "'"


def sbatch_word(value: str, *, key: str) -> str:
    """A value in an #SBATCH line. sbatch reads quotes and backslashes (also inside quotes), and takes a bare # for a comment."""
    if _CONTROL.search(value):
        raise ConfigError(f"{key}: a line break or control character cannot stand in an #SBATCH line: {value!r}")
    if _PLAIN.fullmatch(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def time_limit(limit_s: float) -> str:
    """A time limit as sbatch reads it."""
    minutes, seconds = divmod(round(limit_s), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"


def memory(size_bytes: int) -> str:
    """Memory as sbatch reads it, in the largest unit that says it exactly; a part of a KiB counts as a whole one."""
    kib = -(-size_bytes // 1024)
    for unit in "KMGT":
        if kib % 1024 or unit == "T" or not kib:
            return f"{kib}{unit}" if kib else "0"
        kib //= 1024
    raise AssertionError


def options(config: Config, *, run: Path) -> list[str]:
    """The #SBATCH lines, without the word #SBATCH."""
    slurm = config.slurm
    if "\\" in str(run):
        raise ConfigError(f"runs_dir: Slurm cannot write to a directory with a backslash in its name: {run}")
    given: list[tuple[str, str | None, str]] = [
        ("job-name", config.name, "name"),
        ("nodes", str(slurm.nodes), "slurm.nodes"),
        ("ntasks-per-node", "1", ""),
        ("time", time_limit(slurm.time_s) if slurm.time_s else "", "slurm.time"),
        ("partition", slurm.partition, "slurm.partition"),
        ("account", slurm.account, "slurm.account"),
        ("qos", slurm.qos, "slurm.qos"),
        ("gpus-per-node", str(slurm.gpus_per_node or ""), "slurm.gpus_per_node"),
        ("cpus-per-task", str(slurm.cpus_per_task or ""), "slurm.cpus_per_task"),
        ("mem", "" if slurm.mem_bytes is None else memory(slurm.mem_bytes), "slurm.mem"),
        ("exclude", ",".join(slurm.exclude), "slurm.exclude"),
        ("signal", "" if slurm.warning.to is To.NOBODY else slurm.signal, "slurm.signal"),
        ("requeue" if slurm.requeue is Requeue.REQUEUE else "no-requeue", None, "slurm.requeue"),
        ("open-mode", "append", ""),
        ("propagate", "NONE", ""),
        ("array", slurm.array, "slurm.array"),
        ("output", str(run).replace("%", "%%") + ("_%a" if slurm.array else "") + "/slurm-%j.out", "runs_dir"),
    ]
    given += [(flag, value, f"slurm.extra.{flag}") for flag, value in slurm.flags]
    return [f"--{flag}" if value is None else f"--{flag}={sbatch_word(value, key=key)}" for flag, value, key in given if value != ""]


def default_template() -> str:
    """Our template's text; it travels in the package."""
    return (Path(__file__).parent / "sbatch_templates" / "job.sbatch.j2").read_text(encoding="utf-8")


def values(config: Config, *, run: RunDir, python: str) -> dict[str, str]:
    """What a template's `{{ names }}` stand for: each is a whole word of bash, or lines. Values of `env` are not among them.

    With `slurm.array` it is the script of all its tasks, and `run` what their run directories' names begin with.
    """
    task = '_"$SLURM_ARRAY_TASK_ID"' if config.slurm.array else ""
    return {
        "options": "\n".join(f"#SBATCH {option}" for option in options(config, run=run.root)),
        "setup": config.setup.replace("\r\n", "\n").replace("\r", "\n").strip("\n"),
        "workdir": shell_word(config.workdir),
        "python": shell_word(python),
        "run": shell_word(str(run.root)) + task,
        "run_name": shell_word(run.id.replace("/", "-")) + task,
        "local_dir": shell_word(config.local_dir) if config.local_dir else '"${TMPDIR:-/tmp}"',
        "leaders": str(config.policy.leaders),
        "requeue": "yes" if config.slurm.requeue is Requeue.REQUEUE else "no",
        "requeues": str(config.policy.requeues),
    }


def fill(template: str, values: Mapping[str, str]) -> str:
    """Put the values in. This is the part of Jinja that our template needs; Jinja itself takes as long to load as all of ftsup."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in values:
            raise ConfigError(f"the batch template asks for {found[1]}; there are {', '.join(sorted(values))}")
        return values[found[1]]

    return re.sub(r"\{\{ (\w+) \}\}", value, template)
