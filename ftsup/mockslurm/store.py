"""The state directory: one file that holds the world, replaced whole under a lock, so that commands can run side by side.

Owns the layout of the directory and nothing of Slurm. A process that dies at any moment leaves the old world or the new one;
the kernel drops its lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ftsup.mockslurm.model import Task, World

PRIVATE = 0o700


class Store:
    """A state directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self._file = root / "state.json"
        self._lock = root / "lock"

    def prepare(self) -> None:
        """Make the directory."""
        for folder in (self.root, self.bin, self.root / "jobs"):
            folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)

    @property
    def exists(self) -> bool:
        """Somebody made a world here."""
        return self._file.exists()

    def read(self) -> World:
        """The world as it is; another command may be changing it."""
        try:
            data = self._file.read_bytes()
        except FileNotFoundError:
            return World()
        return msgspec.json.decode(data, type=World)

    @contextlib.contextmanager
    def change(self) -> Iterator[World]:
        """The world, ours alone; written when the block ends without an error."""
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            world = self.read()
            before = msgspec.json.encode(world)
            yield world
            after = msgspec.json.encode(world)
            if after != before or not self.exists:
                new = self._file.with_suffix(".new")
                new.write_bytes(after)
                new.replace(self._file)

    def job_dir(self, job: int) -> Path:
        """What belongs to one job: its script, its environment, its steps, its runner's wake-up pipe."""
        return self.root / "jobs" / str(job)

    def discard(self, jobs: Iterable[int]) -> None:
        """Remove what belongs to jobs that are forgotten."""
        for job in jobs:
            shutil.rmtree(self.job_dir(job), ignore_errors=True)

    def wake_file(self, job: int) -> Path:
        """The pipe on which the job's runner sleeps."""
        return self.job_dir(job) / "wake"

    def wake(self, job: int) -> None:
        """Have the job's runner look at the world again. One that is not listening looks soon enough by itself."""
        with contextlib.suppress(OSError):
            pipe = os.open(self.wake_file(job), os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(pipe, b"!")
            finally:
                os.close(pipe)

    def save_task(self, task: Task) -> None:
        """Write what a step runs, readable by nobody else."""
        path = self._task_file(task.job, task.step)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(msgspec.json.encode(task))

    def load_task(self, job: int, step: int) -> Task:
        """What a step runs."""
        return msgspec.json.decode(self._task_file(job, step).read_bytes(), type=Task)

    def _task_file(self, job: int, step: int) -> Path:
        return self.job_dir(job) / f"step{step}.json"
