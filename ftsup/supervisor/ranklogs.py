"""What ranks print, brought from a node's local disk into one file a node and attempt in the run directory. Runs in the clerk.

    RUN/logs/<epoch>/<node>.log             the head: the first 16 MiB
    RUN/logs/<epoch>/<node>.log.tail.old    the tail: the last 24 to 48 MiB, in two parts
    RUN/logs/<epoch>/<node>.log.tail

Each line carries who printed it: `[rank 3] ...` (NCCL's warnings, which have a file of their own, too), `[torchrun] ...`. How far it
is, is remembered on the local disk, so that another clerk goes on without a repetition. What was brought over is given back to the
local disk by punching a hole.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import msgspec

from ftsup.supervisor.files import make_folder, mode_below, write_all

MIB = 1 << 20
_STATE = ".brought.json"
_PIECE = MIB // 4
"""Bytes of one file a round: all files get their turn."""
_LINE_CAP = 64 * 1024
_EVIDENCE = 256 * 1024
"""Bytes that stay readable behind the place that was reached: an incident wants the last lines."""
_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """How much is kept."""

    head_bytes: int = 16 * MIB
    tail_bytes: int = 24 * MIB
    """Of each of the two parts."""
    local_bytes: int = 64 * MIB
    """Of one rank, waiting for a run directory that does not take it."""


class _State(msgspec.Struct):
    offsets: dict[str, int] = msgspec.field(default_factory=dict)
    part: str = ""
    """The file that grows: "" the head, ".tail" the tail."""
    size: int = 0
    """Of that file, by our own count: what is behind it was written without being remembered."""


def bring(out: Path, target: Path, *, final: bool = False, caps: Caps | None = None) -> bool:
    """Bring a bounded amount over; whether there is more. `final`: unfinished last lines count as lines."""
    caps = caps or Caps()
    state = _load(out)
    before = dict(state.offsets)
    text, more = [], False
    for path in sorted(out.iterdir(), key=_order):
        name = _speaker(path.name)
        if name is not None:
            lines, left = _read(path, name, state, final=final, caps=caps)
            text.append(lines)
            more = more or left
    try:
        _write(target, b"".join(text), state, caps)
    except OSError:
        state.offsets = before
        _save(out, state)
        _give_back(out, {name: (out / name).stat().st_size - caps.local_bytes for name in before})
        raise
    _save(out, state)
    _give_back(out, state.offsets)
    return more


def _speaker(name: str) -> str | None:
    stem, _, rest = name.partition(".")
    if stem in {"out", "nccl"} and rest.isdecimal():
        return f"[rank {rest}] "
    return "[torchrun] " if stem == "torchrun" else None


def _order(path: Path) -> tuple[int, str]:
    rest = path.name.partition(".")[2]
    return (int(rest) if rest.isdecimal() else -1, path.name)


def _read(path: Path, name: str, state: _State, *, final: bool, caps: Caps) -> tuple[bytes, bool]:
    """The next lines of one file with their speaker; whether more of it waits."""
    offset = state.offsets.get(path.name, 0)
    prefix = name.encode()
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        skipped = max(0, size - offset - caps.local_bytes)
        if offset > size:  # replaced by somebody: from its start
            offset = 0
        file.seek(offset + skipped)
        data = file.read(_PIECE)
    end = data.rfind(b"\n") + 1
    if (end == 0 and (final or len(data) >= _LINE_CAP)) or (final and offset + skipped + len(data) >= size):
        end = len(data)
    state.offsets[path.name] = offset + skipped + end
    said = [prefix + b"... %d bytes left out: the run directory did not take them in time ...\n" % skipped] if skipped else []
    said += [prefix + _plain(line) + b"\n" for line in data[:end].removesuffix(b"\n").split(b"\n")] if end else []
    return b"".join(said), end > 0 and offset + skipped + end < size


def _plain(line: bytes) -> bytes:
    """A line as a terminal would leave it: of a progress bar, its last state."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].replace(b"\0", b"")


def _write(target: Path, data: bytes, state: _State, caps: Caps) -> None:
    """Append to the part that grows; `state` says how far it came, also after an OSError."""
    if data:
        make_folder(target.parent)
    while data:
        cap = caps.tail_bytes if state.part else caps.head_bytes
        room = data[: max(0, cap - state.size)]
        piece = data if len(room) == len(data) else room[: room.rfind(b"\n") + 1]
        if not piece and state.size == 0:  # one line is more than a part takes
            piece = data[: data.find(b"\n") + 1] or data
        if piece:
            fits = piece if len(piece) <= cap else piece[: cap - 1] + b"\n"
            state.size = _append(_part(target, state.part), fits, at=state.size)
        data = data[len(piece) :]
        if data:
            _turn(target, state)


def _turn(target: Path, state: _State) -> None:
    """The part is full: begin the tail, or its other half."""
    if state.part:
        _part(target, ".tail").replace(_part(target, ".tail.old"))
    state.part, state.size = ".tail", 0


def _append(path: Path, data: bytes, *, at: int) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode_below(path.parent))
    try:
        os.ftruncate(fd, at)
        os.lseek(fd, at, os.SEEK_SET)
        write_all(fd, data)
        return at + len(data)
    finally:
        os.close(fd)  # a network disk says here that it is full


def _part(target: Path, part: str) -> Path:
    return target.with_name(target.name + part)


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
