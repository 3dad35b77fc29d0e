"""Reads plain files of a folder that others may have filled: a pipe, a device or a file without an end keeps nobody.

Knows nothing of what is in them. What is not there, not plain or too big is an OSError, as any other trouble with a file.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

CAP_BYTES = 1 << 30
"""More than any file of ours ever has."""


def open_plain(path: Path) -> BinaryIO:
    """Open a plain file for reading, also one behind a link."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    file = os.fdopen(fd, "rb") if stat.S_ISREG(os.fstat(fd).st_mode) else None
    if file is None:
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return file


def read_plain(path: Path, *, cap_bytes: int = CAP_BYTES) -> bytes:
    """All of a plain file."""
    with open_plain(path) as file:
        if os.fstat(file.fileno()).st_size > cap_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {cap_bytes} bytes", str(path))
        return file.read(cap_bytes)
