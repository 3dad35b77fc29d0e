"""The manifest: what was sealed, file by file, with digests of every block and of itself. Pure: values and their bytes.

`{"xxh3_128": "...", "manifest": {...}}`, one line. Any other byte in it is damage; a field that we do not know is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
import xxhash

from ftsup.errors import CheckpointError, Damaged
from ftsup.events import Epoch
from ftsup.ports import Facts

SCHEMA = 1
BLOCK_BYTES = 4 << 20
"""Damage is told by the block. Smaller ones name fewer tensors that were not hit; of these, 100 GB make a manifest of 0.9 MB."""


class Newer(CheckpointError):
    """Written by a newer ftsup: not ours to read, and no damage."""


class FileSum(msgspec.Struct, frozen=True, kw_only=True):
    """One file. The last block may be shorter. mtime and inode tell a rewritten file from a damaged one."""

    path: str
    """Below the checkpoint; empty: the checkpoint is this file."""
    size_bytes: int
    mtime_ns: int
    inode: int
    xxh3_128: str
    blocks: tuple[str, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What was sealed."""

    schema: int = SCHEMA
    name: str
    kind: str
    whole: str
    """How one knew that it was complete."""
    step: int | None = None
    epoch: Epoch | None = None
    writer: str = ""
    """The run that wrote the checkpoint; empty: ftsup found it."""
    wall: str = ""
    block_bytes: Annotated[int, msgspec.Meta(ge=1)] = BLOCK_BYTES
    files: tuple[FileSum, ...]

    @property
    def size_bytes(self) -> int:
        """All files."""
        return sum(file.size_bytes for file in self.files)


class _Envelope(msgspec.Struct, frozen=True):
    xxh3_128: str
    manifest: msgspec.Raw


class _Peek(msgspec.Struct, frozen=True):
    schema: int


def encode(manifest: Manifest) -> bytes:
    """The bytes of a manifest's file."""
    return _wrap(msgspec.json.encode(manifest))


def decode(data: bytes) -> Manifest:
    """Damaged when any bit is not as it was written, Newer when a later ftsup wrote it."""
    try:
        raw = bytes(msgspec.json.decode(data, type=_Envelope).manifest)
        if _wrap(raw) != data:
            raise Damaged("the manifest's digest does not match it")
        schema = msgspec.json.decode(raw, type=_Peek).schema
        if schema > SCHEMA:
            raise Newer(f"the manifest has schema {schema}, and this ftsup reads {SCHEMA}", hint="update ftsup")
        return msgspec.json.decode(raw, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged(f"the manifest cannot be read: {error}") from error


def rewritten(manifest: Manifest, now: Mapping[str, Facts]) -> list[str]:
    """The files that somebody wrote, replaced or removed since the seal."""
    return [file.path for file in manifest.files if file.path not in now or not _same(file, now[file.path])]


def _same(file: FileSum, facts: Facts) -> bool:
    return (file.size_bytes, file.mtime_ns, file.inode) == (facts.size_bytes, facts.mtime_ns, facts.inode)


def _wrap(raw: bytes) -> bytes:
    return b'{"xxh3_128":"%s","manifest":%s}\n' % (xxhash.xxh3_128_hexdigest(raw).encode(), raw)
