"""How far reading is: a bar with bytes and speed on a terminal, nothing elsewhere; and the sentence at the end for both.

The bytes come from the Disk port, which tells each piece that it reads.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

import click

from ftsup.report.words import one_line, short_time

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

_STEP_BYTES = 8 << 20
_NAME_WIDTH = 40


def size_text(value_bytes: float) -> str:
    """Bytes for people, in powers of 1000: `512 B`, `1.3 GB`."""
    value, unit = float(value_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 999.5:  # noqa: PLR2004 - it would be written as 1000
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"  # noqa: PLR2004 - three digits


class Meter:
    """Counts what is read, and shows it where somebody looks. Use it in a `with` block."""

    def __init__(self, *, console: Console | None = None) -> None:
        self.read_bytes = 0
        self._began_s = time.monotonic()
        self._console = console
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._untold = 0

    def __enter__(self) -> Meter:  # noqa: PYI034 - Self is of Python 3.11
        if self._console is None and sys.stderr.isatty():
            from rich.console import Console  # noqa: PLC0415 - only where somebody looks

            self._console = Console(stderr=True)
        if self._console is not None and self._console.is_terminal and not self._console.is_dumb_terminal:
            from rich import progress  # noqa: PLC0415 - as above

            self._progress = progress.Progress(
                progress.TextColumn("{task.description}", markup=False),
                progress.BarColumn(),
                progress.DownloadColumn(),
                progress.TransferSpeedColumn(),
                progress.TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def begin(self, what: str, name: str, size_bytes: int | None) -> None:
        """The next thing to be read; None: nobody knows how much it is."""
        if self._progress is not None:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(f"{what} {one_line(name, width=_NAME_WIDTH)}", total=size_bytes)
        self._untold = 0

    def read(self, size_bytes: int) -> None:
        """So many bytes were read."""
        self.read_bytes += size_bytes
        self._untold += size_bytes
        if self._progress is not None and self._task is not None and self._untold >= _STEP_BYTES:
            self._progress.advance(self._task, self._untold)
            self._untold = 0

    def say(self, text: str, *, err: bool = False) -> None:
        """A line of text, above the bar where there is one."""
        if self._progress is not None:
            self._progress.stop()
        click.echo(text, err=err)
        if self._progress is not None:
            self._progress.start()

    def summary(self) -> str:
        """`6.0 GB read in 4.1 s (1.5 GB/s)`."""
        took_s = time.monotonic() - self._began_s
        return f"{size_text(self.read_bytes)} read in {short_time(took_s)} ({size_text(self.read_bytes / max(took_s, 1e-9))}/s)"
