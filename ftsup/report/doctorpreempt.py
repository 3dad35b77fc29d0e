"""Doctor's rules about who takes a job's nodes away: preemption by partition and by qos, and the qos itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ftsup.report.doctorfacts import Facts, Finding, note, ok, problem, warning
from ftsup.report.words import names
from ftsup.units import duration

_LIKE_THE_CLUSTER = {"", "CLUSTER"}


class _Way(msgspec.Struct, frozen=True, kw_only=True):
    """What a preemption does to our jobs, and whose setting that is."""

    whose: str
    mode: str
    grace_s: float = 0.0


def preemption(facts: Facts) -> Iterator[Finding]:
    """What preemption does to a job, how long it has then, and whether it is warned."""
    kind, mode = facts.cluster.word("PreemptType"), facts.cluster.word("PreemptMode").upper()
    if not mode:
        return
    ways = [] if kind in {"", "preempt/none"} else [way for way in _ways(facts, mode, kind) if way.mode != "OFF"]
    if not ways:
        yield ok("nobody is preempted (PreemptMode=OFF)")
    for way in ways:
        yield from _way(facts, way)


def _ways(facts: Facts, mode: str, kind: str) -> Iterator[_Way]:
    """The qos's own word counts where qos decides, then the partition's, then the cluster's."""
    chosen = [each for each in facts.cluster.qos or () if each.name == facts.config.slurm.qos]
    qos = next((each for each in chosen if each.preempt_mode.upper() not in _LIKE_THE_CLUSTER), None)
    if kind == "preempt/qos" and qos is not None:
        yield _Way(whose=f" of qos {qos.name}", mode=qos.preempt_mode.upper(), grace_s=qos.grace_s)
        return
    partitions = facts.chosen()
    if not partitions:
        yield _Way(whose="", mode=mode)
    for each in partitions or ():
        own = each.preempt_mode.upper()
        yield _Way(whose="" if own in {"", mode} else f" of partition {each.name}", mode=own or mode, grace_s=each.grace_s)


def _way(facts: Facts, way: _Way) -> Iterator[Finding]:
    said = f"PreemptMode{way.whose} is {way.mode}"
    if "CANCEL" in way.mode:
        yield warning(
            f"{said}: a preempted job is cancelled, and Slurm never brings it back",
            "use a partition or qos that is not preempted, or ftsup submit --continue RUN afterwards",
        )
    elif "SUSPEND" in way.mode or way.mode == "GANG":
        yield note(f"{said}: a preempted job can be suspended, which ftsup does not take for a hang")
    wait_s = facts.cluster.seconds("KillWait") or 0.0
    has = f"GraceTime is {duration(way.grace_s)} and KillWait {duration(wait_s)}: so long it has from the first signal to the last"
    if any("send_user_signal" in facts.cluster.word(key) for key in ("PreemptParameters", "SlurmctldParameters")):  # 22.05: the latter
        yield ok(f"{said}: a preempted job gets the warning (send_user_signal); {has}")
        return
    every = duration(facts.config.checkpoint.every_s)
    yield note(
        f"{said} without send_user_signal: a preempted job gets only SIGTERM; {has}; up to checkpoint.every ({every}) is lost where a save "
        "takes longer",
        "set checkpoint.every to what you can lose",
    )


def qos(facts: Facts) -> Iterator[Finding]:
    """The qos that is asked for: there, and with time enough."""
    wanted, known, slurm = facts.config.slurm.qos, facts.cluster.qos, facts.config.slurm
    if not wanted:
        return
    if known is None:
        yield note(f"unknown: whether there is a qos {wanted} ({facts.cluster.qos_silence or 'nobody told'})", "look: sacctmgr show qos")
        return
    found = next((each for each in known if each.name == wanted), None)
    if found is None:
        yield problem(f"slurm.qos is {wanted}: there is no such qos", f"set another: there are {names([each.name for each in known])}")
    elif found.limit_s is not None and slurm.time_s is not None and slurm.time_s > found.limit_s:
        yield problem(
            f"slurm.time is {duration(slurm.time_s)}, and qos {wanted} allows {duration(found.limit_s)} (MaxWall)",
            f"set slurm.time: {duration(found.limit_s)}",
        )
    else:
        yield ok(f"qos {wanted} is there; MaxWall is {'unlimited' if found.limit_s is None else duration(found.limit_s)}")
