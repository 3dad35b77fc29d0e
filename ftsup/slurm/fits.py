"""Which nodes can run a job: by what it asks of each (--constraint, GRES) and what each has. Pure.

Where that cannot be judged from what Slurm prints (a constraint with brackets, GPUs for the job as a whole, a reservation), only nodes
that have what one of the run's own has are counted, and that is said.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

import msgspec

from ftsup.ports import Job, Node

_PLAIN = re.compile(r"[\w.:-]+(?:[&,][\w.:-]+)*|[\w.:-]+(?:\|[\w.:-]+)*", re.ASCII)
"""All of these features, or one of these; what mixes both, groups or counts is read by Slurm alone."""
_GRES = re.compile(r"(?:gres[:/])?(\w+)(?::([A-Za-z][\w.-]*))?(?:[:=](\d{1,6}))?(?:\(.*\))?", re.ASCII)


class Fitting(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    nodes: tuple[str, ...]
    unsure: str = ""
    """What of the job's wishes could not be judged."""


def able(job: Job, nodes: Sequence[Node], *, known: Collection[str]) -> Fitting:
    """Those of `nodes` that can run it. `known`: nodes that can, since the run had them."""
    unsure = next((wish for wish, clear in _wishes(job) if not clear), "")
    if not unsure:
        found = tuple(node.name for node in nodes if _has_features(node, job.constraint) and _has_gres(node.gres, job.gres))
        if found:
            return Fitting(nodes=found)
        unsure = job.constraint or job.gres  # Slurm took the job, so there are such nodes: we have read it wrong
    like = [node for node in nodes if node.name in known]
    return Fitting(nodes=tuple(node.name for node in nodes if any(_at_least(node, one) for one in like)), unsure=unsure)


def _wishes(job: Job) -> Iterator[tuple[str, bool]]:
    yield job.unclear, not job.unclear
    yield f"--constraint={job.constraint}", not job.constraint or _PLAIN.fullmatch(job.constraint) is not None
    yield f"--gres={job.gres}", all(_GRES.fullmatch(part) for part in _parts(job.gres))


def _has_features(node: Node, constraint: str) -> bool:
    if "|" in constraint:
        return any(name in node.features for name in constraint.split("|"))
    return all(name in node.features for name in re.split("[&,]", constraint) if name)


def _has_gres(has: str, wanted: str) -> bool:
    return all(_count(has, name, kind) >= int(count or 1) for name, kind, count in _gres(wanted))


def _at_least(node: Node, other: Node) -> bool:
    return set(node.features) >= set(other.features) and _has_gres(node.gres, other.gres)


def _count(has: str, name: str, kind: str) -> int:
    return sum(int(count or 1) for known, its, count in _gres(has) if known == name and kind in {"", its})


def _gres(text: str) -> Iterator[tuple[str, str, str]]:
    """Name, type and number of each of `gpu:a100:4(S:0-1),shard:16`, or of a job's `gres:gpu:2`."""
    for part in _parts(text):
        if found := _GRES.fullmatch(part):
            yield found[1], found[2] or "", found[3] or ""


def _parts(text: str) -> list[str]:
    return [part for part in re.split(r",(?![^(]*\))", text) if part]
