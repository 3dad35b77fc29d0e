"""Reads plain files of a folder that others may have filled: a pipe, a device or a file without an end keeps nobody.

Knows nothing of what is in them. What is not there, not plain or too big is an OSError, as any other trouble with a file.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

T = TypeVar("T")
CAP_BYTES = 64 << 20
"""More than any file of ours has that is read as a whole."""


def open_plain(path: Path, *, cap_bytes: int | None = None) -> BinaryIO:
    """Open a plain file for reading, also one behind a link."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    facts = os.fstat(fd)
    if stat.S_ISDIR(facts.st_mode):
        why = errno.EISDIR, os.strerror(errno.EISDIR)
    elif not stat.S_ISREG(facts.st_mode):
        why = errno.EINVAL, "it is not a plain file"
    elif cap_bytes is not None and facts.st_size > cap_bytes:
        why = errno.EFBIG, f"it is larger than {cap_bytes >> 20} MiB"
    else:
        return os.fdopen(fd, "rb")
    os.close(fd)
    raise OSError(*why, str(path))


def read_plain(path: Path, *, cap_bytes: int = CAP_BYTES) -> bytes:
    """All of a plain file."""
    with open_plain(path, cap_bytes=cap_bytes) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def decode_plain(data: bytes, kind: type[T]) -> T:
    """JSON as a value of this type; what is wrong with it is a ValueError (mostly msgspec's), however strange it is."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def told(error: OSError | ValueError) -> str:
    """What was wrong with a file, in words for people."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
