"""doctor's rules: each with and without its cause, five sites, and how findings are printed."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace as changed

from ftsup.config import Checkpoint, Config, Handlers, Launch, Requeue
from ftsup.errors import Exit
from ftsup.policy.rules import Hang
from ftsup.ports import Partition
from ftsup.report import doctor as judge
from ftsup.report.doctorfacts import Cluster, Facts, Finding, Level, Quota, Training
from ftsup.slurm.accounting import Qos
from tests.report.doctored import GIB, GOOD, HOST, NODE, disk, site, slurm, told


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


def with_preemption(mode: str, kind: str = "preempt/partition_prio", *, grace_s: float = 0.0, whole: str = "", **settings: str) -> Facts:
    """The partition has this PreemptMode, and so has the cluster, unless it has another."""
    facts = with_setting(PreemptType=kind, PreemptMode=whole or mode, **settings)
    partition = changed(facts.cluster.partitions[0], preempt_mode=mode, grace_s=grace_s)
    return changed(facts, cluster=changed(facts.cluster, partitions=(partition,)))


def with_qos(*found: Qos, config: Config, silence: str = "", **settings: str) -> Facts:
    facts = changed(with_setting(**settings), config=config)
    return changed(facts, cluster=changed(facts.cluster, qos=None if silence else found, qos_silence=silence))


def with_partitions(*partitions: Partition) -> Facts:
    return changed(GOOD, cluster=changed(GOOD.cluster, partitions=partitions))


def test_where_all_is_well_nothing_but_ok_is_said():
    assert told(GOOD) == []
    assert judge.exit_code(GOOD, judge.findings(GOOD)) is Exit.OK
    assert len(told(GOOD, Level.OK)) > 20


PLAIN = slurm(handlers=Handlers.PLAIN)
TRAIN = GOOD.cluster.partitions[0]
BY_QOS = {"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE"}
FAST = Qos(name="fast", preempt_mode="cancel", limit_s=3600.0)
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
    ("preemption", with_preemption("CANCEL"), "warning", "PreemptMode is CANCEL: a preempted job is cancelled"),
    ("preemption", with_preemption("CANCEL", whole="REQUEUE"), "warning", "PreemptMode of partition train is CANCEL"),
    ("preemption", with_preemption("REQUEUE", grace_s=60), "note", "only SIGTERM; GraceTime is 1min and KillWait 30s: so long it has"),
    ("preemption", with_preemption("GANG,SUSPEND"), "note", "can be suspended"),
    ("preemption", with_qos(FAST, config=slurm(qos="fast"), **BY_QOS), "warning", "of qos fast is CANCEL"),
    ("qos", with_qos(FAST, config=slurm(qos="slow")), "problem", "slurm.qos is slow: there is no such qos; set another: there are fast"),
    ("qos", with_qos(FAST, config=slurm(qos="fast", time_s=7200)), "problem", "slurm.time is 2h, and qos fast allows 1h (MaxWall)"),
    ("qos", with_qos(config=slurm(qos="fast"), silence="sacctmgr: no answer"), "note", "whether there is a qos fast (sacctmgr: no"),
    ("arrays-mpi", with_config(slurm(array="1-2000")), "problem", "MaxArraySize is 1001, and slurm.array is 1-2000; number its tasks"),
    ("forgetting", with_setting(MinJobAge="2 sec", AccountingStorageType="accounting_storage/none"), "note", "MinJobAge is 2s: so long"),
    ("rate-limit", with_setting(SlurmctldParameters="idle_on_node_suspend,rl_enable"), "note", "rl_enable: the controller turns away"),
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
    ("prologs", with_setting(**{"Prolog[0]": "/etc/p", "Prolog[1]": "/etc/q"}), "note", "Prolog[0]=/etc/p, Prolog[1]=/etc/q runs"),
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
    ("nesting", with_config(changed(slurm(), node_grace_s=6.0)), "warning", "a supervisor may be late by "),
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


@pytest.mark.parametrize("parameters, held", [("", True), ("bf_interval=1", True), ("bf_interval=1,nohold_on_prolog_fail", False)])
def test_who_releases_a_job_whose_prolog_failed(parameters, held):
    found = judge.findings(with_setting(Prolog="/etc/p", SchedulerParameters=parameters))
    (prologs,) = [each for each in found if each.rule == "prologs"]
    assert ("ftsup watch does" in prologs.todo) is held


def test_every_rule_of_the_table_is_tried():
    assert {rule for rule, *_ in CAUSES} == {name for name, _ in judge.RULES}
    assert "arrays-mpi: ok: MaxArraySize is 1001" in "\n".join(told(GOOD, Level.OK))
    assert "nobody is preempted" in "\n".join(told(with_preemption("OFF", whole="CANCEL"), Level.OK))
    for setting in ({"PreemptParameters": "send_user_signal"}, {"SlurmctldParameters": "enable_configless,preempt_send_user_signal"}):
        assert "gets the warning (send_user_signal)" in "\n".join(told(with_preemption("REQUEUE", **setting), Level.OK))
    assert "qos fast is there; MaxWall is 1h" in "\n".join(told(with_qos(FAST, config=slurm(qos="fast", time_s=1800)), Level.OK))
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
