"""What to change: a table of rules, each a condition over the facts of a run and one sentence. Pure.

A rule speaks only where its facts are in the log, names its numbers, and where it can the key to change. All that apply are told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import ceil, sqrt
from typing import NamedTuple

import msgspec

from ftsup.config import Config, Requeue
from ftsup.events import Ears, Fault, How, Kind, VerdictKind
from ftsup.policy.judge import BLAMES
from ftsup.policy.rules import Rules
from ftsup.report.costs import Cause, Cost, cause
from ftsup.report.ledger import Ledger, Part
from ftsup.report.story import Incident
from ftsup.report.words import count, names, one_line, short_time
from ftsup.units import duration

_TWICE = 2
_LUCK = 8
"""What happens by luck less often than once in so many times is worth a word."""
_HALF, _MUCH, _LITTLE = 0.5, 0.2, 0.01
_LONG_S = 1800.0
"""In less training than that nothing is worth tuning."""
_LEAST_SAVE_S = 1.0
"""A save is looked for once a second: one that takes less is counted as that."""
_WORTH = 0.6
"""A limit is worth lowering to this share of it, or less."""
_ROUND_S = 30.0
_RULES = Rules()


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to change."""

    rule: str
    text: str
    key: str = ""
    """Of the configuration, where it is one."""
    value: str = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules look at."""

    ledger: Ledger
    costs: tuple[Cost, ...]
    seconds: Mapping[Cause, float]
    config: Config | None = None
    """None: it cannot be read."""

    @property
    def incidents(self) -> Sequence[Incident]:
        """Oldest first."""
        return self.ledger.story.incidents

    @property
    def roots(self) -> list[tuple[Incident, Fault]]:
        """Those whose cause is known."""
        return [(incident, incident.root) for incident in self.incidents if incident.root]

    @property
    def rules(self) -> Rules:
        """The numbers in force."""
        return self.config.rules() if self.config else _RULES


Rule = Callable[[Facts], "Advice | None"]


class Row(NamedTuple):
    """A rule and its name."""

    name: str
    rule: Rule


def advise(facts: Facts) -> tuple[Advice, ...]:
    """Everything that applies, in the table's order."""
    found = ((row.name, row.rule(facts)) for row in TABLE)
    return tuple(msgspec.structs.replace(advice, rule=name) for name, advice in found if advice is not None)


def _say(text: str, *, key: str = "", value: str = "") -> Advice:
    return Advice(rule="", text=one_line(text, width=600), key=key, value=value)


# The script ---------------------------------------------------------------------------------------------------------------


def _own_error(facts: Facts) -> Advice | None:
    """The script's own exception, the newest."""
    found = [(i, root) for i, root in facts.roots if root.how is How.EXCEPTION and root.kind in {None, Kind.USER, Kind.CONFIG}]
    if not found:
        return None
    incident, root = found[-1]
    same = sum(other.fingerprint == root.fingerprint for _, other in found) if root.fingerprint else 1
    often = f", {same} times" if same > 1 else ""
    place = root.where or f"the traceback of rank {root.rank} in incident {incident.number}"
    return _say(f"look at {place}: {root.error}{often}. It is the script's own error: no restart mends it")


def _memory(facts: Facts) -> Advice | None:
    found = [root for _, root in facts.roots if root.kind in {Kind.GPU_MEMORY, Kind.HOST_MEMORY}]
    if not found:
        return None
    gpu = found[-1].kind is Kind.GPU_MEMORY
    rank, node = found[-1].rank, found[-1].node
    who = f"the launcher on {node}" if rank is None else f"rank {rank} on {node}"
    if gpu:
        return _say(
            f"{who} ran out of GPU memory ({count(len(found), 'incident')} of memory): a smaller batch, or less fragmentation (env)"
        )
    return _say(
        f"{who} ran out of host memory ({count(len(found), 'incident')} of memory): more slurm.mem, or fewer workers", key="slurm.mem"
    )


def _never_asks(facts: Facts) -> Advice | None:
    again = sum(incident.replayed or 0 for incident in facts.incidents)
    if facts.ledger.measured.ears is not Ears.NONE or not again:
        return None
    return _say(
        f"the script never asks whether a save is wanted: {count(again, 'step')} ({short_time(facts.seconds[Cause.REPLAYED])}) were made "
        "again. Call asked() of ftsup_worker once a step, and save when it is true"
    )


# Checkpoints --------------------------------------------------------------------------------------------------------------


def _no_directory(facts: Facts) -> Advice | None:
    back = [incident for incident in facts.incidents if incident.back is not None]
    if facts.config is None or facts.config.checkpoint.dir or not back:
        return None
    times = count(len(back), "restart")
    return _say(f"checkpoint.dir is empty: ftsup chose no checkpoint for {times}; say where the script saves", key="checkpoint.dir")


def _interval(facts: Facts) -> Advice | None:
    """Young's and Daly's first-order optimum: sqrt(2 x cost of a save x time between faults)."""
    measured = facts.ledger.measured
    failures = sum(bool(incident.replayed) for incident in facts.incidents)
    trained_s = sum(spell.spent_s for spell in facts.ledger.spells if spell.part is Part.TRAINING)
    if failures < _TWICE or measured.saves < _TWICE or trained_s < _LONG_S or measured.saving_s is None or not measured.step_s:
        return None
    now_s, mtbf_s, seen_s = trained_s / measured.saves, trained_s / failures, measured.saving_s / measured.saves
    save_s = max(seen_s, _LEAST_SAVE_S)  # a save that is dearer than it is speaks for fewer of them, never for more
    if sqrt(2 * save_s * mtbf_s) > now_s:
        save_s = seen_s
    best_s = max(sqrt(2 * save_s * mtbf_s), save_s)

    def lost(every_s: float) -> float:
        return save_s / every_s + every_s / (2 * mtbf_s)

    gain = lost(now_s) - lost(best_s) if best_s else 0.0
    if gain < _LITTLE or _HALF < best_s / now_s < 1 / _HALF:
        return None
    steps, asks = max(round(best_s / measured.step_s), 1), measured.ears is Ears.ASKS
    value = duration(_rounded(best_s))
    return _say(
        f"save {'more' if best_s < now_s else 'less'} often: about every {value} ({steps} steps) instead of every {short_time(now_s)}. "
        f"A save costs {short_time(save_s)}, something broke every {short_time(mtbf_s)} of training, and sqrt(2 x save x that) loses least "
        f"(Young, Daly): about {gain:.0%} of the time less",
        key="checkpoint.every" if asks else "",
        value=value if asks else "",
    )


def _rounded(value_s: float) -> float:
    """To a number that people would choose."""
    step_s = next(step_s for over_s, step_s in ((3600.0, 600.0), (600.0, 60.0), (60.0, 10.0), (0.0, 1.0)) if value_s >= over_s)
    return max(round(value_s / step_s) * step_s, 1.0)


def _damaged(facts: Facts) -> Advice | None:
    aside = facts.ledger.story.aside
    if not aside:
        return None
    return _say(
        f"{names([one.name for one in aside])} came back from the disk other than written (now in {aside[-1].path.rpartition('/')[0]}): "
        "show it to whoever runs the file system"
    )


def _disk(facts: Facts) -> Advice | None:
    found = [root for _, root in facts.roots if root.how is How.DISK or root.kind is Kind.FILES]
    if not found:
        return None
    full = any(word in root.error for root in found for word in ("[Errno 28]", "[Errno 122]"))
    prune = full and facts.config is not None and bool(facts.config.checkpoint.dir) and not facts.config.checkpoint.prune
    then = (
        "make room" + (", or let ftsup remove old checkpoints (checkpoint.prune: true)" if prune else "") if full else "look at that disk"
    )
    return _say(
        f"a file system refused {count(len(found), 'attempt')}, the last: {found[-1].error}: {then}",
        key="checkpoint.prune" if prune else "",
        value="true" if prune else "",
    )


def _warning(facts: Facts) -> Advice | None:
    """The warning comes too late for a save."""
    measured, rules = facts.ledger.measured, facts.rules
    if facts.config is None or not (measured.late_saves or measured.asked_s):
        return None
    kill_s = rules.kill_wait_s if measured.kill_wait_s is None else measured.kill_wait_s
    needed_s = measured.asked_s + kill_s + rules.end_margin_s
    if not measured.late_saves and needed_s <= rules.warning_s:
        return None
    lead_s = ceil(max(needed_s + measured.asked_s, 2 * rules.warning_s if measured.late_saves else 0.0) / _ROUND_S) * _ROUND_S
    word = facts.config.slurm.signal.partition("@")[0]
    took = f"a save on request takes {short_time(measured.asked_s)}" if measured.asked_s else "a save on request takes longer than that"
    late = f", and {count(measured.late_saves, 'requeue')} did not wait for it" if measured.late_saves else ""
    return _say(
        f"the warning comes {short_time(rules.warning_s)} before the time limit; {took}{late}. Let it come earlier",
        key="slurm.signal",
        value=f"{word}@{lead_s:.0f}",
    )


# Limits, nodes, grants ----------------------------------------------------------------------------------------------------


def _limit(facts: Facts) -> Advice | None:
    """Hangs in training that were waited for much longer than was needed."""
    measured = facts.ledger.measured
    hangs = [
        (c, i.root)
        for c, i in zip(facts.costs, facts.incidents, strict=True)
        if i.root and i.root.how is How.QUIET and i.root.phase == "step"
    ]
    quiet_s, total_s = sum(cost.quiet_s for cost, _ in hangs), sum(cost.total_s for cost, _ in hangs)
    if not hangs or not measured.median_s or quiet_s < _HALF * total_s:
        return None
    limit_s = max(root.limit_s for _, root in hangs)
    enough_s = max(facts.rules.hang.step_factor * measured.median_s, measured.restart_s)
    if enough_s > _WORTH * limit_s:
        return None
    value = duration(_rounded(enough_s))
    restart = f", a restart takes {short_time(measured.restart_s)}" if measured.restart_s else ""
    return _say(
        f"{count(len(hangs), 'hang')} in training stood still for {short_time(quiet_s)} of the {short_time(total_s)} that they cost: the "
        f"limit was {short_time(limit_s)}. A step takes {measured.median_s:.3g} s (median){restart}: a lower limit finds them sooner",
        key="hang.step",
        value=value,
    )


def _node(facts: Facts) -> Advice | None:
    """One node again and again, of several."""
    blamed = [root.node for _, root in facts.roots if root.how in BLAMES | {How.NODE, How.UNKILLABLE, How.HELLO} and root.node]
    kept_out = {node for incident in facts.incidents if incident.verdict for node in incident.verdict.avoid}
    (node, times), *_ = [*Counter(blamed).most_common(1), ("", 0)]
    luck = len({*facts.ledger.story.nodes, *blamed}) ** max(times - 1, 0)
    if luck < _LUCK or times <= _HALF * len(blamed) or node in kept_out:
        return None
    of = f"{times} of {len(blamed)} faults that a node can be blamed for were on {node}"
    return _say(f"{of}: keep it out", key="slurm.exclude", value=f"[{node}]")


def _rank(facts: Facts) -> Advice | None:
    """One rank on several nodes."""
    places: dict[int, list[str]] = {}
    for _, root in facts.roots:
        if root.rank is not None and root.how in BLAMES:
            places.setdefault(root.rank, []).append(root.node)
    for rank, nodes in places.items():
        if len(set(nodes)) > 1:
            where = names(sorted(set(nodes)))
            return _say(
                f"rank {rank} broke {len(nodes)} times, on {where}: it follows the rank, so look at its data and code, not at a node"
            )
    return None


def _short_grants(facts: Facts) -> Advice | None:
    """Grants that end by their time limit, and spend much of it coming back."""
    ended = [i for i in facts.incidents if i.verdict and i.verdict.kind is VerdictKind.REQUEUE and i.verdict.rule == "time limit"]
    spent_s = sum(c.queue_s + c.startup_s for c, i in zip(facts.costs, facts.incidents, strict=True) if i in ended)
    if len(ended) < _TWICE or spent_s < _MUCH * facts.ledger.whole_s:
        return None
    now = facts.config.slurm.time_s if facts.config else None
    return _say(
        f"{len(ended)} grants ended by their time limit, and {short_time(spent_s)} went into the queue and starting up again: ask for "
        f"longer ones{f' than {duration(now)}' if now else ''}",
        key="slurm.time",
    )


def _no_word(facts: Facts) -> Advice | None:
    lost = [
        incident for incident in facts.incidents if incident.number == 0 and incident.verdict is None and cause(incident) is Cause.UNKNOWN
    ]
    if not lost:
        return None
    job = facts.ledger.story.job
    return _say(
        f"{count(len(lost), 'grant')} ended without a word of the leader, the last about {lost[-1].found.wall[:19].replace('T', ' ')}: "
        f"`sacct -j {job} --duplicates` and slurm-{job}.out in the run say what Slurm knows"
    )


def _requeue_off(facts: Facts) -> Advice | None:
    verdict = facts.ledger.story.verdict
    off = facts.config is not None and facts.config.slurm.requeue is Requeue.OFF
    if not off or verdict is None or verdict.kind is not VerdictKind.STOP or "requeue is off" not in verdict.reason:
        return None
    return _say("requeue is off: where only other nodes could help, the run stops instead", key="slurm.requeue", value="requeue")


TABLE: tuple[Row, ...] = (
    Row("own error", _own_error),
    Row("memory", _memory),
    Row("disk", _disk),
    Row("no directory", _no_directory),
    Row("damaged", _damaged),
    Row("node", _node),
    Row("rank", _rank),
    Row("no word", _no_word),
    Row("warning", _warning),
    Row("never asks", _never_asks),
    Row("interval", _interval),
    Row("hang limit", _limit),
    Row("short grants", _short_grants),
    Row("requeue off", _requeue_off),
)
