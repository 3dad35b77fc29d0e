"""Plain users for a cluster that root starts: `alice`, whose jobs they are, `mallory`, who shares the machine, and `bob`, his victim.

They exist only in the cluster's own mount namespace, where /etc/passwd names them and folders that only root may enter (root's
home, with an interpreter in it) are opened as far as our own files go. The machine itself stays as it was.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

ALICE, MALLORY, BOB = "alice", "mallory", "bob"
UIDS = {ALICE: 20001, MALLORY: 20002, BOB: 20003}
CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 0x1000, 0x4000, 1 << 18, 2
REPOSITORY = Path(__file__).parents[2]


def enter(folder: Path) -> bool:
    """Go, for good, into a mount namespace where the users exist. False: not possible here (no root, or not allowed)."""
    if os.geteuid() != 0:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or _mount(libc, "none", Path("/"), flags=MS_REC | MS_PRIVATE):
        return False
    for name in ("passwd", "group"):
        lines = Path("/etc", name).read_text()
        for user, uid in UIDS.items():
            home = _home(folder, user)
            lines += f"{user}:x:{uid}:{uid}::{home}:/bin/bash\n" if name == "passwd" else f"{user}:x:{uid}:\n"
        (folder / name).write_text(lines)
        _must(_mount(libc, str(folder / name), Path("/etc", name), flags=MS_BIND), f"/etc/{name}")
    for user, uid in UIDS.items():
        _home(folder, user).mkdir()
        os.chown(_home(folder, user), uid, uid)
    _open_up(libc, folder / "stash")
    _open_devices(libc, folder)
    return True


def leave(folder: Path) -> None:
    """What is mounted below the folder goes, so that removing it removes nothing else."""
    libc = ctypes.CDLL(None, use_errno=True)
    for path in (folder / "stash").glob("*"):
        libc.umount2(os.fsencode(path), MNT_DETACH)


def argv(argv: Sequence[str], *, cwd: Path, user: str, keeper: int, folder: Path) -> list[str]:
    """The command that runs `argv` as this user in the namespace of this process; for root."""
    uid = UIDS[user]
    who = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all"]
    home = [f"HOME={_home(folder, user)}", f"USER={user}", f"LOGNAME={user}"]
    return ["nsenter", f"--mount=/proc/{keeper}/ns/mnt", *who, "env", f"--chdir={cwd}", *home, *argv]


def _home(folder: Path, user: str) -> Path:
    return folder / f"home-{user}"


def _open_up(libc: ctypes.CDLL, stash: Path) -> None:
    """Where a folder above our files is closed to others, an open one takes its place that shows nothing but those files."""
    wanted = {Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), REPOSITORY.resolve()}
    closed: dict[Path, list[Path]] = {}
    for path in sorted(wanted):
        for above in reversed(path.parents):
            if not above.stat().st_mode & stat.S_IXOTH:
                closed.setdefault(above, []).append(path)
                break
    for n, (above, paths) in enumerate(closed.items()):
        kept = [stash / f"{n}-{m}" for m in range(len(paths))]
        for path, place in zip(paths, kept, strict=True):
            place.mkdir(parents=True)
            _must(_mount(libc, str(path), place, flags=MS_BIND | MS_REC), str(path))
        _must(_mount(libc, "tmpfs", above, kind="tmpfs", data="mode=755"), str(above))
        for path, place in zip(paths, kept, strict=True):
            path.mkdir(parents=True, exist_ok=True)
            _must(_mount(libc, str(place), path, flags=MS_BIND | MS_REC), str(path))


def _open_devices(libc: ctypes.CDLL, folder: Path) -> None:
    """Some machines keep even /dev/null to root; no batch job starts there."""
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        device, ours = Path("/dev", name), folder / f"dev-{name}"
        if device.stat().st_mode & 0o006 != 0o006:
            os.mknod(ours, stat.S_IFCHR | 0o666, device.stat().st_rdev)
            ours.chmod(0o666)
            _must(_mount(libc, str(ours), device, flags=MS_BIND), str(device))


def _mount(libc: ctypes.CDLL, source: str, target: Path, *, kind: str = "", flags: int = 0, data: str = "") -> int:
    return int(libc.mount(source.encode(), os.fsencode(target), kind.encode() or None, flags, data.encode() or None))


def _must(failed: int, what: str) -> None:
    if failed:
        raise OSError(ctypes.get_errno(), f"mount: {what}")
