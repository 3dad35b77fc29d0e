"""Directories of checkpoints for the tests: made, sealed, torn, flipped, and read back whole."""

from __future__ import annotations

import functools
import io
import os
import zipfile
from pathlib import Path

from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.entries import entries
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.seal import Label, Sealing, Sign, seal


def save(path: Path, *, size: int = 4000) -> Path:
    """What torch.save writes is a zip; this one needs no torch."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"p" * 100)
        archive.writestr("archive/data/0", os.urandom(size))
    return path


def saved(path: Path, *, value: int, numbers: int = 100) -> Path:
    """The real torch.save."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(torch_bytes(value, numbers))
    return path


@functools.cache
def torch_bytes(value: int, numbers: int) -> bytes:
    """What torch.save makes of a tensor full of one number."""
    import torch  # noqa: PLC0415 - most tests need none

    out = io.BytesIO()
    torch.save({"step": value, "weights": torch.full((numbers,), float(value))}, out)
    return out.getvalue()


def tear(path: Path, cut: int = 30) -> Path:
    """The writer was killed."""
    os.truncate(path, path.stat().st_size - cut)
    return path


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """One bit is not what it was."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def sealed(folder: Path, name: str, *, epoch=None, writer: str = "", sign: Sign = Sign.NONE, disk=None, marker: str = "") -> Sealing:
    """Seal the checkpoint of this name."""
    disk = disk or RealDisk()
    entry = next(entry for entry in entries(disk, Home(folder), pattern=name) if entry.name == name)
    return seal(disk, Home(folder), entry, label=Label(epoch=epoch, writer=writer), sign=sign, marker=marker)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file, by its path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
