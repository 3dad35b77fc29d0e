"""Which checkpoint an attempt resumes from: the newest entry of the directory that is whole by its own kind's rules. Only reads.

Newest: by the step in the name (where the pattern says `{step}`, else behind the word `step`, else the last number), and entries without a
number come after those, by their time. Whole: a zip (torch.save) whose directory, written last, is there and fits the file; a
torch.distributed.checkpoint directory with its `.metadata`; a directory in which `complete` finds something. Of anything else nobody
can say whether it is whole: it counts once a newer one exists. Nothing is ever unpickled.
"""

from __future__ import annotations

import re
import zipfile
from enum import Enum
from pathlib import Path

import msgspec

from ftsup.errors import Damaged

_TEMPORARY = re.compile(r"(^\.)|\.(tmp|temp|part|partial)(\.|$)", re.IGNORECASE)
_AFTER_STEP = re.compile(r"step[-_=]?(\d+)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(\d+)(?!.*\d)")
_TELL = 3


class Picked(msgspec.Struct, frozen=True, kw_only=True):
    """What to resume from; None: the beginning. `why` says it, and what was passed over."""

    path: str | None
    step: int | None = None
    why: str


class _Whole(Enum):
    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class _Entry(msgspec.Struct, frozen=True):
    path: Path
    name: str
    step: int | None
    time_ns: int


def pick(folder: Path, *, pattern: str = "*", complete: str = "") -> Picked:
    """The newest whole checkpoint. Damaged when there are several and none is whole; OSError when the disk says no."""
    entries = _entries(folder, pattern)
    passed: list[str] = []
    torn = 0
    for index, entry in enumerate(entries):
        whole, why = _look(entry.path, complete)
        if whole is _Whole.UNKNOWN and index > 0:
            whole, why = _Whole.YES, "a newer one exists"
        if whole is _Whole.YES:
            step = f"step {entry.step}" if entry.step is not None else "the newest by its time"
            return Picked(path=str(entry.path), step=entry.step, why=f"{entry.name}: {step}, {why}" + _tell(passed))
        passed.append(f"{entry.name}: {why}")
        torn += whole is _Whole.NO
    if torn > 1:
        raise Damaged(
            f"none of the {len(entries)} checkpoints in {folder} is whole{_tell(passed)}", hint="move them away to start from the beginning"
        )
    where = f"{folder} has no checkpoint that matches {pattern}" if not entries else f"no checkpoint in {folder} can be used"
    return Picked(path=None, why=f"{where}: from the beginning" + _tell(passed))


def _entries(folder: Path, pattern: str) -> list[_Entry]:
    """What matches, newest first."""
    shape = _regex(pattern)
    found = []
    for path in folder.glob(pattern.replace("{step}", "*")):
        name = path.relative_to(folder).as_posix()
        match = shape.fullmatch(name)
        if match and not any(_TEMPORARY.search(part) for part in name.split("/")):
            found.append(_Entry(path, name, _step(match, name), path.stat().st_mtime_ns))
    return sorted(found, key=lambda entry: (entry.step is not None, entry.step or 0, entry.time_ns), reverse=True)


def _step(match: re.Match[str], name: str) -> int | None:
    if "step" in match.re.groupindex:
        return int(match["step"])
    number = _AFTER_STEP.search(name) or _LAST_NUMBER.search(name.rpartition(".")[0] or name)
    return int(number[1]) if number else None


def _regex(pattern: str) -> re.Pattern[str]:
    """The glob with `{step}` as a number."""
    head, placeholder, tail = pattern.partition("{step}")
    return re.compile(_glob(head) + (r"(?P<step>\d+)" if placeholder else "") + _glob(tail.replace("{step}", "*")))


def _glob(text: str) -> str:
    out = []
    for part in re.split(r"(\*\*/?|\*|\?|\[[^]]+\])", text):
        if part.startswith("**"):
            out.append(".*")
        elif part.startswith("[") and part.endswith("]"):
            out.append("[^" + part[2:] if part[1] == "!" else part)
        else:
            out.append({"*": "[^/]*", "?": "[^/]"}.get(part, re.escape(part)))
    return "".join(out)


def _look(path: Path, complete: str) -> tuple[_Whole, str]:
    """Whether it is whole, and how one knows."""
    if path.is_dir():
        if complete:
            there = any(path.glob(complete))
            return (_Whole.YES, f"has {complete}") if there else (_Whole.NO, f"has no {complete}")
        if (path / ".metadata").is_file():
            return _Whole.YES, "its .metadata is there"
        return _Whole.UNKNOWN, "a directory in which nothing says that it is whole (checkpoint.complete could)"
    with path.open("rb") as file:
        begin = file.read(4)
    if not begin:
        return _Whole.NO, "empty"
    if begin != b"PK\x03\x04":
        return _Whole.UNKNOWN, "a file of a kind that cannot say whether it is whole"
    return _look_at_zip(path)


def _look_at_zip(path: Path) -> tuple[_Whole, str]:
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
            begins = min((part.header_offset for part in parts), default=-1)
            ends = max((part.header_offset + part.compress_size for part in parts), default=0)
            fits = begins == 0 and ends <= archive.start_dir
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        return _Whole.NO, f"torn ({error})"
    return (_Whole.YES, "its directory is whole") if fits else (_Whole.NO, "torn (its parts do not fit its directory)")


def _tell(passed: list[str]) -> str:
    if not passed:
        return ""
    more = f"; and {len(passed) - _TELL} more" if len(passed) > _TELL else ""
    return f"; passed over: {'; '.join(passed[:_TELL])}{more}"
