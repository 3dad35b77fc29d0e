"""People's requests: what a clerk reads of them, and that a leader hears each once."""

from __future__ import annotations

import json
import os

import msgspec
import pytest

from ftsup import events as ev
from ftsup.cli import asking
from ftsup.errors import RunError
from ftsup.events import Line, Request
from ftsup.rundir import RunDir
from ftsup.supervisor.clerk import ClerkFailed
from ftsup.supervisor.clerkwork import Work
from ftsup.supervisor.inbox import Inbox
from ftsup.supervisor.requests import Continuation, Found, Look, Wanted, continuation, look

NOW = "2026-01-02T03:04:05.000+00:00"


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "requests"
    made.mkdir(mode=0o700)
    return made


def ask(folder, name, **fields):
    (folder / name).write_text(json.dumps(fields))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_requests_are_read_in_the_order_in_which_they_were_written_and_stay_until_they_are_known(folder):
    ask(folder, "2.json", request="cancel", who="me", newer=["words"])
    ask(folder, "1.json", request="restart", from_step=100)
    os.utime(folder / "2.json", (1, 1))
    found = (
        Found(id="2.json", wanted=Wanted(request=Request.CANCEL, who="me")),
        Found(id="1.json", wanted=Wanted(request=Request.RESTART, from_step=100)),
    )
    assert look(folder) == look(folder) == Look(found=found)
    assert look(folder, known=["2.json", "7.json"]).found == found[1:]
    assert look(folder, known=["1.json"]) == look(folder) == Look()
    assert names(folder) == ["1.json.taken", "2.json.taken"]


def test_a_clock_that_is_set_back_between_two_requests_changes_nothing(folder, tmp_path):
    run = RunDir(tmp_path)
    asked = [asking.leave(run, Wanted(request=request, who="me")) for request in (Request.RESTART, Request.STOP, Request.REQUEUE)]
    for age, name in enumerate(asked):
        os.utime(folder / name, (1e9 - 3600 * age,) * 2)
    assert [found.id for found in look(folder).found] == asked


@pytest.mark.parametrize("wall", ["2026-01-02T02:04:05.000+00:00", "2026-01-02T04:04:05.000+00:00"])
def test_a_request_from_a_host_whose_clock_is_an_hour_off_is_heard(folder, wall):
    ask(folder, "1.json", request="restart", wall=wall)
    (event,) = Inbox(()).hear(Work().requests(folder=str(folder), known=[]), wall=NOW)
    assert isinstance(event, ev.Asked)


def test_what_is_no_request_is_said_in_a_sentence_and_set_aside(folder, tmp_path):
    ask(tmp_path, "elsewhere", request="cancel")
    ask(folder, "unfinished.json.part", request="cancel")
    ask(folder, ".hidden.json", request="cancel")
    (folder / "link.json").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / "fifo.json")
    (folder / "folder.json").mkdir()
    ask(folder, "big.json", request="x" * 100_000)
    (folder / "garbage.json").write_bytes(b"\xff{")
    (folder / "list.json").write_text("[]")
    (folder / "empty.json").write_text("")
    ask(folder, "other.json", request="dance", who="me")
    ask(folder, "typed.json", request="restart", from_step="ten")
    said = look(folder)
    assert said.found == ()
    texts = "\n".join(said.strange)
    assert "requests/other.json is no request, and is set aside: Invalid enum value 'dance'" in texts
    assert "requests/link.json is no request, and is set aside: it is no plain file" in texts
    assert "requests/typed.json" in texts
    assert "$.from_step" in texts
    assert len(said.strange) == 9
    assert look(folder) == Look()
    assert [name for name in names(folder) if not name.endswith(".refused")] == [".hidden.json", "unfinished.json.part"]


def test_there_may_be_no_folder_and_a_link_is_none(folder, tmp_path):
    assert look(tmp_path / "nowhere") == Look()
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(OSError, match=r"directory|links"):
        look(tmp_path / "link")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_request_of_another_user_is_refused_and_said(folder):
    ask(folder, "1.json", request="cancel")
    os.chown(folder / "1.json", 12345, 12345)
    assert look(folder).strange == ("requests/1.json is no request, and is set aside: it belongs to user 12345",)
    assert names(folder) == ["1.json.refused"]
    os.chown(folder, 12345, 12345)
    assert look(folder).strange == ("requests/ belongs to somebody else: nothing in it is read",)


def test_at_most_so_many_are_read_at_once(folder):
    for number in range(100):
        ask(folder, f"{number:03}.json", request="stop")
    first = [found.id for found in look(folder).found]
    assert len(first) == 64
    assert len(look(folder, known=first).found) == 0
    assert len(look(folder).found) == 36


def test_the_marks_of_a_run_ask_again_and_again(tmp_path):
    ask = {"folder": str(tmp_path / "requests"), "known": [], "cancelled": str(tmp_path / "cancelled"), "paused": str(tmp_path / "paused")}
    assert Work().requests(**ask)["found"] == ()
    (tmp_path / "cancelled").mkdir()
    (tmp_path / "paused").write_text(f"{NOW} me\n")
    paused = {"id": "", "wanted": {"request": "pause", "who": "me"}}
    assert Work().requests(**ask)["found"] == (paused,) == Work().requests(**ask)["found"]
    (tmp_path / "cancelled").rmdir()
    (tmp_path / "cancelled").write_text("")
    assert Work().requests(**ask)["found"] == ({"id": "", "wanted": {"request": "cancel", "who": "somebody"}}, paused)
    nowhere = {name: f"{tmp_path}/nowhere/{name}" for name in ("folder", "cancelled", "paused")}
    assert Work().requests(known=[], **nowhere)["found"] == ()


def test_a_continuation_is_there_or_not_and_never_guessed(tmp_path):
    path = tmp_path / "continued.json"
    assert continuation(path) is None
    path.write_text('{"n": 2, "who": "me", "changed": ["grace"], "newer": 1}')
    assert continuation(path) == Continuation(n=2, who="me", changed=("grace",))
    for text in ("", "{", "[]", '{"n": "2"}'):
        path.write_text(text)
        with pytest.raises(RunError, match=r"continued\.json cannot be read"):
            continuation(path)


# The leader's side --------------------------------------------------------------------------------------------------------


def answer(*found: Found, strange: tuple[str, ...] = ()) -> object:
    return msgspec.to_builtins(Look(found=found, strange=strange))


def found(name: str, request: Request = Request.STOP, wall: str = NOW) -> Found:
    return Found(id=name, wanted=Wanted(request=request, who="me", wall=wall))


def hear(inbox: Inbox, *given: Found, strange: tuple[str, ...] = ()) -> list[object]:
    return inbox.hear(answer(*given, strange=strange), wall=NOW)


def test_a_request_is_heard_once_by_this_leader_and_by_the_next():
    inbox = Inbox([])
    (asked,) = hear(inbox, found("a"))
    assert asked == ev.Asked(request=Request.STOP, who="me", wall=NOW, id="a")
    inbox.logged(asked, 7)
    assert hear(inbox, found("a")) == []
    assert hear(Inbox([Line(n=7, event=asked)]), found("a"), found("b"))[0].id == "b"


def test_a_file_may_be_set_aside_once_the_mirror_holds_its_line():
    inbox = Inbox([Line(n=3, event=ev.Asked(request=Request.STOP, who="me", id="a")), Line(n=4, event=ev.Noted(text="x"))])
    inbox.logged(ev.Asked(request=Request.STOP, who="me", id="b"), 9)
    inbox.logged(ev.Asked(request=Request.CANCEL, who="me"), 10)
    assert inbox.known(mirrored=0) == []
    assert inbox.known(mirrored=8) == ["a"]
    assert inbox.known(mirrored=20) == ["a", "b"]


def test_a_mark_is_heard_once():
    inbox, mark = Inbox([]), Found(wanted=Wanted(request=Request.CANCEL, who="me"))
    assert [event.request for event in hear(inbox, mark)] == [Request.CANCEL]
    assert hear(inbox, mark) == []
    assert [event.request for event in hear(inbox, Found(wanted=Wanted(request=Request.PAUSE)), mark)] == [Request.PAUSE]


def test_an_old_request_is_said_once_and_set_aside_but_for_the_wish_to_end_it():
    inbox, then = Inbox([]), "2026-01-01T02:04:05+00:00"
    (said,) = hear(inbox, found("a", wall=then))
    assert said == ev.Noted(text="a request (stop) is set aside: me asked for it 25 h ago")
    assert hear(inbox, found("a", wall=then)) == []
    assert inbox.known(mirrored=0) == ["a"]
    assert hear(inbox, found("b", Request.CANCEL, then))[0].request is Request.CANCEL
    assert hear(inbox, found("c", wall="yesterday"), found("d", wall="2026-01-01T02:04:05"))[0].request is Request.STOP
    (said,) = hear(inbox, Found(id="e", wanted=Wanted(request=Request.PAUSE, wall=then)))
    assert said.text == "a request (pause) is set aside: it was asked for 25 h ago"


def test_what_is_strange_is_said_once_and_a_failed_look_says_nothing():
    inbox = Inbox([])
    assert hear(inbox, strange=("x",)) == [ev.Noted(text="x")]
    assert hear(inbox, strange=("x", "y")) == [ev.Noted(text="y")]
    assert inbox.hear(ClerkFailed(what="requests", why="the disk hangs"), wall=NOW) == []
