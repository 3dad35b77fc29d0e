"""One squeue for all jobs of a user: what to ask, and its rows as our values; and which of them a script is behind. It runs nothing.

The lines are asked for field by field, which every version since 20.02 prints alike; squeue's JSON of 22.05 knows no filter.
"""

from __future__ import annotations

import re
from functools import cmp_to_key
from pathlib import Path

from ftsup.errors import Unreadable
from ftsup.ports import Found, Job, JobState, is_newer
from ftsup.slurm import jobs
from ftsup.slurm.hostlist import NOTHING, expand

_FIELDS = ("JobArrayID", "State", "Reason", "RestartCnt", "NumNodes", "BatchHost", "TimeUsed", "TimeLimit", "NodeList", "Name")
"""The name comes last: people write `|` into names. Without a size a field is printed whole."""
ARGV = ("squeue", "--me", "--states=all", "--array", "--noheader", f"--Format={','.join(f'{name}:|' for name in _FIELDS)}")
"""Ended jobs too, as long as Slurm remembers them (MinJobAge)."""
_TAIL = 3
"""So many names, from the end of its path, tell a script from all others: a run directory's are unique on a site."""
_ROW = re.compile(r"\d{1,10}(?:_\d{1,10})?\|", re.ASCII)

_AFTER = re.compile(r"afterany:(\d{1,10}(?:_\d{1,10})?)\(\w+\)", re.ASCII)
COMMANDS = ("squeue", "--me", "--noheader", "--states=all", "--format=%A|%E|%o")


def parse_queue(text: str) -> list[Job]:
    """Every job in what squeue printed; a site's wrapper may have printed more. What is no answer of squeue's is Unreadable."""
    return [_job(line) for line in text.splitlines() if _ROW.match(line)]


def _job(line: str) -> Job:
    cells = line.split("|", len(_FIELDS) - 1)
    try:
        row = dict(zip(_FIELDS, (cell.strip() for cell in cells), strict=True))
        word = row["State"].split()[0]
        state = jobs.JOB_STATES.get(word, JobState.UNKNOWN)
        return Job(
            job_id=row["JobArrayID"],
            state=state,
            completing=word in jobs.COMPLETING,
            reason="" if row["Reason"] in NOTHING else row["Reason"],
            restarts=int(row["RestartCnt"]),
            nodes=expand(row["NodeList"]),
            batch_host="" if row["BatchHost"] in NOTHING else row["BatchHost"],
            num_nodes=int(row["NumNodes"].split("-")[0]),
            run_s=jobs.duration_s(row["TimeUsed"]) or 0.0,
            limit_s=jobs.duration_s(row["TimeLimit"]),
            name=row["Name"].removesuffix("|"),
        )
    except (ValueError, IndexError) as error:
        raise Unreadable(f"squeue printed a row that we cannot read ({error}): {jobs.shortened(line)}") from error


def parse_commands(text: str, *, script: Path) -> list[Found]:
    """Those of the script, oldest first, in what `COMMANDS` printed: the path as submitted, in old versions the script's words."""
    found: dict[int, Found] = {}
    for line in text.splitlines():
        number, _, rest = line.strip().partition("|")
        after, _, command = rest.partition("|")
        words = words_of(command, script)
        if number.isdecimal() and words is not None:
            waits = _AFTER.fullmatch(after)
            found[int(number)] = Found(job_id=number, words=words or ((waits[1],) if waits else ()))
    return [found[number] for number in sorted(found, key=cmp_to_key(_by_age))]


def _by_age(number: int, other: int) -> int:
    return is_newer(number, other) - is_newer(other, number)


def words_of(command: str, script: Path) -> tuple[str, ...] | None:
    """What the script was given in this command; None: it is another one."""
    _, name, words = command.partition(f"/{'/'.join(script.parts[-_TAIL:])}")
    return tuple(words.split()) if name and words[:1] in {"", " "} else None
