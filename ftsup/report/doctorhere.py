"""Doctor's rules about disks, this host, the node of a job, the training's interpreter, and the configuration by itself. Pure.

Each rule looks at the facts and yields findings; what is unknown is said as unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from ftsup.config import Launch
from ftsup.report.doctorfacts import Disk, Facts, Finding, note, ok, problem, warning
from ftsup.report.words import count, names
from ftsup.units import duration

SHARED = (
    *("nfs", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "wekafs", "panfs", "cifs", "smb", "pvfs", "orangefs", "glusterfs", "afs"),
    *("fuse.glusterfs", "9p", "fuse.daos", "fuse.dfuse", "quobyte", "fuse.quobyte", "fuse.sshfs", "virtiofs"),
)
"""Beginnings of the names of file systems that other machines see."""
MIB, GIB = 1 << 20, 1 << 30
NCCL_S = 600.0
"""PyTorch's default limit of a collective."""
NEARLY_FULL = 0.9
SHM = "/dev/shm"  # noqa: S108 - spoken of, not written to


def readable(size_bytes: int) -> str:
    """A size for people: `3.2 GiB`."""
    for unit, size in (("TiB", 1 << 40), ("GiB", GIB), ("MiB", MIB), ("KiB", 1 << 10)):
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes} B"


def shared(disk: Disk) -> bool:
    """Whether other machines see it, as far as its kind tells."""
    return disk.fstype.startswith(SHARED)


def disks_answer(facts: Facts) -> Iterator[Finding]:
    """Disks that say nothing, or refuse us."""
    for disk in facts.disks:
        if disk.silence:
            yield problem(
                f"{disk.key}: unknown: {disk.path} {disk.silence}", "look with `ls` in another terminal; choose a directory that answers"
            )
        elif disk.writable is False:
            yield problem(f"{disk.key}: {disk.path} cannot be written by you, here", f"set {disk.key} to a directory of yours")


def disks_seen(facts: Facts) -> Iterator[Finding]:
    """The nodes must see run directory and checkpoints; a node's own disk must be its own."""
    for disk in facts.disks:
        if disk.silence:
            continue
        said = f"{disk.key}: {disk.path} is on {disk.fstype or 'a file system of unknown kind'}"
        if disk.key == "local_dir":
            yield (
                warning(f"{said}, which is slow for the event log and shared by all nodes", "set local_dir to a node's own disk")
                if shared(disk)
                else ok(said)
            )
        elif facts.cluster.mock:
            yield ok(f"{said}; the mock's nodes are this machine, and see it")
        elif shared(disk):
            yield ok(f"{said}, which nodes usually see; `srun -N1 ls -d {disk.there or disk.path}` proves it")
        else:
            yield warning(
                f"{said}, which other machines do not see",
                f"set {disk.key} to a shared disk; where the nodes do see it, `srun -N1 ls -d {disk.there or disk.path}` says so",
            )


def disks_space(facts: Facts) -> Iterator[Finding]:
    """Free space and inodes."""
    for disk in facts.disks:
        if disk.silence or disk.free_bytes is None:
            continue
        said = f"{disk.key}: {readable(disk.free_bytes)} of {readable(disk.total_bytes)} are free on {disk.mount or disk.path}"
        if disk.free_bytes < GIB // 4:
            yield problem(said, f"make room, or set {disk.key} to another disk")
        elif disk.free_bytes < 10 * GIB and disk.key == "checkpoint.dir":
            yield warning(said, f"a full disk costs saves; make room, or set {disk.key} to another disk")
        else:
            yield ok(said)
        if disk.inodes and disk.free_inodes < max(1000, disk.inodes // 1000):
            yield problem(f"{disk.key}: {disk.free_inodes} of {disk.inodes} inodes are free on {disk.mount}", "remove small files")


def quotas(facts: Facts) -> Iterator[Finding]:
    """What this user may still write."""
    for disk in facts.disks:
        quota = disk.quota
        if disk.silence or facts.cluster.mock or disk.key == "local_dir":
            continue
        if quota is None:
            yield note(f"{disk.key}: unknown: your quota on {disk.mount or disk.path} ({disk.quota_silence or 'no tool here tells'})")
            continue
        size, limit = readable(quota.used_bytes), readable(quota.limit_bytes)
        full = [
            *([(quota.used_bytes / quota.limit_bytes, f"{size} of your quota of {limit}")] if quota.limit_bytes else []),
            *(
                [(quota.files / quota.limit_files, f"{quota.files} of your quota of {quota.limit_files} files")]
                if quota.limit_files
                else []
            ),
        ]
        for share, what in full:
            said = f"{disk.key}: {what} are used on {disk.mount}"
            if share >= 1:
                yield problem(said, "remove something: nothing more can be saved")
            elif share > NEARLY_FULL:
                yield warning(said, "remove something, or set checkpoint.prune: true")
            else:
                yield ok(said)
        if not full:
            yield ok(f"{disk.key}: you have no quota on {disk.mount}")


def shm(facts: Facts) -> Iterator[Finding]:
    """Shared memory: heartbeats, data loaders and NCCL live there."""
    size, host = facts.host.shm_bytes, facts.host
    if size is None:
        yield problem(f"{SHM} is not there: heartbeats, data loaders and NCCL need it", "in a container: mount it (--ipc=host, --shm-size)")
        return
    said = f"{SHM} has {readable(size)}, of which {readable(host.shm_free_bytes)} are free{_here(facts)}"
    if host.shm_free_bytes < 16 * MIB:
        yield problem(said, "remove what others left there, or make it bigger")
    elif size < GIB:
        yield warning(f"{said}: data loaders with several workers fail with less than 1 GiB", "in a container: --shm-size=8g")
    else:
        yield ok(said)


def _here(facts: Facts) -> str:
    return " on this node" if facts.job else " here; run doctor in a job to see a node's"


def limits(facts: Facts) -> Iterator[Finding]:
    """ulimit: a node's own reach the ranks (--propagate=NONE), so they count in a job only."""
    host = facts.host
    shown = {name: "unlimited" if value is None else str(value) for name, value in (("nofile", host.nofile), ("nproc", host.nproc))}
    said = f"limits are nofile {shown['nofile']}, nproc {shown['nproc']}{_here(facts)}"
    low = (host.nofile is not None and host.nofile < 4096) or (host.nproc is not None and host.nproc < 1024)  # noqa: PLR2004 - what big data loaders open
    if low and facts.job:
        yield warning(f"{said}: many data loaders need more", "`ulimit -n 65536` in node_setup, or ask for higher limits of slurmd")
    else:
        yield ok(said)
    if facts.job and host.infiniband and host.memlock_bytes is not None:
        yield warning(
            f"memlock is limited to {readable(host.memlock_bytes)} on this node, and NCCL over InfiniBand needs it unlimited",
            "ask for LimitMEMLOCK=infinity of slurmd",
        )


def addresses(facts: Facts) -> Iterator[Finding]:
    """Something that other nodes can connect to."""
    outside = [address for address in facts.host.addresses if not address.startswith(("127.", "::1", "fe80", "169.254."))]
    if outside:
        yield ok(f"this host has {names(outside)}")
    elif facts.cluster.mock:
        yield ok("this host has only its loopback address, which is all that the mock's nodes need")
    else:
        found = problem if facts.job else warning
        yield found("this host has only its loopback address: other nodes cannot reach it", "look at `ip addr`; is this a container?")


def curve(facts: Facts) -> Iterator[Finding]:
    """The link between leader and nodes is encrypted, or there is none."""
    if facts.host.curve:
        yield ok("pyzmq has CURVE: the link between leader and nodes is encrypted")
    else:
        yield problem(
            "pyzmq was built without CURVE: leader and nodes cannot talk", "pip install --force-reinstall --only-binary :all: pyzmq"
        )


def training(facts: Facts) -> Iterator[Finding]:
    """Versions, and torch where the ranks look for it."""
    yield ok(f"ftsup {facts.ftsup} runs under Python {facts.python}")
    found = facts.training
    if found is None:
        return
    if found.silence:
        yield note(f"unknown: torch of {found.python} ({found.silence})")
    elif not found.version:
        yield problem(
            f"python: {found.python} does not run here{found.why and f' ({found.why})'}",
            "set python to the training environment's interpreter, as the nodes see it",
        )
    elif tuple(int(part) for part in found.version.split(".")[:2]) < (3, 9):
        yield problem(f"python: {found.python} is Python {found.version}, and ranks need 3.9 or newer", "set python to a newer one")
    elif not found.torch and facts.config.launch is Launch.TORCHRUN and facts.given:
        yield problem(
            f"python: {found.python} has no torch, and torchrun is its part", "set python to the training environment's interpreter"
        )
    else:
        yield ok(f"{found.python} is Python {found.version}, {f'with torch {found.torch}' if found.torch else 'without torch'}")


def nccl(facts: Facts) -> Iterator[Finding]:
    """A hang must be found before NCCL's watchdog aborts."""
    hang = facts.config.hang
    limit_s, key = (hang.step_floor_s, "hang.step_floor") if hang.step_s is None else (hang.step_s, "hang.step")
    if limit_s >= NCCL_S:
        yield warning(
            f"{key} is {duration(limit_s)}: NCCL aborts a stuck collective after {duration(NCCL_S)}, and its abort is then the first news",
            f"set {key} below 10min, or a longer timeout in init_process_group",
        )
    else:
        yield ok(f"{key} is {duration(limit_s)}, below the {duration(NCCL_S)} after which NCCL aborts")


def nesting(facts: Facts) -> Iterator[Finding]:
    """Limits of the configuration that only make sense in one order."""
    config = facts.config
    partition_s = [each.limit_s for each in facts.chosen() or () if each.limit_s is not None]
    limit_s = config.slurm.time_s or min(partition_s, default=None)
    wrong = []
    if limit_s is not None and config.checkpoint.dir and config.checkpoint.every_s >= limit_s:
        wrong.append(
            (
                f"checkpoint.every is {duration(config.checkpoint.every_s)}, and a grant lasts {duration(limit_s)}",
                "set checkpoint.every to less",
            )
        )
    waits = config.waits
    late_s = waits.tick_s + max(waits.tick_s, waits.late_s)  # nobody has been away yet
    if config.node_grace_s <= late_s:
        text = f"node_grace is {duration(config.node_grace_s)}, and a supervisor may be late by {duration(late_s)} (waits.tick and late)"
        wrong.append((text, "set node_grace to 30s"))
    if config.evidence_s > config.hang.step_floor_s:
        wrong.append((f"evidence is {duration(config.evidence_s)}, longer than it takes to find a hang", "set evidence to 15s"))
    for text, todo in wrong:
        yield warning(text, todo)
    if not wrong:
        yield ok("the limits of this configuration nest")
    if facts.given and not config.checkpoint.dir:
        yield warning("checkpoint.dir is not set: every restart begins at step 0", "set checkpoint.dir and resume_args")


def node(facts: Facts) -> Iterator[Finding]:
    """The node of this job: memory, CPUs, GPUs."""
    job = facts.job
    if job is None:
        return
    yield _memory(facts, job.memory_bytes)
    if job.allocated_cpus is not None and job.cpus < job.allocated_cpus:
        yield warning(
            f"ranks may use {count(job.cpus, 'CPU')}, and {job.allocated_cpus} are allocated on this node (SLURM_CPUS_ON_NODE)",
            "run doctor as `srun --cpu-bind=none ftsup doctor`; set slurm.cpus_per_task if it stays",
        )
    else:
        yield ok(f"affinity covers {count(job.cpus, 'CPU')}, all that are allocated on this node")
    wanted = job.allocated_gpus or facts.config.slurm.gpus_per_node or 0
    if job.gpus is not None and job.gpus < wanted:
        yield problem(
            f"nvidia-smi lists {count(job.gpus, 'GPU')} on this node, and {wanted} are allocated",
            "have the node looked at; slurm.exclude keeps it out",
        )
    elif job.gpus is not None:
        yield ok(f"nvidia-smi lists {count(job.gpus, 'GPU')} on this node")
    elif wanted:
        yield warning(f"unknown: whether the {count(wanted, 'GPU')} of this node work ({job.gpus_silence})")


def _memory(facts: Facts, limit_bytes: int | None) -> Finding:
    if limit_bytes is None:
        return note("no cgroup limits the memory of this job")
    each = limit_bytes // facts.config.workers
    said = f"this job's cgroup has {readable(limit_bytes)} of memory, {readable(each)} a rank"
    return warning(said, "set slurm.mem: a rank with torch alone takes 1 GiB") if each < GIB else ok(said)
