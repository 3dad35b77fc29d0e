"""`RUN/watch.jsonl`: what `ftsup watch` said and did, a line each. Written by watch alone, read by it and by the reports.

A line that is torn or strange is none. Knows nothing of what the lines lead to.
"""

from __future__ import annotations

import os

import msgspec

from ftsup.plain import read_plain
from ftsup.report.minding import Deed
from ftsup.rundir import RunDir

_CAP_BYTES = 16 << 20
_MOST = 400
"""The newest; limits are counted in them."""


def read_deeds(run: RunDir) -> tuple[Deed, ...]:
    """The oldest first."""
    try:
        lines = read_plain(run.watched, cap_bytes=_CAP_BYTES).splitlines()
    except FileNotFoundError:
        return ()
    return tuple(deed for deed in map(_deed, lines[-_MOST:]) if deed is not None)


def append_deed(run: RunDir, deed: Deed) -> None:
    """One line, on the disk when this returns; also where the last one was torn."""
    fd = os.open(run.watched, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        data = b"\n" * torn + msgspec.json.encode(deed) + b"\n"
        if os.write(fd, data) != len(data):
            raise OSError(28, os.strerror(28), str(run.watched))
        os.fsync(fd)
    finally:
        os.close(fd)


def claim(run: RunDir, deed: Deed, *, n: int) -> bool:
    """Whether the n-th try of this is ours. Of two that have read the same lines one makes the file, also where no lock holds between
    two hosts (NFS without a lock service). The line is written before: whoever dies in between leaves a number that is used.
    """
    run.claims.mkdir(mode=0o700, exist_ok=True)
    try:
        os.close(
            os.open(run.claims / f"{deed.job}.{deed.restarts}.{deed.do.name.lower()}.{n}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        )
    except FileExistsError:
        return False
    return True


def _deed(line: bytes) -> Deed | None:
    try:
        return msgspec.json.decode(line, type=Deed)
    except (ValueError, RecursionError):
        return None
