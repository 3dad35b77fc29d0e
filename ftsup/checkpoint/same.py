"""Whether two machines see the same files of a checkpoint: a shared disk may show one of them what another wrote only later.

Names and sizes, not bytes: every node can afford that before a launch.
"""

from __future__ import annotations

from pathlib import Path

import xxhash

from ftsup.checkpoint.disk import files_below
from ftsup.checkpoint.entries import manifest_of
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.verify import glance
from ftsup.errors import CheckpointError
from ftsup.events import Files
from ftsup.ports import Disk


def files_of(disk: Disk, path: Path) -> Files:
    """What is seen there now."""
    found = files_below(disk, path)
    sums = xxhash.xxh3_128()
    for name, facts in sorted(found.items()):
        sums.update(f"{name}\0{facts.size_bytes}\n".encode(errors="surrogateescape"))
    return Files(count=len(found), size_bytes=sum(facts.size_bytes for facts in found.values()), digest=sums.hexdigest())


def difference(disk: Disk, folder: Path, name: str, expected: Files) -> str:
    """What is seen otherwise here, with a file of which the manifest knows better; empty: all is as where it was picked."""
    home = Home(folder)
    path = home.checkpoint(name)
    here = files_of(disk, path)
    if here == expected:
        return ""
    seen = f"{_files(here)} here, {_files(expected)} where it was picked"
    try:
        manifest = manifest_of(disk, home, name)
    except CheckpointError:
        manifest = None
    damages = glance(disk, path, manifest) if manifest else ()
    return f"{path}: {seen}" + (f" ({damages[0]})" if damages else "")


def _files(files: Files) -> str:
    return f"{files.count} file{'' if files.count == 1 else 's'} with {files.size_bytes} bytes"
