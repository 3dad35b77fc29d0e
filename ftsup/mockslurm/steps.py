"""What an srun asks for: on which nodes, how many tasks on each, with which environment and logs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from ftsup.mockslurm import recovery, rules
from ftsup.mockslurm.model import JobRec, Task
from ftsup.mockslurm.options import Parsed, fail
from ftsup.mockslurm.sbatch import exported, umask
from ftsup.mockslurm.store import Store
from ftsup.slurm.hostlist import compress, expand


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a step and how many tasks each has; ranks are counted through the nodes."""

    nodes: list[str]
    tasks: list[int]

    def ranks(self, node: str) -> range:
        """The ranks on one node."""
        index = self.nodes.index(node)
        first = sum(self.tasks[:index])
        return range(first, first + self.tasks[index])


def shape(given: Parsed, job: JobRec) -> Shape:
    """Where the tasks go. A list of nodes names some that must be among them, not all."""
    wanted, excluded = list(expand(given.get("nodelist"))), expand(given.get("exclude"))
    count = max(_number(given, "nodes") or len(job.nodes), len(wanted))
    if count > len(job.nodes):
        fail("srun", f"Only allocated {len(job.nodes)} nodes asked for {count}")
    pool = wanted + [node for node in job.nodes if node not in wanted and node not in excluded]
    if not set(wanted) <= set(job.nodes) or count > len(pool):
        raise rules.Refusal(rules.IMPOSSIBLE)
    per_node = _number(given, "ntasks-per-node")
    total = _number(given, "ntasks") or count * (per_node or 1)
    if total < count:
        print(f"srun: Warning: can't run {total} processes on {count} nodes, setting nnodes to {total}", file=sys.stderr)
        count = total
    if per_node and total != count * per_node:
        what = f"the requested tasks {total} with the number of requested nodes {count}"
        print(
            f"srun: Warning: can't honor --ntasks-per-node set to {per_node} which doesn't match {what}. Ignoring --ntasks-per-node.",
            file=sys.stderr,
        )
    return Shape(
        nodes=sorted(pool[:count], key=job.nodes.index),
        tasks=[total // count + (index < total % count) for index in range(count)],
    )


def _number(given: Parsed, name: str) -> int:
    text = given.get(name).split("-")[0]
    if text and not text.isdigit():
        fail("srun", f'Invalid numeric value "{given.get(name)}" for --{name}.')
    return int(text or 0)


def task(given: Parsed, job: JobRec, *, step: int, shape: Shape, store: Store, client: str) -> Task:
    """The order for the step's daemons."""
    append = given.get("open-mode").startswith("a")
    stdout, stderr = (_log(given.get(name), job, step=step, append=append) for name in ("output", "error"))
    return Task(
        job=job.job,
        step=step,
        argv=given.rest,
        env=exported(given.get("export"), dict(os.environ), store) | _env(job, step=step, shape=shape, store=store),
        cwd=str(Path.cwd() / given.get("chdir")),
        nodes=shape.nodes,
        tasks=shape.tasks,
        stdout=stdout,
        stderr=stderr,
        append=append or not _own_files(stdout),
        umask=umask(),
        client=client,
    )


def _env(job: JobRec, *, step: int, shape: Shape, store: Store) -> dict[str, str]:
    """What every task of the step is told."""
    nodes, total = str(len(shape.nodes)), str(sum(shape.tasks))
    return {
        recovery.STATE: str(store.root),
        "SLURM_JOB_ID": str(job.job),
        "SLURM_JOBID": str(job.job),
        "SLURM_STEP_ID": str(step),
        "SLURM_STEPID": str(step),
        "SLURM_STEP_NODELIST": compress(shape.nodes),
        "SLURM_STEP_NUM_NODES": nodes,
        "SLURM_STEP_NUM_TASKS": total,
        "SLURM_STEP_TASKS_PER_NODE": per_node(shape.tasks),
        "SLURM_TASKS_PER_NODE": per_node(shape.tasks),
        "SLURM_NTASKS": total,
        "SLURM_NPROCS": total,
        "SLURM_NNODES": nodes,
        "SLURM_DISTRIBUTION": "cyclic",
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_SRUN_COMM_HOST": "127.0.0.1",
        "SLURM_UMASK": f"{umask():04o}",
    }


def per_node(counts: list[int]) -> str:
    """2 2 1 -> `2(x2),1`."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)


def _log(path: str, job: JobRec, *, step: int, append: bool) -> str:
    """The file of the tasks' output, emptied now where all of them share it; empty: through srun."""
    if path in {"", "all", "none"}:
        return os.devnull if path == "none" else ""
    for letter, value in {"j": f"{job.job}", "J": f"{job.job}.{step}", "x": job.name, "s": f"{step}"}.items():
        path = path.replace(f"%{letter}", value)
    if not append and not _own_files(path):
        Path(path).write_bytes(b"")
    return path


def _own_files(path: str) -> bool:
    """Each node (or task) writes its own file."""
    return any(letter in path for letter in ("%N", "%n", "%t"))
