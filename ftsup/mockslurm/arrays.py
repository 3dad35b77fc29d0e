"""Job arrays: one sbatch, many jobs of one script, each named `<array>_<task>`, and at most so many of them running at once.

Pure. A real Slurm keeps the waiting tasks in one record and gives each its own as it starts; here each has its own from the
beginning. As there, the last task has the array's own number, and that bare number means all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ftsup.mockslurm.model import ArrayRec, JobRec, World

_SPEC = re.compile(r"(?P<tasks>\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*)(%(?P<most>\d+))?")


def parse(spec: str) -> tuple[list[int], int]:
    """The tasks of `0-6:2,9%2`, and how many may run at once (0: all). ValueError: it is none."""
    found = _SPEC.fullmatch(spec)
    if not found:
        raise ValueError(spec)
    tasks: set[int] = set()
    for part in found["tasks"].split(","):
        span, _, stride = part.partition(":")
        first, _, last = span.partition("-")
        tasks |= set(range(int(first), int(last or first) + 1, int(stride or 1)))
    return sorted(tasks), int(found["most"] or 0)


def numbered(spec: str, first: int) -> Iterator[tuple[int, ArrayRec]]:
    """Job numbers from `first`, each with its task."""
    tasks, most = parse(spec)
    for index, task in enumerate(tasks):
        number = first if task == tasks[-1] else first + index + 1
        yield number, ArrayRec(job=first, task=task, most=most, tasks=tasks)


def named(world: World, text: str) -> list[JobRec]:
    """The jobs that a word names: a number, a whole array by its number, or one task as `120_7`."""
    number, _, task = text.partition("_")
    if not number.isdigit() or (task and not task.isdigit()):
        return []
    tasks = [job for job in world.jobs.values() if job.array and job.array.job == int(number)]
    if task:
        return [job for job in tasks if job.array and job.array.task == int(task)]
    return sorted(tasks, key=lambda job: job.array.task if job.array else 0) or [
        job for job in world.jobs.values() if job.job == int(number)
    ]


def name(job: JobRec) -> str:
    """As people and scontrol name it."""
    return f"{job.array.job}_{job.array.task}" if job.array else str(job.job)


def order(job: JobRec) -> tuple[int, int]:
    """Whose turn is first: tasks go by their numbers, also the last, which has the array's own."""
    return (job.array.job, job.array.task) if job.array else (job.job, 0)


def full(world: World, job: JobRec) -> bool:
    """As many tasks of its array run as may."""
    array = job.array
    if array is None or not array.most:
        return False
    running = [other for other in world.jobs.values() if other.array and other.array.job == array.job and other.active]
    return len(running) >= array.most


def shown(job: JobRec) -> str:
    """What `scontrol show job` says of it, after the number."""
    if job.array is None:
        return ""
    throttle = f" ArrayTaskThrottle={job.array.most}" if job.array.most else ""
    return f" ArrayJobId={job.array.job} ArrayTaskId={job.array.task}{throttle}"


def env(job: JobRec) -> dict[str, str]:
    """What its batch script is told."""
    array = job.array
    if array is None:
        return {}
    return {
        "SLURM_ARRAY_JOB_ID": str(array.job),
        "SLURM_ARRAY_TASK_ID": str(array.task),
        "SLURM_ARRAY_TASK_COUNT": str(len(array.tasks)),
        "SLURM_ARRAY_TASK_MIN": str(array.tasks[0]),
        "SLURM_ARRAY_TASK_MAX": str(array.tasks[-1]),
        "SLURM_ARRAY_TASK_STEP": str(array.tasks[1] - array.tasks[0] if len(array.tasks) > 1 else 1),
    }
