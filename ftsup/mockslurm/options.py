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


def say(program: str, line: str) -> None:
    """Say what is wrong as Slurm says it."""
    print(f"{program}: error: {line}", file=sys.stderr)


def fail(program: str, *lines: str, code: int = 1) -> NoReturn:
    """Say what is wrong, and exit."""
    for line in lines:
        say(program, line)
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


def _table(program: str, *, letters: str, valued: str, flags: str, optional: str = "", usage_code: int = 1) -> Table:
    """A table from words: `letters` are `o=output`, the rest long names."""
    return Table(
        program=program,
        letters={pair[0]: pair[2:] for pair in letters.split()},
        valued=frozenset(valued.split()),
        flags=frozenset(flags.split()),
        optional=frozenset(optional.split()),
        usage_code=usage_code,
    )


_JOB_LETTERS = """
A=account b=begin c=cpus-per-task C=constraint d=dependency D=chdir e=error F=nodefile G=gpus H=hold i=input J=job-name k=no-kill
L=licenses m=distribution n=ntasks N=nodes o=output O=overcommit p=partition q=qos Q=quiet s=oversubscribe t=time v=verbose
V=version w=nodelist x=exclude h=help
"""
_JOB_VALUED = """
account acctg-freq bb bbf begin chdir clusters comment constraint container core-spec cores-per-socket cpu-freq cpus-per-gpu
cpus-per-task deadline delay-boot dependency distribution error exclude export extra-node-info gid gpu-bind gpu-freq gpus
gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint input job-name licenses mail-type mail-user mcs-label mem mem-bind
mem-per-cpu mem-per-gpu network nice nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
ntasks-per-socket open-mode output partition power priority profile qos reservation signal sockets-per-node switches thread-spec
threads-per-core time time-min tmp uid wckey
"""
_JOB_FLAGS = "contiguous help hold overcommit quiet reboot spread-job usage use-min-nodes verbose version"
_JOB_OPTIONAL = "exclusive get-user-env no-kill oversubscribe propagate"

SBATCH = _table(
    "sbatch",
    letters=f"{_JOB_LETTERS} a=array W=wait",
    valued=f"{_JOB_VALUED} array batch export-file wrap",
    flags=f"{_JOB_FLAGS} ignore-pbs no-requeue parsable requeue test-only wait",
    optional=f"{_JOB_OPTIONAL} kill-on-invalid-dep",
    usage_code=255,
)
SALLOC = _table(
    "salloc",
    letters=f"{_JOB_LETTERS} K=kill-command",
    valued=_JOB_VALUED,
    flags=f"{_JOB_FLAGS} bell no-bell",
    optional=f"{_JOB_OPTIONAL} kill-command",
    usage_code=255,
)
SRUN = _table(
    "srun",
    letters=f"{_JOB_LETTERS} E=preserve-env I=immediate K=kill-on-bad-exit l=label r=relative T=threads u=unbuffered "
    "W=wait X=disable-status",
    valued=f"{_JOB_VALUED} bcast epilog het-group jobid max-exit-timeout mpi msg-timeout multi-prog prolog relative slurmd-debug "
    "task-epilog task-prolog threads wait",
    flags=f"{_JOB_FLAGS} disable-status exact interactive label overlap preserve-env quit-on-interrupt resv-ports unbuffered whole",
    optional=f"{_JOB_OPTIONAL} accel-bind cpu-bind immediate kill-on-bad-exit pty",
    usage_code=255,
)
SQUEUE = _table(
    "squeue",
    letters="A=account a=all h=noheader i=iterate j=jobs l=long n=name o=format O=Format p=partition r=array s=steps S=sort t=states "
    "u=user v=verbose V=version w=nodelist",
    valued="account format Format iterate jobs name nodelist partition sort states user",
    flags="all array help local long me noheader start steps usage verbose version",
)
SINFO = _table(
    "sinfo",
    letters="a=all e=exact h=noheader l=long n=nodes N=Node o=format O=Format p=partition R=list-reasons t=states v=verbose V=version",
    valued="format Format nodes partition states",
    flags="all exact help list-reasons long Node noheader usage verbose version",
)
SCANCEL = _table(
    "scancel",
    letters="A=account b=batch f=full H=hurry n=name p=partition Q=quiet s=signal t=state u=user v=verbose V=version w=nodelist",
    valued="account jobname name nodelist partition signal state user",
    flags="batch ctld full help hurry me quiet usage verbose version",
)
SCONTROL = _table(
    "scontrol",
    letters="a=all d=details h=help o=oneliner Q=quiet v=verbose V=version",
    valued="clusters uid",
    flags="all details future help hide local oneliner quiet verbose version",
)
