"""Where ftsup keeps what it knows about a directory of checkpoints: `.ftsup/` inside it, beside the checkpoints and never in one.

    sealed/NAME.json        the manifests
    quarantine/NAME.1/      a damaged checkpoint, its manifest, and why.txt
    trash/NAME.1            a checkpoint that is being removed
    pins/NAME               this one stays
    attempt.json            what was there without a seal when the last attempt began, and what spoke for it
    owner/owner.json        the run that owns the directory
    verified.json           when which was last read back

Names are percent-encoded, so that one with a `/` is one name. Only paths: no file is touched.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

_PLAIN = " =+,@:()[]{}~"
"""What stays as it is beside letters, digits and `_.-`."""
_JSON = ".json"


class Home(msgspec.Struct, frozen=True):
    """One directory of checkpoints."""

    folder: Path

    @property
    def own(self) -> Path:
        """What is ours."""
        return self.folder / ".ftsup"

    @property
    def sealed(self) -> Path:
        """The manifests."""
        return self.own / "sealed"

    @property
    def quarantine(self) -> Path:
        """What is damaged."""
        return self.own / "quarantine"

    @property
    def trash(self) -> Path:
        """What is being removed."""
        return self.own / "trash"

    @property
    def pins(self) -> Path:
        """What stays."""
        return self.own / "pins"

    @property
    def attempt(self) -> Path:
        """What the last attempt found when it began."""
        return self.own / "attempt.json"

    @property
    def owner(self) -> Path:
        """A folder, because a folder is put in its place only where none is."""
        return self.own / "owner"

    @property
    def verified(self) -> Path:
        """When which was last read back."""
        return self.own / "verified.json"

    def checkpoint(self, name: str) -> Path:
        """The checkpoint itself."""
        return self.folder / name

    def manifest(self, name: str) -> Path:
        """Its manifest."""
        return self.sealed / (encoded(name) + _JSON)


def encoded(name: str) -> str:
    """A checkpoint's name as the name of one file; never one that begins with a dot."""
    text = quote(name, safe=_PLAIN)
    return "%2E" + text[1:] if text.startswith(".") else text


def of_manifest(file: str) -> str | None:
    """The checkpoint's name from its manifest's; None: no manifest."""
    return unquote(file.removesuffix(_JSON)) if file.endswith(_JSON) and not file.startswith(".") else None


def of_numbered(file: str) -> str:
    """The checkpoint's name from `NAME.1`."""
    return unquote(file.rpartition(".")[0])
