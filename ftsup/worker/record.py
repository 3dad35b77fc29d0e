"""The exit record: how the script on this rank ended, left beside the beat file by the rank itself.

torchrun exits 1 for everything and names a victim, so each rank says it with its own words. A record is there only if Python got to
the end of the script: a signal and os._exit leave none. Nothing in here may change how the process ends.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # typing alone would take longer to import than all the rest
if TYPE_CHECKING:
    from typing import Any, Optional

    _Line = tuple[str, Optional[int], str]

VERSION = 1
MESSAGE_CAP = 4 * 1024
TRACEBACK_CAP = 64 * 1024


def describe(error: BaseException | None) -> dict[str, Any]:
    """How the script ended, from what it raised (None: its body ended by itself)."""
    if error is None:
        return {"how": "returned", "code": 0}
    if isinstance(error, SystemExit):
        return {"how": "exit", "code": exit_code(error.code), "message": _clip(_exit_text(error), MESSAGE_CAP)}
    if isinstance(error, KeyboardInterrupt):
        return {"how": "interrupted", "code": None, **_story(error)}
    return {"how": "exception", "code": 1, **_story(error)}


def exit_code(code: object) -> int:
    """What the operating system gets to see of `sys.exit(code)`."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def write(path: str, facts: dict[str, Any], *, rank: int, step: int) -> None:
    """Publish the record: all of it or nothing. OSError when the disk says no."""
    record = {"version": VERSION, "rank": rank, "pid": os.getpid(), "step": step, "monotonic_ns": time.monotonic_ns(), **facts}
    aside = f"{path}.tmp"
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as file:
        file.write(_json(record))
    os.replace(aside, path)


def tell_torchelastic(path: str | None, facts: dict[str, Any]) -> None:
    """torchrun's own error file, for what the script raised: `@record` writes it, a plain script does not. Told twice is told once."""
    if path is None or os.path.exists(path):
        return
    message = f"{facts['type'].rpartition('.')[2]}: {facts['message']}"
    extra = {"py_callstack": facts["traceback"], "timestamp": str(int(time.time()))}  # whole seconds, as torchrun reads them
    with open(path, "w", encoding="utf-8") as file:
        file.write(_json({"message": {"message": message, "extraInfo": extra}}))


def _json(record: dict[str, Any]) -> str:
    """Numbers and words are spelled alike in Python and JSON: a healthy rank's end need not wait 8 ms for the json module."""
    if all(isinstance(value, int) or (isinstance(value, str) and value.isalpha()) for value in record.values()):
        return repr(record).replace("'", '"')
    import json  # noqa: PLC0415

    return json.dumps(record, ensure_ascii=False)


def _story(error: BaseException) -> dict[str, str]:
    import traceback  # noqa: PLC0415 - only a failing rank pays for these imports

    story = traceback.TracebackException(type(error), error, error.__traceback__)  # also prints an error whose own __str__ fails
    lines = [(frame.filename, frame.lineno, frame.name) for frame in story.stack]
    if isinstance(error, SyntaxError):
        lines.append((error.filename or "", error.lineno, ""))
    return {
        "type": _type_name(error),
        "message": _clip(str(story), MESSAGE_CAP),
        "traceback": _clip("".join(story.format()), TRACEBACK_CAP),
        "where": _where(lines),
        "fingerprint": _fingerprint(_type_name(error), lines),
    }


def _fingerprint(kind: str, lines: list[_Line]) -> str:
    """The same for two errors of one type raised through the same lines; their message (numbers, addresses) does not count."""
    import hashlib  # noqa: PLC0415

    parts = [kind, *(f"{file}:{name}:{number}" for file, number, name in lines)]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _where(lines: list[_Line]) -> str:
    """The last line of the user's own code (else of any code): `train.py:41 in forward`."""
    standard = os.path.dirname(os.__file__) + os.sep
    own = [line for line in lines if not line[0].startswith((standard, "<frozen ")) and "-packages/" not in line[0]] or lines
    if not own:
        return ""
    file, number, name = own[-1]
    return f"{os.path.basename(file)}:{number}" + (f" in {name}" if name else "")


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _exit_text(error: SystemExit) -> str:
    said: object = vars(error).get("text") or error.code
    return "" if said is None or isinstance(said, int) else str(said)


def _clip(text: str, cap: int) -> str:
    """Head and tail: a traceback's last lines say what happened, its first ones where it began."""
    if len(text) <= cap:
        return text
    gap = f"\n... {len(text) - cap} characters left out ...\n"
    half = (cap - len(gap)) // 2
    return text[:half] + gap + text[-half:]
