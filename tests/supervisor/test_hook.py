"""notify.command with real programs: good ones, and all the ways in which they can be bad."""

from __future__ import annotations

import json
import select
import sys
import uuid
from collections.abc import Callable

import pytest

from ftsup.supervisor import hook as hooks
from ftsup.supervisor import proctree
from ftsup.supervisor.clock import BootClock
from ftsup.supervisor.hook import Hook

pytestmark = pytest.mark.e2e
CLOCK = BootClock()
HANG = "import subprocess, sys, time; subprocess.Popen(['sleep', '600']); print('up', flush=True); time.sleep(600)"
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
"""


class Rig:
    def __init__(self, folder, *argv: str, cwd=None) -> None:
        self.folder, self.mark = folder, f"test/{uuid.uuid4().hex}/leader/notify"
        self.hook = Hook(argv, folder, cwd=folder if cwd is None else cwd, mark=self.mark, env={"PATH": "/usr/bin:/bin"})

    def living(self) -> set[int]:
        return proctree.carrying(proctree.MARK, self.mark, proctree.table())

    def call(self, text: str = "{}", *, late: bool = False, held: Callable[[], object] = lambda: False) -> list[str]:
        """One call to its end; `late`: the limit is over as soon as it is up; `held`: no time passes while this is so."""
        begun_t = CLOCK.now()
        said = self.hook.call(text, now=begun_t)
        end_t = CLOCK.now() + 20
        while self.hook.busy:
            assert CLOCK.now() < end_t
            select.select(self.hook.fds(), [], [], 0.05)
            up = late and (self.folder / "notify.out").exists() and (self.folder / "notify.out").stat().st_size
            said += self.hook.poll(begun_t if held() else CLOCK.now() + (hooks.LIMIT_S if up else 0))
        assert self.living() == set()
        return said


@pytest.fixture
def rig(tmp_path):
    return lambda *argv, **options: Rig(tmp_path, *argv, **options)


def script(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def test_it_gets_the_news_and_a_good_one_is_not_talked_about(rig, tmp_path):
    news = {"text": "rank 3 hung \u00e9"}
    one = rig(*script("import sys; open('got', 'w').write(sys.stdin.read()); print('fine')"))
    assert one.call(json.dumps(news)) == []
    assert json.loads((tmp_path / "got").read_text()) == news


def test_one_that_never_reads_breaks_no_pipe(rig):
    assert rig("true").call("x" * 5_000_000) == []


def test_what_fails_is_said_once_with_its_last_words_and_once_that_it_works_again(rig, tmp_path):
    one = rig("sh", "-c", "test -e well && exit 0; echo first >&2; printf 'no \\033[31mroute\\n\\n' >&2; exit 3")
    assert one.call() == ["notify.command: exit code 3: no \ufffd[31mroute"] or one.call() == []
    assert one.call() == []
    (tmp_path / "well").touch()
    assert one.call() == ["notify.command: works again"]
    assert one.call() == []


def test_what_hangs_is_ended_with_all_that_it_started(rig):
    assert rig(*script(HANG)).call(late=True) == ["notify.command: no answer within 30 s: ended"]


def test_a_daemon_that_it_leaves_behind_is_ended(rig):
    assert rig(*script(DAEMON)).call() == ["notify.command: left 1 process behind: ended"]


def test_what_ends_a_moment_after_it_is_no_daemon(rig, tmp_path):
    one = rig("sh", "-c", "(sleep 0.05; touch over) & exit 0")
    assert one.call(held=lambda: not (tmp_path / "over").exists() or one.living()) == []


@pytest.mark.parametrize("fd", [1, 2])
def test_a_flood_of_output_fills_no_disk(rig, tmp_path, fd):
    said = rig("sh", "-c", f"exec yes >&{fd}").call()
    assert said == ["notify.command: wrote more than 16 MiB: ended"]
    assert max(path.stat().st_size for path in tmp_path.iterdir()) <= 16 << 20


def test_one_that_is_not_there_or_cannot_be_executed_is_said_with_its_name(rig, tmp_path):
    assert rig("no-such-program").call() == ["notify.command: cannot start no-such-program: No such file or directory"]
    (tmp_path / "plain").write_text("x")
    assert rig(str(tmp_path / "plain")).call() == [f"notify.command: cannot start {tmp_path}/plain: Permission denied"]


def test_one_that_is_killed(rig):
    assert rig("sh", "-c", "kill -9 $$").call() == ["notify.command: ended by SIGKILL"]


def test_a_disk_that_takes_nothing_is_said(tmp_path):
    folder = tmp_path / "gone"
    one = Rig(folder, "true")
    folder.write_text("a file")
    assert one.call()[0].startswith("notify.command: cannot be started: ")


def test_a_folder_to_run_in_that_has_gone_is_said(rig, tmp_path):
    gone = tmp_path / "gone"
    assert rig("true", cwd=gone).call() == [f"notify.command: cannot start true: No such file or directory: {gone}"]
