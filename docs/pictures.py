"""Draws docs/*.svg: what `ftsup top` and `ftsup explain` show of the run in docs/run, a real one on the mock Slurm that was kept.

    make pictures

The same run at the same moment gives the same bytes, so a test holds the pictures against the code. Names of the machine on which it
was recorded were taken out of the run by hand; nothing else was.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.text import Text

from ftsup import eventlog
from ftsup.report import runs
from ftsup.report.live import Size, Track, frame
from ftsup.report.rankmap import UNICODE
from ftsup.report.story import tell
from ftsup.rundir import RunDir

HERE = Path(__file__).parent
COLUMNS, ROWS = 80, 24
MIDDLE = 106
"""The last line of the log when status.json was kept."""
# a picture in a README may load no font from elsewhere
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code, ", "")


def the_run() -> RunDir:
    """The one that was kept."""
    (config,) = HERE.glob("run/*/*/config.json")
    return RunDir(config.parent)


def top() -> list[Text]:
    """A frame from the middle of it, when status.json was kept: a second after the last event that was there."""
    run = the_run()
    story = tell(line for line in eventlog.stream(run.events, []) if line.n <= MIDDLE)
    assert story.last is not None
    view, now = runs.view(run, story, ()), datetime.fromisoformat(story.last.wall) + timedelta(seconds=1)
    return list(frame(view, Track().after(view), now=now, size=Size(columns=COLUMNS, rows=ROWS), glyphs=UNICODE).lines)


def explain() -> list[Text]:
    """The command's own output."""
    argv = [sys.executable, "-m", "ftsup", "explain", str(the_run().root.relative_to(HERE.parent))]
    said = subprocess.run(argv, cwd=HERE.parent, capture_output=True, text=True, check=True).stdout  # noqa: S603 - our own command
    return [Text(line) for line in said.splitlines()]


PICTURES = {"top": top, "explain": explain}


def svg(name: str) -> str:
    """A picture."""
    console = Console(record=True, file=io.StringIO(), width=COLUMNS, force_terminal=True, color_system="truecolor", legacy_windows=False)
    for line in PICTURES[name]():
        console.print(line, soft_wrap=True, highlight=False)
    drawn = console.export_svg(title=f"ftsup {name}", unique_id=name, code_format=FORMAT)
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def main() -> int:
    """All of them."""
    for name in PICTURES:
        path = HERE / f"{name}.svg"
        path.write_text(svg(name), encoding="utf-8")
        print(path.relative_to(HERE.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())
