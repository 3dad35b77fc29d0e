"""What an attempt's files newly say of errors: its ranks' output and torchrun's, NCCL's debug files, torchelastic's error files.

A file that did not grow costs one stat. Whatever lies there (torn, endless or binary lines, a hole, a fifo, a link, a file that was
replaced, cut or locked) does no harm and blocks nobody. Which messages there are is `signatures`' affair, what follows the policy's.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ftsup.events import Fault
from ftsup.monitors import faults
from ftsup.monitors.signatures import LINES, Signature, find
from ftsup.policy.reports import Acts, Report
from ftsup.worker import places

READ_CAP = 256 * 1024
"""Bytes of one file a look: of what was written faster, the end counts."""
REST_CAP = 64 * 1024
TEXT_CAP = 500
_BEFORE, _AFTER = 1024, 3072
"""What is looked at of a longer line, around what was found in it."""
_NEEDLES = tuple(dict.fromkeys(row.needle.encode() for row in LINES))
_PLACES = {row.name: place for place, row in enumerate(LINES)}
_ENDS = re.compile(rb"[\r\n]+")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


class Follower:
    """One file that grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self._inode = 0
        self._rest = b""
        self._refused = -1
        """Its size when it could not be read."""

    def read(self, *, final: bool = False) -> bytes:
        """The lines that were written since the last time, as far as they are whole (`final`: all of it). Blocks on nothing."""
        try:
            now = self.path.stat(follow_symlinks=False)
        except OSError:
            return b""
        if not stat.S_ISREG(now.st_mode) or now.st_size == self._refused:
            return b""
        if now.st_ino != self._inode or now.st_size < self.offset:
            self._inode, self.offset, self._rest = now.st_ino, 0, b""
        if now.st_size == self.offset:
            return self._whole(b"") if final else b""
        skipped = now.st_size - self.offset > READ_CAP
        if skipped:
            self.offset, self._rest = now.st_size - READ_CAP, b""
        try:
            data = self._bytes()
        except OSError:
            self._refused = now.st_size
            return b""
        self.offset += len(data)
        if skipped:  # the rest of a line whose beginning nobody knows
            data = data[data.find(b"\n") + 1 :]
        return self._whole(data) if final else self._lines(data)

    def _bytes(self) -> bytes:
        fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            return os.pread(fd, READ_CAP, self.offset)
        finally:
            os.close(fd)

    def _lines(self, data: bytes) -> bytes:
        data = self._rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > REST_CAP:
            end = len(data)
        self._rest = data[end:]
        return data[:end]

    def _whole(self, data: bytes) -> bytes:
        data, self._rest = self._rest + data, b""
        return data


class ErrorFiles:
    """All files of one attempt on one node."""

    def __init__(self, out: Path, *, node: str, ranks: tuple[int, ...]) -> None:
        self.node, self.ranks = node, ranks
        own = [(Follower(path(out, rank)), rank) for rank in ranks for path in (places.out_path, places.nccl_path)]
        shared = [(Follower(out / name), None) for name in ("torchrun.err", "torchrun.out")]
        self._logs: list[tuple[Follower, int | None]] = [*own, *shared]
        self._elastic = out / "torchelastic"
        self._errors: dict[Path, int] = {}
        """Where torchelastic's error files will be, and of which rank, once it has made the folders."""
        self._told: set[int] = set()

    def look(self, *, final: bool = False) -> tuple[Report, ...]:
        """What is new, the last of each kind and rank, in the order of the table. `final`: nobody writes any more."""
        found: dict[tuple[int | None, str], Report] = {}
        for follower, rank in self._logs:
            for report in self._reports(follower.read(final=final), rank):
                found[report.fault.rank, report.name] = report
        for report in self._elastic_reports():
            found[report.fault.rank, report.name] = report
        return tuple(sorted(found.values(), key=lambda report: _PLACES.get(report.name, len(_PLACES))))

    def _reports(self, data: bytes, rank: int | None) -> Iterator[Report]:
        if not data or not any(needle in data for needle in _NEEDLES):
            return
        for line in _ENDS.split(data.replace(b"\0", b"")):
            at = next((at for needle in _NEEDLES if (at := line.find(needle)) >= 0), -1)
            if at < 0:
                continue
            text = line[max(at - _BEFORE, 0) : at + _AFTER].decode(errors="replace")
            matched = find(LINES, text)
            if matched and (report := self._report(*matched, text, rank)):
                yield report

    def _report(self, row: Signature, said: dict[str, str], text: str, rank: int | None) -> Report | None:
        speaker = int(said["rank"]) if said.get("rank") else rank
        if speaker not in {rank, *(self.ranks if rank is None else ())}:
            return None  # a rank that quotes another
        fault = Fault(
            how=row.how,
            node=self.node,
            rank=speaker,
            kind=row.kind,
            error=row.says.format(**said)[:TEXT_CAP],
            line=text.strip()[:TEXT_CAP],
            alive=True,
            quiet_s=int(said.get("quiet_ms") or 0) / 1000,
            limit_s=int(said.get("limit_ms") or 0) / 1000,
        )
        return Report(fault=fault, acts=row.acts, name=row.name)

    # torchelastic ---------------------------------------------------------------------------------------------------------

    def _elastic_reports(self) -> Iterator[Report]:
        if not self._errors and self._elastic.is_dir():
            folders = [folder for folder in self._elastic.glob("*/attempt_0/*") if folder.name.isdecimal()]
            if len(folders) == len(self.ranks):
                self._errors = {folder / "error.json": self.ranks[int(folder.name)] for folder in folders}
        for path, rank in self._errors.items():
            if rank not in self._told and (data := Follower(path).read(final=True)):
                fault = _elastic_fault(data, self.node, rank)
                if fault:
                    self._told.add(rank)
                    yield Report(fault=fault, acts=Acts.AT_END, name="torchelastic's error file")


def _elastic_fault(data: bytes, node: str, rank: int) -> Fault | None:
    """`{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": ...}}}`; None while it makes no sense."""
    try:
        told = msgspec.json.decode(data)["message"]
        message, stack = str(told["message"]), str(told["extraInfo"]["py_callstack"])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        return None
    frames = _FRAME.findall(stack)
    own = [frame for frame in frames if "-packages/" not in frame[0] and "/lib/python" not in frame[0]] or frames
    where = f"{Path(own[-1][0]).name}:{own[-1][1]} in {own[-1][2]}" if own else ""
    first = message.strip().partition("\n")[0][:TEXT_CAP]
    how, kind, error = faults.classify(message, first)
    return Fault(how=how, node=node, rank=rank, kind=kind, error=error, where=where, line=first, alive=True)
