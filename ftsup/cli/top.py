"""`ftsup top`: the run as it is now, over the whole terminal. It reads the run directory only, and leaves the run alone."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import click

from ftsup.cli.group import examples
from ftsup.cli.options import run_argument, runs_dir_option
from ftsup.cli.ports import Ports, with_ports
from ftsup.cli.screen import Closed, Key, Screen
from ftsup.errors import Exit
from ftsup.report import pagetext, runs
from ftsup.report.follow import Follower
from ftsup.report.live import Size, Track, frame
from ftsup.report.page import page
from ftsup.report.rankmap import ASCII, UNICODE
from ftsup.rundir import RunDir

LOOK_S = 1.0
"""Between two looks at the run directory, and so between two pictures that nobody asked for."""


@click.command(epilog=examples("ftsup top", "ftsup top train", "ftsup top 4711  # by the id of its job"))
@run_argument
@runs_dir_option
@with_ports
def top(ports: Ports, run: str | None, runs_dir: Path) -> None:
    """Watch RUN over the whole terminal, as it happens.

    RUN is a path, a name, the beginning of one, or a job id; left out: the newest run. q leaves, and leaves the run alone.
    """
    found = runs.find(run, runs_dir=ports.cwd / runs_dir)
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or ports.environ.get("TERM", "dumb") == "dumb":
        now = ports.now()
        click.echo(pagetext.text(page(runs.read(found), now=now), now=now))
        click.echo("ftsup top needs a terminal: this is ftsup status; ftsup status --watch tells what changes", err=True)
        sys.exit(Exit.USAGE)
    try:
        with Screen(to=sys.stdout.fileno(), keyboard=sys.stdin.fileno(), environ=ports.environ) as screen:
            _show(ports, found, screen)
    except Closed as closed:
        if closed.number != signal.SIGINT:
            sys.exit(128 + closed.number)


def _show(ports: Ports, run: RunDir, screen: Screen) -> None:
    """Until q."""
    follower, track, scroll = Follower(run), Track(), 0
    glyphs = UNICODE if screen.unicode else ASCII
    looked_s = time.monotonic()
    view = follower.look()
    while True:
        columns, rows = screen.size()
        size = Size(columns=columns, rows=rows)
        track = track.after(view)
        picture = frame(view, track, now=ports.now(), size=size, glyphs=glyphs, scroll=scroll)
        screen.paint(picture.lines)
        typed = screen.wait(looked_s + LOOK_S - time.monotonic())
        if Key.QUIT in typed:
            return
        for key in typed:
            scroll = _scrolled(scroll, key, page=max(rows // 3, 1), most=picture.most)
        if time.monotonic() >= looked_s + LOOK_S:
            looked_s = time.monotonic()
            view = follower.look()


def _scrolled(scroll: int, key: Key, *, page: int, most: int) -> int:
    step = {Key.UP: -1, Key.DOWN: 1, Key.PAGE_UP: -page, Key.PAGE_DOWN: page, Key.TOP: -most, Key.BOTTOM: most}.get(key, 0)
    return min(max(scroll + step, 0), most)
