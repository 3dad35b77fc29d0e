"""Real processes, each attempt with a mark of its own; waiting is polling the child, bounded."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import uuid
import warnings
from pathlib import Path

import pytest

from ftsup.supervisor import child, proctree
from ftsup.supervisor.clock import BootClock

pytestmark = pytest.mark.e2e
CLOCK = BootClock()

FAMILY = """
import os, signal, subprocess, sys, time
def stray():  # double fork, a session of its own, nothing open
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 10)
            time.sleep(600)
        os._exit(0)
    os.wait()
stray()
subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600 & wait; sleep 600"])
subprocess.Popen(["env", "-i", "sleep", "600"], start_new_session=True)
stopped = subprocess.Popen(["sleep", "600"])
os.kill(stopped.pid, signal.SIGSTOP)
print("up", flush=True)
time.sleep(600)
"""


class Attempt:
    def __init__(self, folder, code, *, mark=None, argv=None, env=None, ignored=(), **options):
        self.out, self.err = folder / "out", folder / "err"
        self.mark = mark or f"test/{uuid.uuid4().hex}/n1/1.1"
        environment = {"PATH": os.environ["PATH"], **(env or {})}
        argv = argv or (sys.executable, "-c", code)
        spec = child.Spec(argv=argv, env=environment, cwd=folder, mark=self.mark, out=self.out, err=self.err, ignored=ignored)
        self.child = child.start(spec, **options)
        self.events = []

    def until(self, kind, *, limit_s=20.0):
        return until(self.child, kind, self.events, limit_s=limit_s)

    def up(self):
        self.until(child.Started)
        wait_for(lambda: self.out.exists() and "up" in self.out.read_text(), self.child)
        return self

    def family(self):
        processes = proctree.table()
        return proctree.below([self.child.pid], processes) | proctree.carrying(proctree.MARK, self.mark, processes)


def until(one, kind, events, *, limit_s=20.0):
    deadline = CLOCK.now() + limit_s
    while True:
        events += one.poll(CLOCK.now())
        found = [event for event in events if isinstance(event, kind)]
        if found:
            return found[-1]
        assert CLOCK.now() < deadline, f"no {kind.__name__} within {limit_s} s: {events}"
        wait(one)


def wait_for(ready, one=None, *, limit_s=20.0):
    deadline = CLOCK.now() + limit_s
    while not ready():
        assert CLOCK.now() < deadline
        wait(one)


def wait(one):
    poller = select.poll()
    for fd in one.fds() if one else ():
        poller.register(fd, select.POLLIN)
    poller.poll(20)


def alive(pids):
    return {pid for pid in pids if proctree.read(pid) is not None}


@pytest.fixture
def attempt(tmp_path):
    made = []

    def make(code="", **options):
        made.append(Attempt(tmp_path, code, **options))
        return made[-1]

    yield make
    for one in made:
        if not one.child.over:
            one.child.stop(grace_s=0, now=CLOCK.now())
            one.until(child.Gone)


def test_an_attempt_runs_ends_and_is_proven_gone(attempt):
    one = attempt("import os, sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert one.until(child.Ended).code == 7
    one.child.stop(grace_s=5, now=CLOCK.now())
    gone = one.until(child.Gone)
    assert (gone.code, gone.left, gone.killed) == (7, (), 0)
    assert gone.took_s < 5
    assert (one.out.read_text(), one.err.read_text()) == ("out\n", "err\n")
    assert one.child.poll(CLOCK.now()) == []
    assert one.child.fds() == []


@pytest.mark.parametrize("warning", [signal.SIGUSR1, signal.SIGUSR2])
def test_what_an_attempt_inherits(attempt, warning):
    one = attempt(
        "import json, os, resource, signal as s; print(json.dumps({'env': dict(os.environ), 'sid': os.getsid(0), 'pid': os.getpid(),"
        "'ppid': os.getppid(), 'ignored': [n for n in s.Signals if s.getsignal(n) == s.SIG_IGN],"
        "'term': s.getsignal(s.SIGTERM) == s.SIG_DFL,"
        "'fds': os.listdir('/proc/self/fd'), 'cwd': os.getcwd(),"
        "'stack': resource.getrlimit(resource.RLIMIT_STACK),"
        "'oom': open('/proc/self/oom_score_adj').read(), 'blocked': len(s.pthread_sigmask(s.SIG_BLOCK, []))}))",
        env={"MINE": 'it\'s "quoted" $HOME \n%'},
        ignored=(warning,),
    )
    one.until(child.Ended)
    saw = json.loads(one.out.read_text())
    assert saw["pid"] == saw["sid"] == one.child.pid
    assert saw["env"]["FTSUP_MARK"] == one.mark
    assert saw["env"]["FTSUP_SUPERVISOR"] == str(saw["ppid"])
    assert saw["env"]["MINE"] == 'it\'s "quoted" $HOME \n%'
    assert set(saw["env"]) <= {"FTSUP_MARK", "FTSUP_SUPERVISOR", "MINE", "PATH", "LC_CTYPE"}
    assert saw["ignored"] == sorted({warning, signal.SIGPIPE, signal.SIGXFSZ})  # Python's own two
    assert saw["term"]
    assert saw["blocked"] == 0
    assert len(saw["fds"]) == 4  # 0, 1, 2 and the listing's own
    assert saw["stack"] == list(resource.getrlimit(resource.RLIMIT_STACK))
    assert Path(saw["cwd"]) == one.out.parent
    assert saw["oom"].strip() == "500"


def test_soft_limits_of_the_submitting_shell_end_here(attempt):
    lowered = {"NOFILE": 300, "SIGPENDING": 100, "CORE": resource.getrlimit(resource.RLIMIT_CORE)[1]}
    before = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in lowered}
    for name, soft in lowered.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (soft, before[name][1]))
    try:
        one = attempt("import resource as r; print([list(r.getrlimit(x)) for x in (r.RLIMIT_NOFILE, r.RLIMIT_SIGPENDING, r.RLIMIT_CORE)])")
        one.until(child.Ended)
    finally:
        for name, pair in before.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), pair)
    files, signals, core = json.loads(one.out.read_text())
    assert files == [before["NOFILE"][1]] * 2
    assert signals == [before["SIGPENDING"][1]] * 2
    assert core == [0, before["CORE"][1]]


def test_output_is_appended_and_for_us_alone(attempt, tmp_path):
    (tmp_path / "out").write_text("before\n")
    (tmp_path / "err").unlink(missing_ok=True)
    one = attempt("print('after')")
    one.until(child.Ended)
    assert one.out.read_text() == "before\nafter\n"
    assert one.err.stat().st_mode & 0o777 == 0o600


def test_a_program_that_is_not_there_ends_with_127_and_a_sentence(attempt):
    one = attempt(argv=("no-such-program-of-ours",))
    assert one.until(child.Ended).code == 127
    assert "cannot start no-such-program-of-ours: No such file" in one.err.read_text()


def test_death_by_a_signal_is_told_as_one(attempt):
    one = attempt("import os; os.kill(os.getpid(), 11)")
    assert one.until(child.Ended).code == -11


def test_a_whole_family_is_ended_whatever_it_does_to_hide(attempt):
    one = attempt(FAMILY).up()
    wait_for(lambda: len(one.family()) >= 6, one.child)
    family = one.family()
    one.child.stop(grace_s=0.3, now=CLOCK.now())
    gone = one.until(child.Gone)
    assert (gone.left, gone.unsure) == ((), False)
    assert gone.killed >= 1
    assert 0.3 <= gone.took_s < child.KILL_LIMIT_S / 2
    assert alive(family | {one.child.pid}) == set()


def test_a_grace_is_enough_for_those_who_listen(attempt):
    one = attempt(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\nprint('up', flush=True)\ntime.sleep(600)"
    ).up()
    one.child.stop(grace_s=30, now=CLOCK.now())
    gone = one.until(child.Gone)
    assert (gone.code, gone.killed, gone.left) == (3, 0, ())
    assert gone.took_s < 5


def test_who_was_stopped_is_woken_and_then_asked(attempt):
    code = "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(4))\nprint('up', flush=True)\ntime.sleep(600)"
    one = attempt(code).up()
    os.kill(one.child.pid, signal.SIGSTOP)
    one.child.stop(grace_s=30, now=CLOCK.now())
    assert one.until(child.Gone).code == 4


def test_a_shorter_grace_is_taken_at_once(attempt):
    code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)"
    one = attempt(code).up()
    one.child.stop(grace_s=60, now=CLOCK.now())
    wait(one.child)
    one.child.stop(grace_s=0, now=CLOCK.now())
    gone = one.until(child.Gone)
    assert gone.code == -9
    assert gone.took_s < 5


LAUNCHER = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: None)
subprocess.run([sys.executable, "-c", {rank!r}])
print("it ended", flush=True)
signal.sigtimedwait([], {wait_s})
"""
RANK = "import time; print('up', flush=True); time.sleep(600)"
SAVING_RANK = "import signal, sys; signal.signal(15, lambda *_: sys.exit(print('saved'))); print('up', flush=True); signal.pause()"


def test_a_launcher_without_ranks_is_not_waited_for(attempt):
    one = attempt(LAUNCHER.format(rank=RANK, wait_s=600)).up()
    one.child.stop(grace_s=300, now=CLOCK.now(), linger=False)
    gone = one.until(child.Gone)
    assert (gone.code, gone.killed, gone.left) == (-9, 1, ())


def test_a_launcher_that_has_something_to_tell_is_waited_for(attempt):
    one = attempt(LAUNCHER.format(rank=RANK, wait_s=0.5)).up()
    one.child.stop(grace_s=300, now=CLOCK.now())
    gone = one.until(child.Gone)
    assert (gone.code, gone.killed, gone.left) == (0, 0, ())
    assert "it ended" in one.out.read_text()


def test_ranks_have_their_grace_whether_or_not_their_launcher_lingers(attempt):
    one = attempt(LAUNCHER.format(rank=SAVING_RANK, wait_s=600)).up()
    one.child.stop(grace_s=300, now=CLOCK.now(), linger=False)
    assert one.until(child.Gone).killed == 1
    assert "saved" in one.out.read_text()


def test_signals_of_slurm_to_everybody_do_not_end_the_guard(attempt):
    one = attempt("print('up', flush=True); import time; time.sleep(600)").up()
    guard = one.child.guard_pid
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        os.kill(guard, number)
    os.kill(one.child.pid, signal.SIGKILL)
    assert one.until(child.Ended).code == -9


def test_a_guard_that_was_away_as_we_were_is_not_blamed(attempt):
    one = attempt("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)").up()
    one.child.stop(grace_s=60, now=CLOCK.now())
    one.child.forgive(3600.0)
    assert one.child.poll(CLOCK.now() + 3600.0) == []
    one.child.stop(grace_s=0, now=CLOCK.now())
    assert one.until(child.Gone).left == ()


SUSPENDED_S, SHORT_S = 3.5, 1.5


def test_the_grace_does_not_pass_while_the_job_is_suspended(attempt):
    """A rank that was in the middle of its save goes on with it."""
    code = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: print('saves', flush=True))\nprint('up', flush=True)\n"
    one = attempt(f"{code}signal.pause()\nfor _ in range(10):\n    time.sleep(0.05)  # part by part, as it would write\nsys.exit(3)").up()
    one.child.stop(grace_s=SHORT_S, now=CLOCK.now())
    wait_for(lambda: "saves" in one.out.read_text(), one.child)
    everybody = (one.child.guard_pid, one.child.pid)
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)
    over_t = CLOCK.now() + SUSPENDED_S
    wait_for(lambda: CLOCK.now() >= over_t)
    for pid in everybody:
        os.kill(pid, signal.SIGCONT)
    assert one.until(child.Gone).code == 3


def test_a_stopped_guard_is_woken(attempt):
    one = attempt("print('up', flush=True); import time; time.sleep(600)").up()
    os.kill(one.child.guard_pid, signal.SIGSTOP)
    one.child.stop(grace_s=1, now=CLOCK.now())
    assert one.until(child.Gone).left == ()


def test_the_death_of_the_guard_ends_the_attempt_and_is_swept(attempt):
    one = attempt("import subprocess\nsubprocess.Popen(['sleep', '600'])\n" + "print('up', flush=True)\nimport time; time.sleep(600)").up()
    family = one.family()
    assert len(family) >= 2
    os.kill(one.child.guard_pid, signal.SIGKILL)
    gone = one.until(child.Gone)
    assert (gone.code, gone.left, gone.unsure) == (None, (), True)
    assert alive(family) == set()


SUPERVISOR = """
import os, sys, time
from pathlib import Path
from ftsup.supervisor import child
folder = Path(sys.argv[1])
spec = child.Spec(argv=(sys.executable, "-c", sys.argv[3]), env=dict(os.environ), cwd=folder, mark=sys.argv[2],
                  out=folder / "out", err=folder / "err")
one = child.start(spec)
while not one.pid:
    one.poll(0.0)
print(one.pid, flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def supervisor(folder, mark):
    command = [sys.executable, "-c", SUPERVISOR, str(folder), mark, FAMILY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            pid = int(process.stdout.readline())
            wait_for(lambda: (folder / "out").exists() and "up" in (folder / "out").read_text())
            yield process, pid
        finally:
            process.kill()


def test_the_death_of_the_supervisor_ends_the_attempt_within_five_seconds(tmp_path):
    mark = f"test/{uuid.uuid4().hex}/n1/1.1"
    with supervisor(tmp_path, mark) as (process, pid):

        def family():
            processes = proctree.table()
            return proctree.below([pid], processes) | {pid} | proctree.carrying(proctree.MARK, mark, processes)

        wait_for(lambda: len(family()) >= 6)  # the shell may still be starting its own
        family = family()
        process.kill()
        wait_for(lambda: not alive(family), limit_s=5.0)


@contextlib.contextmanager
def running(*argv, **env):
    with subprocess.Popen(argv, env={**os.environ, **env}) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_successor_sweeps_its_marks_and_nobody_elses(attempt):
    run = f"test/{uuid.uuid4().hex}"
    other = attempt("print('up', flush=True); import time; time.sleep(600)", mark=f"{run}/n10/1.1").up()
    with running("sleep", "600") as unmarked, running("sh", "-c", "env -i sleep 600 & wait", FTSUP_MARK=f"{run}/n1/1.3") as ours:
        wait_for(lambda: proctree.below([ours.pid], proctree.table()))
        family = proctree.below([ours.pid], proctree.table())
        gone = until(child.sweep(f"{run}/n1/", now=CLOCK.now()), child.Gone, [])
        assert (gone.left, gone.killed, gone.unsure) == ((), 2, True)
        assert alive(family | {ours.pid}) == set()
        assert unmarked.poll() is None
        assert alive({other.child.pid})


def test_an_exact_mark_is_not_a_prefix():
    run = f"test/{uuid.uuid4().hex}/n1"
    with running("sleep", "600", FTSUP_MARK=f"{run}/1.10") as tenth:
        assert until(child.sweep(f"{run}/1.1", now=CLOCK.now()), child.Gone, []).killed == 0
        assert tenth.poll() is None
        assert until(child.sweep(f"{run}/1.10", now=CLOCK.now()), child.Gone, []).killed == 1


def test_folders_of_an_attempt_are_removed_and_links_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    folder = tmp_path / "beats"
    folder.mkdir()
    (folder / "link").symlink_to(precious)
    child.clean([folder, tmp_path / "missing"])
    assert not folder.exists()
    assert (precious / "file").exists()


def test_a_program_that_hangs_at_the_end_is_let_go_without_a_word():
    program = child.Program("timeit", "-n", "1", "-r", "1", "import time; time.sleep(600)", kind=socket.SOCK_STREAM)
    pid = program.process.pid
    program.close()
    program.reap(limit_s=0.0)
    with warnings.catch_warnings(record=True) as said:
        del program
        gc.collect()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert said == []
