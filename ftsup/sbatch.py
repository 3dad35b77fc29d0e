"""The batch script: configuration in, text out.

Owns the #SBATCH lines and how a value is written so that it arrives as it was, in bash and in sbatch's own reader of those lines.
Knows nothing of submitting. The script's own words are in `sbatch_templates/job.sbatch.j2`.
"""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from pathlib import Path

import jinja2

from ftsup.config import Config, Requeue
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
        ("signal", slurm.signal, "slurm.signal"),
        ("requeue" if slurm.requeue is Requeue.REQUEUE else "no-requeue", None, "slurm.requeue"),
        ("open-mode", "append", ""),
        ("propagate", "NONE", ""),
        ("output", str(run).replace("%", "%%") + "/slurm-%j.out", "runs_dir"),
    ]
    given += [(flag, value, f"slurm.extra.{flag}") for flag, value in slurm.flags]
    return [f"--{flag}" if value is None else f"--{flag}={sbatch_word(value, key=key)}" for flag, value, key in given if value != ""]


def default_template() -> str:
    """Our template's text; it travels in the package."""
    return (files("ftsup") / "sbatch_templates" / "job.sbatch.j2").read_text(encoding="utf-8")


def render(config: Config, *, run: RunDir, python: str, template: str) -> str:
    """The batch script of a run. `python` is ftsup's own interpreter. Values of `env` are not in it."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - shell, not HTML: every value goes through `sh`
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["sh"] = shell_word
    try:
        return environment.from_string(template).render(
            options=options(config, run=run.root),
            workdir=config.workdir,
            setup=config.setup.replace("\r\n", "\n").replace("\r", "\n").strip("\n"),
            python=python,
            run=str(run.root),
            run_name=run.id.replace("/", "-"),
            local_dir=config.local_dir,
            requeue=config.slurm.requeue is Requeue.REQUEUE,
            leaders=config.policy.leaders,
            requeues=config.policy.requeues,
        )
    except jinja2.TemplateError as error:
        line = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise ConfigError(f"the batch template cannot be rendered{line}: {error.message}") from None
