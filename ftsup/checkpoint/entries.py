"""Which entries of a directory are checkpoints, and in which order: the newest first.

By the step (in the name where the pattern says `{step}`, else behind the word `step`, else the last number; else the manifest's), then by
the manifest's epoch; never by a time where a step is known. Entries without a step come after those with one, by their time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from ftsup.checkpoint.disk import read_small
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.manifest import Manifest, decode
from ftsup.errors import CheckpointError
from ftsup.events import Epoch
from ftsup.ports import Disk, What

_TEMPORARY = re.compile(r"(^\.)|\.(tmp|temp|part|partial)(\.|$)", re.IGNORECASE)
_AFTER_STEP = re.compile(r"step[-_=]?(\d+)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d+)(?!.*\d)")
_NO_EPOCH = Epoch(0, 0)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint, whole or not."""

    name: str
    """Below the directory."""
    step: int | None = None
    epoch: Epoch = _NO_EPOCH
    time_ns: int = 0
    """Only looked at where no step is known."""
    rolling: bool = False
    """The name holds no step: such a checkpoint may be written again and again."""


def entries(disk: Disk, home: Home, *, pattern: str) -> list[Entry]:
    """All that match, newest first; temporary names are none."""
    shape = _regex(pattern)
    found = []
    for name in _glob(disk, home, pattern):
        match = shape.fullmatch(name)
        if match and not is_temporary(name):
            step = _step(match, name)
            found.append(Entry(name=name, step=step, rolling=step is None))
    steps = Counter(entry.step for entry in found)
    found = [_ask_manifest(disk, home, entry) if entry.step is None or steps[entry.step] > 1 else entry for entry in found]
    return sorted(found, key=lambda entry: (entry.step is not None, entry.step or 0, entry.epoch, entry.time_ns, entry.name), reverse=True)


def step_in(name: str, *, pattern: str) -> int | None:
    """What the name alone says; None: nothing, or it does not match."""
    match = _regex(pattern).fullmatch(name)
    return _step(match, name) if match else None


def is_temporary(name: str) -> bool:
    """Hidden, or the name that a file has while it is written."""
    return any(_TEMPORARY.search(part) for part in name.split("/"))


def sayable(text: str) -> str:
    """The text as UTF-8 can hold it; a name that is another then has no place in a manifest, and is no checkpoint."""
    return text.encode("utf-8", "replace").decode()


def manifest_of(disk: Disk, home: Home, name: str) -> Manifest | None:
    """A checkpoint's manifest; None: it has none. Damaged or Newer when it cannot be read."""
    data = read_small(disk, home.manifest(name))
    return None if data is None else decode(data)


def _ask_manifest(disk: Disk, home: Home, entry: Entry) -> Entry:
    """What the name does not say."""
    try:
        manifest = manifest_of(disk, home, entry.name)
    except CheckpointError:
        manifest = None
    facts = disk.look(home.checkpoint(entry.name))
    step = entry.step if entry.step is not None or manifest is None else manifest.step
    epoch = (manifest and manifest.epoch) or _NO_EPOCH
    time_ns = facts.mtime_ns if facts and step is None else 0
    return Entry(name=entry.name, step=step, epoch=epoch, time_ns=time_ns, rolling=entry.rolling)


def _glob(disk: Disk, home: Home, pattern: str) -> Iterator[str]:
    """Every name below the directory that the pattern could mean; hidden folders are left alone."""
    parts = pattern.split("/")
    return _names(disk, home, "", None if "**" in pattern else [_regex(part) for part in parts])


def _names(disk: Disk, home: Home, prefix: str, parts: list[re.Pattern[str]] | None) -> Iterator[str]:
    """`parts`: what each level has to look like; None: anything, to the bottom."""
    try:
        names = disk.names(home.folder / prefix)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name, what in names.items():
        if sayable(name) != name:
            continue
        fits = parts is None or parts[0].fullmatch(name)
        if fits and (parts is None or len(parts) == 1):
            yield prefix + name
        if fits and what is What.FOLDER and not name.startswith(".") and (parts is None or len(parts) > 1):
            yield from _names(disk, home, f"{prefix}{name}/", parts and parts[1:])


def _step(match: re.Match[str], name: str) -> int | None:
    if "step" in match.re.groupindex:
        return int(match["step"])
    number = _AFTER_STEP.search(name) or _LAST_NUMBER.search(name.rpartition(".")[0] or name)
    return int(number[1]) if number else None


def _regex(pattern: str) -> re.Pattern[str]:
    """The glob with `{step}` as a number."""
    head, placeholder, tail = pattern.partition("{step}")
    return re.compile(_expression(head) + (r"(?P<step>\d+)" if placeholder else "") + _expression(tail.replace("{step}", "*")))


def _expression(text: str) -> str:
    out = []
    for part in re.split(r"(\*\*/?|\*|\?|\[[^]]+\])", text):
        if part.startswith("**"):
            out.append(".*")
        elif part.startswith("[") and part.endswith("]"):
            out.append("[^" + part[2:] if part[1] == "!" else part)
        else:
            out.append({"*": "[^/]*", "?": "[^/]"}.get(part, re.escape(part)))
    return "".join(out)
