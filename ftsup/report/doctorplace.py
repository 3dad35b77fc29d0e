"""Doctor's rules about where a job would go: the partition, its nodes, and kinds of jobs that ftsup cannot be. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ftsup.ports import NodeState, Partition
from ftsup.report.doctorfacts import Facts, Finding, note, ok, problem, warning
from ftsup.report.words import count, names
from ftsup.units import duration


def partitions(facts: Facts) -> Iterator[Finding]:
    """The partition: there, up, with enough nodes, and its time limit."""
    chosen, known = facts.chosen(), facts.cluster.partitions
    if chosen is None or known is None:
        return
    wanted = facts.config.slurm.partition
    missing = [name for name in wanted.split(",") if wanted and name not in {each.name for each in known}]
    there = f"there are {names([each.name for each in known])}"
    if missing:
        yield problem(f"slurm.partition is {wanted}: there is no partition {names(missing)}", f"set another: {there}")
    elif not chosen:
        yield problem("slurm.partition is not set, and the cluster has no default partition", f"set slurm.partition; {there}")
    for each in chosen:
        yield from _partition(facts, each)


def _partition(facts: Facts, partition: Partition) -> Iterator[Finding]:
    slurm, limit_s = facts.config.slurm, partition.limit_s
    name = f"partition {partition.name}"
    if not partition.up:
        yield problem(f"{name} is not UP: nothing starts in it", "set slurm.partition to another")
    if slurm.nodes > len(partition.nodes):
        yield problem(
            f"slurm.nodes is {slurm.nodes}, and {name} has {count(len(partition.nodes), 'node')}", "set slurm.nodes or slurm.partition"
        )
    if slurm.time_s is not None and limit_s is not None and slurm.time_s > limit_s:
        yield problem(
            f"slurm.time is {duration(slurm.time_s)}, and {name} allows {duration(limit_s)} (MaxTime)",
            f"set slurm.time: {duration(limit_s)}",
        )
    elif limit_s is not None and limit_s <= slurm.warning.lead_s:
        yield problem(
            f"{name} allows {duration(limit_s)} (MaxTime), no longer than the lead of slurm.signal ({slurm.signal})", "set a shorter lead"
        )
    else:
        longest = "unlimited" if limit_s is None else duration(limit_s)
        yield ok(f"{name} is there, with {count(len(partition.nodes), 'node')}; MaxTime is {longest}")
    if partition.accounts and slurm.account not in partition.accounts:
        yield warning(
            f"{name} is for accounts {names(partition.accounts)}, and slurm.account is {slurm.account or 'not set'}", "set slurm.account"
        )


def nodes(facts: Facts) -> Iterator[Finding]:
    """Enough nodes that work, with the GPUs and CPUs that are asked for."""
    found, slurm = facts.chosen_nodes(), facts.config.slurm
    if not found:
        return
    able = [node for node in found if (slurm.gpus_per_node or 0) <= node.gpus and (slurm.cpus_per_task or 0) <= (node.cpus or 1 << 20)]
    up = [node for node in able if node.state is NodeState.UP]
    asked = " and ".join(count(number, what) for number, what in ((slurm.gpus_per_node, "GPU"), (slurm.cpus_per_task, "CPU")) if number)
    said = f"{len(up)} of {count(len(found), 'node')} of the partition can be had now" + (f" with {asked}" if asked else "")
    if len(able) < slurm.nodes:
        most = max(found, key=lambda node: (node.gpus, node.cpus))
        yield problem(
            f"slurm.nodes is {slurm.nodes}, and only {len(able)} of {count(len(found), 'node')} of the partition "
            f"have {asked or 'what is asked'}; {most.name} has {count(most.gpus, 'GPU')} and {count(most.cpus, 'CPU')}",
            "set slurm.nodes, slurm.gpus_per_node or slurm.cpus_per_task",
        )
    elif len(up) < slurm.nodes:
        down = [f"{node.name} ({node.raw})" for node in able if node.state is not NodeState.UP]
        yield warning(f"{said}, and slurm.nodes is {slurm.nodes}: the job waits for {names(down)}")
    elif slurm.gpus_per_node is None and "gres" not in slurm.extra and any(node.gpus for node in found) and facts.given:
        yield note(
            f"{said}; they have up to {count(max(node.gpus for node in found), 'GPU')}, and none is asked for", "set slurm.gpus_per_node"
        )
    else:
        yield ok(said)


def kinds_of_job(facts: Facts) -> Iterator[Finding]:
    """What ftsup cannot do: heterogeneous jobs. Several clusters are refused with the configuration."""
    if facts.job is not None and facts.job.heterogeneous:
        yield problem("this is a heterogeneous job, which ftsup cannot run: all its nodes must be alike", "ask for nodes of one kind")
