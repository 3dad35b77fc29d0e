"""What an OSError of a disk means to the person who has to mend it. Pure."""

from __future__ import annotations

import errno
from enum import Enum

from ftsup.checkpoint.disk import MEDIA

_AWAY = {errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ESHUTDOWN, errno.ENODEV}
_NO_KEY = {errno.EKEYEXPIRED, errno.ENOKEY, errno.EKEYREVOKED, errno.EKEYREJECTED}


class Trouble(Enum):
    """The kinds of trouble."""

    FULL = "full"
    QUOTA = "quota"
    READ_ONLY = "read-only"
    CREDENTIAL = "credential"
    DENIED = "denied"
    MEDIA = "media"
    AWAY = "away"
    OTHER = "other"


_HINTS = {
    Trouble.FULL: "make room",
    Trouble.QUOTA: "make room, or ask for a larger quota",
    Trouble.READ_ONLY: "the file system was mounted read-only, by hand or after an error of its own",
    Trouble.CREDENTIAL: "it could be reached before: has a ticket or a token run out? kinit, or whatever renews it here",
    Trouble.DENIED: "may this user read and write there?",
    Trouble.MEDIA: "the disk cannot give the bytes back",
    Trouble.AWAY: "the file system does not answer",
}


def trouble(error: OSError, *, worked_before: bool) -> Trouble:
    """What is wrong. `worked_before`: the same place could be reached earlier by the same user."""
    if error.errno in _NO_KEY or (worked_before and error.errno in {errno.EACCES, errno.EPERM}):
        return Trouble.CREDENTIAL
    if error.errno in MEDIA:
        return Trouble.MEDIA
    if error.errno in _AWAY:
        return Trouble.AWAY
    known = {
        errno.ENOSPC: Trouble.FULL,
        errno.EDQUOT: Trouble.QUOTA,
        errno.EROFS: Trouble.READ_ONLY,
        errno.EACCES: Trouble.DENIED,
        errno.EPERM: Trouble.DENIED,
    }
    return known.get(error.errno or 0, Trouble.OTHER)


def told(error: OSError, *, worked_before: bool) -> str:
    """One sentence: where, what, and what may help."""
    kind = trouble(error, worked_before=worked_before)
    where = f"{error.filename}: " if error.filename else ""
    what = f" ({kind.value}: {_HINTS[kind]})" if kind in _HINTS else ""
    return f"{where}{error.strerror or error}{what}"
