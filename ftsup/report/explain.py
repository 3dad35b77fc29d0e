"""What `ftsup explain` tells: a run's whole story over grants and attempts, as facts. Pure functions of what was read.

`explaintext` says it to people, `advice` adds what to change. Every number comes from the log; what it does not tell is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from ftsup.config import Config
from ftsup.events import Fault, How, Verdict, VerdictKind
from ftsup.policy.judge import TABLE, describe
from ftsup.report.advice import Advice, Facts, advise
from ftsup.report.costs import Cause, Cost, by_cause, cause, costs
from ftsup.report.evidence import Evidence
from ftsup.report.ledger import Ledger, Wish
from ftsup.report.minding import Deed
from ftsup.report.runs import View
from ftsup.report.story import Incident, Stage
from ftsup.report.troubles import Trouble
from ftsup.report.words import one_line, parsed

SILENT_S = 60.0
"""The leader writes its view every few seconds; after so long without one it is said."""
_WHY = {row.name: row.why for row in TABLE}
_ENDED_WITH_IT = {How.PEER, How.SIGNAL, How.EXIT}


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table of time."""

    cause: Cause
    spent_s: float
    share: float
    """Of the whole, 0 to 1."""
    times: int | None = None
    """Incidents of this cause; None: it is not counted in incidents."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One incident, requeue or interruption."""

    number: int
    """0: no incident was opened, the grant ended."""
    name: str
    wall: str
    epoch: str
    cause: Cause
    fault: str
    node: str = ""
    rank: int | None = None
    where: str = ""
    """File, line and function, where they are known."""
    error: str = ""
    line: str = ""
    """The line of a log that told of it."""
    at_step: int | None = None
    waited: tuple[int, ...] = ()
    """Ranks that only waited for others."""
    followed: tuple[int, ...] = ()
    """Ranks that ended because another one did."""
    others: tuple[str, ...] = ()
    """Faults of other ranks that are causes of their own, perhaps."""
    evidence: Evidence | None = None
    verdict: VerdictKind | None = None
    reason: str = ""
    rule: str = ""
    rule_why: str = ""
    avoid: tuple[str, ...] = ()
    back: bool = False
    """Training went on."""
    resumed_step: int | None = None
    replayed: int | None = None
    """Steps that were made again; None: not known, or not yet."""
    cost: Cost = Cost()
    total_s: float = 0.0


class Tale(msgspec.Struct, frozen=True, kw_only=True):
    """`ftsup explain --json`. Fields are only added."""

    run: str
    name: str
    """What a person types for it."""
    path: str
    stage: Stage
    job: str
    grants: int
    attempts: int
    step: int | None
    step_s: float | None
    """What a step of training takes, with its share of evaluations and saves."""
    began: str
    last: str
    whole_s: float
    """From the first leader's beginning to the last line of the log, without `idle_s`."""
    idle_s: float
    """The run was over, or paused, until somebody continued it."""
    quiet_s: float | None
    """Seconds since the leader last wrote; None: it never did, or is done."""
    verdict: VerdictKind | None
    reason: str
    rule: str
    time: tuple[Lost, ...]
    """Where the time went: they sum to `whole_s`."""
    incidents: tuple[Told, ...]
    asked: tuple[Wish, ...]
    watched: tuple[Deed, ...]
    """What `ftsup watch` said and did."""
    troubles: tuple[Trouble, ...]
    """What stood for a while, and cost the training nothing by itself."""
    damaged: tuple[str, ...]
    """Checkpoints that were set aside: which, why, and where they lie."""
    unexplained: bool
    """It was told to end, and nobody has said why."""
    leaders: int
    """Leaders that died and were started again within a grant."""
    advice: tuple[Advice, ...]
    notes: tuple[str, ...]
    """What could not be read."""

    @property
    def training(self) -> Lost:
        """The share of productive time."""
        return next(row for row in self.time if row.cause is Cause.TRAINING)


def explain(view: View, ledger: Ledger, *, config: Config | None, evidence: Mapping[int, Evidence], now: datetime, name: str = "") -> Tale:
    """The facts of a run. `name`: what a person types for it; empty: its id."""
    story = ledger.story
    each = costs(ledger)
    told = tuple(
        _told(incident, cost, ledger.faults.get(incident.number, ()), evidence.get(incident.number))
        for incident, cost in zip(story.incidents, each, strict=True)
    )
    stage, verdict = view.story.stage, view.story.verdict  # a run that was continued waits, whatever its log says of the end before
    time = _time(ledger)
    return Tale(
        run=view.id,
        name=name or view.id,
        path=view.path,
        stage=Stage.CANCELLED if view.cancelled and stage in {Stage.WAITING, Stage.REQUEUED} else stage,
        job=story.job or view.job,
        grants=story.grants,
        attempts=story.attempts,
        step=story.step if story.step is not None else max((i.at_step for i in story.incidents if i.at_step is not None), default=None),
        step_s=ledger.measured.step_s,
        began=story.began.wall if story.began else "",
        last=story.last.wall if story.last else "",
        whole_s=ledger.whole_s,
        idle_s=ledger.idle_s,
        quiet_s=None if stage.over else _quiet_s(view, ledger, now),
        verdict=verdict.kind if verdict else None,
        reason=one_line(verdict.reason, width=1000) if verdict else "",
        rule=verdict.rule if verdict else "",
        time=time,
        incidents=told,
        asked=ledger.wishes,
        watched=view.watched,
        troubles=ledger.troubles,
        damaged=tuple(f"checkpoint {one.name} was set aside, {one.why}; it lies in {one.path}" for one in story.aside),
        unexplained=story.unexplained and not story.stage.over,
        leaders=ledger.measured.leaders,
        advice=advise(Facts(ledger=ledger, costs=each, seconds=by_cause(ledger), config=config)),
        notes=view.notes,
    )


def _time(ledger: Ledger) -> tuple[Lost, ...]:
    """The table, training first, then the dearest; what took no time is left out."""
    seconds, whole_s = by_cause(ledger), ledger.whole_s
    times = [cause(incident) for incident in ledger.story.incidents]
    counted = {Cause.HANG, Cause.CRASH, Cause.NODE, Cause.QUEUE, Cause.UNKNOWN}
    rows = [
        Lost(cause=one, spent_s=spent_s, share=spent_s / whole_s if whole_s else 0.0, times=times.count(one) if one in counted else None)
        for one, spent_s in seconds.items()
        if spent_s > 0 or one is Cause.TRAINING
    ]
    return tuple(sorted(rows, key=lambda row: (row.cause is not Cause.TRAINING, -row.spent_s)))


def _quiet_s(view: View, ledger: Ledger, now: datetime) -> float | None:
    walls = [view.now.wall if view.now else "", ledger.story.last.wall if ledger.story.last else ""]
    known = [when for when in map(parsed, walls) if when is not None]
    return max(0.0, (now - max(known)).total_seconds()) if known else None


def _told(incident: Incident, cost: Cost, faults: Iterable[Fault], evidence: Evidence | None) -> Told:
    root, verdict = incident.root, incident.verdict
    waited, followed, others = _others(root, faults)
    fault = evidence.sentence if evidence and evidence.sentence and root is None else incident.fault
    return Told(
        number=incident.number,
        name=_name(incident),
        wall=incident.found.wall,
        epoch=str(incident.epoch),
        cause=cause(incident),
        fault=one_line(fault, width=1000),
        node=root.node if root else "",
        rank=root.rank if root else None,
        where=root.where if root else "",
        error=one_line(root.error, width=1000) if root else "",
        line=one_line(root.line, width=1000) if root else "",
        at_step=incident.at_step if root is None or root.step is None else root.step,
        waited=waited,
        followed=followed,
        others=others,
        evidence=evidence,
        verdict=verdict.kind if verdict else None,
        reason=_done(verdict, incident.fault),
        rule=verdict.rule if verdict else "",
        rule_why=_WHY.get(verdict.rule, "") if verdict else "",
        avoid=verdict.avoid if verdict else (),
        back=incident.back is not None,
        resumed_step=incident.resumed_step,
        replayed=incident.replayed,
        cost=cost,
        total_s=cost.total_s,
    )


def _name(incident: Incident) -> str:
    if incident.number:
        return f"incident {incident.number}"
    return "requeue" if incident.verdict and incident.verdict.kind is VerdictKind.REQUEUE else "interruption"


def _done(verdict: Verdict | None, fault: str) -> str:
    """The verdict's sentence, without the fault that it may begin with."""
    if verdict is None:
        return ""
    rest = verdict.reason.removeprefix(fault).lstrip(":; ") or verdict.reason
    return one_line(rest, width=1000)


def _others(root: Fault | None, faults: Iterable[Fault]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]:
    """Of the other ranks: who only waited, who ended because another one did, and what else was wrong."""
    waited, followed, others = set(), set(), []
    for fault in faults:
        if root is None or (fault.node, fault.rank, fault.how) == (root.node, root.rank, root.how) or fault.how is How.RETURNED:
            continue
        if fault.rank is not None and fault.how is How.WAITING:
            waited.add(fault.rank)
        elif fault.rank is not None and (fault.how is How.PEER or fault.signal == "SIGTERM"):
            followed.add(fault.rank)
        elif fault.rank is not None and fault.how is How.QUIET and root.how not in {How.QUIET, How.STORAGE}:
            waited.add(fault.rank)
        else:
            others.append(one_line(describe(fault), width=300))
    return tuple(sorted(waited)), tuple(sorted(followed - waited)), tuple(others)
