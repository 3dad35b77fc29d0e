"""What the cluster is like, for somebody who writes a first configuration: partitions, GPUs, KillWait, accounts.

Asks through the Slurm port, each question with its deadline; after the first that gets no answer no other is asked. Changes nothing.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping

import msgspec

from ftsup.errors import SlurmError
from ftsup.ports import Partition, Slurm
from ftsup.slurm.jobs import config_s

_ENFORCED = {"associations", "limits", "qos", "safe", "all"}


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A partition, with what most of its nodes have."""

    partition: Partition
    gpus: int = 0
    gpu_counts: tuple[int, ...] = ()
    """Every number of GPUs that its nodes have."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster, as far as it could be seen. `silence`: why nothing, or no more, is known."""

    kinds: tuple[Kind, ...] = ()
    kill_wait_s: float | None = None
    enforces: str = ""
    """AccountingStorageEnforce, where jobs are charged to accounts."""
    silence: str = ""

    def kind(self, name: str) -> Kind | None:
        """The partition of this name."""
        return next((kind for kind in self.kinds if kind.partition.name == name), None)

    def best(self) -> Kind | None:
        """The one to propose: up, with GPUs where there are any, the default one before others."""
        usable = [kind for kind in self.kinds if kind.partition.up]
        return max(usable, key=lambda kind: (kind.gpus > 0, kind.partition.default, len(kind.partition.nodes)), default=None)


def look(slurm: Slurm, *, environ: Mapping[str, str]) -> Site:
    """Ask what there is to know."""
    if shutil.which("scontrol", path=environ.get("PATH", "")) is None:
        return Site(silence="there is no Slurm here (no scontrol on PATH): nodes, GPUs and the time limit could not be looked up")
    kinds: tuple[Kind, ...] = ()
    try:
        partitions = slurm.partitions()
        gpus = {node.name: node.gpus for node in slurm.nodes()}
        kinds = tuple(_kind(partition, gpus) for partition in partitions)
        settings = slurm.config()
    except SlurmError as error:
        return Site(kinds=kinds, silence=f"Slurm was asked and gave no answer: {error.hint or error.message}")
    enforced = settings.get("AccountingStorageEnforce", "").lower()
    charged = bool(_ENFORCED & {word.strip() for word in enforced.split(",")})
    return Site(kinds=kinds, kill_wait_s=config_s(settings.get("KillWait", "")), enforces=enforced if charged else "")


def _kind(partition: Partition, gpus: Mapping[str, int]) -> Kind:
    counts = Counter(gpus[name] for name in partition.nodes if name in gpus)
    usual = counts.most_common(1)
    return Kind(partition=partition, gpus=usual[0][0] if usual else 0, gpu_counts=tuple(sorted(counts)))
