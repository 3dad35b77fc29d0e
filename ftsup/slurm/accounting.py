"""What sacct remembers of a job that the controller has forgotten (MinJobAge): how it ended. Text into our values; it runs nothing.

The controller alone knows what lives. Accounting is only believed about ends: a row that still says RUNNING is one whose end
was never written down.
"""

from __future__ import annotations

import msgspec

from ftsup.ports import Job
from ftsup.slurm import jobs
from ftsup.slurm.hostlist import expand

_FIELDS = ("JobID", "JobIDRaw", "State", "ExitCode", "NNodes", "ElapsedRaw", "TimelimitRaw", "NodeList", "JobName")
"""Every Slurm since 18 has these. The name comes last: people write `|` into names."""
_MINUTE_S = 60.0


class Qos(msgspec.Struct, frozen=True, kw_only=True):
    """What accounting says of a quality of service."""

    name: str
    preempt_mode: str = ""
    """Slurm's words; `cluster`: as the cluster's own."""
    grace_s: float = 0.0
    limit_s: float | None = None
    """MaxWall; None: no limit."""


QOS_ARGV = ("sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=PreemptMode,GraceTime,MaxWall,Name")
"""Everybody may ask this."""


def parse_qos(text: str) -> tuple[Qos, ...]:
    """Every qos in what `QOS_ARGV` printed; what is no row of it is a site's banner."""
    rows = [cells for line in text.splitlines() if len(cells := line.split("|", 3)) == 4]  # noqa: PLR2004 - mode, grace, wall, name
    return tuple(
        Qos(name=name, preempt_mode=mode, grace_s=jobs.duration_s(grace) or 0.0, limit_s=jobs.duration_s(wall))
        for mode, grace, wall, name in rows
    )


def argv(job_id: str) -> list[str]:
    """The question: one row for the job itself, none for its steps."""
    return ["sacct", "--allocations", "--parsable2", "--noheader", f"--jobs={job_id}", f"--format={','.join(_FIELDS)}"]


def parse_ended(text: str, *, wanted: str) -> Job | None:
    """How the job of this id ended; None where accounting does not say."""
    for line in text.splitlines():
        cells = line.split("|", len(_FIELDS) - 1)
        if len(cells) == len(_FIELDS) and wanted in cells[:2]:
            return _ended(dict(zip(_FIELDS, cells, strict=True)))
    return None


def _ended(row: dict[str, str]) -> Job | None:
    state = jobs.JOB_STATES.get(row["State"].partition(" ")[0].rstrip("+"))  # CANCELLED by 1000
    if state not in jobs.FINISHED:
        return None
    code, _, number = row["ExitCode"].partition(":")
    limit = row["TimelimitRaw"]
    return Job(
        job_id=row["JobID"],
        state=state,
        nodes=expand(row["NodeList"]),
        num_nodes=_number(row["NNodes"]),
        run_s=float(_number(row["ElapsedRaw"])),
        limit_s=_number(limit) * _MINUTE_S if limit.isdecimal() else None,
        exit_code=_number(code) if code.isdecimal() else None,
        exit_signal=_number(number) or None,
        name=row["JobName"],
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0
