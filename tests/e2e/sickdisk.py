"""A file system that falls ill when a test says so: a folder behind the kernel's own FUSE door, for all processes alike.

`python -m tests.e2e.sickdisk FOLDER MOUNT RULES DEVICE`, started by disks.py as root. RULES is a file of JSON that is read again whenever
it changes: which requests fail with which errno, how often and from whom, which hang, which new names are seen late. Nothing is cached by
the kernel. It speaks FUSE 7.31 by hand (see the kernel's fuse.h).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import stat
import struct
import sys
import time
from pathlib import Path

FORGET, SETATTR, INTERRUPT, BATCH_FORGET = 2, 4, 36, 42
NAMES = {
    1: "lookup",
    3: "getattr",
    4: "setattr",
    5: "readlink",
    6: "symlink",
    9: "mkdir",
    10: "unlink",
    11: "rmdir",
    12: "rename",
    13: "link",
    14: "open",
    15: "read",
    16: "write",
    17: "statfs",
    18: "release",
    20: "fsync",
    25: "flush",
    26: "init",
    27: "opendir",
    28: "readdir",
    29: "releasedir",
    30: "fsync",
    35: "create",
    45: "rename",
}
SET_MODE, SET_UID, SET_GID, SET_SIZE, SET_ATIME, SET_MTIME, SET_FH, SET_ATIME_NOW, SET_MTIME_NOW = (1 << n for n in range(9))
DIRECT_IO = 1
LIMIT = 1 << 17
"""Bytes of one write."""


class Hangs(Exception):
    """No answer for now: whoever asks is in state D, and cannot be killed."""


class SickDisk:
    """Answers the kernel, one request after the other."""

    def __init__(self, folder: Path, rules: Path) -> None:
        self.folder, self.rules_at = folder, rules
        self.paths, self.ids, self.next_id = {1: ""}, {"": 1}, 2
        self.born: dict[str, float] = {}
        self.rules: list[dict] = []
        self.mtime_ns = 0
        self.op = ""
        self.pid = 0

    def serve(self, device: int) -> None:
        """Until it is unmounted."""
        held: list[bytes] = []
        while True:
            ready, _, _ = select.select([device], [], [], 0.05 if held else None)
            requests, held = held, []
            try:
                requests += [os.read(device, LIMIT + 4096)] if ready else []
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno != errno.ENOENT:
                    raise
            held = [request for request in requests if not self.answered(device, request)]

    def answered(self, device: int, request: bytes) -> bool:
        """Whether it could be answered; it hangs otherwise."""
        _, code, unique, node, _, _, self.pid, _, _ = struct.unpack_from("<IIQQIIIHH", request)
        if code in {FORGET, INTERRUPT, BATCH_FORGET}:
            return True
        failed, data = 0, b""
        try:
            data = self.answer(code, node, request[40:])
        except Hangs:
            return False
        except OSError as error:
            failed = error.errno or errno.EIO
        with contextlib.suppress(FileNotFoundError):  # whoever asked was killed
            os.writev(device, [struct.pack("<IiQ", 16 + len(data), -failed, unique), data])
        return True

    def answer(self, code: int, node: int, body: bytes) -> bytes:
        """One request."""
        if code not in NAMES:
            raise OSError(errno.ENOSYS, "")
        self.op = NAMES[code]
        path = self.paths.get(node or 1)
        if path is None:
            raise OSError(errno.ESTALE, "")
        if self.op == "rename":
            body = body if code == 12 else body[:8] + body[16:]
        return getattr(self, self.op)(path, body)

    # Illness -------------------------------------------------------------------------------------------------------------

    def strike(self, path: str, *, writes: bool) -> None:
        """Fail, if a rule says so."""
        facts = self.rules_at.stat()
        if facts.st_mtime_ns != self.mtime_ns:
            self.mtime_ns, self.rules = facts.st_mtime_ns, json.loads(self.rules_at.read_text())
        for rule in self.rules:
            if "late_s" in rule:
                if self.op == "lookup" and self.late(path, rule):
                    raise OSError(errno.ENOENT, path)
                continue
            kind = rule.get("ops", "all")
            fits = self.op in kind if isinstance(kind, list) else kind == "all" or (kind == "writes") == writes
            if fits and rule.get("below", "") in f"/{path}" and self.asks(rule) and rule.get("times", 1) > 0:
                if "times" in rule:
                    rule["times"] -= 1
                if "errno" not in rule:
                    raise Hangs
                raise OSError(rule["errno"], path)

    def asks(self, rule: dict) -> bool:
        """Whether the process that asks is meant."""
        try:
            return rule.get("who", "") in Path(f"/proc/{self.pid}/comm").read_text()
        except OSError:
            return False

    def late(self, path: str, rule: dict) -> bool:
        """Whether this name is too new to be seen."""
        return time.monotonic() - self.born.get(path, -1e9) < rule["late_s"] and self.asks(rule)

    # Names ---------------------------------------------------------------------------------------------------------------

    def real(self, path: str) -> Path:
        return self.folder / path

    def child(self, path: str, body: bytes, *, writes: bool = True) -> str:
        """The path of a name in a folder."""
        name = os.fsdecode(body.rstrip(b"\0"))
        found = f"{path}/{name}" if path else name
        self.strike(found, writes=writes)
        return found

    def entry(self, path: str, *, new: bool = False) -> bytes:
        facts = self.real(path).lstat()
        if new:
            self.born[path] = time.monotonic()
        if path not in self.ids:
            self.ids[path], self.paths[self.next_id] = self.next_id, path
            self.next_id += 1
        return struct.pack("<QQQQII", self.ids[path], 0, 0, 0, 0, 0) + attributes(facts)

    def forget(self, path: str) -> None:
        """The name stands for something else from now on; what is open stays open."""
        self.ids.pop(path, None)

    def lookup(self, path: str, body: bytes) -> bytes:
        return self.entry(self.child(path, body, writes=False))

    def mkdir(self, path: str, body: bytes) -> bytes:
        there = self.child(path, body[8:])
        self.real(there).mkdir(struct.unpack_from("<I", body)[0] & 0o7777)
        return self.entry(there, new=True)

    def symlink(self, path: str, body: bytes) -> bytes:
        name, target, _ = body.split(b"\0", 2)
        there = self.child(path, name)
        self.real(there).symlink_to(os.fsdecode(target))
        return self.entry(there, new=True)

    def readlink(self, path: str, _body: bytes) -> bytes:
        self.strike(path, writes=False)
        return os.fsencode(self.real(path).readlink())

    def link(self, path: str, body: bytes) -> bytes:
        there = self.child(path, body[8:])
        self.real(there).hardlink_to(self.real(self.paths[struct.unpack_from("<Q", body)[0]]))
        return self.entry(there, new=True)

    def unlink(self, path: str, body: bytes) -> bytes:
        there = self.child(path, body)
        self.real(there).unlink()
        self.forget(there)
        return b""

    def rmdir(self, path: str, body: bytes) -> bytes:
        there = self.child(path, body)
        self.real(there).rmdir()
        self.forget(there)
        return b""

    def rename(self, path: str, body: bytes) -> bytes:
        (folder,) = struct.unpack_from("<Q", body)
        before, after, _ = body[8:].split(b"\0", 2)
        old, new = self.child(path, before), self.child(self.paths[folder], after)
        self.real(old).rename(self.real(new))
        self.forget(new)
        for known in [known for known in self.ids if known == old or known.startswith(f"{old}/")]:
            node = self.ids.pop(known)
            moved = new + known[len(old) :]
            self.ids[moved], self.paths[node] = node, moved
        self.born[new] = time.monotonic()
        return b""

    # Attributes ----------------------------------------------------------------------------------------------------------

    def getattr(self, path: str, body: bytes) -> bytes:
        flags, _, handle = struct.unpack_from("<IIQ", body)
        if path:
            self.strike(path, writes=False)
        facts = os.fstat(handle) if flags & 1 else self.real(path).lstat()
        return struct.pack("<QII", 0, 0, 0) + attributes(facts)

    def setattr(self, path: str, body: bytes) -> bytes:
        self.strike(path, writes=True)
        valid, _, handle, size, _, atime, mtime, _ = struct.unpack_from("<IIQQQQQQ", body)
        atime_ns, mtime_ns, _, mode, _, uid, gid, _ = struct.unpack_from("<8I", body, 56)
        opened = bool(valid & SET_FH)
        there = Path(f"/proc/self/fd/{handle}") if opened else self.real(path)
        if valid & SET_SIZE:
            os.truncate(there, size)
        if valid & SET_MODE:
            there.chmod(stat.S_IMODE(mode))
        if valid & (SET_UID | SET_GID):
            os.chown(there, uid if valid & SET_UID else -1, gid if valid & SET_GID else -1, follow_symlinks=opened)
        if valid & (SET_ATIME | SET_MTIME):
            now, facts = time.time_ns(), there.stat(follow_symlinks=opened)
            atime_all = now if valid & SET_ATIME_NOW else atime * 10**9 + atime_ns if valid & SET_ATIME else facts.st_atime_ns
            mtime_all = now if valid & SET_MTIME_NOW else mtime * 10**9 + mtime_ns if valid & SET_MTIME else facts.st_mtime_ns
            os.utime(there, ns=(atime_all, mtime_all), follow_symlinks=opened)
        return struct.pack("<QII", 0, 0, 0) + attributes(there.stat(follow_symlinks=opened))

    def statfs(self, path: str, _body: bytes) -> bytes:
        found = os.statvfs(self.real(path))
        counts = (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
        return struct.pack("<5Q4I", *counts, found.f_bsize, found.f_namemax, found.f_frsize, 0) + bytes(24)

    # Files ---------------------------------------------------------------------------------------------------------------

    def open(self, path: str, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        self.strike(path, writes=bool(flags & os.O_ACCMODE))
        return struct.pack("<QII", os.open(self.real(path), plain(flags)), DIRECT_IO, 0)

    def create(self, path: str, body: bytes) -> bytes:
        flags, mode = struct.unpack_from("<II", body)
        there = self.child(path, body[16:])
        handle = os.open(self.real(there), plain(flags) | os.O_CREAT, mode & 0o7777)
        return self.entry(there, new=True) + struct.pack("<QII", handle, DIRECT_IO, 0)

    def read(self, path: str, body: bytes) -> bytes:
        self.strike(path, writes=False)
        handle, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(handle, size, offset)

    def write(self, path: str, body: bytes) -> bytes:
        self.strike(path, writes=True)
        handle, offset, size = struct.unpack_from("<QQI", body)
        return struct.pack("<II", os.pwrite(handle, body[40 : 40 + size], offset), 0)

    def fsync(self, path: str, body: bytes) -> bytes:
        self.strike(path, writes=True)
        (handle,) = struct.unpack_from("<Q", body)
        if handle:
            os.fsync(handle)
        return b""

    def flush(self, _path: str, _body: bytes) -> bytes:
        return b""

    def release(self, _path: str, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def opendir(self, path: str, _body: bytes) -> bytes:
        self.strike(path, writes=False)
        return struct.pack("<QII", 0, 0, 0)

    def readdir(self, path: str, body: bytes) -> bytes:
        """Names in their order; a name's place is its offset."""
        self.strike(path, writes=False)
        _, offset, size = struct.unpack_from("<QQI", body)
        found = b""
        for number, name in enumerate(sorted(one.name for one in self.real(path).iterdir())):
            there = f"{path}/{name}" if path else name
            if number < offset or any("late_s" in rule and self.late(there, rule) for rule in self.rules):
                continue
            raw = os.fsencode(name)
            kind = self.real(there).lstat().st_mode >> 12
            one = struct.pack("<QQII", number + 2, number + 1, len(raw), kind) + raw
            one += bytes(-len(one) % 8)
            if len(found) + len(one) > size:
                break
            found += one
        return found

    def releasedir(self, _path: str, _body: bytes) -> bytes:
        return b""

    def init(self, _path: str, body: bytes) -> bytes:
        big_writes = 1 << 5
        ahead, _ = struct.unpack_from("<II", body, 8)
        return struct.pack("<IIIIHHIIHHI", 7, 31, ahead, big_writes, 0, 0, LIMIT, 1, 0, 0, 0) + bytes(28)


def attributes(facts: os.stat_result) -> bytes:
    """As the kernel wants them."""
    times = (facts.st_atime_ns, facts.st_mtime_ns, facts.st_ctime_ns)
    return struct.pack(
        "<6Q10I",
        facts.st_ino,
        facts.st_size,
        facts.st_blocks,
        *(t // 10**9 for t in times),
        *(t % 10**9 for t in times),
        facts.st_mode,
        facts.st_nlink,
        facts.st_uid,
        facts.st_gid,
        facts.st_rdev,
        4096,
        0,
    )


def plain(flags: int) -> int:
    """Flags for a handle that is read and written at offsets."""
    return (flags & (os.O_ACCMODE | os.O_TRUNC | os.O_EXCL)) | os.O_CLOEXEC


if __name__ == "__main__":
    SickDisk(Path(sys.argv[1]), Path(sys.argv[2])).serve(int(sys.argv[3]))
