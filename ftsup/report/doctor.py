"""`ftsup doctor` judges: the table of rules, facts in, findings out, worst first; their text and their JSON. Pure.

A rule is a row: a name, and a function from facts to findings (`doctorslurm`, `doctorpreempt`, `doctorplace`, `doctorhere`). Nothing here
asks anything.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from ftsup.errors import Exit
from ftsup.report import doctorhere as here
from ftsup.report import doctorplace as place
from ftsup.report import doctorpreempt as preempt
from ftsup.report import doctorslurm as slurm
from ftsup.report.doctorfacts import Facts, Finding, Level

Rule = Callable[[Facts], Iterator[Finding]]
RULES: tuple[tuple[str, Rule], ...] = (
    ("slurm", slurm.answers),
    ("client", slurm.client),
    ("slurm-version", slurm.version),
    ("kinds-of-job", place.kinds_of_job),
    ("partition", place.partitions),
    ("nodes", place.nodes),
    ("signal-lead", slurm.warning_lead),
    ("kill-wait", slurm.kill_wait),
    ("unkillable", slurm.unkillable),
    ("requeue", slurm.requeue),
    ("requeue-exit", slurm.requeue_exit),
    ("batch-requeues", slurm.batch_requeues),
    ("preemption", preempt.preemption),
    ("qos", preempt.qos),
    ("tracking", slurm.tracking),
    ("cgroups", slurm.cgroups),
    ("prologs", slurm.prologs),
    ("submit-plugins", slurm.submit_plugins),
    ("account", slurm.accounts),
    ("node-loss", slurm.node_loss),
    ("arrays-mpi", slurm.arrays_and_mpi),
    ("forgetting", slurm.forgetting),
    ("rate-limit", slurm.rate_limit),
    ("disk", here.disks_answer),
    ("disk-shared", here.disks_seen),
    ("disk-space", here.disks_space),
    ("quota", here.quotas),
    ("shm", here.shm),
    ("limits", here.limits),
    ("addresses", here.addresses),
    ("curve", here.curve),
    ("versions", here.training),
    ("nccl", here.nccl),
    ("nesting", here.nesting),
    ("node", here.node),
)
"""In the order of the report, within one level."""
WIDTH = 80
_INDENT = " " * 9


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints. `schema` changes when the meaning of a field does."""

    schema: int = 1
    verdict: str
    """fine; problem; unknown (Slurm did not answer, the rest is fine)."""
    mock: bool
    findings: tuple[Finding, ...]


def findings(facts: Facts) -> tuple[Finding, ...]:
    """All that there is to say, worst first."""
    order = list(Level)
    found = [replace(each, rule=name) for name, rule in RULES for each in rule(facts)]
    return tuple(sorted(found, key=lambda each: order.index(each.level)))


def exit_code(facts: Facts, found: Sequence[Finding]) -> Exit:
    """1: something will not work; 75: Slurm did not answer, and the rest is fine."""
    if any(each.level is Level.PROBLEM for each in found):
        return Exit.NO
    return Exit.AGAIN if facts.cluster.silence and facts.cluster.settings is None else Exit.OK


def report(facts: Facts, found: Sequence[Finding]) -> Report:
    """For programs."""
    verdict = {Exit.NO: "problem", Exit.AGAIN: "unknown"}.get(exit_code(facts, found), "fine")
    return Report(verdict=verdict, mock=facts.cluster.mock, findings=tuple(found))


def text(found: Sequence[Finding]) -> str:
    """For people: a summary, then a paragraph a finding."""
    counts = Counter(each.level for each in found)
    plural = {Level.OK: "ok"}
    parts = [f"{counts[level]} {plural.get(level, level.value + ('' if counts[level] == 1 else 's'))}" for level in Level if counts[level]]
    return "\n".join([", ".join(parts), "", *map(_paragraph, found)])


def _paragraph(found: Finding) -> str:
    said = f"{found.text}; {found.todo}" if found.todo else found.text
    said = "".join(char if char.isprintable() else "?" for char in said)
    return textwrap.fill(said, WIDTH - 1, initial_indent=f"{found.level.value:<9}", subsequent_indent=_INDENT, break_on_hyphens=False)
