"""Doctor's rules about the cluster: what Slurm's settings mean for this configuration. Pure.

Each rule looks at the facts and yields findings; nothing where Slurm did not say, for `answers` says that once for all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ftsup.config import Handlers, Requeue, short_warning
from ftsup.config.array import tasks
from ftsup.report.doctorfacts import Facts, Finding, note, ok, problem, warning
from ftsup.units import duration

SAVE_S = 60
"""Less than this for the last save is little."""
DIES_S = 60
"""A big job's GPU memory and network can take so long to go."""
SHORT_S = 10
"""A KillWait below this leaves no time for evidence."""
REMEMBERED_S = 60
"""A MinJobAge below this is gone before anybody has looked."""
_OLDEST = (22, 5)


def answers(facts: Facts) -> Iterator[Finding]:
    """Whether Slurm answered; whether it is the mock."""
    cluster = facts.cluster
    if cluster.mock:
        yield note(f"this is the mock Slurm: {cluster.choice or 'it is on PATH, or was asked for'}", "--cluster slurm asks the real one")
    if cluster.silence:
        parts = (("settings", cluster.settings), ("partitions", cluster.partitions), ("nodes", cluster.nodes))
        unknown = " and ".join(name for name, answer in parts if answer is None)
        yield warning(f"unknown: Slurm's {unknown} ({cluster.silence})", "ask again when `scontrol ping` says UP")
    elif not cluster.mock:
        yield ok(f"Slurm {cluster.word('SLURM_VERSION') or '(version unknown)'} answers")


def client(facts: Facts) -> Iterator[Finding]:
    """What commands of a login node ask Slurm with, and why."""
    cluster = facts.cluster
    if cluster.client:
        yield ok(f"slurm.client leads to {cluster.client} on this host: {cluster.client_why}")
    elif cluster.client_why:
        yield problem(cluster.client_why, "set slurm.client: auto, or install the pyslurm that fits")


def version(facts: Facts) -> Iterator[Finding]:
    """Versions older than any that was tried."""
    found = re.match(r"(\d+)\.(\d+)", facts.cluster.word("SLURM_VERSION"))
    if found and (int(found[1]), int(found[2])) < _OLDEST:
        yield warning(f"Slurm is {facts.cluster.word('SLURM_VERSION')}: ftsup was never tried below 22.05")


def kill_wait(facts: Facts) -> Iterator[Finding]:
    """KillWait: what is left to end well once Slurm has said TERM."""
    found_s = facts.cluster.seconds("KillWait")
    if found_s is None:
        return
    left_s = max(found_s - facts.config.waits.kill_margin_s, 0.5)
    said = f"KillWait is {duration(found_s)}: told to end, ftsup has {duration(left_s)} to stop ranks and keep evidence"
    if found_s < SHORT_S:
        yield warning(said, f"ask for KillWait=30; until then set grace: {duration(min(left_s, facts.config.grace_s))}")
    else:
        yield ok(said)


def warning_lead(facts: Facts) -> Iterator[Finding]:
    """The warning must come before KillWait and the requeue, by as long as a save takes."""
    config, wait_s = facts.config, facts.cluster.seconds("KillWait")
    if wait_s is None:
        return
    lead_s = config.slurm.warning.lead_s
    needed_s = round(wait_s + config.waits.end_margin_s + SAVE_S)
    todo = f"set slurm.signal: {config.slurm.warning.signal}@{needed_s}, and more where a save takes longer than {SAVE_S} s"
    left_s = lead_s - wait_s - config.waits.end_margin_s
    if short := short_warning(config, kill_wait_s=wait_s):
        yield problem(f"slurm.signal is {config.slurm.signal}: {short}", todo)
    elif left_s < SAVE_S:
        yield warning(f"slurm.signal is {config.slurm.signal} and KillWait {duration(wait_s)}: {duration(left_s)} are left to save", todo)
    else:
        yield ok(f"slurm.signal is {config.slurm.signal}: {duration(left_s)} are left to save before the requeue")


def unkillable(facts: Facts) -> Iterator[Finding]:
    """A node whose processes take longer to die is drained."""
    found_s = facts.cluster.seconds("UnkillableStepTimeout")
    if found_s is None:
        return
    said = f"UnkillableStepTimeout is {duration(found_s)}: Slurm drains a node whose processes take longer to die"
    if found_s < DIES_S:
        yield warning(said, "ask for 180 s: GPU memory of a big job can take a minute to go")
    else:
        yield ok(said)


def requeue(facts: Facts) -> Iterator[Finding]:
    """Whether jobs may be requeued."""
    default = facts.cluster.word("JobRequeue")
    if facts.config.slurm.requeue is not Requeue.REQUEUE:
        chain = facts.config.slurm.requeue is Requeue.CHAIN
        what = "a new job follows one that cannot go on" if chain else "the run ends with its allocation"
        yield note(f"slurm.requeue is {facts.config.slurm.requeue.value}: {what}")
    elif default == "0":
        yield note(
            "JobRequeue is 0: jobs are not requeueable unless they ask, which ftsup does (--requeue)",
            "set slurm.requeue: chain where `scontrol show job` says Requeue=0 all the same",
        )
    elif default:
        yield ok(f"JobRequeue is {default}: jobs can be requeued")


def requeue_exit(facts: Facts) -> Iterator[Finding]:
    """Slurm requeues by exit code what ftsup has ended for good."""
    for key, what in (("RequeueExit", "requeues"), ("RequeueExitHold", "requeues and holds")):
        value = facts.cluster.word(key)
        if value and _has(value, 1):
            yield warning(
                f"{key} is {value}: Slurm {what} a run that ftsup has stopped (exit code 1)",
                "set slurm.requeue: off or chain (--no-requeue), and ask why the site has it",
            )
        elif value:
            yield note(f"{key} is {value}: Slurm {what} jobs that end with these exit codes")


def _has(codes: str, wanted: int) -> bool:
    """Whether `1-3,75` has a code."""
    spans = re.findall(r"(\d+)(?:-(\d+))?", codes)
    return any(int(low) <= wanted <= int(high or low) for low, high in spans)


def batch_requeues(facts: Facts) -> Iterator[Finding]:
    """Past this many lost batch hosts and failed launches, the job is held for good."""
    value = facts.cluster.word("MaxBatchRequeue")
    if value.isdigit():
        said = f"MaxBatchRequeue is {value}: after so many lost batch hosts and failed launches the job is held"
        yield warning(said, "then: ftsup submit --continue RUN") if int(value) < 3 else ok(said)  # noqa: PLR2004 - a bad day has two
    elif facts.cluster.settings is not None:
        yield ok("MaxBatchRequeue is not shown by this Slurm: its own is 5 lost batch hosts, then the job is held")


def tracking(facts: Facts) -> Iterator[Finding]:
    """Who gets the warning signal, and whether orphans stay."""
    word = facts.cluster.word("ProctrackType")
    if word.endswith("/cgroup"):
        yield ok(f"ProctrackType is {word}: nothing outlives its job, and the warning reaches ftsup alone")
    elif word and facts.config.slurm.handlers is Handlers.PLAIN:
        name = facts.config.slurm.warning.signal
        yield warning(
            f"ProctrackType is {word} and slurm.handlers is plain: {name} reaches data loaders too, and ends them",
            "set slurm.handlers: at_beat",
        )
    elif word:
        yield note(f"ProctrackType is {word}: the warning reaches every process; ftsup has it ignored where it would kill")


def cgroups(facts: Facts) -> Iterator[Finding]:
    """Whether memory and CPUs are confined."""
    plugin, memory = (facts.cluster.word(key).lower() for key in ("TaskPlugin", "ConstrainRAMSpace"))
    if facts.cluster.settings is None or facts.cluster.mock:
        return
    if "cgroup" not in plugin:
        yield note(f"TaskPlugin is {plugin or 'not set'}: jobs are not confined, and one that takes all memory takes the node along")
    elif memory == "no":
        yield note("ConstrainRAMSpace is no: a job's memory is not confined, and one that takes all takes the node along")
    elif not memory:
        yield note(f"unknown: whether memory is confined (TaskPlugin is {plugin}, ConstrainRAMSpace is not shown)")
    elif facts.config.slurm.mem_bytes is None and facts.given:
        default = facts.cluster.word("DefMemPerNode") or facts.cluster.word("DefMemPerCPU") or "not known"
        yield note(
            f"memory is confined by cgroups, and slurm.mem is not set: the cluster's default counts ({default})",
            "set slurm.mem: 0 for all of it",
        )
    else:
        yield ok("memory and CPUs are confined by cgroups")


PROLOGS = ("PrologSlurmctld", "Prolog", "TaskProlog", "SrunProlog")


def prologs(facts: Facts) -> Iterator[Finding]:
    """Scripts of the site that run before ours."""
    # Since 23.02 a site may have several of some, and each is shown by its number: Prolog[0].
    shown = [key for name in PROLOGS for key in facts.cluster.settings or {} if key.partition("[")[0] == name]
    found = [f"{key}={value}" for key in shown if (value := facts.cluster.word(key))]
    limit_s = facts.cluster.seconds("PrologEpilogTimeout")
    hello_s = facts.config.waits.hello_s
    if found and limit_s is not None and hello_s < limit_s < 65534:  # noqa: PLR2004 - Slurm's "no limit"
        yield warning(
            f"{', '.join(found)} may take {duration(limit_s)} (PrologEpilogTimeout), and waits.hello is {duration(hello_s)}",
            f"set waits.hello: {duration(limit_s + 60)}",
        )
    elif found:
        said = f"{', '.join(found)} runs on each node before ftsup does: its time counts in waits.hello ({duration(hello_s)})"
        held = "nohold_on_prolog_fail" not in facts.cluster.word("SchedulerParameters")
        released = "where it fails Slurm holds the job until somebody releases it: ftsup watch does, or `ftsup watch --once` in cron"
        yield note(said, released if held else "")
    elif facts.cluster.settings is not None:
        yield ok("no prolog of the site runs before ftsup")


def submit_plugins(facts: Facts) -> Iterator[Finding]:
    """What may change our options on the way."""
    if value := facts.cluster.word("JobSubmitPlugins"):
        yield note(f"JobSubmitPlugins is {value}: the site may change or refuse options", "ftsup submit --dry-run --cluster slurm asks it")


def accounts(facts: Facts) -> Iterator[Finding]:
    """A site that charges every job."""
    enforced = facts.cluster.word("AccountingStorageEnforce").lower()
    if enforced and not facts.config.slurm.account and facts.given:
        yield note(
            f"AccountingStorageEnforce is {enforced}: jobs are charged, and slurm.account is not set", "set it, or have a default one"
        )


def node_loss(facts: Facts) -> Iterator[Finding]:
    """How long a dead node goes unseen."""
    found_s = facts.cluster.seconds("SlurmdTimeout")
    if found_s is not None:
        said = f"SlurmdTimeout is {duration(found_s)}: so long Slurm takes to call a silent node DOWN"
        yield note(said) if found_s > 600 or found_s == 0 else ok(said)  # noqa: PLR2004 - twice Slurm's default


def arrays_and_mpi(facts: Facts) -> Iterator[Finding]:
    """MaxArraySize, which the tasks of `slurm.array` must keep; and MpiDefault: nothing to do, people ask."""
    size, spec = facts.cluster.word("MaxArraySize"), facts.config.slurm.array
    if size.isdigit() and max(tasks(spec), default=0) >= int(size):
        yield problem(f"MaxArraySize is {size}, and slurm.array is {spec}", f"number its tasks below {size}")
    elif size:
        yield ok(f"MaxArraySize is {size}: the numbers of slurm.array's tasks must be below it")
    if (mpi := facts.cluster.word("MpiDefault")) and mpi != "none":
        yield ok(f"MpiDefault is {mpi}: ftsup starts its steps with --mpi=none")


def forgetting(facts: Facts) -> Iterator[Finding]:
    """How long Slurm knows how a job ended, and who knows afterwards."""
    age_s, store = facts.cluster.seconds("MinJobAge"), facts.cluster.word("AccountingStorageType")
    if age_s is None:
        return
    said = f"MinJobAge is {duration(age_s)}: so long Slurm knows how a job ended"
    if store.endswith("/none") or not store:
        kept = f"{said}, and without accounting (AccountingStorageType={store or 'not set'}) only ftsup's own record does afterwards"
        yield note(kept, "ask for MinJobAge=300") if age_s < REMEMBERED_S else ok(kept)
    else:
        yield ok(f"{said}; afterwards ftsup asks sacct")


def rate_limit(facts: Facts) -> Iterator[Finding]:
    """Whether the controller turns away users who ask much."""
    if "rl_enable" in facts.cluster.word("SlurmctldParameters"):
        yield note(
            "SlurmctldParameters has rl_enable: the controller turns away who asks much; "
            f"a run asks once in {duration(facts.config.waits.ask_s)}",
            "look with ftsup status and top, which read the run directory, and not with squeue in a loop",
        )
