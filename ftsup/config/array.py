"""`slurm.array`: which tasks there are, and the configuration of one of them. Each task is a run of its own.

`{task}` stands for a task's number in `command`, in `checkpoint.dir` and in the values of `env`.
"""

from __future__ import annotations

from msgspec.structs import replace

from ftsup.config.keys import Config

TASK = "{task}"


def tasks(spec: str) -> tuple[int, ...]:
    """The numbers in `0-6:2,9%2`, which was checked when it was read; none where it is empty."""
    found: set[int] = set()
    for part in filter(None, spec.partition("%")[0].split(",")):
        span, _, stride = part.partition(":")
        first, _, last = span.partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(stride or 1)))
    return tuple(sorted(found))


def of_task(config: Config, task: int) -> Config:
    """What this task's run is configured with: one job, which has its number."""
    number = str(task)
    return replace(
        config,
        command=tuple(word.replace(TASK, number) for word in config.command),
        checkpoint=replace(config.checkpoint, dir=config.checkpoint.dir.replace(TASK, number)),
        env={name: value.replace(TASK, number) for name, value in config.env.items()},
        slurm=replace(config.slurm, array=""),
    )
