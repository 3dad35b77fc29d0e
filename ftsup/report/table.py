"""Many runs in few words: a line each, cheap to make. A run that cannot be read is a line with the reason. Read only."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ftsup.report import runs
from ftsup.report.follow import gist
from ftsup.report.page import page
from ftsup.report.story import Stage
from ftsup.report.words import ago, one_line
from ftsup.rundir import RunDir

_NAME = 38
_COLUMNS = f"{{:<{_NAME}}} {{:<11}} {{:>8}} {{:>6}} {{:>8}} {{:>3}}"


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """One run of `ftsup list --json`."""

    run: str
    path: str
    stage: Stage | None = None
    """null: it cannot be read."""
    step: int | None = None
    rate_per_min: float | None = None
    age_s: float | None = None
    """Since it was submitted."""
    quiet_s: float | None = None
    """Since its leader last wrote."""
    job: str = ""
    incidents: int = 0
    trouble: str = ""
    """What could not be read of it."""


def brief(run: RunDir, *, now: datetime) -> Brief:
    """One run."""
    age_s = _age_s(run, now)
    if not runs.is_run(run.root):
        return Brief(run=run.id, path=str(run.root), age_s=age_s, trouble="no config.json to read")
    facts = page(gist(run), now=now)
    return Brief(
        run=run.id,
        path=str(run.root),
        stage=facts.stage,
        step=facts.step,
        rate_per_min=facts.rate_per_min,
        age_s=age_s,
        quiet_s=facts.quiet_s,
        job=facts.job,
        incidents=len(facts.incidents),
        trouble="; ".join(facts.notes),
    )


def _age_s(run: RunDir, now: datetime) -> float | None:
    """From its name, which has the clock of where it was submitted."""
    try:
        began = datetime.strptime(run.root.name[:15], "%Y%m%d-%H%M%S").replace(tzinfo=now.tzinfo)
    except ValueError:
        return None
    return max((now - began).total_seconds(), 0.0)


def table(found: list[Brief]) -> str:
    """The runs, a line each, 80 columns wide."""
    return "\n".join([_COLUMNS.format("RUN", "STATE", "STEP", "AGE", "JOB", "INC"), *map(_row, found)])


def _row(one: Brief) -> str:
    name = one.run if len(one.run) <= _NAME else f"{one.run[: _NAME - 25]}..{one.run[-23:]}"
    age = "-" if one.age_s is None else " ".join(ago(one.age_s).split()[:2])
    if one.stage is None:
        return f"{name:<{_NAME}} {one_line(f'unreadable: {one.trouble}', width=79 - _NAME)}"
    stage = one.stage.value + ("*" if one.trouble else "")
    return _COLUMNS.format(name, stage, "-" if one.step is None else str(one.step), age, one.job or "-", str(one.incidents or "-"))
