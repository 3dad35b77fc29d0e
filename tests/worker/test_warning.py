"""A script's own handler for the warning: it sees what it set, the signal itself stays ignored, and the call comes at beat N."""

from __future__ import annotations

import signal

import pytest

from ftsup.worker.beatfile import Flag

PRELUDE = """
import os, pathlib, signal, sys, threading, time
from ftsup_worker import asked, beat, beatfile
from ftsup_worker.beatfile import Word

FILE = pathlib.Path(os.environ["FTSUP_BEATS"], "beat." + os.environ["RANK"])
N = 0

def save_at_next(commit=Word.COMMIT):
    "What a supervisor would write, and two beats."
    global N
    N += 2
    beatfile.ask(FILE, beats=N, word=Word.PROPOSED, handlers=True)
    beat(step=N - 1)
    beatfile.ask(FILE, beats=N, word=commit, handlers=True)
    beat(step=N)
"""
USR1 = {"FTSUP_WARNING": str(int(signal.SIGUSR1))}


def run(bench, text: str, *, env: dict[str, str] = USR1) -> str:
    bench.write("train.py", PRELUDE + text)
    done = bench.shim("train.py", env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


SIGHT = """
import signal, sys, threading
def one(number, frame): pass
def show(what):
    try:
        print(what())
    except (TypeError, ValueError, OSError) as error:
        print(type(error).__name__, error)
def set_to(handler): return lambda: signal.signal(signal.SIGUSR1, handler)
def get(): return signal.getsignal(signal.SIGUSR1)
for handler in (signal.SIG_DFL, one, one, signal.SIG_IGN, signal.SIG_DFL, 7, "text", None, one):
    show(lambda: getattr(set_to(handler)(), "__name__", "no function"))
    show(lambda: get() is handler)
show(lambda: signal.signal(999, one))
show(lambda: signal.getsignal(999))
other = threading.Thread(target=lambda: show(set_to(one)))
other.start(); other.join()
show(lambda: signal.signal(signal.SIGUSR2, one))
show(lambda: signal.getsignal(signal.SIGUSR2) is one)
show(lambda: (signal.signal.__name__, signal.signal.__module__))
show(lambda: type(signal.signal(signal.SIGUSR1, signal.SIG_DFL)).__name__)
show(lambda: type(get()).__name__)
"""


def test_what_a_script_sees_is_what_plain_python_shows(bench):
    bench.write("sight.py", SIGHT)
    plain, ours = bench.plain("sight.py"), bench.shim("sight.py", env=USR1)
    assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)
    assert len(plain.stdout.splitlines()) > 20


@pytest.mark.parametrize("warning", [signal.SIGUSR1, signal.SIGUSR2])
def test_the_handler_is_called_at_its_beat_in_the_main_thread_with_the_scripts_frame(bench, warning: signal.Signals):
    text = f"""
calls = []
def handler(number, frame):
    calls.append((number, frame.f_code.co_name, threading.current_thread() is threading.main_thread()))
signal.signal(signal.{warning.name}, handler)
os.kill(os.getpid(), signal.{warning.name})   # what Slurm sends
save_at_next(Word.ABORT)
print(calls)
save_at_next()
save_at_next(Word.ABORT)
print(calls)
"""
    out = run(bench, text, env={"FTSUP_WARNING": str(int(warning))})
    assert out.splitlines() == ["[]", f"[({int(warning)}, 'save_at_next', True)]"]


def test_the_flag_says_whether_there_is_a_handler(bench):
    text = """
def flags(): print(int(beatfile.read(FILE).flags & beatfile.Flag.HANDLES))
flags()
for handler in (print, signal.SIG_DFL, print, signal.SIG_IGN):
    signal.signal(signal.SIGUSR1, handler)
    flags()
"""
    assert run(bench, text).split() == ["0", "2", "0", "2", "0"]


def test_the_signal_itself_stays_ignored_here_and_in_all_that_is_started(bench):
    text = """
import subprocess
signal.signal(signal.SIGUSR1, lambda *_: os._exit(9))
ignored = [line for line in open("/proc/self/status") if line.startswith("SigIgn")][0]
print(bool(int(ignored.split()[1], 16) & 1 << signal.SIGUSR1 - 1))
os.kill(os.getpid(), signal.SIGUSR1)
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGUSR1)
    os._exit(4)
print(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))
code = "import os, signal; os.kill(os.getpid(), signal.SIGUSR1); print('lives')"
print(subprocess.run([sys.executable, "-c", code], check=True).returncode)
print(subprocess.run(["sh", "-c", "kill -USR1 $$"], check=True).returncode)
"""
    assert run(bench, text).split() == ["True", "4", "lives", "0", "0"]


def test_a_forked_child_may_have_a_handler_of_its_own_and_is_no_rank(bench):
    text = """
signal.signal(signal.SIGUSR1, lambda *_: print("parent"))
ready, go = os.pipe()
pid = os.fork()
if pid == 0:
    print(signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN, signal.signal(signal.SIGUSR1, lambda *_: os._exit(5)) is signal.SIG_IGN)
    sys.stdout.flush()
    save_at_next()   # this child beats and asks into thin air
    print(asked())
    sys.stdout.flush()
    os.write(go, b"x")
    time.sleep(50)
os.read(ready, 1)
os.kill(pid, signal.SIGUSR1)
print(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))
beat(step=1)
print(beatfile.read(FILE).beats)
"""
    assert run(bench, text).splitlines() == ["True True", "False", "5", "1"]


def test_save_and_exit_ends_the_script_well_whatever_its_code(bench):
    """torchrun would end the others in the middle of their saves; the record keeps the code."""
    text = """
def save_and_exit(number, frame):
    print("saved at", beatfile.read(FILE).beats)
    sys.exit(3)
signal.signal(signal.SIGUSR1, save_and_exit)
while True:
    save_at_next()
"""
    bench.write("train.py", PRELUDE + text)
    done = bench.shim("train.py", env=USR1)
    assert (done.returncode, done.stdout, done.stderr) == (0, "saved at 2\n", "")
    assert Flag.TOOK in bench.beat().flags
    record = bench.record()
    assert record is not None
    assert (record["how"], record["code"]) == ("exit", 3)


def test_os_exit_in_the_handler_is_such_an_end_as_well_and_elsewhere_what_it_was(bench):
    text = """
def save_and_exit(number, frame):
    print("saved", flush=True)
    pid = os.fork()
    if pid == 0:
        os._exit(4)
    assert os.WEXITSTATUS(os.waitpid(pid, 0)[1]) == 4
    os._exit(status=7)
signal.signal(signal.SIGUSR1, save_and_exit)
save_at_next()
"""
    bench.write("train.py", PRELUDE + text)
    done = bench.shim("train.py", env=USR1)
    assert (done.returncode, done.stdout, done.stderr) == (0, "saved\n", "")
    record = bench.record()
    assert record is not None
    assert (record["how"], record["code"]) == ("exit", 7)
    bench.write("train.py", PRELUDE + "signal.signal(signal.SIGUSR1, lambda *_: None)\nsave_at_next()\nbeat(step=3)\nos._exit(3)")
    assert bench.shim("train.py", rank=1, env=USR1).returncode == 3
    assert bench.record(1) is None


def test_what_is_said_on_leaving_is_still_said_and_other_ends_are_as_they_were(bench):
    text = """
signal.signal(signal.SIGUSR1, lambda *_: sys.exit("enough"))
save_at_next()
"""
    bench.write("train.py", PRELUDE + text)
    done = bench.shim("train.py", env=USR1)
    assert (done.returncode, done.stderr) == (0, "enough\n")
    bench.write("train.py", PRELUDE + "signal.signal(signal.SIGUSR1, lambda *_: None)\nsave_at_next()\nbeat(step=3)\nsys.exit(3)")
    assert bench.shim("train.py", rank=1, env=USR1).returncode == 3
    bench.write("train.py", PRELUDE + "signal.signal(signal.SIGUSR1, lambda *_: 1 / 0)\nsave_at_next()")
    assert bench.shim("train.py", rank=2, env=USR1).returncode == 1


def test_a_handler_that_is_set_again_inside_itself(bench):
    """Many ignore further signals while they save, and set it anew afterwards."""
    text = """
def handler(number, frame):
    signal.signal(number, signal.SIG_IGN)
    os.kill(os.getpid(), number)
    print("saving", beatfile.read(FILE).beats)
    signal.signal(number, handler)
signal.signal(signal.SIGUSR1, handler)
save_at_next()
save_at_next()
"""
    assert run(bench, text).splitlines() == ["saving 2", "saving 4"]


def test_a_second_warning_during_the_save_is_ignored(bench):
    text = """
def handler(number, frame):
    for _ in range(3):
        os.kill(os.getpid(), number)
        time.sleep(0.01)
    print("saved")
signal.signal(signal.SIGUSR1, handler)
save_at_next()
"""
    assert run(bench, text) == "saved\n"


def test_from_a_thread_the_call_comes_to_the_main_one(bench):
    """Optimizers that step in backward call the hook on a thread of torch's, for which the main thread waits."""
    text = """
def handler(number, frame):
    print(threading.current_thread() is threading.main_thread(), number == signal.SIGUSR1)
signal.signal(signal.SIGUSR1, handler)
backward = threading.Thread(target=save_at_next)
backward.start()
backward.join()
print("on")
"""
    assert run(bench, text).splitlines() == ["True True", "on"]


def test_a_script_that_trains_in_a_thread_is_called_while_the_main_one_waits(bench):
    text = """
called, done = threading.Event(), threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: called.set())
def train():
    save_at_next()
    print(called.wait(20))
    done.set()
threading.Thread(target=train).start()
done.wait(30)
"""
    assert run(bench, text) == "True\n"


def test_who_puts_all_signals_back_leaves_us_the_stacks(bench):
    """Lightning does so at the end of a fit."""
    text = """
def caught(): return [int(line.split()[1], 16) for line in open("/proc/self/status") if line.startswith("SigCgt")][0]
before = caught()
found = {number: signal.getsignal(number) for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}}
signal.signal(signal.SIGUSR1, print)
for number, handler in found.items():
    if handler is not None:
        signal.signal(number, handler)
print(hex(before & ~caught()), signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL, int(beatfile.read(FILE).flags))
"""
    assert run(bench, text) == "0x0 True 0\n"


def test_asyncio_hears_it(bench):
    text = """
import asyncio
async def main():
    heard = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
    save_at_next()
    await asyncio.wait_for(heard.wait(), 20)
    print("heard", beatfile.read(FILE).flags & beatfile.Flag.HANDLES != 0)
    asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
    print(signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL)
asyncio.run(main())
"""
    assert run(bench, text).splitlines() == ["heard True", "True"]


def test_without_a_warning_to_keep_signals_are_pythons_own(bench):
    """`slurm.handlers: plain`, and outside of a run."""
    text = """
signal.signal(signal.SIGUSR1, lambda *_: print("at once"))
os.kill(os.getpid(), signal.SIGUSR1)
"""
    assert run(bench, text, env={"FTSUP_WARNING": ""}) == "at once\n"
    assert Flag.HANDLES not in bench.beat().flags


FIELD = {
    "sets a flag": """
stop = False
def handler(number, frame):
    global stop
    stop = True
signal.signal(signal.SIGUSR1, handler)
step = 0
while not stop:
    save_at_next()
print("saving and leaving", beatfile.read(FILE).beats)
""",
    "a class": """
class Stopper:
    def __init__(self):
        self.asked = False
        self.before = signal.signal(signal.SIGUSR1, self)
    def __call__(self, *_):
        self.asked = True
        if callable(self.before):
            self.before(*_)
stopper = Stopper()
while not stopper.asked:
    save_at_next()
signal.signal(signal.SIGUSR1, stopper.before)
print("saving and leaving", beatfile.read(FILE).beats)
""",
    "asks whether somebody handles it, as frameworks do": """
if signal.getsignal(signal.SIGUSR1) in (None, signal.SIG_DFL):
    signal.signal(signal.SIGUSR1, lambda *_: print("saving and leaving", beatfile.read(FILE).beats))
save_at_next()
""",
}


@pytest.mark.parametrize("text", FIELD.values(), ids=FIELD.keys())
def test_handlers_as_the_field_writes_them(bench, text: str):
    assert run(bench, text) == "saving and leaving 2\n"


def test_it_is_ready_before_the_script_imports_anything(bench):
    """`from signal import signal` at the top is the same function."""
    text = """
from signal import SIGUSR1, signal as listen
listen(SIGUSR1, lambda *_: print("called"))
save_at_next()
"""
    assert run(bench, text) == "called\n"


SPAWNING = """
import multiprocessing, os, pathlib, signal, sys, time

def handler(number, frame):
    pathlib.Path("called").open("a").write(f"{os.getpid()} ")

signal.signal(signal.SIGUSR1, handler)          # on the top level, where a spawned process comes by as well

def worker(own, pipe):
    if own:
        signal.signal(signal.SIGUSR1, lambda *_: pipe.send("its own"))
    os.kill(os.getpid(), signal.SIGUSR1)
    pipe.send("lives")

if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        for own in (False, True):
            here, there = context.Pipe()
            process = context.Process(target=worker, args=(own, there))
            process.start()
            print(method, [here.recv() for _ in range(1 + own)])
            process.join()
    print(signal.getsignal(signal.SIGUSR1) is handler, pathlib.Path("called").exists())
"""


@pytest.mark.parametrize("lost", ["", 'os.environ["PYTHONPATH"] = "/nowhere"\n    '])
def test_a_spawned_process_imports_the_script_and_is_no_rank(bench, lost: str):
    """Under proctrack/linuxproc Slurm sends it the signal, too. Where it cannot find us, all is as without us."""
    bench.write("train.py", SPAWNING.replace("    for method", f"    {lost}for method"))
    done = bench.shim("train.py", env=USR1)
    assert done.stderr == ""
    *said, last = done.stdout.splitlines()
    assert said == [f"{method} {got}" for method in ("spawn", "forkserver") for got in (["lives"], ["its own", "lives"])]
    assert last == f"True {bool(lost)}"
