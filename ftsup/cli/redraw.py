"""Writes lines over the ones written before, on a terminal, without flicker and without the alternate screen. Owns the escape codes."""

from __future__ import annotations

import os
from typing import TextIO


class Redraw:
    """A text that stays where it is while it changes; the last one remains on the screen."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._height = 0

    def show(self, text: str) -> None:
        """Put it in the place of the last one, in one write; cut to the height of the terminal, which cannot scroll back."""
        room = max(os.get_terminal_size(self._out.fileno()).lines - 1, 1)
        lines = text.split("\n")[:room]
        up = f"\x1b[{self._height}F" if self._height else ""
        self._out.write(up + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        self._out.flush()
        self._height = len(lines)
