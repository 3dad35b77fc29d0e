"""A terminal that is ours for a while: the alternate screen, keys as they are typed, signals as they come, and only what changed is sent.

However it is left (a key, Ctrl-C, a signal, an error, Ctrl-Z for a while), the terminal is as it was. It knows no run.
"""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from types import FrameType, TracebackType
from typing import Any, final

from rich.console import Console
from rich.text import Text

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J"
_LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP)
_TERMINAL_GONE = {errno.EIO, errno.EPIPE, errno.ENXIO}
_SEQUENCE = re.compile(rb"\x1b(?:\[|O)[0-9;]*[A-Za-z~]|.", re.DOTALL)


class Key(Enum):
    """What a person typed, or the terminal told."""

    QUIT = "quit"
    UP = "up"
    DOWN = "down"
    PAGE_UP = "page up"
    PAGE_DOWN = "page down"
    TOP = "top"
    BOTTOM = "bottom"


_KEYS = {
    **dict.fromkeys((b"q", b"Q"), Key.QUIT),
    **dict.fromkeys((b"\x1b[A", b"\x1bOA", b"k"), Key.UP),
    **dict.fromkeys((b"\x1b[B", b"\x1bOB", b"j"), Key.DOWN),
    **dict.fromkeys((b"\x1b[5~", b"b"), Key.PAGE_UP),
    **dict.fromkeys((b"\x1b[6~", b" "), Key.PAGE_DOWN),
    **dict.fromkeys((b"\x1b[H", b"\x1bOH", b"\x1b[1~", b"g"), Key.TOP),
    **dict.fromkeys((b"\x1b[F", b"\x1bOF", b"\x1b[4~", b"G"), Key.BOTTOM),
}


class Closed(Exception):
    """It is over: told by a signal (its number), or the terminal is gone (SIGHUP)."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def keys(data: bytes) -> list[Key]:
    """The keys in what was read; what means nothing is left out."""
    return [_KEYS[part] for part in _SEQUENCE.findall(data) if part in _KEYS]


def speaks_unicode(environ: Mapping[str, str]) -> bool:
    """Whether this terminal shows more than ASCII, as far as anybody has said so.

    Python itself sets LC_CTYPE=C.UTF-8 where the locale is C, so that this value alone says nothing.
    """
    ctype = environ.get("LC_CTYPE", "")
    locale = environ.get("LC_ALL") or ("" if ctype == "C.UTF-8" else ctype) or environ.get("LANG", "")
    return "utf" in locale.lower() and environ.get("TERM") != "linux"


def changes(before: Sequence[str], after: Sequence[str]) -> str:
    """What makes one picture of the other: the lines that differ, each to its end."""
    old = [*before, *([""] * (len(after) - len(before)))]
    return "".join(f"\x1b[{row};1H\x1b[0m{line}\x1b[K" for row, (line, was) in enumerate(zip(after, old, strict=False), 1) if line != was)


@final
class Screen:
    """The terminal on two file descriptors. Use it in a `with` block."""

    def __init__(self, *, to: int, keyboard: int, environ: Mapping[str, str]) -> None:
        self._to, self._keyboard = to, keyboard
        self.unicode = speaks_unicode(environ)
        self._console = Console(file=open(os.devnull, "w"), force_terminal=True, _environ=environ, legacy_windows=False, width=1000)  # noqa: SIM115, PTH123
        self._shown: list[str] = []
        self._told: set[int] = set()
        self._modes: list[Any] = []
        self._before: dict[int, Any] = {}
        self._wake = -1

    def __enter__(self) -> Screen:
        self._modes = termios.tcgetattr(self._keyboard)
        self._wake, bell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._bell = (bell, signal.set_wakeup_fd(bell, warn_on_full_buffer=False))
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                self._before[number] = signal.signal(number, self._tell)
        self._take()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError, termios.error):  # the terminal may be gone
            self._give_back()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        bell, old = self._bell
        signal.set_wakeup_fd(old)
        os.close(bell)
        os.close(self._wake)
        self._console.file.close()

    def _tell(self, number: int, _frame: FrameType | None) -> None:
        self._told.add(number)

    def _take(self) -> None:
        modes = list(self._modes)
        modes[3] &= ~(termios.ICANON | termios.ECHO)
        modes[6] = [*modes[6]]
        modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._keyboard, termios.TCSADRAIN, modes)
        self._shown = []
        self._write(_ENTER)

    def _give_back(self) -> None:
        self._write(_LEAVE)
        termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._modes)

    def size(self) -> tuple[int, int]:
        """Columns and rows; 80 by 24 where the terminal does not say."""
        found = os.get_terminal_size(self._to)
        return found.columns or 80, found.lines or 24

    def paint(self, lines: Sequence[Text]) -> int:
        """Show these lines; how many bytes that took."""
        new = [self._rendered(line) for line in lines]
        data = changes(self._shown, new)
        self._shown = new
        return self._write(data) if data else 0

    def _rendered(self, line: Text) -> str:
        with self._console.capture() as capture:
            self._console.print(line, end="", soft_wrap=True, highlight=False)
        return capture.get()

    def _write(self, text: str) -> int:
        data = text.encode("utf-8" if self.unicode else "ascii", "replace")
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._to, left) :]
        except OSError as error:
            if error.errno in _TERMINAL_GONE:
                raise Closed(signal.SIGHUP) from None
            raise
        return len(data)

    def wait(self, limit_s: float) -> list[Key]:
        """The keys that were typed meanwhile; returns early for them and for a new size. Closed: it is over."""
        ready, _, _ = select.select([self._keyboard, self._wake], [], [], max(limit_s, 0.0))
        with suppress(BlockingIOError):
            os.read(self._wake, 1024)
        told, self._told = self._told, set()
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            if number in told:
                raise Closed(number)
        if signal.SIGTSTP in told:
            self._pause()
        if signal.SIGWINCH in told:
            self._shown = []
            self._write("\x1b[2J")
        return self._typed() if self._keyboard in ready else []

    def _typed(self) -> list[Key]:
        try:
            data = os.read(self._keyboard, 4096)
        except OSError:
            data = b""
        if not data:
            raise Closed(signal.SIGHUP)
        return keys(data)

    def _pause(self) -> None:
        """Ctrl-Z: give the terminal back, stop like any other program, and take it again when we go on."""
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._tell)
        self._take()
