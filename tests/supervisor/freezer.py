"""A process that nothing can kill, for a while: a frozen one of cgroup v1 is in state D, and dies only when it is thawed."""

from __future__ import annotations

import contextlib
import os
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
        for pid in (group / "cgroup.procs").read_text().split():
            (ROOT / "cgroup.procs").write_text(pid)
        group.rmdir()


def thaw(group: Path) -> None:
    (group / "freezer.state").write_text("THAWED")
