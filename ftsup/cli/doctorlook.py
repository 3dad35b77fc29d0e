"""Finds out what doctor judges: asks Slurm, disks, tools and this host, side by side, each with a deadline. Judges nothing.

What may hang (a dead NFS server, a hung scontrol, an interpreter on a cold disk) is asked in a child, and abandoned in time.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil
from msgspec.structs import replace

from ftsup import proc
from ftsup.cli.cluster import Cluster as Chosen
from ftsup.cli.ports import Ports
from ftsup.config import Config
from ftsup.errors import SlurmError, Unavailable
from ftsup.ports import Slurm
from ftsup.report.doctorfacts import Cluster, Disk, Facts, Host, JobNode, Quota, Training
from ftsup.slurm import accounting, pyslurm

T = TypeVar("T")
PATIENCE_S = 10.0
"""For all questions together; what has not answered by then is unknown."""
QUOTA_S = 2.0
_VERSIONS = """
import sys
from importlib import metadata
try:
    torch = metadata.version("torch")
except metadata.PackageNotFoundError:
    torch = "-"
print("ftsup-doctor", sys.version.split()[0], torch)
"""
"""torch is not imported: that takes seconds, and a GPU."""
_UNLIMITED = 1 << 60
"""Cgroup v1 says "no limit" with a number of this size."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What doctor was asked about."""

    config: Config
    given: bool
    chosen: Chosen
    choice: str = ""


class _Until:
    """One deadline for all questions."""

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._end = time.monotonic() + patience_s

    def left_s(self) -> float:
        """What is left, a moment at least: an answer may lie ready."""
        return max(round(self._end - time.monotonic(), 1), 0.1)

    def end_of(self, asked: proc.Running | proc.Done) -> proc.Done:
        """How it ended, in time."""
        done = asked if isinstance(asked, proc.Done) else asked.wait(self.left_s())
        return replace(done, why=f"no answer within {self.patience_s:g} s") if "timed out" in done.why else done


def look(ports: Ports, asked: Asked, *, patience_s: float = PATIENCE_S) -> Facts:
    """All facts, within `patience_s` and a few seconds."""
    until, config = _Until(patience_s), asked.config
    environ = asked.chosen.environ(ports.environ)
    in_job = environ.get("SLURM_JOB_ID", "")
    folders = _folders(config, environ, in_job=bool(in_job))
    disks = [(key, path, _start([ports.python, "-m", "ftsup.cli.doctordisk", key, path], ports.environ)) for key, path in folders]
    python = str(Path(config.workdir) / config.python) if "/" in config.python else config.python or ports.python
    torch = None if config.launcher.prefix else _start([python, "-c", _VERSIONS], ports.environ)
    smi = _start(["nvidia-smi", "-L"], environ) if in_job and shutil.which("nvidia-smi", path=environ.get("PATH", "")) else None
    cluster = _cluster(ports, environ, asked, until)
    found = [_disk(key, path, until.end_of(running)) for key, path, running in disks]
    return Facts(
        config=config,
        given=asked.given,
        cluster=cluster,
        disks=tuple(found if cluster.mock else with_quotas(found, ports)),
        host=_host(),
        training=_training(python, None if torch is None else until.end_of(torch)),
        ftsup=metadata.version("ftsup"),
        python=platform.python_version(),
        job=_job(in_job, environ, None if smi is None else until.end_of(smi)) if in_job else None,
    )


def _start(argv: list[str], environ: Mapping[str, str]) -> proc.Running | proc.Done:
    return proc.start(argv, env=environ, cwd=Path("/"))  # modules where a person stands could hide ours


def _folders(config: Config, environ: Mapping[str, str], *, in_job: bool) -> list[tuple[str, str]]:
    """Key and path of each directory to look at."""
    found = [("runs_dir", config.runs_dir)]
    if config.checkpoint.dir:
        found.append(("checkpoint.dir", str(Path(config.workdir) / config.checkpoint.dir)))
    if in_job:
        found.append(("local_dir", str(config.local_base(environ))))
    return found


def _cluster(ports: Ports, environ: Mapping[str, str], asked: Asked, until: _Until) -> Cluster:
    """What Slurm says; after the first question without an answer no other is asked."""
    client, why = _client(asked.config, environ, until)
    seen = Cluster(mock=bool(asked.chosen.state), choice=asked.choice, client=client, client_why=why)
    if shutil.which("scontrol", path=environ.get("PATH", "")) is None:
        return replace(seen, silence="there is no scontrol on PATH")
    try:
        seen = replace(seen, settings=_soon(ports, environ, until).config())
        seen = replace(seen, partitions=tuple(_soon(ports, environ, until).partitions()))
        seen = _with_qos(replace(seen, nodes=tuple(_soon(ports, environ, until).nodes())), environ, until)
    except Unavailable as error:
        return replace(seen, silence=error.message)
    except SlurmError as error:
        return replace(seen, silence=f"its answer cannot be used: {error.message}")
    return seen


def _with_qos(seen: Cluster, environ: Mapping[str, str], until: _Until) -> Cluster:
    """What accounting says of them, where there is any."""
    store = seen.word("AccountingStorageType")
    if seen.mock or not store or store.endswith("/none"):
        return replace(seen, qos_silence="there is no accounting (AccountingStorageType)")
    done = until.end_of(_start(list(accounting.QOS_ARGV), environ))
    if not done.ok:
        return replace(seen, qos_silence=f"sacctmgr: {done.why or _last(done.err)}")
    return replace(seen, qos=accounting.parse_qos(done.out))


def _client(config: Config, environ: Mapping[str, str], until: _Until) -> tuple[str, str]:
    """What slurm.client leads to here, and why; no client where it demands one that does not work."""

    def in_time(argv: Sequence[str], *, deadline_s: float, env: Mapping[str, str] | None = None) -> proc.Done:
        return proc.run(argv, deadline_s=min(deadline_s, until.left_s() / 2), env=env)

    try:
        found = pyslurm.choose(config.slurm.client, environ=environ, run=in_time)
    except Unavailable as error:
        return "", error.message
    return found.client.value, found.why


def _soon(ports: Ports, environ: Mapping[str, str], until: _Until) -> Slurm:
    return ports.slurm_within(environ, until.left_s())


def _disk(key: str, path: str, done: proc.Done) -> Disk:
    try:
        return msgspec.json.decode(done.out, type=Disk) if done.ok else Disk(key=key, path=path, silence=_why(done))
    except msgspec.MsgspecError:
        return Disk(key=key, path=path, silence="could not be asked: the helper printed something else")


def _why(done: proc.Done) -> str:
    if done.code is None:
        return f"could not be looked at: {done.why}"
    return f"could not be looked at: the helper ended with {done.code} ({_last(done.err)})"


def _last(text: str) -> str:
    """The line in which a program says why it failed."""
    return (text.strip().splitlines() or ["no word"])[-1]


def with_quotas(disks: list[Disk], ports: Ports, *, patience_s: float = QUOTA_S) -> list[Disk]:
    """With the quota of each, from the tool of its kind; side by side."""
    running = [None if disk.silence else _quota_tool(disk, ports) for disk in disks]
    until = _Until(patience_s)
    return [disk if asked is None else _with_quota(disk, until.end_of(asked)) for disk, asked in zip(disks, running, strict=True)]


def _quota_tool(disk: Disk, ports: Ports) -> proc.Running | proc.Done | None:
    if disk.fstype == "lustre":
        return _start(["lfs", "quota", "-q", "-u", ports.user, disk.mount], ports.environ)
    if disk.fstype.startswith(("nfs", "ext", "xfs", "btrfs")):
        return _start(["quota", "-w", "-p"], ports.environ)
    return None


def _with_quota(disk: Disk, done: proc.Done) -> Disk:
    tool = done.argv[0]
    if done.code is None:
        return replace(disk, quota_silence=f"`{tool}` is not installed here" if "No such file" in done.why else f"`{tool}`: {done.why}")
    found = quota_in(done.out, place=disk.mount if tool == "lfs" else disk.source)
    return replace(disk, quota=found, quota_silence="" if found else f"`{tool}` says nothing of it")


def quota_in(text: str, *, place: str) -> Quota | None:
    """The row of a place in what `lfs quota -q` or `quota -w -p` printed: KiB used, soft, hard, grace; files the same."""
    words = text.split()
    if place not in words:
        return None
    row = [word.rstrip("*").strip("[]") for word in words[words.index(place) + 1 :][:8]]
    numbers = [int(word) if word.isdigit() else 0 for word in row]
    if len(numbers) < 7 or not row[0].isdigit():  # noqa: PLR2004 - up to the hard limit of files
        return None
    used, soft, hard, _, files, soft_files, hard_files = numbers[:7]
    return Quota(used_bytes=used << 10, limit_bytes=(hard or soft) << 10, files=files, limit_files=hard_files or soft_files)


def _training(python: str, done: proc.Done | None) -> Training:
    if done is None:
        return Training(python=python, silence="ranks run behind launcher.prefix, where it was not asked")
    lines = [line.split() for line in done.out.splitlines() if line.startswith("ftsup-doctor ")]
    if lines and len(lines[-1]) == 3:  # noqa: PLR2004 - our own line
        _, version, torch = lines[-1]
        return Training(python=python, version=version, torch="" if torch == "-" else torch)
    if "no answer" in done.why:
        return Training(python=python, silence=done.why)
    return Training(python=python, why=(done.why or _last(done.err)).removeprefix(f"{python}: "))


def _host() -> Host:
    size = _ask(lambda: os.statvfs("/dev/shm"))  # noqa: S108 - asked about, not written to
    return Host(
        name=platform.node(),
        shm_bytes=None if size is None else size.f_blocks * size.f_frsize,
        shm_free_bytes=0 if size is None else size.f_bavail * size.f_frsize,
        nofile=_limit(resource.RLIMIT_NOFILE),
        nproc=_limit(resource.RLIMIT_NPROC),
        memlock_bytes=_limit(resource.RLIMIT_MEMLOCK),
        infiniband=Path("/sys/class/infiniband").is_dir(),
        addresses=_addresses(),
        curve=_curve(),
    )


def _curve() -> bool:
    import zmq  # noqa: PLC0415 - heavy

    return bool(zmq.has("curve"))


def _limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def _addresses() -> tuple[str, ...]:
    found = psutil.net_if_addrs()
    families = (socket.AF_INET, socket.AF_INET6)
    return tuple(each.address for name in sorted(found) for each in found[name] if each.family in families)


def _job(job: str, environ: Mapping[str, str], smi: proc.Done | None) -> JobNode:
    gpus = None if smi is None or not smi.ok else sum(line.startswith("GPU ") for line in smi.out.splitlines())
    return JobNode(
        job=job,
        memory_bytes=memory_limit(_text(Path("/proc/self/cgroup")), root=Path("/sys/fs/cgroup")),
        cpus=len(os.sched_getaffinity(0)),
        allocated_cpus=_number(environ.get("SLURM_CPUS_ON_NODE", "")),
        gpus=gpus,
        gpus_silence="nvidia-smi is not there" if smi is None else smi.why or f"nvidia-smi ended with {smi.code}",
        allocated_gpus=_number(environ.get("SLURM_GPUS_ON_NODE", "")),
        heterogeneous="SLURM_HET_SIZE" in environ,
    )


def memory_limit(membership: str, *, root: Path) -> int | None:
    """The smallest memory limit of our cgroup and those above it, version 1 or 2; None: there is none."""
    found = []
    for line in membership.splitlines():
        controllers, _, place = line.partition(":")[2].partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        parts = Path(place.lstrip("/"))
        found += [_number(_text(base / folder / name).strip()) for folder in (parts, *parts.parents)]
    return min((each for each in found if each is not None and each < _UNLIMITED), default=None)


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    return _ask(lambda: path.read_text(encoding="utf-8", errors="replace")) or ""


def _ask(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except OSError:
        return None
