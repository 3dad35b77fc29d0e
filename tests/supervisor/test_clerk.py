"""A real clerk process; time is passed in, waiting is polling its socket, bounded."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
from pathlib import Path

import msgspec
import pytest

from ftsup import eventlog
from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.same import files_of
from ftsup.events import Line, Noted
from ftsup.supervisor import proctree
from ftsup.supervisor.clerk import Clerk, ClerkFailed
from ftsup.supervisor.clerkwork import Work, add_line, answer, copy_folder
from ftsup.supervisor.clock import BootClock
from tests.supervisor import freezer

CLOCK = BootClock()
CLERKS = 8


class Desk:
    """A clerk and a clock of its own that goes on with each wait."""

    def __init__(self):
        self.now = 100.0
        self.clerk = Clerk(now=self.now)
        self.answers = []

    def ask(self, what, *, limit_s=10.0, **arguments):
        self.clerk.ask(what, now=self.now, limit_s=limit_s, then=lambda answer: (what, answer), **arguments)

    def wait(self, *, dt=0.01):
        poller = select.poll()
        for fd in self.clerk.sources():
            poller.register(fd, select.POLLIN)
        poller.poll(20)
        self.now += dt
        self.answers += self.clerk.take(self.now)

    def until(self, ready, **options):
        end = CLOCK.now() + 20
        while not ready():
            assert CLOCK.now() < end, self.answers
            self.wait(**options)

    def answer(self, **options):
        self.until(lambda: self.answers, **options)
        return self.answers.pop(0)[1]


def said(desk):
    return [note.text for note in desk.clerk.notes()]


@pytest.fixture
def desk():
    desk = Desk()
    yield desk
    desk.clerk.close()


def test_a_file_is_written_whole_and_the_answer_comes_once(desk, tmp_path):
    desk.ask("write", path=str(tmp_path / "deep" / "status.json"), text="é\n")
    assert desk.answer() is None
    assert (tmp_path / "deep" / "status.json").read_text() == "é\n"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["status.json"]
    desk.wait()
    assert desk.answers == []


def test_requests_are_done_in_their_order(desk, tmp_path):
    for number in range(50):
        desk.ask("write", path=str(tmp_path / "file"), text=str(number) * 10_000)
    desk.until(lambda: len(desk.answers) == 50)
    assert (tmp_path / "file").read_text() == "49" * 10_000


def test_a_big_text_goes_through_a_small_socket(desk, tmp_path):
    text = "x" * 3_000_000
    desk.ask("write", path=str(tmp_path / "file"), text=text)
    assert desk.answer() is None
    assert (tmp_path / "file").read_text() == text


def test_a_failure_is_a_value_told_once_until_it_works_again(desk, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder is needed")
    for _ in range(3):
        desk.ask("write", path=str(blocked / "x"), text="")
        answer = desk.answer()
        assert isinstance(answer, ClerkFailed)
        assert "Not a directory" in str(answer)
    assert len(desk.clerk.notes()) == 1
    blocked.unlink()
    desk.ask("write", path=str(blocked / "x"), text="")
    assert desk.answer() is None
    assert said(desk) == ["write: works again"]


def test_one_trouble_is_told_once_whatever_it_keeps_us_from(desk, tmp_path):
    (tmp_path / "blocked").write_text("a file where a folder is needed")

    def ask(what, **arguments):
        desk.ask(what, **arguments)
        return desk.answer()

    for name in ("a", "b", "c"):
        assert isinstance(ask("write", path=str(tmp_path / "blocked" / name), text=""), ClerkFailed)
        assert isinstance(ask("add_line", path=str(tmp_path / "blocked" / name), line=""), ClerkFailed)
    assert [note.partition(":")[0] for note in said(desk)] == ["write"]
    assert ask("write", path=str(tmp_path / "free"), text="") is None
    assert desk.clerk.notes() == [], "the other work still fails"
    assert ask("add_line", path=str(tmp_path / "free"), line="") is None
    assert said(desk) == ["add_line: works again"]


def test_what_was_tried_once_does_not_keep_the_next_trouble_from_being_told(desk, tmp_path):
    (tmp_path / "blocked").write_text("a file where a folder is needed")
    for what, name in (("add_line", "blocked/x"), ("write", "blocked/x"), ("write", "free"), ("write", "blocked/y")):
        desk.ask(what, path=str(tmp_path / name), **{"text" if what == "write" else "line": ""})
        desk.answer()
    told = said(desk)
    assert [note.partition(":")[0] for note in told] == ["add_line", "write", "write"]
    assert told[1] == "write: works again"


def test_a_run_directory_that_may_not_be_read_any_more_wants_a_credential(desk, tmp_path):
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path))

    def work():
        raise denied

    found = answer({"work": work}, {"n": 1, "do": "work", "with": {}})
    assert found["why"].startswith(f"{tmp_path}: Permission denied (credential: ")
    assert found["kind"] == "Permission denied"
    assert "(denied: " in answer({"work": work}, {"n": 1, "do": "work", "with": {}}, worked_before=False)["why"]


def test_two_failures_that_take_turns_are_told_once_each(desk, tmp_path):
    (tmp_path / "blocked").write_text("a file where a folder is needed")
    (tmp_path / "folder" / "x").mkdir(parents=True)
    for name in ("blocked/x", "folder/x") * 3:
        desk.ask("write", path=str(tmp_path / name), text="")
        assert isinstance(desk.answer(), ClerkFailed)
    assert len(desk.clerk.notes()) == 2


def test_a_killed_clerk_is_replaced_and_its_request_answered(desk, tmp_path):
    desk.ask("write", path=str(tmp_path / "a"), text="")
    desk.answer()
    first = desk.clerk.pid
    os.kill(first, signal.SIGKILL)
    desk.until(lambda: desk.clerk.pid not in (first, None))
    desk.ask("write", path=str(tmp_path / "b"), text="")
    assert desk.answer() is None


def test_a_clerk_killed_at_work_fails_that_request_and_does_the_next(desk, tmp_path):
    os.mkfifo(tmp_path / "hangs")
    desk.ask("mirror", source=str(tmp_path / "hangs"), target=str(tmp_path / "t"))
    desk.ask("write", path=str(tmp_path / "b"), text="")
    desk.wait()
    os.kill(desk.clerk.pid, signal.SIGKILL)
    desk.until(lambda: len(desk.answers) == 2)
    assert desk.answers[0][1].why == "the clerk died"
    assert desk.answers[1][1] is None


def test_a_hanging_disk_costs_its_request_and_one_clerk(desk, tmp_path):
    os.mkfifo(tmp_path / "hangs")  # opening it for reading waits for a writer
    desk.ask("mirror", source=str(tmp_path / "hangs"), target=str(tmp_path / "t"), limit_s=1.0)
    desk.ask("write", path=str(tmp_path / "b"), text="", limit_s=1000.0)
    first = desk.clerk.pid
    desk.until(lambda: len(desk.answers) == 2, dt=0.1)
    assert "no answer within 1 s" in desk.answers[0][1].why
    assert desk.answers[0][1].late
    assert desk.answers[1][1] is None
    assert desk.clerk.pid != first
    desk.until(lambda: proctree.read(first) is None)


def test_what_waited_for_a_request_that_hung_does_not_hang_itself(desk, tmp_path):
    os.mkfifo(tmp_path / "hangs")
    desk.ask("mirror", source=str(tmp_path / "hangs"), target=str(tmp_path / "t"), limit_s=100.0)
    desk.ask("write", path=str(tmp_path / "b"), text="", limit_s=101.0)
    desk.until(lambda: desk.answers, dt=0.9)
    desk.until(lambda: len(desk.answers) == 2)
    assert desk.answers[1][1] is None
    assert len(said(desk)) == 1


@pytest.fixture
def stuck(desk, tmp_path):
    """Clerks that nothing can kill, as many as are put up with; `thaw` lets them die."""
    with contextlib.ExitStack() as stack:
        pids = []
        for _ in range(CLERKS):
            desk.until(lambda: desk.clerk.pid, dt=1.0)
            pids.append(desk.clerk.pid)
            stack.enter_context(freezer.frozen(pids[-1]))
            desk.ask("write", path=str(tmp_path / "a"), text="", limit_s=1.0)
            assert "no answer within 1 s" in desk.answer(dt=0.5).why
        yield pids, stack.close


@freezer.needed
def test_clerks_that_nothing_can_kill_are_not_gathered_by_the_thousand(desk, tmp_path, stuck):
    """Nobody starts another, or wakes for one, until the disk is back; and the end is not held up by them."""
    pids, _thaw = stuck
    for _ in range(5):
        desk.ask("write", path=str(tmp_path / "a"), text="", limit_s=100.0)
        desk.wait(dt=40.0)
        assert desk.clerk.deadline_t() > desk.now, "no loop may spin meanwhile"
        desk.clerk.renew()
    assert desk.clerk.pid is None
    assert len(set(pids)) == CLERKS
    assert all(proctree.read(pid) for pid in pids)
    assert len(said(desk)) == 1
    begun = CLOCK.now()
    desk.clerk.close()
    assert CLOCK.now() - begun < 2.0


@freezer.needed
def test_the_disk_is_back_and_so_is_the_clerk(desk, tmp_path, stuck):
    pids, thaw = stuck
    thaw()
    desk.until(lambda: desk.clerk.pid, dt=1.0)
    desk.ask("write", path=str(tmp_path / "a"), text="")
    assert desk.answer() is None
    desk.until(lambda: not any(proctree.read(pid) for pid in pids))
    assert [note.rpartition(": ")[2] for note in said(desk)][-1] == "works again"


def test_a_stopped_clerk_is_replaced(desk, tmp_path):
    os.kill(desk.clerk.pid, signal.SIGSTOP)
    desk.ask("write", path=str(tmp_path / "a"), text="", limit_s=2.0)
    assert "no answer within 2 s" in desk.answer(dt=0.1).why
    desk.ask("write", path=str(tmp_path / "a"), text="", limit_s=1000.0)
    assert desk.answer(dt=0.1) is None


def test_a_request_that_waits_behind_a_hanging_one_is_answered_in_time(desk, tmp_path):
    os.mkfifo(tmp_path / "hangs")
    desk.ask("mirror", source=str(tmp_path / "hangs"), target=str(tmp_path / "t"), limit_s=1000.0)
    desk.ask("write", path=str(tmp_path / "b"), text="", limit_s=1.0)
    assert desk.clerk.deadline_t() == pytest.approx(101.0)
    assert "not begun within 1 s" in desk.answer(dt=0.1).why
    assert not (tmp_path / "b").exists()
    assert said(desk) == [], "what it is busy with will tell"


def test_a_disk_that_hangs_for_some_work_only_is_told_once(desk, tmp_path):
    """Frozen, it can be read, and not be written: what only waits in the queue says nothing of the disk."""
    os.mkfifo(tmp_path / "hangs")
    for _ in range(3):
        desk.ask("mirror", source=str(tmp_path / "hangs"), target=str(tmp_path / "t"), limit_s=2.0)
        desk.ask("write", path=str(tmp_path / "b"), text="", limit_s=1.0)
        desk.until(lambda: len(desk.answers) == 2, dt=0.1)
        desk.answers.clear()
        desk.ask("write", path=str(tmp_path / "b"), text="", limit_s=1000.0)
        assert desk.answer(dt=0.1) is None
    assert [note.partition(":")[0] for note in said(desk)] == ["events.jsonl"]


def test_a_supervisor_that_was_away_does_not_blame_the_clerk(desk, tmp_path):
    pid = desk.clerk.pid
    desk.ask("write", path=str(tmp_path / "a"), text="", limit_s=5.0)
    desk.wait(dt=600.0)
    assert desk.answer() is None
    assert desk.clerk.pid == pid


def test_clerks_that_die_again_and_again_come_back_ever_later(desk):
    for _ in range(4):
        desk.until(lambda: desk.clerk.pid, dt=0.5)
        pid = desk.clerk.pid
        os.kill(pid, signal.SIGKILL)
        desk.until(lambda pid=pid: desk.clerk.pid != pid)
    desk.ask("requests", folder="/nowhere", known=[], limit_s=1000.0)
    assert desk.clerk.deadline_t() - desk.now > 2


def test_the_clerk_mirrors_the_event_log(desk, tmp_path):
    log = eventlog.Log(tmp_path / "local.jsonl")
    log.append([Line(n=1, event=Noted(text="x"))])
    desk.ask("mirror", source=str(log.path), target=str(tmp_path / "run" / "events.jsonl"))
    assert desk.answer() == 1
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == log.path.read_bytes()


def test_the_clerk_brings_logs_and_looks_at_checkpoints(desk, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "out.0").write_text("hello\n")
    desk.ask("logs", out=str(tmp_path / "out"), target=str(tmp_path / "n1.log"))
    assert desk.answer() is False
    assert (tmp_path / "n1.log").read_text() == "[rank 0] hello\n"
    (tmp_path / "step1").mkdir()
    (tmp_path / "step1" / "a").write_bytes(b"abc")
    files = msgspec.to_builtins(files_of(RealDisk(), tmp_path / "step1"))
    see = {"worker": str(tmp_path), "folder": str(tmp_path), "name": "step1"}
    desk.ask("see", **see, files=files)
    assert desk.answer() == ""
    desk.ask("see", **see, files=files | {"digest": "other"})
    assert desk.answer() == f"{tmp_path}/step1: 1 file with 3 bytes here, 1 file with 3 bytes where it was picked"
    desk.ask("see", worker=str(tmp_path))
    assert desk.answer() == ""
    desk.ask("see", **see | {"worker": str(tmp_path / "gone")}, files=files)
    assert desk.answer() is None


@pytest.mark.parametrize(
    "text, found",
    [
        ('["tcp://10.0.0.7:4100", "tcp://127.0.0.1:4100"]', ["tcp://10.0.0.7:4100", "tcp://127.0.0.1:4100"]),
        ('["tcp://10.0.0.7:70000", "ipc:///tmp/x", "tcp://10.0.0.7:0"]', []),
        ('["tcp://leader:4100"]', []),
        ('["tcp://10.0.0.7:4100"', []),
        ("[7]", []),
        ("", []),
        (None, []),
    ],
)
def test_the_clerk_reads_where_the_leader_is(tmp_path, text, found):
    if text is not None:
        (tmp_path / "leader.json").write_text(text)
    assert Work().leader(path=str(tmp_path / "leader.json")) == found


def test_a_clerk_ignores_what_slurm_sends_to_everybody_and_stays_small(desk, tmp_path):
    desk.ask("write", path=str(tmp_path / "a"), text="")
    desk.answer()
    pid = desk.clerk.pid
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        os.kill(pid, number)
    desk.ask("write", path=str(tmp_path / "a"), text="")
    assert desk.answer() is None
    assert desk.clerk.pid == pid
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    pss_kib = next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    assert pss_kib < 30 * 1024


# What it does, without its process ----------------------------------------------------------------------------------------


def test_a_line_is_added_once(tmp_path):
    for line in ("7", "8", "8"):
        add_line(tmp_path / "jobs", line)
    assert (tmp_path / "jobs").read_text() == "7\n8\n"


def test_evidence_is_copied_plain_file_by_plain_file(tmp_path):
    source, target = tmp_path / "local", tmp_path / "run" / "incidents" / "1" / "n1"
    source.mkdir()
    (source / "node.json").write_text("{}")
    (source / "stacks.0").write_text("stack")
    os.mkfifo(source / "fifo")
    assert copy_folder(source, target) == 2
    assert sorted(path.name for path in target.iterdir()) == ["node.json", "stacks.0"]
    assert (target / "node.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("do", ["write", "mirror", "add_line", "logs", "copy"])
def test_a_run_directory_that_is_gone_is_not_made_anew(tmp_path, do):
    """What an unmounted disk leaves is an empty place: written there it would be in nobody's record."""
    run, here = tmp_path / "runs" / "a", tmp_path / "here"
    (here / "out").mkdir(parents=True)
    (here / "events.jsonl").write_text("{}\n")
    work = {
        "write": {"path": str(run / "status.json"), "text": "{}"},
        "mirror": {"source": str(here / "events.jsonl"), "target": str(run / "events.jsonl")},
        "add_line": {"path": str(run / "jobs"), "line": "7"},
        "logs": {"out": str(here / "out"), "target": str(run / "logs" / "1.1" / "n1.log")},
        "copy": {"source": str(here), "target": str(run / "incidents" / "1")},
    }
    said = answer(Work().table(), {"n": 1, "do": do, "with": work[do], "run": str(run)})
    assert (said["why"], said["kind"]) == (f"{run}: the run directory is gone", "the run directory is gone")
    assert not run.parent.exists()
