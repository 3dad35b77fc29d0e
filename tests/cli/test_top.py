"""`ftsup top`, the real command on a terminal of its own: it appears, follows, obeys, and leaves everything as it was."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from ftsup import events as ev
from ftsup.cli.screen import Key, changes, keys, speaks_unicode
from tests.cli.lived import ENV, FTSUP, Lived
from tests.report.leader import NODES
from tests.report.scenes import trained


@pytest.fixture
def lived(tmp_path) -> Lived:
    return Lived(tmp_path, trained())


def test_it_appears_follows_the_run_and_its_window_and_quits_with_q(lived):
    with lived.on_a_terminal("top") as screen:
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
    with lived.on_a_terminal("top") as screen:
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
    with lived.on_a_terminal("top") as screen:
        screen.shows("q quits")
        screen.signal(number)
        assert screen.ended() == code
        assert screen.restored()


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(lived):
    with lived.on_a_terminal("top") as screen:
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
    with lived.on_a_terminal("top") as screen:
        screen.shows("q quits")
        os.close(screen.master)
        try:
            assert screen.child.wait(timeout=20) == 129
        finally:
            screen.master = os.open(os.devnull, os.O_RDONLY)


def test_without_unicode_and_colour_it_says_the_same(lived):
    with lived.on_a_terminal("top", encoding="ascii", LANG="C", NO_COLOR="1") as screen:
        screen.shows("n1 ##  n2 ##", "# 4 training", "up/down scroll")
        screen.type("q")
        assert screen.ended() == 0


@pytest.mark.parametrize("term", [None, "dumb"])
def test_where_there_is_no_terminal_it_is_a_status_page_and_says_so(lived, term):
    if term is None:
        done = subprocess.run(
            [*FTSUP, "top"], cwd=lived.folder, env=ENV, capture_output=True, text=True, timeout=30, check=False, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 2
        assert done.stdout.startswith("demo/20260102-030405-00aa: training\n")
        assert done.stderr == "ftsup top needs a terminal: this is ftsup status; ftsup status --watch tells what changes\n"
        return
    with lived.on_a_terminal("top", TERM=term) as screen:
        assert screen.ended() == 2
        assert "ftsup top needs a terminal" in screen.text()


def test_a_run_that_is_over_and_one_that_is_torn_are_shown(lived):
    for node in NODES:
        lived.leader.take(ev.AttemptOver(node=node, epoch=lived.leader.epoch, code=0))
    lived.write()
    lived.place.status.write_text("{")
    with lived.on_a_terminal("top", "demo") as screen:
        screen.shows("finished; job 7", "training finished", "next: nothing: it is done")
        screen.type("q")
        assert screen.ended() == 0
    with lived.on_a_terminal("top", "nothing") as screen:
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
