"""What `ftsup doctor` knows when it judges: the cluster, disks, this host, the node of a job, versions; and what a finding is.

Values only. What could not be found out is said beside it (`silence`), never guessed: None is "unknown". Asks nothing itself.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from ftsup.config import Config
from ftsup.ports import Node, Partition
from ftsup.slurm.accounting import Qos
from ftsup.slurm.jobs import config_s


class Level(Enum):
    """How bad a finding is; worst first."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"
    OK = "ok"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence with the value that was seen, and what to set or do about it."""

    level: Level
    text: str
    todo: str = ""
    rule: str = ""


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """What Slurm said. None: it was not answered, `silence` says why."""

    mock: bool = False
    choice: str = ""
    """Why it is the mock, where nobody asked for it."""
    settings: dict[str, str] | None = None
    partitions: tuple[Partition, ...] | None = None
    nodes: tuple[Node, ...] | None = None
    silence: str = ""
    qos: tuple[Qos, ...] | None = None
    """None: nobody told, `qos_silence` says why."""
    qos_silence: str = ""
    client: str = ""
    """commands, or pyslurm: what commands of a login node ask Slurm with; empty: what slurm.client demands does not work."""
    client_why: str = ""

    def word(self, name: str) -> str:
        """A setting; empty where it is unset, unknown or not there."""
        value = (self.settings or {}).get(name, "").strip()
        return "" if value.lower() in {"(null)", "n/a", "none"} else value

    def seconds(self, name: str) -> float | None:
        """A setting that is a duration (`30 sec`)."""
        return config_s(self.word(name))


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """What this user has used of what he may; a limit of 0: none."""

    used_bytes: int
    limit_bytes: int
    files: int
    limit_files: int


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """The file system of a directory; `path` itself need not be there yet."""

    key: str
    """The configuration's key: runs_dir, checkpoint.dir, local_dir."""
    path: str
    there: str = ""
    """The directory itself, or the nearest one above that is there."""
    fstype: str = ""
    """As /proc/mounts has it: nfs4, lustre, ext4, tmpfs, overlay."""
    source: str = ""
    mount: str = ""
    free_bytes: int | None = None
    total_bytes: int = 0
    free_inodes: int = 0
    inodes: int = 0
    """0: this kind counts none."""
    writable: bool | None = None
    quota: Quota | None = None
    quota_silence: str = ""
    silence: str = ""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The host that asks. A limit of None: unlimited."""

    name: str = ""
    shm_bytes: int | None = None
    shm_free_bytes: int = 0
    nofile: int | None = None
    nproc: int | None = None
    memlock_bytes: int | None = None
    infiniband: bool = False
    addresses: tuple[str, ...] = ()
    curve: bool = True


class JobNode(msgspec.Struct, frozen=True, kw_only=True):
    """The node of the job in which doctor runs."""

    job: str
    memory_bytes: int | None = None
    """The cgroup's limit; None: none was found."""
    cpus: int = 0
    """In our affinity."""
    allocated_cpus: int | None = None
    gpus: int | None = None
    """That nvidia-smi lists; None: it is not there, or did not answer."""
    gpus_silence: str = ""
    allocated_gpus: int | None = None
    heterogeneous: bool = False


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """The interpreter of the ranks."""

    python: str
    version: str = ""
    torch: str = ""
    """Empty with a version: there is no torch."""
    silence: str = ""
    why: str = ""
    """It did not run: the reason."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    config: Config
    given: bool = True
    """There is a configuration; else `config` is the defaults."""
    cluster: Cluster = Cluster()
    disks: tuple[Disk, ...] = ()
    host: Host = Host()
    training: Training | None = None
    ftsup: str = ""
    python: str = ""
    job: JobNode | None = None

    def chosen(self) -> tuple[Partition, ...] | None:
        """The partitions that this configuration can go to; None: unknown."""
        found = self.cluster.partitions
        if found is None:
            return None
        names = self.config.slurm.partition.split(",") if self.config.slurm.partition else []
        return tuple(each for each in found if (each.name in names if names else each.default))

    def chosen_nodes(self) -> tuple[Node, ...] | None:
        """Their nodes."""
        partitions = self.chosen()
        if partitions is None or self.cluster.nodes is None:
            return None
        names = {name for partition in partitions for name in partition.nodes}
        return tuple(node for node in self.cluster.nodes if node.name in names)


def problem(text: str, todo: str = "") -> Finding:
    """It will not work."""
    return Finding(level=Level.PROBLEM, text=text, todo=todo)


def warning(text: str, todo: str = "") -> Finding:
    """It works, and will hurt."""
    return Finding(level=Level.WARNING, text=text, todo=todo)


def note(text: str, todo: str = "") -> Finding:
    """Worth knowing."""
    return Finding(level=Level.NOTE, text=text, todo=todo)


def ok(text: str) -> Finding:
    """As it should be."""
    return Finding(level=Level.OK, text=text)
