"""Asks the disk of one directory, in a process of its own: a dead NFS server hangs whoever asks. Prints JSON.

python -m ftsup.cli.doctordisk runs_dir /home/me/ftsup-runs
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from ftsup.report.doctorfacts import Disk


def ask(key: str, path: Path) -> Disk:
    """What the nearest directory above, or the directory itself, says."""
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    facts = os.statvfs(there)
    fstype, source, mount = mounted(there, Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace"))
    return Disk(
        key=key,
        path=str(path),
        there=str(there),
        fstype=fstype,
        source=source,
        mount=mount,
        free_bytes=facts.f_bavail * facts.f_frsize,
        total_bytes=facts.f_blocks * facts.f_frsize,
        free_inodes=facts.f_favail,
        inodes=facts.f_files,
        writable=there.is_dir() and os.access(there, os.W_OK | os.X_OK),
    )


def mounted(path: Path, mountinfo: str) -> tuple[str, str, str]:
    """Kind, source and mount point of the file system that a path is on; the last of those mounted at one place is on top."""
    real, best = Path(os.path.realpath(path)), ("", "", "")
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        words, kind = before.split(), after.split()
        if len(words) > 4 and len(kind) > 1:  # noqa: PLR2004 - the fifth word is the mount point
            at = _plain(words[4])
            if real.is_relative_to(at) and len(at) >= len(best[2]):
                best = (kind[0], _plain(kind[1]), at)
    return best


def _plain(word: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(code, char)
    return word


if __name__ == "__main__":
    try:
        answer = ask(sys.argv[1], Path(sys.argv[2]))
    except OSError as error:
        answer = Disk(key=sys.argv[1], path=sys.argv[2], silence=f"cannot be looked at: {error.strerror}")
    sys.stdout.write(msgspec.json.encode(answer).decode())
