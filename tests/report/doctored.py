"""A cluster, a host and a configuration where all is well, for the tests of doctor; five sites; and what doctor tells of facts."""

from __future__ import annotations

from pathlib import Path

from ftsup.config import Checkpoint, Config, SlurmOptions
from ftsup.report import doctor as judge
from ftsup.report.doctorfacts import Cluster, Disk, Facts, Host, JobNode, Level, Quota, Training
from ftsup.slurm import jobs

DATA = Path(__file__).parents[1] / "data" / "doctor"
GIB = 1 << 30
CHECKPOINT = Checkpoint(dir="/data/ckpt")


def site(name: str) -> Cluster:
    text = {what: (DATA / name / f"{what}.txt").read_text() for what in ("config", "partition", "node")}
    return Cluster(
        settings=jobs.parse_config(text["config"]),
        partitions=tuple(jobs.parse_partitions(text["partition"])),
        nodes=tuple(jobs.parse_nodes(text["node"])),
    )


def slurm(**options) -> Config:
    return Config(
        name="a",
        command=("train.py",),
        checkpoint=CHECKPOINT,
        slurm=SlurmOptions(**{"nodes": 2, "gpus_per_node": 8, "mem_bytes": 0, "time_s": 86400, **options}),
    )


def disk(**fields) -> Disk:
    return Disk(
        **{
            "key": "runs_dir",
            "path": "/data/runs",
            "there": "/data",
            "fstype": "nfs4",
            "source": "nas:/data",
            "mount": "/data",
            "free_bytes": 900 * GIB,
            "total_bytes": 1000 * GIB,
            "free_inodes": 10**7,
            "inodes": 10**8,
            "writable": True,
            "quota": Quota(used_bytes=GIB, limit_bytes=100 * GIB, files=5, limit_files=10**6),
            **fields,
        }
    )


HOST = Host(
    name="login1",
    shm_bytes=60 * GIB,
    shm_free_bytes=59 * GIB,
    nofile=65536,
    nproc=90000,
    memlock_bytes=None,
    addresses=("127.0.0.1", "10.0.0.7"),
)
NODE = JobNode(job="7", memory_bytes=400 * GIB, cpus=64, allocated_cpus=64, gpus=8, allocated_gpus=8)
GOOD = Facts(
    config=slurm(),
    cluster=site("good-2411"),
    disks=(disk(), disk(key="checkpoint.dir", path="/data/ckpt")),
    host=HOST,
    training=Training(python="/env/bin/python", version="3.12.1", torch="2.8.0"),
    ftsup="0.1.0",
    python="3.11.7",
    job=NODE,
)


def told(facts: Facts, *levels: Level) -> list[str]:
    wanted = levels or (Level.PROBLEM, Level.WARNING, Level.NOTE)
    return [f"{each.rule}: {each.level.value}: {each.text}; {each.todo}" for each in judge.findings(facts) if each.level in wanted]
