"""Disks of their own for single folders, and what befalls them: small and full, read-only, frozen, ill. Only root can make them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MEDIA, QUOTA, DENIED = errno.EIO, errno.EDQUOT, errno.EACCES


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True, timeout=20)


def unmount(path: Path) -> None:
    subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True, timeout=20)


@contextlib.contextmanager
def disk_of_its_own(folder: Path, *, size: str = "4m") -> Iterator[Path]:
    """A small one, for a folder that is made."""
    folder.mkdir(parents=True)
    try:
        mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root can mount the file systems that this test breaks")
    try:
        yield folder
    finally:
        unmount(folder)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    mount("--bind", str(folder), str(folder))
    mount("-o", "remount,bind,ro", str(folder))
    try:
        yield
    finally:
        unmount(folder)


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def ext4_of_its_own(folder: Path, *, size_bytes: int = 64 << 20) -> Iterator[Path]:
    """On a file, by a loop device: it can be frozen."""
    folder.mkdir(parents=True)
    image = folder.with_name(f".{folder.name}.ext4")
    with image.open("wb") as file:
        file.truncate(size_bytes)
    try:
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True, timeout=60)
        mount("-o", "loop", str(image), str(folder))
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root, with mkfs.ext4 and loop devices, can make the file system that this test freezes")
    try:
        yield folder
    finally:
        unmount(folder)


@contextlib.contextmanager
def frozen(folder: Path) -> Iterator[None]:
    """Whoever writes there waits in the kernel, in state D, until it is thawed."""
    subprocess.run(["fsfreeze", "-f", str(folder)], check=True, timeout=20)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", str(folder)], check=True, timeout=20)


HANGS: dict[str, object] = {}
"""Whoever touches it waits in the kernel, in state D; nothing can kill him."""


class Sick:
    """A mounted folder whose illnesses are ours to give (sickdisk.py)."""

    def __init__(self, folder: Path, *, rules: Path) -> None:
        self.folder, self._rules = folder, rules

    def _write(self, *rules: dict[str, object]) -> None:
        part = self._rules.with_name(f".{self._rules.name}.part")
        part.write_text(json.dumps(rules))
        part.replace(self._rules)

    @contextlib.contextmanager
    def ill(self, *rules: dict[str, object]) -> Iterator[None]:
        """As these rules say, and then well."""
        self._write(*rules)
        try:
            yield
        finally:
            self._write()


@contextlib.contextmanager
def sick_disk(folder: Path) -> Iterator[Sick]:
    """A disk of its own for a folder that is made; well at first."""
    folder.mkdir(parents=True)
    behind, rules = folder.with_name(f".{folder.name}.behind"), folder.with_name(f".{folder.name}.rules")
    behind.mkdir()
    rules.write_text("[]")
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        _mount_fuse(folder, device)
    except OSError as error:
        pytest.skip(f"only root, with /dev/fuse, can make the file system that this test breaks: {error}")
    try:
        words = [sys.executable, "-m", "tests.e2e.sickdisk", str(behind), str(rules), str(device)]
        program = subprocess.Popen(words, cwd=Path(__file__).parents[2], pass_fds=[device])
    finally:
        os.close(device)
    try:
        yield Sick(folder, rules=rules)
    finally:
        unmount(folder)
        program.kill()  # whoever still waits for it gets an error now
        program.wait(20)


def _mount_fuse(folder: Path, device: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,max_read=131072"
    if libc.mount(b"sick", os.fsencode(folder), b"fuse", 0, options.encode()) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
