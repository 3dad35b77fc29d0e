"""What `scontrol show`, `squeue` and `sinfo` print, field by field as a real Slurm 22.05 prints it. Pure: text from a World."""

from __future__ import annotations

import getpass
import os
import platform
from collections.abc import Callable

from ftsup.mockslurm import arrays, rules
from ftsup.mockslurm.client import VERSION
from ftsup.mockslurm.model import JobRec, NodeRec, PreemptMode, World
from ftsup.mockslurm.text import duration, instant
from ftsup.ports import JobState
from ftsup.slurm.hostlist import compress

NULL = "(null)"
CODES = {
    "PENDING": "PD", "RUNNING": "R", "SUSPENDED": "S", "COMPLETING": "CG", "COMPLETED": "CD", "CANCELLED": "CA", "FAILED": "F",
    "TIMEOUT": "TO", "NODE_FAIL": "NF", "PREEMPTED": "PR", "BOOT_FAIL": "BF", "DEADLINE": "DL", "OUT_OF_MEMORY": "OOM",
}  # fmt: skip


def state(job: JobRec) -> str:
    """The word for where a job is."""
    return "COMPLETING" if job.completing else job.state.value


def run_s(job: JobRec, now: float) -> float:
    """How long it has run in this grant."""
    if job.state is JobState.PENDING or not job.start_at:
        return 0.0
    if job.state is JobState.SUSPENDED:
        return job.ran_s
    return job.ran_s + max(0.0, (now if job.state is JobState.RUNNING else job.end_at) - (job.suspend_at or job.start_at))


def exit_code(job: JobRec) -> str:
    """`code:signal`."""
    return f"{job.exit_status >> 8 & 0xFF}:{job.exit_status & 0x7F}"


def _user() -> str:
    return f"{getpass.getuser()}({os.getuid()})"


def show_job(world: World, job: JobRec, *, now: float, details: bool) -> list[str]:
    """The lines of one job."""
    limit = "UNLIMITED" if job.limit_s is None else duration(job.limit_s)
    pending = job.state is JobState.PENDING and not job.completing
    cpus = (os.cpu_count() or 1) * job.num_nodes
    derived = ["DerivedExitCode=0:0"] if details else []
    batch_host = [f"BatchHost={job.batch_host}"] if job.nodes else []
    number = f"{job.num_nodes}-{job.num_nodes}" if pending else str(len(job.nodes) or job.num_nodes)
    group = f"GroupId={getpass.getuser()}({os.getgid()})"
    account = f"Account={job.options.get('account', NULL)} QOS={job.options.get('qos', NULL)}"
    dependency = job.options.get("dependency", NULL) if job.reason == "Dependency" else NULL
    tasks = job.options.get("ntasks", str(job.num_nodes * job.tasks_per_node))
    return [
        f"JobId={job.job}{arrays.shown(job)} JobName={job.name}",
        f"UserId={_user()} {group} MCS_label=N/A",
        f"Priority={_priority(job)} Nice=0 {account}",
        f"JobState={state(job)} Reason={job.reason} Dependency={dependency}",
        f"Requeue={int(job.requeue)} Restarts={job.restarts} BatchFlag={int(not job.interactive)} Reboot=0 ExitCode={exit_code(job)}",
        *derived,
        f"RunTime={duration(run_s(job, now))} TimeLimit={limit} TimeMin=N/A",
        f"SubmitTime={instant(job.submit_at)} EligibleTime={'Unknown' if job.held else instant(job.eligible_at)}",
        f"AccrueTime={instant(job.accrue_at)}",
        f"StartTime={instant(_start(job))} EndTime={instant(_end(job))} Deadline=N/A",
        *_preemption(world, job),
        f"{_suspension(job)} LastSchedEval={instant(job.submit_at)} Scheduler=Main",
        f"Partition={job.partition or world.settings.partition} AllocNode:Sid={os.uname().nodename}:1",
        f"ReqNodeList={compress(job.required) or NULL} ExcNodeList={compress(job.excluded) or NULL}",
        f"NodeList={compress(job.nodes)}",
        *batch_host,
        f"NumNodes={number} NumCPUs={cpus} NumTasks={tasks} CPUs/Task={job.options.get('cpus-per-task', '1')} ReqB:S:C:T=0:0:*:*",
        f"TRES=cpu={cpus},node={job.num_nodes},billing={cpus}",
        f"Socks/Node=* NtasksPerN:B:S:C={job.options.get('ntasks-per-node', '0')}:0:*:* CoreSpec=*",
        f"MinCPUsNode={job.tasks_per_node} MinMemoryNode=0 MinTmpDiskNode=0",
        f"Features={job.options.get('constraint', NULL)} DelayBoot=00:00:00",
        "OverSubscribe=NO Contiguous=0 Licenses=(null) Network=(null)",
        f"Command={command(job)}",
        f"WorkDir={job.workdir}",
        *([f"Comment={job.options['comment']}"] if "comment" in job.options else []),
        f"StdErr={job.stderr or job.stdout}",
        "StdIn=/dev/null",
        f"StdOut={job.stdout}",
        "Power=",
    ]


def command(job: JobRec) -> str:
    """The script as it was submitted, and what it was given."""
    return " ".join((job.script, *job.words))


def _preemption(world: World, job: JobRec) -> list[str]:
    """Where a partition's jobs can be preempted, of a job that has, or had, its nodes."""
    if not job.start_at or job.state is JobState.PENDING or rules.partition(world, job).preempt is PreemptMode.OFF:
        return []
    return [f"PreemptEligibleTime={instant(job.start_at)} PreemptTime={instant(job.preempt_at) if job.preempt_at else 'None'}"]


def _suspension(job: JobRec) -> str:
    when = instant(job.suspend_at) if job.suspend_at else "None"
    return f"SuspendTime={when} SecsPreSuspend={int(job.ran_s)}"


def _priority(job: JobRec) -> int:
    return 0 if job.held else 4294901759 - job.job


def _start(job: JobRec) -> float:
    return 0.0 if job.state is JobState.PENDING and not job.start_at else job.start_at


def _end(job: JobRec) -> float:
    return job.end_at if job.start_at else 0.0


def node_state(world: World, node: NodeRec) -> str:
    """`IDLE`, `ALLOCATED+DRAIN`, ..."""
    job = rules.holder(world, node.name)
    base = "DOWN" if node.down else "IDLE" if job is None else "ALLOCATED"
    flags = ["COMPLETING"] if job and job.completing and not node.down else []
    if base == "ALLOCATED" and flags:
        base = "IDLE"
    return "+".join([base, *flags, *(["DRAIN"] if node.drain else [])])


def node_word(world: World, node: NodeRec) -> str:
    """The one word of sinfo."""
    raw = node_state(world, node)
    if node.drain:
        return "drained" if raw in {"IDLE+DRAIN", "DOWN+DRAIN"} else "draining"
    return "completing" if "COMPLETING" in raw else raw.lower()


SHORT = {"allocated": "alloc", "completing": "comp", "drained": "drain", "draining": "drng"}


def show_node(world: World, node: NodeRec, *, now: float) -> list[str]:
    """The lines of one node."""
    cpus = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024**2
    busy = rules.holder(world, node.name) is not None
    kernel = platform.uname()
    reason = [f"Reason={node.reason} [{getpass.getuser()}@{instant(node.reason_at)}]"] if node.reason else []
    return [
        f"NodeName={node.name} Arch={kernel.machine} CoresPerSocket=1 ",
        f"CPUAlloc={cpus if busy else 0} CPUEfctv={cpus} CPUTot={cpus} CPULoad={os.getloadavg()[0]:.2f}",
        "AvailableFeatures=(null)",
        "ActiveFeatures=(null)",
        "Gres=(null)",
        f"NodeAddr=127.0.0.1 NodeHostName={kernel.node} Version={VERSION}",
        f"OS={kernel.system} {kernel.release} ",
        f"RealMemory={memory} AllocMem=0 FreeMem={memory} Sockets={cpus} Boards=1",
        f"State={node_state(world, node)} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A",
        f"Partitions={world.settings.partition} ",
        f"BootTime={instant(world.booted_at)} SlurmdStartTime={instant(world.booted_at)}",
        f"LastBusyTime={instant(now)}",
        f"CfgTRES=cpu={cpus},mem={memory}M,billing={cpus}",
        f"AllocTRES={f'cpu={cpus}' if busy else ''}",
        "CapWatts=n/a",
        "CurrentWatts=0 AveWatts=0",
        "ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s",
        *reason,
    ]


def show_config(world: World, *, now: float, root: str) -> str:
    """The part of `scontrol show config` that says something about the mock."""
    settings = world.settings
    values = {
        "AuthType": "auth/none",
        "BatchStartTimeout": "10 sec",
        "ClusterName": settings.cluster_name,
        "EnforcePartLimits": "NO",
        "InactiveLimit": "0 sec",
        "JobFileAppend": "0",
        "JobRequeue": "1",
        "KillOnBadExit": "0",
        "KillWait": f"{settings.kill_wait_s:g} sec",
        "MaxJobCount": "10000",
        "MaxNodeCount": str(len(world.nodes)),
        "MessageTimeout": "10 sec",
        "MinJobAge": f"{settings.min_job_age_s:g} sec",
        "MpiDefault": "none",
        "NEXT_JOB_ID": str(world.next_job),
        "OverTimeLimit": "0 min",
        "PreemptMode": "REQUEUE" if settings.partitions else "OFF",
        "PreemptType": "preempt/partition_prio" if settings.partitions else "preempt/none",
        "ProctrackType": f"proctrack/{settings.proctrack.value}",
        "SchedulerType": "sched/backfill",
        "SelectType": "select/cons_tres",
        "SlurmctldHost[0]": f"{os.uname().nodename}(127.0.0.1)",
        "SlurmctldParameters": "preempt_send_user_signal" if settings.send_user_signal else NULL,
        "SlurmctldTimeout": "120 sec",
        "SlurmdTimeout": "300 sec",
        "SLURM_CONF": f"{root}/state.json",
        "SLURM_VERSION": VERSION,
        "StateSaveLocation": root,
        "TaskPlugin": "task/cgroup" if settings.proctrack.value == "cgroup" else "task/none",
        "UnkillableStepTimeout": f"{settings.unkillable_step_timeout_s:g} sec",
        "WaitTime": "0 sec",
    }
    lines = [f"{key:<23} = {value}" for key, value in values.items()]
    return "\n".join([f"Configuration data as of {instant(now)}", *lines, "", f"Slurmctld(primary) at {os.uname().nodename} is UP"])


def queue_fields(world: World, now: float) -> dict[str, tuple[str, Callable[[JobRec], str]]]:
    """squeue's letters: heading and value."""
    return {
        "A": ("JOBID", lambda job: str(job.job)),
        "a": ("ACCOUNT", lambda job: job.options.get("account", NULL)),
        "D": ("NODES", lambda job: str(len(job.nodes) or job.num_nodes)),
        "e": ("END_TIME", lambda job: instant(_end(job), empty="N/A")),
        "F": ("ARRAY_JOB_ID", lambda job: str(job.array.job if job.array else job.job)),
        "K": ("ARRAY_TASK_ID", lambda job: str(job.array.task) if job.array else "N/A"),
        "i": ("JOBID", arrays.name),
        "{restartcnt}": ("RESTARTCNT", lambda job: str(job.restarts)),
        "j": ("NAME", lambda job: job.name),
        "l": ("TIME_LIMIT", lambda job: "UNLIMITED" if job.limit_s is None else duration(job.limit_s, short=True)),
        "L": ("TIME_LEFT", lambda job: "UNLIMITED" if job.limit_s is None else duration(job.limit_s - run_s(job, now), short=True)),
        "M": ("TIME", lambda job: duration(run_s(job, now), short=True)),
        "N": ("NODELIST", lambda job: compress(job.nodes)),
        "P": ("PARTITION", lambda job: job.partition or world.settings.partition),
        "q": ("QOS", lambda job: job.options.get("qos", NULL)),
        "r": ("REASON", lambda job: job.reason.replace("_", " ")),
        "R": ("NODELIST(REASON)", lambda job: compress(job.nodes) if job.nodes else f"({job.reason.replace('_', ' ')})"),
        "S": ("START_TIME", lambda job: instant(_start(job), empty="N/A")),
        "t": ("ST", lambda job: CODES[state(job)]),
        "T": ("STATE", state),
        "u": ("USER", lambda _: getpass.getuser()),
        "V": ("SUBMIT_TIME", lambda job: instant(job.submit_at)),
        "Z": ("WORK_DIR", lambda job: job.workdir),
        "Q": ("PRIORITY", lambda job: str(_priority(job))),
        "B": ("EXEC_HOST", lambda job: job.batch_host or "n/a"),
        "o": ("COMMAND", command),
        "k": ("COMMENT", lambda job: job.options.get("comment", NULL)),
        "E": ("DEPENDENCY", lambda job: job.options.get("dependency", NULL) if job.reason == "Dependency" else NULL),
    }


LONG_NAMES = {
    "jobid": "i", "state": "T", "statecompact": "t", "reason": "r", "nodelist": "N", "reasonlist": "R", "name": "j", "username": "u",
    "timeused": "M", "timelimit": "l", "timeleft": "L", "numnodes": "D", "partition": "P", "starttime": "S", "endtime": "e",
    "submittime": "V", "account": "a", "qos": "q", "workdir": "Z", "batchhost": "B", "command": "o", "comment": "k",
    "restartcnt": "{restartcnt}", "jobarrayid": "i", "arrayjobid": "F", "dependency": "E", "prioritylong": "Q",
}  # fmt: skip
"""squeue -O's names for the same fields."""
