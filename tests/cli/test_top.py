"""`ftsup top`, the real command on a terminal of its own: it appears, follows, obeys, and leaves everything as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest

from ftsup import events as ev
from ftsup.cli.screen import Key, changes, keys, speaks_unicode
from ftsup.rundir import RunDir
from tests.cli.terminal import Terminal, terminal
from tests.report.leader import NODES, Leader
from tests.report.scenes import seen, trained

ROOT = Path(__file__).parents[2]
ENV = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONWARNINGS": "error"}
TOP = [sys.executable, "-m", "ftsup", "top"]


class Lived:
    """A run directory in which a leader writes."""

    def __init__(self, folder: Path, leader: Leader) -> None:
        self.folder, self.leader = folder, leader
        self.place = RunDir(folder / "ftsup-runs" / "demo" / "20260102-030405-00aa")
        self.place.root.mkdir(parents=True)
        self.place.config_json.write_text("{}")
        self.place.jobs.write_text("7\n")
        self.write()

    def write(self, **how: object) -> None:
        """What it tells now."""
        wall = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        with self.place.events.open("ab") as file:
            for line in self.leader.lines[self.place.events.read_bytes().count(b"\n") :]:
                file.write(msgspec.json.encode(line) + b"\n")
        part = self.place.status.with_name("part")
        part.write_bytes(msgspec.json.encode(msgspec.structs.replace(seen(self.leader, **how).now, wall=wall)))
        part.replace(self.place.status)

    def on_a_terminal(self, *argv: str, columns: int = 80, rows: int = 24, **env: str) -> AbstractContextManager[Terminal]:
        """The command."""
        return terminal([*TOP, *argv], cwd=self.folder, env={**ENV, **env}, columns=columns, rows=rows)


@pytest.fixture
def lived(tmp_path) -> Lived:
    return Lived(tmp_path, trained())


def test_it_appears_follows_the_run_and_its_window_and_quits_with_q(lived):
    with lived.on_a_terminal() as screen:
        screen.shows("training; job 7", "n1 ■■  n2 ■■", "step 484", "q quits")
        assert screen.alternate
        assert screen.hidden
        lived.leader.after(9).hang(at=484)
        lived.write()
        screen.shows("recovering", "n2 ■✖", "✖ rank 3 on n2 stood still", "1 incident")
        screen.resize(120, 30)
        screen.until(lambda: screen.lines[29].startswith("q quits"))
        screen.resize(60, 10)
        screen.shows("needs 80 columns and 24 rows; here are 60 and 10")
        screen.type("x\x1b[Cq")
        assert screen.ended() == 0
        assert screen.restored()


def test_an_idle_screen_sends_little(lived):
    with lived.on_a_terminal() as screen:
        screen.shows("q quits")
        clock = screen.lines[0]
        screen.until(lambda: screen.lines[0] != clock)
        for _ in range(3):
            clock, before = screen.lines[0], screen.sent
            screen.until(lambda then=clock: screen.lines[0] != then)
            screen.take(0.0)
            assert screen.sent - before < 2048
        screen.type("q")
        assert screen.ended() == 0


@pytest.mark.parametrize("number, code", [(signal.SIGHUP, 129), (signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_told_to_end_it_gives_the_terminal_back(lived, number, code):
    with lived.on_a_terminal() as screen:
        screen.shows("q quits")
        screen.signal(number)
        assert screen.ended() == code
        assert screen.restored()


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(lived):
    with lived.on_a_terminal() as screen:
        screen.shows("q quits")
        screen.type("\x1a")
        screen.until(screen.stopped)
        screen.take(0.1)
        assert screen.restored()
        screen.signal(signal.SIGCONT)
        screen.until(lambda: screen.alternate)
        screen.shows("q quits")
        screen.type("\x03")
        assert screen.ended() == 0
        assert screen.restored()


def test_a_terminal_that_goes_away_ends_it(lived):
    with lived.on_a_terminal() as screen:
        screen.shows("q quits")
        os.close(screen.master)
        try:
            assert screen.child.wait(timeout=20) == 129
        finally:
            screen.master = os.open(os.devnull, os.O_RDONLY)


def test_without_unicode_and_colour_it_says_the_same(lived):
    with lived.on_a_terminal(LANG="C", NO_COLOR="1") as screen:
        screen.encoding = "ascii"
        screen.shows("n1 ##  n2 ##", "# 4 training", "up/down scroll")
        screen.type("q")
        assert screen.ended() == 0


@pytest.mark.parametrize("term", [None, "dumb"])
def test_where_there_is_no_terminal_it_is_a_status_page_and_says_so(lived, term):
    if term is None:
        done = subprocess.run(
            TOP, cwd=lived.folder, env=ENV, capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 2
        assert done.stdout.startswith("demo/20260102-030405-00aa: training\n")
        assert done.stderr == "ftsup top needs a terminal: this is ftsup status; ftsup status --watch tells what changes\n"
        return
    with lived.on_a_terminal(TERM=term) as screen:
        assert screen.ended() == 2
        assert "ftsup top needs a terminal" in screen.text()


def test_a_run_that_is_over_and_one_that_is_torn_are_shown(lived):
    for node in NODES:
        lived.leader.take(ev.AttemptOver(node=node, epoch=lived.leader.epoch, code=0))
    lived.write()
    lived.place.status.write_text("{")
    with lived.on_a_terminal("demo") as screen:
        screen.shows("finished; job 7", "training finished", "next: nothing: it is done")
        screen.type("q")
        assert screen.ended() == 0
    with lived.on_a_terminal("nothing") as screen:
        assert screen.ended() == 1
        assert "no run is called nothing" in screen.text()
        assert screen.restored()


# The pieces ---------------------------------------------------------------------------------------------------------------


def test_keys_are_told_apart_and_what_means_nothing_is_left_out():
    assert keys(b"\x1b[A\x1b[B\x1b[5~\x1b[6~jk g\x1b[1;5CZq") == [
        Key.UP,
        Key.DOWN,
        Key.PAGE_UP,
        Key.PAGE_DOWN,
        Key.DOWN,
        Key.UP,
        Key.PAGE_DOWN,
        Key.TOP,
        Key.QUIT,
    ]
    assert keys(b"\x1b") == []


def test_only_what_changed_is_sent():
    assert changes([], ["a", "", "c"]) == "\x1b[1;1H\x1b[0ma\x1b[K\x1b[3;1H\x1b[0mc\x1b[K"
    assert changes(["a", "b"], ["a", "x"]) == "\x1b[2;1H\x1b[0mx\x1b[K"
    assert changes(["a"], ["a"]) == ""


@pytest.mark.parametrize(
    "environ, unicode",
    [
        ({"LANG": "en_US.UTF-8"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, False),
        ({"LC_CTYPE": "C.UTF-8"}, False),
        ({"LC_CTYPE": "de_DE.utf8"}, True),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "C"}, False),
        ({"LANG": "C.UTF-8"}, True),
        ({"LANG": "en_US.UTF-8", "TERM": "linux"}, False),
        ({}, False),
    ],
)
def test_who_shows_unicode(environ, unicode):
    assert speaks_unicode(environ) is unicode
