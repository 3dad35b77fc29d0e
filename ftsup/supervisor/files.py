"""How supervisors write small files: whole or nothing, with modes that follow the folder. Blocks as long as the disk does.

On the shared disk only the clerk may call it; loops use it for their node-local folder.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def mode_below(folder: Path) -> int:
    """0640 where the group may read the folder (`share: group`), else 0600."""
    return 0o640 if folder.stat().st_mode & 0o040 else 0o600


def make_folder(folder: Path) -> None:
    """The folder and those above it, each readable by whoever may read the one above."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    mode = 0o750 if folder.parent.stat().st_mode & 0o040 else 0o700
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=mode)


def write_whole(path: Path, data: bytes) -> None:
    """Publish a file: temporary name, fsync, rename, fsync of the folder."""
    make_folder(path.parent)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode_below(path.parent))
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        aside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """A name is on the disk when its folder is."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
