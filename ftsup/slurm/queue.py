"""One squeue for all jobs of a user: what to ask, and its rows as our values. Text into values; it runs nothing.

The lines are asked for field by field, which every version since 20.02 prints alike; squeue's JSON of 22.05 knows no filter.
"""

from __future__ import annotations

import re

from ftsup.errors import Unreadable
from ftsup.ports import Job, JobState
from ftsup.slurm import jobs
from ftsup.slurm.hostlist import NOTHING, expand

_FIELDS = ("JobArrayID", "State", "Reason", "RestartCnt", "NumNodes", "BatchHost", "TimeUsed", "TimeLimit", "NodeList", "Name")
"""The name comes last: people write `|` into names. Without a size a field is printed whole."""
ARGV = ("squeue", "--me", "--states=all", "--array", "--noheader", f"--Format={','.join(f'{name}:|' for name in _FIELDS)}")
"""Ended jobs too, as long as Slurm remembers them (MinJobAge)."""
_ROW = re.compile(r"\d{1,10}(?:_\d{1,10})?\|", re.ASCII)


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
