"""What the shim adds: beats, the exit record, stacks, output in a file, death with the parent; mostly with a stand-in for torch."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ftsup.monitors import exits, procs
from ftsup.worker import beatfile, places
from ftsup.worker.beatfile import Phase
from tests.worker.conftest import PYTHON

FAKE_TORCH = """
hooks = []
def register_optimizer_step_post_hook(hook): hooks.append(hook)
class Optimizer:
    __slots__ = {slots}
    def __init__(self): self._patch_step_function()
    def _patch_step_function(self): pass
    def step(self):
        for hook in hooks: hook(self, (), {{}})
"""
SHOW = """
import pathlib, sys
from ftsup_worker import beatfile, places
def show(): print(beatfile.read(next(pathlib.Path(sys.argv[1]).glob("beat.*"))).phase.name)
"""


def with_torch(bench, *, slots: str = "('__weakref__',)") -> None:
    bench.write("torch/__init__.py", "from show import show\nshow()\nfrom .optim.optimizer import Optimizer\n")
    bench.write("torch/optim/__init__.py", "")
    bench.write("torch/optim/optimizer.py", FAKE_TORCH.format(slots=slots))
    bench.write("show.py", SHOW)


# Beats ----------------------------------------------------------------------------------------------------------------


def test_phases_from_start_to_exit(bench):
    with_torch(bench)
    script = """
        from show import show
        import atexit; atexit.register(show); show()
        import sys, torch; show()
        optimizer = torch.Optimizer(); show()
        optimizer.step(); optimizer.step(); show()
        """
    bench.write("train.py", "\n".join(line.strip() for line in script.splitlines()))
    shim = bench.shim("train.py", str(bench.beats))
    assert (shim.stdout.split(), shim.stderr) == (["START", "IMPORT", "INIT", "FIRST_STEP", "STEP", "SHUTDOWN"], "")
    beat = bench.beat()
    assert (beat.phase, beat.step, beat.beats, beat.code) == (Phase.EXITED, 2, 2, 0)


def test_the_hook_never_raises_into_training(bench):
    with_torch(bench, slots="()")  # cannot be referred to weakly: the hook trips
    bench.write("train.py", "import torch; torch.Optimizer().step(); print('on')")
    assert bench.shim("train.py", str(bench.beats)).stdout.split() == ["IMPORT", "on"]


@pytest.mark.parametrize(
    "version, counts", [("2.6.0", "2000 /o/f."), ("2.8.1+cu128", "2000 /o/f."), ("2.9.0", "None None"), ("2.13.0+cpu", "None None")]
)
def test_an_older_torch_finds_the_recorders_variables_under_its_names(bench, version: str, counts: str):
    with_torch(bench)
    bench.write("torch/__init__.py", f"__version__ = {version!r}\nfrom .optim.optimizer import Optimizer\n")
    bench.write(
        "train.py",
        "import os, torch\nprint(os.environ.get('TORCH_NCCL_TRACE_BUFFER_SIZE'), os.environ.get('TORCH_NCCL_DEBUG_INFO_TEMP_FILE'))",
    )
    set_for_new_ones = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_TEMP_FILE": "/o/f."}
    assert bench.shim("train.py", env=set_for_new_ones).stdout == f"{counts}\n"


def test_a_torch_without_the_hook_is_left_alone(bench):
    with_torch(bench)
    bench.write("torch/optim/optimizer.py", "class Optimizer: pass\n")
    bench.write("train.py", "import torch; print('on')")
    assert bench.shim("train.py", str(bench.beats)).stdout.split() == ["IMPORT", "on"]


def test_a_torch_that_cannot_be_imported_fails_without_our_frames(bench):
    bench.write("torch/__init__.py", "import torch.optim.optimizer")
    bench.write("torch/optim/__init__.py", "")
    bench.write("train.py", "import torch")
    plain, shim = bench.plain("train.py"), bench.shim("train.py")
    assert (shim.returncode, shim.stderr) == (1, plain.stderr)


LOOKS_AROUND = """
import importlib.util, sys

class Old:
    "As finders were before Python 3.4."
    def find_module(self, name, path=None):
        return None

class Busy:
    "As wrapt's, and with it what traces and instruments: asks everybody else, and wraps the loader."
    asking = False
    def find_spec(self, name, path, target=None):
        if self.asking:
            return None
        self.asking = True
        try:
            return importlib.util.find_spec(name) if name.startswith("torch") else None
        finally:
            self.asking = False

class Greedy:
    "Asks all the others by itself."
    def find_spec(self, name, path, target=None):
        if not name.startswith("torch"):
            return None
        for finder in list(sys.meta_path):
            if finder is not self and hasattr(finder, "find_spec") and (spec := finder.find_spec(name, path, target)):
                return spec
"""


@pytest.mark.parametrize("finder", ["Old()", "Busy()", "Greedy()"])
@pytest.mark.parametrize("place", [0, 1])
def test_finders_of_other_tools_are_gone_along_with(bench, finder: str, place: int):
    with_torch(bench)
    bench.write("train.py", f"{LOOKS_AROUND}\nsys.meta_path.insert({place}, {finder})\nimport torch\ntorch.Optimizer().step()")
    shim = bench.shim("train.py", str(bench.beats))
    assert (shim.stdout.split(), shim.stderr, shim.returncode) == (["IMPORT"], "", 0)
    assert (bench.beat().beats, bench.beat().step) == (1, 1)


@pytest.mark.parametrize("change", ["del sys.meta_path[0]", "sys.meta_path = others"])
def test_a_script_that_takes_our_finder_away_is_left_alone(bench, change: str):
    with_torch(bench)
    bench.write("train.py", f"import sys\nothers = sys.meta_path[1:]\n{change}\nimport torch; print('on')")
    assert bench.shim("train.py", str(bench.beats)).stdout.split() == ["START", "on"]
    assert bench.beat().activity == 2  # shutdown and exit


def test_a_forked_child_says_nothing_in_its_parents_name(bench):
    bench.write(
        "train.py",
        "import os, sys\nimport ftsup_worker as us\nus.beat(step=1)\n"
        "if not os.fork():\n    us.beat(step=99)\n    sys.exit(9)\nos.wait()\nus.beat(step=2)\n",
    )
    assert bench.shim("train.py").returncode == 0
    assert (bench.beat().step, bench.beat().code, bench.record()["code"]) == (2, 0, 0)
    assert bench.record()["pid"] == bench.beat().pid


@pytest.mark.parametrize("damage", ["missing", "foreign"])
def test_without_its_beat_file_the_script_still_runs_and_says_so(bench, damage: str):
    bench.write("train.py", "print('on')")
    bench.beats.mkdir()
    if damage == "foreign":
        (bench.beats / "beat.0").write_text("hello")
    run = bench.plain("-m", "ftsup_worker", "train.py", env={"FTSUP_BEATS": str(bench.beats), "RANK": "0"})
    assert (run.returncode, run.stdout) == (0, "on\n")
    assert run.stderr.startswith("ftsup: this rank is not watched: ")


# The exit record ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script,how,code,message",
    [
        ("pass", "returned", 0, ""),
        ("import sys; sys.exit()", "exit", 0, ""),
        ("import sys; sys.exit(3)", "exit", 3, ""),
        ("import sys; sys.exit(-1)", "exit", 255, ""),
        ("import sys; sys.exit('no data')", "exit", 1, "no data"),
        ("raise KeyboardInterrupt", "interrupted", None, ""),
        ("raise ValueError('lr -1')", "exception", 1, "lr -1"),
    ],
)
def test_how_it_ended(bench, script: str, how: str, code: int | None, message: str):
    bench.write("train.py", script)
    run = bench.shim("train.py", rank=5)
    record = bench.record(5)
    assert (record["how"], record["code"], record.get("message", "")) == (how, code, message)
    assert (record["rank"], record["version"], record["pid"]) == (5, 1, bench.beat(5).pid)
    assert run.returncode == (-signal.SIGINT if code is None else code)
    assert bench.beat(5).code == (-1 if code is None else code)
    assert not list(bench.beats.glob("*.tmp"))


@pytest.mark.parametrize("script", ["import os; os._exit(7)", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"])
def test_no_record_when_python_did_not_get_to_the_end(bench, script: str):
    bench.write("train.py", script)
    assert bench.shim("train.py").returncode in (7, -signal.SIGTERM)
    assert bench.record() is None
    assert bench.beat().phase is Phase.START


def test_an_exception_brings_its_story(bench):
    bench.write("train.py", "import json\n\ndef load(text):\n    return json.loads(text)\n\nload('{')\n")
    run = bench.shim("train.py")
    record = bench.record()
    assert record["traceback"] == run.stderr
    assert record["type"] == "json.decoder.JSONDecodeError"
    assert record["where"] == "train.py:4 in load"
    assert record["monotonic_ns"] > 0


def test_the_fingerprint_is_of_the_lines_not_of_the_numbers(bench):
    bench.write(
        "train.py",
        "import sys\ndef fail(kind):\n    raise kind(f'{sys.argv[1]} {object()}')\n"
        "if sys.argv[2] == 'x': fail(ValueError)\nfail(OSError)\n",
    )
    prints = []
    for rank, (message, kind) in enumerate([("1", "x"), ("2", "x"), ("1", "y")]):
        bench.shim("train.py", message, kind, rank=rank)
        prints.append(bench.record(rank)["fingerprint"])
    assert prints[0] == prints[1] != prints[2]


def test_a_monstrous_error_is_capped_and_kept_head_and_tail(bench):
    bench.write("train.py", "raise ValueError('a' * 200_000 + '\\udcff end')")
    bench.shim("train.py")
    record = bench.record()
    assert len(record["message"]) <= 4096
    assert len(record["traceback"]) <= 65536
    assert record["message"].endswith(" end")
    assert record["traceback"].startswith("Traceback")


def test_an_error_that_cannot_be_printed_is_recorded(bench):
    bench.write("train.py", "class E(Exception):\n    def __str__(self): raise OSError\nraise E")
    bench.shim("train.py")
    assert bench.record()["type"] == "__main__.E"


@pytest.mark.parametrize("end,code", [("", 0), ("raise ValueError('lr')", 1)])
def test_a_script_that_clears_everything_away_is_watched_to_its_end(bench, end: str, code: int):
    bench.write(
        "train.py",
        "import os, resource, sys\nfrom ftsup_worker import beat\n"
        "os.closerange(3, 256)\nos.environ.clear()\nos.chdir('/')\nsys.path[:] = sys.path[1:]\nsys.argv.clear()\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (6, 6))\nsys.excepthook = sys.__excepthook__\nbeat(step=4)\n{end}\n",
    )
    shim = bench.shim("train.py")
    assert shim.returncode == code
    assert (bench.beat().step, bench.beat().phase, bench.beat().code) == (4, Phase.EXITED, code)
    assert (bench.record()["code"], bench.record()["step"]) == (code, 4)


@pytest.mark.parametrize(
    "body",
    ["keep()", "try:\n    keep()\nexcept OSError as error:\n    raise RuntimeError('not saved') from error"],
    ids=["alone", "as a cause"],
)
def test_a_save_that_fails_is_told_without_our_frames(bench, body: str):
    bench.write("torch/__init__.py", "")
    bench.write("torch/serialization.py", "def save(what, file):\n    raise OSError(28, 'No space left on device', file)\n")
    bench.write("train.py", f"from torch.serialization import save\n\ndef keep():\n    save({{}}, 'model.pt')\n\n{body}\n")
    plain, shim = bench.plain("train.py"), bench.shim("train.py")
    assert (shim.returncode, shim.stderr) == (1, plain.stderr)
    assert bench.record()["traceback"] == plain.stderr
    assert "ftsup" not in bench.record()["where"]


def test_an_error_in_our_own_code_is_shown_where_it_is(bench):
    bench.write("train.py", "from ftsup_worker import saved\nsaved('last')\n")
    assert "rank.py" in bench.shim("train.py").stderr


@pytest.mark.parametrize(
    "ending",
    [
        "class Code:\n    def __str__(self): raise ValueError('no words')\nsys.exit(Code())",
        "class Leaves(SystemExit):\n    @property\n    def text(self): raise ValueError('no words')\nraise Leaves(3)",
        "class Odd(Exception): __module__ = None\nraise Odd('x')",
        "def deeper(): deeper()\ndeeper()",
        "a, b = ValueError('a'), ValueError('b')\na.__cause__, b.__cause__ = b, a\nraise a",
    ],
    ids=["a code without words", "text of its own", "of no module", "too deep", "its own cause"],
)
def test_an_error_that_cannot_be_described_ends_the_script_as_ever(bench, ending: str):
    bench.write("train.py", f"import sys\n{ending}\n")
    plain, shim = bench.plain("train.py"), bench.shim("train.py")
    assert (shim.returncode, shim.stdout) == (plain.returncode, plain.stdout)
    assert (bench.record() is None) == ("ftsup: no exit record: no words\n" in shim.stderr)
    assert bench.beat().phase is Phase.EXITED


def test_a_record_that_cannot_be_written_changes_nothing(bench):
    bench.write("train.py", f"import shutil, sys; shutil.rmtree({str(bench.beats)!r}); sys.exit(3)")
    run = bench.shim("train.py")
    assert run.returncode == 3
    assert run.stderr.startswith("ftsup: no exit record: ")


# Stacks, output, death with the parent --------------------------------------------------------------------------------


def test_the_stack_signal_shows_the_line_of_every_thread(bench):
    bench.write(
        "train.py",
        "import threading\ngate, there = threading.Event(), threading.Event()\ndef idle():\n    there.set()\n    gate.wait()\n"
        "def hang():\n    there.wait()\n    print('hanging', flush=True)\n    gate.wait()\n"
        "threading.Thread(target=idle, daemon=True).start()\nhang()\n",
    )
    process = bench.start_shim("train.py")
    with process:
        assert process.stdout.readline() == "hanging\n"
        assert procs.catches(process.pid, places.STACK_SIGNAL)
        assert not procs.catches(process.pid, signal.SIGUSR1)
        stacks = places.stacks_path(bench.beats, 0)
        os.kill(process.pid, places.STACK_SIGNAL)
        text = poll(lambda: text if "in idle" in (text := stacks.read_text()) and "in hang" in text else "")
        assert process.poll() is None
        process.kill()
    assert text.count("train.py") >= 2
    assert stacks.stat().st_mode & 0o777 == 0o600


def poll(look):
    """Bounded by the test's own time limit."""
    while not (found := look()):
        os.sched_yield()
    return found


def test_a_crash_leaves_its_stack(bench):
    bench.write("train.py", "import os, signal\ndef crash():\n    os.kill(os.getpid(), signal.SIGSEGV)\ncrash()")
    run = bench.shim("train.py")
    assert (run.returncode, run.stderr) == (-signal.SIGSEGV, "")
    assert "in crash" in places.stacks_path(bench.beats, 0).read_text()


def test_output_goes_to_one_private_appended_file(bench):
    out = bench.home / "out"
    out.mkdir()
    (out / "out.2").write_text("before\n")
    bench.write(
        "train.py", "import os, sys\nprint('one')\nprint('two', file=sys.stderr)\nos.system('echo three')\nraise SystemExit('four')\n"
    )
    run = bench.shim("train.py", rank=2, env={"FTSUP_OUT_DIR": str(out)})
    assert (run.stdout, run.stderr) == ("", "")
    assert (out / "out.2").read_text() == "before\none\ntwo\nthree\nfour\n"
    bench.shim("train.py", rank=3, env={"FTSUP_OUT_DIR": str(out)})
    assert (out / "out.3").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "env, file",
    [
        ({"NCCL_DEBUG": "WARN"}, "{out}/nccl.2"),
        ({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/mine"}, "/mine"),
        ({"NCCL_DEBUG": "INFO"}, None),  # for the user's eyes: it stays in his output
    ],
)
def test_nccl_has_a_file_a_rank_unless_the_user_wants_to_read_it(bench, env: dict[str, str], file: str | None):
    out = bench.home / "out"
    out.mkdir()
    bench.write("train.py", "import os\nprint(os.environ.get('NCCL_DEBUG_FILE'))")
    bench.shim("train.py", rank=2, env={"FTSUP_OUT_DIR": str(out), **env})
    assert (out / "out.2").read_text() == f"{file and file.format(out=out)}\n"


def test_output_that_cannot_go_to_its_file_stays_where_it_was(bench):
    bench.write("train.py", "print('on')")
    run = bench.shim("train.py", env={"FTSUP_OUT_DIR": str(bench.home / "nowhere")})
    assert (run.returncode, run.stdout) == (0, "on\n")
    assert run.stderr.startswith("ftsup: output stays where it was: ")


LAUNCHER = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "ftsup_worker", "train.py"])
{then}
child.wait()
"""


def test_a_rank_dies_with_its_launcher(bench):
    bench.write("train.py", "import time\nprint('up', flush=True)\ntime.sleep(60)")
    bench.write("launch.py", LAUNCHER.format(then=""))
    launcher = bench.start("launch.py", env={"FTSUP_SUPERVISOR": str(os.getpid())})
    assert launcher.stdout.readline() == "up\n"
    launcher.kill()
    assert launcher.communicate(timeout=5)[0] == ""  # end of file: nobody holds the pipe any more


def test_a_rank_that_is_already_an_orphan_does_not_start(bench):
    bench.write("train.py", "print('up', flush=True)")
    run = bench.shim("train.py", env={"FTSUP_SUPERVISOR": str(os.getpid())})  # its parent, as after an adoption
    assert (run.returncode, run.stdout) == (-signal.SIGKILL, "")


@pytest.mark.parametrize("before", ["", "echo 500 > /proc/self/oom_score_adj; ", "echo 900 > /proc/self/oom_score_adj; "])
def test_the_kernel_takes_a_rank_before_its_launcher(bench, before):
    bench.write("train.py", "print(open('/proc/self/oom_score_adj').read())")
    bench.write("launch.py", "import os, sys\nos.execvp('sh', ['sh', '-c', sys.argv[1]])")
    code = f"{before}{PYTHON} -m ftsup_worker train.py; cat /proc/$$/oom_score_adj"
    launcher = bench.start("launch.py", code, env={"FTSUP_SUPERVISOR": str(os.getpid())})
    rank, own = (int(line) for line in launcher.communicate(timeout=50)[0].split())
    assert rank == max(own, 600)
    assert not before or f"echo {own} " in before


def test_without_a_supervisor_nobody_offers_itself(bench):
    bench.write("train.py", "print(open('/proc/self/oom_score_adj').read())")
    assert bench.shim("train.py").stdout == bench.plain("train.py").stdout


# The real torch -------------------------------------------------------------------------------------------------------

REAL = """
import sys
assert "torch" not in sys.modules
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
from ftsup_worker import beatfile
import os, pathlib
print(beatfile.read(pathlib.Path(os.environ["FTSUP_BEATS"], "beat." + os.environ["RANK"])))
raise ValueError("bad")
"""


@pytest.mark.torch
@pytest.mark.timeout(180)
def test_real_torch_beats_and_torchelastic_gets_its_file(bench):
    bench.write("train.py", REAL)
    error_file = bench.home / "error.json"
    run = bench.shim("train.py", env={"TORCHELASTIC_ERROR_FILE": str(error_file)}, limit_s=150)
    assert "step=4" in run.stdout, run.stderr
    assert "phase=<Phase.STEP" in run.stdout
    assert '"ValueError: bad"' in error_file.read_text()
    assert (bench.beat().code, bench.record()["step"]) == (1, 4)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_under_torchrun_every_rank_speaks_for_itself(bench):
    bench.write(
        "train.py", "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('no data')\nprint('waits')\ntime.sleep(500)\n"
    )
    bench.beats.mkdir()
    out = bench.home / "out"
    out.mkdir()
    for rank in range(2):
        beatfile.create(bench.beats / f"beat.{rank}")
    run = bench.plain(
        *("-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=0", "--master-port=0", "-m", "ftsup_worker", "train.py"),
        env={"FTSUP_BEATS": str(bench.beats), "FTSUP_OUT_DIR": str(out)},
        limit_s=150,
    )
    assert run.returncode == 1
    assert set(exits.records(bench.beats)) == {1}
    told = [(one.rank, one.code, one.first, one.closed) for one in exits.rank_exits(run.stderr)]
    assert told[0] == (1, 1, True, False)
    assert told[1:] in ([], [(0, -15, False, True)])  # torch 2.6 does not tell of those that it ended itself
    assert "ValueError: no data" in Path(out, "out.1").read_text()
