"""doctor: every rule with and without its cause, five sites, what hangs, and the command on the mock and on a real Slurm."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace as changed

from ftsup.cli import doctordisk, doctorlook
from ftsup.cli.cluster import Cluster as Chosen
from ftsup.cli.doctor import doctor
from ftsup.cli.ports import Ports, real
from ftsup.config import Checkpoint, Config, Handlers, Launch, Launcher, Requeue, SlurmOptions
from ftsup.errors import Exit
from ftsup.mockslurm import control as mockslurm
from ftsup.policy.rules import Hang
from ftsup.ports import Partition
from ftsup.report import doctor as judge
from ftsup.report.doctorfacts import Cluster, Disk, Facts, Finding, Host, JobNode, Level, Quota, Training
from ftsup.slurm import jobs
from ftsup.slurm.fake import FakeSlurm
from tests.realslurm.fixtures import real_cluster

__all__ = ["real_cluster"]

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


def with_setting(**settings: str) -> Facts:
    return changed(GOOD, cluster=changed(GOOD.cluster, settings={**(GOOD.cluster.settings or {}), **settings}))


def with_client(client: str, why: str) -> Facts:
    return changed(GOOD, cluster=changed(GOOD.cluster, client=client, client_why=why))


def with_config(config: Config) -> Facts:
    return changed(GOOD, config=config)


def with_disk(**fields) -> Facts:
    return changed(GOOD, disks=(disk(**fields),))


def with_host(**fields) -> Facts:
    return changed(GOOD, host=changed(HOST, **fields))


def with_job(**fields) -> Facts:
    return changed(GOOD, job=changed(NODE, **fields))


def with_partitions(*partitions: Partition) -> Facts:
    return changed(GOOD, cluster=changed(GOOD.cluster, partitions=partitions))


def told(facts: Facts, *levels: Level) -> list[str]:
    wanted = levels or (Level.PROBLEM, Level.WARNING, Level.NOTE)
    return [f"{each.rule}: {each.level.value}: {each.text}; {each.todo}" for each in judge.findings(facts) if each.level in wanted]


def test_where_all_is_well_nothing_but_ok_is_said():
    assert told(GOOD) == []
    assert judge.exit_code(GOOD, judge.findings(GOOD)) is Exit.OK
    assert len(told(GOOD, Level.OK)) > 20


PLAIN = slurm(handlers=Handlers.PLAIN)
TRAIN = GOOD.cluster.partitions[0]
CAUSES = [
    ("slurm", changed(GOOD, cluster=Cluster(mock=True, settings={})), "note", "this is the mock Slurm"),
    ("slurm", changed(GOOD, cluster=Cluster(silence="timed out after 9 s")), "warning", "settings and partitions and nodes (timed out"),
    ("client", with_client("", "slurm.client is pyslurm, and it hangs here"), "problem", "slurm.client is pyslurm, and it hangs here"),
    ("slurm-version", with_setting(SLURM_VERSION="20.11.8"), "warning", "Slurm is 20.11.8"),
    ("kinds-of-job", with_job(heterogeneous=True), "problem", "heterogeneous job"),
    ("partition", with_config(slurm(partition="gpu")), "problem", "there is no partition gpu; set another: there are train"),
    ("partition", with_partitions(changed(TRAIN, default=False)), "problem", "no default partition"),
    ("partition", with_partitions(changed(TRAIN, up=False)), "problem", "train is not UP"),
    ("partition", with_config(slurm(nodes=9)), "problem", "slurm.nodes is 9, and partition train has 8 nodes"),
    ("partition", with_config(slurm(time_s=4 * 86400)), "problem", "slurm.time is 4d, and partition train allows 3d (MaxTime)"),
    ("partition", changed(with_partitions(changed(TRAIN, limit_s=60)), config=slurm(time_s=None)), "problem", "no longer than the lead"),
    ("partition", with_partitions(changed(TRAIN, accounts=("bio",))), "warning", "for accounts bio, and slurm.account is not set"),
    ("nodes", with_config(slurm(gpus_per_node=16)), "problem", "only 0 of 8 nodes of the partition have 16 GPUs; g1 has 8 GPUs"),
    ("nodes", with_config(slurm(cpus_per_task=256)), "problem", "only 0 of 8 nodes of the partition have 8 GPUs and 256 CPUs"),
    ("nodes", with_config(slurm(gpus_per_node=None)), "note", "up to 8 GPUs, and none is asked for"),
    ("signal-lead", with_setting(KillWait="120 sec"), "problem", "no time is left to save"),
    ("signal-lead", with_setting(KillWait="60 sec"), "warning", "45s are left to save; set slurm.signal: SIGUSR1@135"),
    ("kill-wait", with_setting(KillWait="4 sec"), "warning", "KillWait is 4s: told to end, ftsup has 2s"),
    ("unkillable", with_setting(UnkillableStepTimeout="30 sec"), "warning", "UnkillableStepTimeout is 30s"),
    ("requeue", with_setting(JobRequeue="0"), "note", "JobRequeue is 0"),
    ("requeue", with_config(slurm(requeue=Requeue.OFF)), "note", "slurm.requeue is off: the run ends with its allocation"),
    ("requeue", with_config(slurm(requeue=Requeue.CHAIN)), "note", "slurm.requeue is chain: a new job follows"),
    ("requeue-exit", with_setting(RequeueExit="1-3,99"), "warning", "RequeueExit is 1-3,99: Slurm requeues a run that ftsup has stopped"),
    ("requeue-exit", with_setting(RequeueExitHold="77"), "note", "RequeueExitHold is 77"),
    ("batch-requeues", with_setting(MaxBatchRequeue="1"), "warning", "MaxBatchRequeue is 1"),
    ("preemption", with_setting(PreemptMode="CANCEL", PreemptType="preempt/qos"), "warning", "a preempted job is cancelled"),
    ("preemption", with_setting(PreemptMode="REQUEUE", PreemptType="preempt/qos"), "note", "without send_user_signal"),
    ("preemption", with_setting(PreemptMode="GANG,SUSPEND", PreemptType="preempt/qos"), "note", "can be suspended"),
    ("tracking", with_setting(ProctrackType="proctrack/linuxproc"), "note", "ProctrackType is proctrack/linuxproc"),
    (
        "tracking",
        changed(with_setting(ProctrackType="proctrack/linuxproc"), config=PLAIN),
        "warning",
        "SIGUSR1 reaches data loaders too, and ends them; set slurm.handlers: at_beat",
    ),
    ("cgroups", with_setting(TaskPlugin="task/affinity"), "note", "TaskPlugin is task/affinity: jobs are not confined"),
    ("cgroups", with_setting(ConstrainRAMSpace=""), "note", "unknown: whether memory is confined"),
    ("cgroups", with_setting(ConstrainRAMSpace="no"), "note", "ConstrainRAMSpace is no"),
    ("cgroups", with_config(slurm(mem_bytes=None)), "note", "slurm.mem is not set"),
    ("prologs", with_setting(Prolog="/etc/p"), "note", "Prolog=/etc/p runs on each node"),
    ("prologs", with_setting(Prolog="/etc/p", PrologEpilogTimeout="600 sec"), "warning", "may take 10min (PrologEpilogTimeout)"),
    ("submit-plugins", with_setting(JobSubmitPlugins="lua"), "note", "JobSubmitPlugins is lua"),
    ("account", with_setting(AccountingStorageEnforce="associations"), "note", "slurm.account is not set"),
    ("node-loss", with_setting(SlurmdTimeout="1800 sec"), "note", "SlurmdTimeout is 30min"),
    ("disk", with_disk(silence="could not be looked at: no answer within 10 s"), "problem", "runs_dir: unknown: /data/runs could not"),
    ("disk", with_disk(writable=False), "problem", "/data/runs cannot be written by you"),
    ("disk-shared", with_disk(fstype="ext4"), "warning", "is on ext4, which other machines do not see; set runs_dir to a shared disk"),
    ("disk-shared", with_disk(key="local_dir", fstype="lustre"), "warning", "slow for the event log"),
    ("disk-space", with_disk(free_bytes=1000), "problem", "1000 B of 1000.0 GiB are free on /data"),
    ("disk-space", with_disk(key="checkpoint.dir", free_bytes=5 * GIB), "warning", "checkpoint.dir: 5.0 GiB of 1000.0 GiB are free"),
    ("disk-space", with_disk(free_inodes=10), "problem", "10 of 100000000 inodes are free"),
    ("quota", with_disk(quota=None, quota_silence="quota: not found"), "note", "your quota on /data ("),
    ("quota", with_disk(quota=Quota(used_bytes=99 * GIB, limit_bytes=100 * GIB, files=0, limit_files=0)), "warning", "99.0 GiB of your"),
    ("quota", with_disk(quota=Quota(used_bytes=0, limit_bytes=0, files=50, limit_files=50)), "problem", "50 of your quota of 50 files"),
    ("shm", with_host(shm_bytes=None), "problem", "shm is not there"),
    ("shm", with_host(shm_bytes=64 << 20, shm_free_bytes=60 << 20), "warning", "shm has 64.0 MiB"),
    ("shm", with_host(shm_free_bytes=0), "problem", "of which 0 B are free"),
    ("limits", with_host(nofile=1024), "warning", "nofile 1024"),
    ("limits", with_host(infiniband=True, memlock_bytes=65536), "warning", "memlock is limited to 64.0 KiB"),
    ("addresses", with_host(addresses=("127.0.0.1",)), "problem", "only its loopback address"),
    ("addresses", changed(with_host(addresses=("::1",)), job=None), "warning", "only its loopback address"),
    ("curve", with_host(curve=False), "problem", "without CURVE"),
    ("versions", changed(GOOD, training=Training(python="p", silence="no answer within 10 s")), "note", "unknown: torch of p (no answer"),
    ("versions", changed(GOOD, training=Training(python="p")), "problem", "p does not run here"),
    ("versions", changed(GOOD, training=Training(python="p", version="3.8.1", torch="2.0")), "problem", "Python 3.8.1, and ranks need 3.9"),
    ("versions", changed(GOOD, training=Training(python="p", version="3.11.1")), "problem", "p has no torch"),
    ("nccl", with_config(changed(slurm(), hang=Hang(step_s=900.0))), "warning", "hang.step is 15min: NCCL aborts"),
    ("nesting", with_config(slurm(time_s=1800)), "warning", "checkpoint.every is 30min, and a grant lasts 30min"),
    ("nesting", with_config(changed(slurm(), node_grace_s=2.0)), "warning", "node_grace is 2s"),
    ("nesting", with_config(changed(slurm(), evidence_s=500.0)), "warning", "evidence is 8min20s"),
    ("nesting", with_config(changed(slurm(), checkpoint=Checkpoint())), "warning", "checkpoint.dir is not set"),
    ("node", with_job(memory_bytes=GIB), "warning", "has 1.0 GiB of memory, 128.0 MiB a rank"),
    ("node", with_job(memory_bytes=None), "note", "no cgroup limits"),
    ("node", with_job(cpus=1), "warning", "may use 1 CPU, and 64 are allocated"),
    ("node", with_job(gpus=7), "problem", "nvidia-smi lists 7 GPUs on this node, and 8 are allocated"),
    ("node", with_job(gpus=None, gpus_silence="nvidia-smi is not there"), "warning", "unknown: whether the 8 GPUs"),
]  # fmt: skip


@pytest.mark.parametrize("rule, facts, level, said", CAUSES, ids=[f"{rule}-{n}" for n, (rule, *_) in enumerate(CAUSES)])
def test_each_rule_speaks_up_for_its_cause(rule, facts, level, said):
    found = [line for line in told(facts) if line.startswith(f"{rule}: {level}: ")]
    assert [line for line in found if said in line], told(facts)
    expected = Exit.NO if told(facts, Level.PROBLEM) else Exit.AGAIN if facts.cluster.silence else Exit.OK
    assert judge.exit_code(facts, judge.findings(facts)) is expected


def test_every_rule_of_the_table_is_tried():
    quiet = {"arrays-mpi"}  # says nothing but what is so
    assert {rule for rule, *_ in CAUSES} | quiet == {name for name, _ in judge.RULES}
    assert "arrays-mpi: ok: MaxArraySize is 1001" in "\n".join(told(GOOD, Level.OK))
    assert "MpiDefault is pmix: ftsup starts its steps with --mpi=none" in "\n".join(told(with_setting(MpiDefault="pmix"), Level.OK))


@pytest.mark.parametrize(
    "name, config, said",
    [
        (
            "gpu-2311",
            slurm(gpus_per_node=4, nodes=4),
            ["signal-lead: problem", "nodes: warning: 3 of 4 nodes", "gpu003 (DOWN+DRAIN)", "prologs: warning", "account: note", "lua"],
        ),
        (
            "preempt-2405",
            slurm(partition="owner", nodes=1),
            ["requeue-exit: warning", "requeue-exit: note", "batch-requeues: warning", "node-loss: note", "for accounts biology, physics"],
        ),
        (
            "teaching-2205",
            slurm(gpus_per_node=None, nodes=1),
            [
                "no default partition; set slurm.partition; there are short, old",
                "kill-wait: warning",
                "unkillable: warning",
                "requeue: note",
            ],
        ),
        (
            "cancel-2108",
            slurm(gpus_per_node=1),
            ["slurm-version: warning", "preemption: warning", "have 1 GPU; c1 has 0 GPUs", "TaskProlog=/opt/site/task_prolog.sh runs"],
        ),
        ("good-2411", slurm(), []),
    ],
)
def test_sites(name, config, said):
    found = told(changed(GOOD, config=config, cluster=site(name)))
    assert all(any(words in line for line in found) for words in said), found
    assert bool(found) == bool(said)


# What is printed ----------------------------------------------------------------------------------------------------------


def test_text_is_80_columns_wide_and_worst_first():
    facts = changed(with_setting(KillWait="120 sec", JobRequeue="0", UnkillableStepTimeout="9 sec"), job=None)
    text = judge.text(judge.findings(facts))
    assert max(map(len, text.splitlines())) <= 80
    levels = [line.split()[0] for line in text.splitlines()[2:] if not line.startswith(" ")]
    assert levels == sorted(levels, key=["problem", "warning", "note", "ok"].index)
    assert text.startswith("1 problem, 1 warning, 1 note, ")


def test_what_others_wrote_obeys_no_terminal():
    text = judge.text([Finding(level=Level.NOTE, text="Prolog is \x1b[2J")])
    assert "\x1b" not in text


def test_json_has_the_same_findings_and_reads_back():
    found = judge.findings(with_host(curve=False))
    report = judge.report(GOOD, found)
    assert (report.verdict, report.schema) == ("problem", 1)
    assert msgspec.json.decode(msgspec.json.encode(report), type=judge.Report) == report


def test_without_a_configuration_nothing_is_asked_of_it():
    bare = changed(GOOD, given=False, config=Config(name="doctor", command=("x",)), training=Training(python="p", version="3.11.1"))
    assert told(bare) == []


def test_a_container_and_launch_command_are_not_told_to_have_torch():
    command = changed(slurm(), launch=Launch.COMMAND)
    assert told(changed(GOOD, config=command, training=Training(python="p", version="3.11.1"))) == []


# What is asked ------------------------------------------------------------------------------------------------------------

MOUNTINFO = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /data rw shared:7 master:2 - nfs4 nas:/export/data rw,vers=4.2
31 30 0:41 / /data/my\\040runs rw - lustre 10.0.0.1@o2ib:/scratch rw
32 22 0:42 / /data rw - overlay overlay rw
"""


@pytest.mark.parametrize(
    "path, found",
    [
        ("/home/me", ("ext4", "/dev/sda1", "/")),
        ("/data/x/y", ("overlay", "overlay", "/data")),
        ("/data/my runs/a", ("lustre", "10.0.0.1@o2ib:/scratch", "/data/my runs")),
        ("/database", ("ext4", "/dev/sda1", "/")),
    ],
)
def test_the_file_system_of_a_path(path, found):
    assert doctordisk.mounted(Path(path), MOUNTINFO) == found


def test_a_directory_that_is_not_there_yet_is_asked_where_it_will_be(tmp_path):
    found = doctordisk.ask("runs_dir", tmp_path / "a" / "b")
    assert (found.there, found.writable, found.silence) == (str(tmp_path), True, "")
    assert found.fstype
    assert found.total_bytes >= (found.free_bytes or 0) > 0
    (tmp_path / "file").touch()
    assert doctordisk.ask("runs_dir", tmp_path / "file").writable is False


LFS = "         /scratch  2048* 1024  4096  - 7  0 100 -\n"
QUOTA = """\
Disk quotas for user me (uid 7):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
  nas:/data    20   30   0   0   1   0   0   0
"""


@pytest.mark.parametrize(
    "text, place, found",
    [
        (LFS, "/scratch", Quota(used_bytes=2 << 20, limit_bytes=4 << 20, files=7, limit_files=100)),
        (QUOTA, "nas:/data", Quota(used_bytes=20 << 10, limit_bytes=30 << 10, files=1, limit_files=0)),
        (QUOTA, "nas:/other", None),
        ("/scratch unexpected words", "/scratch", None),
        ("", "/", None),
    ],
)
def test_quotas_of_tools(text, place, found):
    assert doctorlook.quota_in(text, place=place) == found


def test_the_smallest_memory_limit_above_us_counts(tmp_path):
    for place, name, value in (("a/b", "memory.max", "max"), ("a", "memory.max", "5000"), ("memory/s/j", "memory.limit_in_bytes", "7000")):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / name).write_text(value + "\n")
    (tmp_path / "memory/s/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert doctorlook.memory_limit("0::/a/b\n", root=tmp_path) == 5000
    assert doctorlook.memory_limit("9:memory:/s/j\n2:cpuset:/\n", root=tmp_path) == 7000
    assert doctorlook.memory_limit("", root=tmp_path) is None


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def asked(tmp_path: Path, config: Config | None = None) -> doctorlook.Asked:
    made = config or slurm()
    return doctorlook.Asked(config=changed(made, runs_dir=str(tmp_path), workdir=str(tmp_path)), given=True, chosen=Chosen())


def test_what_hangs_is_unknown_and_keeps_nobody(tmp_path):
    hung = program(tmp_path / "bin", "python", "exec sleep 100")
    program(tmp_path / "bin", "scontrol", "exec sleep 100")
    program(tmp_path / "bin", "nvidia-smi", "exec sleep 100")
    environ = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "2"}
    ports = replace(real(), environ=environ, python=str(hung))
    began = time.monotonic()
    facts = doctorlook.look(ports, asked(tmp_path), patience_s=0.5)
    assert time.monotonic() - began < 6
    said = "\n".join(told(facts))
    assert "unknown: Slurm's settings and partitions and nodes (scontrol show config: timed out" in said
    assert said.count("could not be looked at: no answer within 0.5 s") == 3
    assert f"unknown: torch of {hung} (no answer within 0.5 s)" in said
    assert "unknown: whether the 2 GPUs of this node work (no answer within 0.5 s)" in said
    assert judge.exit_code(facts, judge.findings(facts)) is Exit.NO


@pytest.mark.drill
def test_with_its_own_patience_it_ends_within_20_s(tmp_path):
    hung = program(tmp_path / "bin", "python", "exec sleep 100")
    program(tmp_path / "bin", "scontrol", "exec sleep 100")
    began = time.monotonic()
    doctorlook.look(replace(real(), environ={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}, python=str(hung)), asked(tmp_path))
    assert time.monotonic() - began < 20


def ports(tmp_path: Path, fake: FakeSlurm, **environ: str) -> Ports:
    program(tmp_path / "bin", "scontrol", "exit 1")
    program(tmp_path / "bin", "sbatch", "exit 1")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return replace(real(), environ={"PATH": path, "HOME": str(tmp_path), **environ}, slurm_within=lambda _env, _s: fake, cwd=tmp_path)


def test_inside_a_job_the_node_is_looked_at(tmp_path):
    program(tmp_path / "bin", "nvidia-smi", "echo 'GPU 0: H200 (UUID: GPU-1)'")
    world = ports(tmp_path, FakeSlurm(), SLURM_JOB_ID="7", SLURM_GPUS_ON_NODE="2", SLURM_CPUS_ON_NODE="100000", TMPDIR=str(tmp_path))
    facts = doctorlook.look(world, asked(tmp_path))
    said = "\n".join(told(facts))
    assert "nvidia-smi lists 1 GPU on this node, and 2 are allocated" in said
    assert "and 100000 are allocated on this node (SLURM_CPUS_ON_NODE)" in said
    assert [each.key for each in facts.disks] == ["runs_dir", "checkpoint.dir", "local_dir"]


def test_what_lies_where_a_person_stands_hides_nothing(tmp_path, monkeypatch):
    (tmp_path / "msgspec.py").write_text("raise SystemExit(3)")
    (tmp_path / "env").symlink_to(Path(sys.executable).parent.parent)
    monkeypatch.chdir(tmp_path)
    config = changed(slurm(), python="env/bin/python")
    facts = doctorlook.look(ports(tmp_path, FakeSlurm()), asked(tmp_path, config))
    assert [each.silence for each in facts.disks] == ["", ""]
    assert facts.training is not None
    assert facts.training.version == sys.version.split()[0]


def test_a_tool_for_quotas_is_asked_by_the_kind_of_disk(tmp_path):
    program(tmp_path / "bin", "lfs", "echo '/scratch 5 0 10 - 1 0 0 -'")
    program(tmp_path / "bin", "quota", "exec sleep 100")
    world = replace(real(), environ={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})
    kinds = [disk(fstype="lustre", mount="/scratch", quota=None), disk(quota=None), disk(fstype="tmpfs", quota=None), disk(silence="x")]
    lustre, nfs, tmpfs, _ = doctorlook.with_quotas(kinds, world, patience_s=0.5)
    assert lustre.quota == Quota(used_bytes=5 << 10, limit_bytes=10 << 10, files=1, limit_files=0)
    assert (nfs.quota, nfs.quota_silence) == (None, "`quota`: no answer within 0.5 s")
    assert (tmpfs.quota, tmpfs.quota_silence) == (None, "")


def test_ranks_behind_a_prefix_are_not_asked_for_torch(tmp_path):
    config = changed(slurm(), launcher=Launcher(prefix=("apptainer", "exec", "x.sif")))
    facts = doctorlook.look(ports(tmp_path, FakeSlurm()), asked(tmp_path, config))
    assert "unknown: torch of" in "\n".join(told(facts))
    assert "launcher.prefix" in "\n".join(told(facts))


# The command --------------------------------------------------------------------------------------------------------------


def run(world: Ports, *args: str):
    result = CliRunner().invoke(doctor, [*args], obj=world, standalone_mode=False)
    assert result.exception is None, result.exception
    return result.return_value, result.stdout


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text("name: a\ncommand: train.py\ncheckpoint: {dir: ckpt}\n")
    return tmp_path


def test_which_client_asks_slurm_and_why(home):
    # Where pyslurm is not installed; what it is chosen by where it is, is tested with pyslurm.
    code, text = run(ports(home, FakeSlurm()), "c.yaml", "--set", "slurm.client=commands")
    assert "slurm.client leads to commands on this host: slurm.client: commands" in " ".join(text.split())
    if importlib.util.find_spec("pyslurm") is None:
        code, text = run(ports(home, FakeSlurm()), "c.yaml", "--set", "slurm.client=pyslurm")
        assert code == Exit.NO
        assert "slurm.client is pyslurm, and pyslurm is not installed" in " ".join(text.split())


def test_slurm_that_is_away_is_75_and_a_problem_is_1(home):
    away = FakeSlurm(away=True)
    code, text = run(ports(home, away), "c.yaml")
    assert (code, "unknown: Slurm's settings" in text) == (Exit.AGAIN, True)
    code, text = run(ports(home, away), "c.yaml", "--set", f"python={home}/nowhere", "--json")
    assert (code, json.loads(text)["verdict"]) == (Exit.NO, "problem")
    assert f"python: {home}/nowhere does not run here (No such file or directory)" in text


def test_where_slurm_stops_answering_what_it_said_is_kept():
    facts = changed(GOOD, cluster=changed(GOOD.cluster, nodes=None, silence="timed out"))
    assert told(facts) == ["slurm: warning: unknown: Slurm's nodes (timed out); ask again when `scontrol ping` says UP"]
    assert judge.exit_code(facts, judge.findings(facts)) is Exit.OK


def test_several_clusters_and_heterogeneous_jobs_are_refused_with_the_configuration(home):
    for option, said in (("clusters", "a run lives on one cluster"), ("het-group", "a heterogeneous job cannot be one")):
        result = CliRunner().invoke(doctor, ["c.yaml", "--set", f"slurm.extra.{option}=a"], obj=ports(home, FakeSlurm()))
        assert said in str(result.exception)


def test_in_a_job_without_sbatch_no_mock_is_made(home):
    inside = replace(real(), environ={"PATH": str(home), "HOME": str(home), "SLURM_JOB_ID": "7"}, cwd=home)
    code, text = run(inside, "c.yaml")
    assert "there is no scontrol on PATH" in " ".join(text.split())
    assert not (home / ".cache").exists()
    assert code == Exit.AGAIN or "problem " in text


def test_a_cluster_that_answers_is_judged(home):
    fake = FakeSlurm(gpus=8)
    fake.settings["KillWait"] = "200 sec"
    code, text = run(ports(home, fake), "c.yaml")
    assert code == Exit.NO
    assert "set slurm.signal: SIGUSR1@275" in " ".join(text.split())


def test_without_slurm_the_mock_is_looked_at_and_named(home):
    plain = replace(real(), environ={"PATH": str(home), "HOME": str(home)}, cwd=home)
    code, text = run(plain, "c.yaml")
    assert "this is the mock Slurm: there is no sbatch on PATH" in " ".join(text.split())
    assert code == Exit.OK
    assert mockslurm.stop(home / ".cache" / "ftsup" / "mock")


@pytest.mark.e2e
def test_in_a_job_of_the_mock_the_node_is_looked_at(home):
    environ = {**os.environ, **mockslurm.create(home / "mock", nodes=1)}
    (home / "job.sh").write_text(f"#!/bin/sh\nsrun -n1 {sys.executable} -m ftsup doctor c.yaml --json >said.new\nmv said.new said\n")
    try:
        subprocess.run(["sbatch", "--output=out", "job.sh"], env=environ, cwd=home, check=True, capture_output=True, timeout=30)
        until = time.monotonic() + 60
        while not (home / "said").exists():
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        assert mockslurm.stop(home / "mock")
    report = json.loads((home / "said").read_text())
    assert report["mock"]
    assert any(each["rule"] == "node" and each["text"].startswith("affinity covers") for each in report["findings"])


@pytest.mark.e2e
@pytest.mark.realslurm
def test_a_real_slurm_is_read(real_cluster, home):
    world = replace(real(), environ={**os.environ, **real_cluster}, cwd=home)
    code, text = run(world, "c.yaml", "--json")
    report = json.loads(text)
    said = {each["rule"]: f"{each['level']}: {each['text']}" for each in reversed(report["findings"])}
    assert (code, report["verdict"], report["mock"]) == (Exit.OK, "fine", False)
    assert said["kill-wait"].startswith("warning: KillWait is 5s")
    assert said["partition"] == "ok: partition main is there, with 4 nodes; MaxTime is unlimited"
    assert said["tracking"].startswith("note: ProctrackType is proctrack/linuxproc")
    assert said["nodes"].startswith("ok: 4 of 4 nodes")
    assert said["slurm"].startswith("ok: Slurm 2")
    python = [sys.executable, "-m", "ftsup", "doctor", "c.yaml", "--json"]
    done = subprocess.run(["srun", "-n1", *python], env=world.environ, cwd=home, capture_output=True, text=True, timeout=60, check=False)
    inside = [f"{each['rule']}: {each['text']}" for each in json.loads(done.stdout)["findings"]]
    assert [line for line in inside if line.startswith("node: ")], inside
    assert [line for line in inside if line.startswith("disk-space: local_dir: ")], inside
