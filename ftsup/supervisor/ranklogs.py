"""What ranks print, brought from a node's local disk into one file a node and attempt in the run directory. Runs in the clerk.

    RUN/logs/<epoch>/<node>.log         the head: the first 16 MiB
    RUN/logs/<epoch>/<node>.log.<n>     parts of 24 MiB, counted from 1; the newest two are kept

Each line carries who printed it: `[rank 3] ...` (NCCL's warnings, which have a file of their own, too), `[torchrun] ...`. How far it
is, is remembered on the local disk, so that another clerk goes on without a repetition. What was brought over is given back to the
local disk by punching a hole.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import msgspec

from ftsup.eventlog import write_all
from ftsup.rundir import rank_log_part
from ftsup.supervisor.files import make_folder, mode_below

MIB = 1 << 20
_STATE = ".brought.json"
_PIECE = MIB // 4
"""Bytes of one file a round: all files get their turn."""
_LINE_CAP = 64 * 1024
_EVIDENCE = 256 * 1024
"""Bytes that stay readable behind the place that was reached: an incident wants the last lines."""
_TAILS = 2
"""Parts of the tail that are kept."""
_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """How much is kept."""

    head_bytes: int = 16 * MIB
    tail_bytes: int = 24 * MIB
    """Of each part of the tail."""
    local_bytes: int = 64 * MIB
    """Of one rank, waiting for a run directory that does not take it."""


class _State(msgspec.Struct):
    offsets: dict[str, int] = msgspec.field(default_factory=dict)
    part: int = 0
    """The file that grows: 0 the head, then one of the tail's."""
    size: int = 0
    """Of that file, by our own count: what is behind it was written without being remembered."""
    planned: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """The round under way: from where to where of each file. Whoever does it again writes the same bytes to the same place."""


def bring(out: Path, target: Path, *, final: bool = False, caps: Caps | None = None) -> bool:
    """Bring a bounded amount over; whether there is more. `final`: unfinished last lines count as lines."""
    caps = caps or Caps()
    state = _load(out)
    more = bool(state.planned)
    if not _possible(out, state.planned, caps):
        state.planned, more = _plan(out, state, final=final, caps=caps)
        if not state.planned:
            return False
        _save(out, state)
    try:
        text = b"".join(_lines(out / name, state.offsets.get(name, 0), *place) for name, place in state.planned.items())
        part, size = _write(target, text, state, caps)
    except OSError:
        _give_back(out, {path.name: path.stat().st_size - caps.local_bytes for path in _files(out)})
        raise
    offsets = state.offsets | {name: end for name, (_, end) in state.planned.items()}
    _save(out, _State(offsets=offsets, part=part, size=size))
    _give_back(out, offsets)
    return more


def _files(out: Path) -> list[Path]:
    """What has a speaker: torchrun first, then the ranks by their numbers."""
    return sorted((path for path in out.iterdir() if _speaker(path.name) is not None), key=_order)


def _possible(out: Path, planned: dict[str, tuple[int, int]], caps: Caps) -> bool:
    """Whether there is a plan, and all of what it wants to bring is still there."""
    sizes = {name: (out / name).stat().st_size if (out / name).exists() else 0 for name in planned}
    return bool(planned) and all(begin >= sizes[name] - caps.local_bytes and end <= sizes[name] for name, (begin, end) in planned.items())


def _speaker(name: str) -> str | None:
    stem, _, rest = name.partition(".")
    if stem in {"out", "nccl"} and rest.isdecimal():
        return f"[rank {rest}] "
    return "[torchrun] " if stem == "torchrun" else None


def _order(path: Path) -> tuple[int, str]:
    rest = path.name.partition(".")[2]
    return (int(rest) if rest.isdecimal() else -1, path.name)


def _plan(out: Path, state: _State, *, final: bool, caps: Caps) -> tuple[dict[str, tuple[int, int]], bool]:
    """What comes next of each file, and whether more waits behind that."""
    planned, more = {}, False
    for path in _files(out):
        offset = state.offsets.get(path.name, 0)
        begin, end, size = _next(path, offset, final=final, caps=caps)
        if end > begin or begin > offset:
            planned[path.name] = (begin, end)
            more = more or end < size
    return planned, more


def _next(path: Path, offset: int, *, final: bool, caps: Caps) -> tuple[int, int, int]:
    """The next lines of one file: where they begin and end; and how long it is."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if offset > size:  # replaced by somebody: from its start
            offset = 0
        begin = max(offset, size - caps.local_bytes)
        file.seek(begin)
        data = file.read(_PIECE)
    end = data.rfind(b"\n") + 1
    if (end == 0 and (final or len(data) >= _LINE_CAP)) or (final and begin + len(data) >= size):
        end = len(data)
    return begin, begin + end, size


def _lines(path: Path, offset: int, begin: int, end: int) -> bytes:
    """Lines of one file with their speaker; what was passed over before them is said."""
    prefix = (_speaker(path.name) or "").encode()
    with path.open("rb") as file:
        file.seek(begin)
        data = file.read(end - begin)
    said = (
        [prefix + b"... %d bytes left out: the run directory did not take them in time ...\n" % (begin - offset)] if begin > offset else []
    )
    said += [prefix + _plain(line) + b"\n" for line in data.removesuffix(b"\n").split(b"\n")] if data else []
    return b"".join(said)


def _plain(line: bytes) -> bytes:
    """A line as a terminal would leave it: of a progress bar, its last state."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].replace(b"\0", b"")


def _write(target: Path, data: bytes, state: _State, caps: Caps) -> tuple[int, int]:
    """Append to the part that grows; which one that is then, and its size."""
    make_folder(target.parent)
    part, size = state.part, state.size
    while data:
        cap = caps.tail_bytes if part else caps.head_bytes
        room = data[: max(0, cap - size)]
        piece = data if len(room) == len(data) else room[: room.rfind(b"\n") + 1]
        if not piece and size == 0:  # one line is more than a part takes
            piece = data[: data.find(b"\n") + 1] or data
        if piece:
            fits = piece if len(piece) <= cap else piece[: cap - 1] + b"\n"
            size = _put(rank_log_part(target, part), fits, at=size)
        data = data[len(piece) :]
        if data:  # the part is full
            part, size = part + 1, 0
            if part > _TAILS:
                rank_log_part(target, part - _TAILS).unlink(missing_ok=True)
    return part, size


def _put(path: Path, data: bytes, *, at: int) -> int:
    """Write data at its place, and nothing behind it; where it ends."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode_below(path.parent))
    try:
        os.lseek(fd, at, os.SEEK_SET)
        write_all(fd, data)
        if os.fstat(fd).st_size > at + len(data):
            os.ftruncate(fd, at + len(data))
        return at + len(data)
    finally:
        os.close(fd)  # a network disk says here that it is full


def _load(out: Path) -> _State:
    try:
        return msgspec.json.decode((out / _STATE).read_bytes(), type=_State)
    except (OSError, msgspec.DecodeError):
        return _State()


def _save(out: Path, state: _State) -> None:
    aside = out / f"{_STATE}.tmp"
    aside.write_bytes(msgspec.json.encode(state))
    aside.replace(out / _STATE)


def _give_back(out: Path, offsets: dict[str, int]) -> None:
    """Free the blocks of what was brought over. A file system that cannot do it keeps them: no harm."""
    for name, offset in offsets.items():
        length = (offset - _EVIDENCE) // 4096 * 4096
        if length > 0:
            fd = os.open(out / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                libc.fallocate(fd, _KEEP_SIZE_PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(length))
            finally:
                os.close(fd)
