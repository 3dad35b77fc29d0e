"""A process that nothing can kill, for a while: a frozen one of cgroup v1 is in state D, and dies only when it is thawed."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup/freezer")
needed = pytest.mark.skipif(not os.access(ROOT / "cgroup.procs", os.W_OK), reason="needs root, and the freezer of cgroup v1")


@contextlib.contextmanager
def frozen(*pids: int) -> Iterator[Path]:
    """Freeze them; thawed at the end at the latest."""
    group = ROOT / f"ftsup-test-{uuid.uuid4().hex}"
    group.mkdir()
    try:
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        yield group
    finally:
        thaw(group)
        _remove(group)


def thaw(group: Path) -> None:
    (group / "freezer.state").write_text("THAWED")


def _remove(group: Path) -> None:
    """Who lives goes back; who was killed meanwhile is about to leave."""
    for _ in range(500):
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (ROOT / "cgroup.procs").write_text(pid)
        try:
            group.rmdir()
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        select.select([], [], [], 0.01)
    raise AssertionError(f"{group} is still in use")
