"""A terminal for one program: a pty whose screen is a few lines of text, for tests that start the real command.

It understands what ftsup sends (places, clearing to the end of a line, colours, the alternate screen) and nothing else: an unknown
sequence is an error.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

_SHELL = """
import fcntl, os, signal, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
pid = os.fork()
if pid == 0:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 255)
"""
"""What a shell does for the program that it starts: without one in its session, nothing stops at Ctrl-Z."""
_PART = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|([^\x1b]+)")
_TORN = re.compile(r"\x1b(\[[?0-9;]*)?$")
"""A read ends where the kernel likes: in the middle of a sequence, or of a letter."""


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, argv: list[str], *, cwd: Path, env: Mapping[str, str], columns: int, rows: int, encoding: str) -> None:
        self.master, self.slave = os.openpty()
        self.gone = False
        self.resize(columns, rows)
        self.modes = termios.tcgetattr(self.slave)
        self.child = subprocess.Popen(
            [sys.executable, "-c", _SHELL, *argv], stdin=self.slave, stdout=self.slave, stderr=self.slave, cwd=cwd, env={**env}
        )
        self.sent = 0
        """Bytes that came from the program."""
        self.alternate = self.hidden = False
        self._letters = codecs.getincrementaldecoder(encoding)()
        self._torn = ""
        self._at = [0, 0]

    def resize(self, columns: int, rows: int) -> None:
        """As if somebody pulled at the window."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.lines = [" " * columns for _ in range(rows)]

    def text(self) -> str:
        """What is to be seen."""
        return "\n".join(line.rstrip() for line in self.lines)

    def type(self, keys: str) -> None:
        """On the keyboard."""
        os.write(self.master, keys.encode())

    def until(self, there: Callable[[], object], *, within_s: float = 20.0) -> None:
        """Take what the program sends until it is so."""
        deadline = time.monotonic() + within_s
        while not there():
            assert time.monotonic() < deadline, self.text()
            self.take(0.1)

    def shows(self, *words: str) -> None:
        """Wait for words on the screen."""
        self.until(lambda: all(word in self.text() for word in words))

    def take(self, limit_s: float) -> None:
        """All that the program sent, if it did within the limit."""
        with contextlib.suppress(OSError):
            while select.select([self.master], [], [], limit_s)[0] and (data := os.read(self.master, 65536)):
                limit_s = 0.0
                self.sent += len(data)
                self._show(self._letters.decode(data))

    def ended(self, *, within_s: float = 20.0) -> int:
        """Its exit code; what it sends meanwhile is taken."""
        self.until(lambda: self.child.poll() is not None, within_s=within_s)
        self.take(0.0)
        return self.child.returncode

    def signal(self, number: int) -> None:
        """Tell the program itself."""
        os.kill(os.tcgetpgrp(self.master), number)

    def goes(self) -> None:
        """The window is closed, or the connection lost: nobody holds the other end any more, and the shell ends of it."""
        os.close(self.master)
        self.gone = True
        self.child.kill()
        self.child.wait(10)

    def restored(self) -> bool:
        """Whether the terminal is as it was before the program."""
        return termios.tcgetattr(self.slave) == self.modes and not self.alternate and not self.hidden

    def stopped(self) -> bool:
        """Whether the program has stopped."""
        return Path(f"/proc/{os.tcgetpgrp(self.master)}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def _show(self, data: str) -> None:
        data, at = self._torn + data, 0
        torn = _TORN.search(data)
        data, self._torn = (data[: torn.start()], torn[0]) if torn else (data, "")
        for match in _PART.finditer(data):
            assert match.start() == at, repr(data[at : at + 40])
            at = match.end()
            if match[3]:
                self._write(match[3])
            else:
                self._obey(match[1], match[2])

    def _write(self, text: str) -> None:
        for char in text:
            row, column = self._at
            if char in "\r\n":
                self._at = [row, 0] if char == "\r" else [min(row + 1, len(self.lines) - 1), column]
            elif row < len(self.lines):
                line = self.lines[row]
                self.lines[row] = line[:column] + char + line[column + 1 :]
                self._at[1] += 1

    def _obey(self, words: str, order: str) -> None:
        row, column = self._at
        if order == "H":
            place = [int(word) - 1 for word in words.split(";")] if words else [0, 0]
            self._at = place
        elif order == "K":
            self.lines[row] = self.lines[row][:column].ljust(len(self.lines[row]))
        elif order == "J":
            kept = 0 if words == "2" else row
            self.lines = [line if n < kept else " " * len(line) for n, line in enumerate(self.lines)]
        elif order == "F":
            self._at = [row - int(words), 0]
        elif (words, order) in {("?1049", "h"), ("?1049", "l")}:
            self.alternate = order == "h"
        elif (words, order) in {("?25", "l"), ("?25", "h")}:
            self.hidden = order == "l"
        else:
            assert order == "m", (words, order)


@contextlib.contextmanager
def terminal(
    argv: list[str], *, cwd: Path, env: Mapping[str, str], columns: int = 80, rows: int = 24, encoding: str = "utf-8"
) -> Iterator[Terminal]:
    """A program on a terminal; afterwards neither is left."""
    one = Terminal(argv, cwd=cwd, env=env, columns=columns, rows=rows, encoding=encoding)
    try:
        yield one
    finally:
        if one.child.poll() is None:
            with contextlib.suppress(OSError):
                one.signal(signal.SIGKILL)
            one.child.wait(10)
        if not one.gone:
            os.close(one.master)
        os.close(one.slave)
