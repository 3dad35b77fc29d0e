"""The command line of Slurm's programs: long and short options with their arguments, `#SBATCH` lines, Slurm's complaints.

Knows which options exist and which of them take a value; what they mean is said where they are used.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import NoReturn

import msgspec


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one program: long names, the letters for them, which take no value, which may."""

    program: str
    letters: dict[str, str]
    valued: frozenset[str]
    flags: frozenset[str]
    optional: frozenset[str] = frozenset()
    usage_code: int = 255
    """What the program exits with when its command line is wrong."""


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """Options in their last form, and the rest of the line from its first word that is no option."""

    values: dict[str, str]
    rest: list[str]

    def has(self, name: str) -> bool:
        """It was given."""
        return name in self.values

    def get(self, name: str, default: str = "") -> str:
        """Its value."""
        return self.values.get(name, default)


def fail(program: str, *lines: str, code: int = 1) -> NoReturn:
    """Say what is wrong as Slurm says it, and exit."""
    for line in lines:
        print(f"{program}: error: {line}", file=sys.stderr)
    raise SystemExit(code)


def parse(table: Table, arguments: Sequence[str], *, mixed: bool = False) -> Parsed:
    """Read options up to the first other word; with `mixed`, wherever they stand."""
    values: dict[str, str] = {}
    rest: list[str] = []
    todo = list(arguments)
    while todo:
        word = todo.pop(0)
        if word == "--":
            return Parsed(values=values, rest=rest + todo)
        if word.startswith("--"):
            _long(table, word[2:], todo, values)
        elif word.startswith("-") and len(word) > 1:
            _short(table, word[1:], todo, values)
        elif mixed:
            rest.append(word)
        else:
            return Parsed(values=values, rest=[word, *todo])
    return Parsed(values=values, rest=rest)


def _long(table: Table, text: str, todo: list[str], values: dict[str, str]) -> None:
    name, equals, value = text.partition("=")
    name = _complete(table, name, f"--{name}")
    if name in table.valued and not equals:
        if not todo:
            _usage(table, f"option '--{name}' requires an argument")
        value = todo.pop(0)
    if name in table.flags and equals:
        _usage(table, f"option '--{name}' doesn't allow an argument")
    values[name] = value


def _complete(table: Table, name: str, shown: str) -> str:
    known = table.valued | table.flags | table.optional
    if name in known:
        return name
    matches = [one for one in known if one.startswith(name)]
    if len(matches) != 1:
        _usage(table, f"unrecognized option '{shown}'" if not matches else f"option '{shown}' is ambiguous")
    return matches[0]


def _short(table: Table, text: str, todo: list[str], values: dict[str, str]) -> None:
    while text:
        letter, text = text[0], text[1:]
        name = table.letters.get(letter)
        if name is None:
            _usage(table, f"invalid option -- '{letter}'")
        if name in table.valued:
            if not text and not todo:
                _usage(table, f"option requires an argument -- '{letter}'")
            values[name] = text.removeprefix("=") or todo.pop(0)
            return
        values[name] = ""


def _usage(table: Table, problem: str) -> NoReturn:
    print(f'{table.program}: {problem}\nTry "{table.program} --help" for more information', file=sys.stderr)
    raise SystemExit(table.usage_code)


def sbatch_lines(script: str) -> list[str]:
    """The words of the `#SBATCH` lines before the script's first command."""
    words: list[str] = []
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            words += shlex.split(line[len("#SBATCH") :], comments=True)
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return words


_JOB_LETTERS = {
    "A": "account", "c": "cpus-per-task", "C": "constraint", "d": "dependency", "D": "chdir", "e": "error", "H": "hold",
    "i": "input", "J": "job-name", "k": "no-kill", "m": "distribution", "n": "ntasks", "N": "nodes", "o": "output", "O": "overcommit",
    "p": "partition", "q": "qos", "Q": "quiet", "t": "time", "v": "verbose", "V": "version", "w": "nodelist", "x": "exclude",
    "G": "gpus", "b": "begin", "F": "nodefile", "L": "licenses", "s": "oversubscribe",
}  # fmt: skip
_JOB_VALUED = frozenset({
    "account", "begin", "chdir", "comment", "constraint", "cpus-per-gpu", "cpus-per-task", "dependency", "distribution", "error",
    "exclude", "export", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags",
    "hint", "input", "job-name", "licenses", "mail-type", "mail-user", "mem", "mem-per-cpu", "mem-per-gpu", "nice", "nodelist",
    "nodes", "ntasks", "ntasks-per-core", "ntasks-per-node", "ntasks-per-socket", "ntasks-per-gpu", "open-mode", "output",
    "partition", "priority", "qos", "reservation", "signal", "switches", "threads-per-core", "time", "time-min", "tmp", "wckey",
    "core-spec", "deadline", "delay-boot", "container", "network", "sockets-per-node", "cores-per-socket", "uid", "gid", "cpu-freq",
    "mem-bind", "power", "profile", "acctg-freq", "extra-node-info", "nodefile", "thread-spec", "clusters", "bb", "bbf", "mcs-label",
})  # fmt: skip
_JOB_FLAGS = frozenset(
    {"contiguous", "overcommit", "quiet", "verbose", "version", "help", "usage", "spread-job", "use-min-nodes", "reboot", "hold"}
)
_JOB_OPTIONAL = frozenset({"exclusive", "no-kill", "propagate", "oversubscribe", "get-user-env"})

SBATCH = Table(
    program="sbatch",
    letters=_JOB_LETTERS | {"a": "array", "W": "wait", "h": "help"},
    valued=_JOB_VALUED | {"array", "export-file", "wrap", "batch"},
    flags=_JOB_FLAGS | {"parsable", "requeue", "no-requeue", "test-only", "wait", "ignore-pbs"},
    optional=_JOB_OPTIONAL | {"kill-on-invalid-dep"},
)
SRUN = Table(
    program="srun",
    letters=_JOB_LETTERS
    | {
        "K": "kill-on-bad-exit",
        "l": "label",
        "u": "unbuffered",
        "W": "wait",
        "r": "relative",
        "h": "help",
        "T": "threads",
        "I": "immediate",
        "E": "preserve-env",
        "Z": "no-allocate",
        "X": "disable-status",
    },  # fmt: skip
    valued=_JOB_VALUED
    | {
        "wait",
        "mpi",
        "relative",
        "slurmd-debug",
        "task-epilog",
        "task-prolog",
        "prolog",
        "epilog",
        "threads",
        "jobid",
        "multi-prog",
        "bcast",
        "het-group",
        "msg-timeout",
        "max-exit-timeout",
    },  # fmt: skip
    flags=_JOB_FLAGS
    | {
        "exact",
        "overlap",
        "label",
        "unbuffered",
        "disable-status",
        "preserve-env",
        "interactive",
        "no-allocate",
        "quit-on-interrupt",
        "whole",
        "resv-ports",
    },  # fmt: skip
    optional=_JOB_OPTIONAL | {"kill-on-bad-exit", "immediate", "cpu-bind", "pty", "accel-bind"},
)
SQUEUE = Table(
    program="squeue",
    letters={
        "h": "noheader",
        "o": "format",
        "O": "Format",
        "j": "jobs",
        "u": "user",
        "t": "states",
        "n": "name",
        "p": "partition",
        "a": "all",
        "l": "long",
        "V": "version",
        "w": "nodelist",
        "S": "sort",
        "v": "verbose",
        "i": "iterate",
        "r": "array",
        "A": "account",
        "s": "steps",
    },  # fmt: skip
    valued=frozenset({"format", "Format", "user", "states", "name", "partition", "nodelist", "sort", "iterate", "account", "jobs"}),
    flags=frozenset({"noheader", "all", "long", "version", "me", "start", "verbose", "array", "help", "usage", "steps", "local"}),
    usage_code=1,
)
SINFO = Table(
    program="sinfo",
    letters={
        "h": "noheader",
        "o": "format",
        "N": "Node",
        "n": "nodes",
        "V": "version",
        "p": "partition",
        "t": "states",
        "a": "all",
        "l": "long",
        "R": "list-reasons",
        "O": "Format",
        "e": "exact",
        "v": "verbose",
    },  # fmt: skip
    valued=frozenset({"format", "Format", "nodes", "partition", "states"}),
    flags=frozenset({"noheader", "Node", "version", "all", "long", "list-reasons", "exact", "help", "usage", "verbose"}),
    usage_code=1,
)
SCANCEL = Table(
    program="scancel",
    letters={
        "s": "signal",
        "b": "batch",
        "f": "full",
        "n": "name",
        "u": "user",
        "Q": "quiet",
        "v": "verbose",
        "V": "version",
        "t": "state",
        "p": "partition",
        "H": "hurry",
        "w": "nodelist",
        "A": "account",
    },  # fmt: skip
    valued=frozenset({"signal", "name", "user", "state", "partition", "nodelist", "account", "jobname"}),
    flags=frozenset({"batch", "full", "quiet", "verbose", "version", "hurry", "me", "ctld", "help", "usage"}),
    usage_code=1,
)
SCONTROL = Table(
    program="scontrol",
    letters={"o": "oneliner", "d": "details", "a": "all", "Q": "quiet", "V": "version", "v": "verbose", "h": "help"},
    valued=frozenset({"clusters", "uid"}),
    flags=frozenset({"oneliner", "details", "all", "quiet", "version", "verbose", "help", "local", "hide", "future"}),
    usage_code=1,
)
