"""A script under the shim behaves as under Python: same output, same traceback, same end."""

from __future__ import annotations

import re
import subprocess
import zipfile

import pytest

from tests.worker.conftest import PYTHON

SCRIPTS = {
    "what it sees": """
        import sys
        print(sys.argv, sys.path[0], __file__, __name__, __spec__, __package__, __doc__, type(__loader__).__name__)
        print(sorted(name for name in globals() if name != "__annotations__"))
        """,
    "returns": "print('done')",
    "sys.exit()": "import sys; sys.exit()",
    "sys.exit(3)": "import sys; sys.exit(3)",
    "sys.exit(-1)": "import sys; sys.exit(-1)",
    "sys.exit(256)": "import sys; sys.exit(256)",
    "sys.exit(True)": "import sys; sys.exit(True)",
    "sys.exit(text)": "import sys; sys.exit('no data')",
    "os._exit(7)": "import os; os._exit(7)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "crashed": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "Ctrl-C": "import atexit; atexit.register(print, 'bye'); raise KeyboardInterrupt",
    "raises": "def f(x):\n    return 1 / x\n\nf(0)",
    "raises from": "try:\n    {}['a']\nexcept KeyError as error:\n    raise RuntimeError('x') from error",
    "raises while it handles": "def f():\n    try:\n        {}['a']\n    finally:\n        1 / 0\n\nf()",
    "raises a note": "error = ValueError('x')\nif hasattr(error, 'add_note'): error.add_note('note')\nraise error",
    "raises a group": """
        import sys
        if sys.version_info > (3, 11): raise ExceptionGroup('two', [OSError(1), ExceptionGroup('b', [KeyError(1)])])
        """,
    "raises what it caught before": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    kept = e\nraise kept",
    "exits from a handler": "import sys\ntry:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise SystemExit('bad') from error",
    "exits with an object": "import sys; sys.exit(3.5)",
    "exits in a thread": "import sys, threading\nt = threading.Thread(target=sys.exit, args=(4,)); t.start(); t.join(); print('on')",
    "error in exec": "exec(compile('def f():\\n    1/0\\nf()', '<text>', 'exec'))",
    "error in atexit": "import atexit\ndef late():\n    1 / 0\natexit.register(late)",
    "error in __del__": "class A:\n    def __del__(self): 1 / 0\na = A()\ndel a\nprint('on')",
    "error at shutdown": """
        import threading as t
        def late():
            t.main_thread().join(); raise OSError('late')
        t.Thread(target=late, name='t').start()
        """,
    "recursion": "def f():\n    f()\nf()",
    "syntax": "x = 1\ny = = 2\n",
    "syntax in exec": "exec('y = = 2')",
    "syntax in an import": "import bad_syntax",
    "tabs": "if True:\n\tx = 1\n        y = 2\n",
    "a byte order mark": "\ufeffprint('marked')",
    "line ends of Windows": "x = 1\r\nif x:\r\n    print(x)\r\n1 / 0\r\n",
    "no line end": "print('done')  #",
    "future": "from __future__ import annotations\ndef f(x: nothing): pass\nprint(f.__annotations__)",
    "latin-1": "# coding: latin-1\nprint(len('\u00e9'))\n",
    "import of what is not there": "import no_such_module",
    "import that fails": "import broken",
    "own excepthook": "import sys\nsys.excepthook = lambda kind, error, trace: print('mine', kind, error, trace.tb_lineno)\n1 / 0",
    "excepthook exits": "import sys\nsys.excepthook = lambda *_: sys.exit(5)\n1 / 0",
    "excepthook looks around": """
        import sys, traceback
        def hook(kind, error, trace):
            traceback.print_exception(kind, error, trace); traceback.print_last(); print(sys.exc_info(), len(traceback.extract_tb(trace)))
            print(error.__traceback__ is trace is sys.last_traceback, sys.last_value is error)
        sys.excepthook = hook
        def f():
            1 / 0
        try:
            f()
        except ZeroDivisionError as error:
            raise ValueError('x') from error
        """,
    "excepthook and then Python's": "import sys\ndef hook(*e):\n    print('mine'); sys.__excepthook__(*e)\nsys.excepthook = hook\n1 / 0",
    "excepthook fails": "import sys\ndef hook(*_):\n    [][0]\nsys.excepthook = hook\n1 / 0",
    "threading.excepthook": "import threading\nthreading.excepthook = lambda a: print('mine', a.exc_traceback.tb_next.tb_lineno)\n"
    "t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
    "thread raises": "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='t')\nt.start(); t.join(); print('on')",
    "after the body": """
        import atexit, threading, sys
        class Data: pass
        gate = threading.Event()
        def late():
            gate.wait(); print('late', hasattr(sys.modules['__main__'], 'Data'), Data.__module__)
        threading.Thread(target=late).start()
        atexit.register(lambda: print('atexit', hasattr(sys.modules['__main__'], 'Data')))
        gate.set()
        """,
    "pickles": "import pickle\nclass A:\n    x = 1\nprint(pickle.loads(pickle.dumps(A())).__class__ is A)",
    "pickles more": """
        import copyreg, dataclasses, enum, pickle, typing
        class Color(enum.Enum):
            RED = 1
        @dataclasses.dataclass
        class Item:
            color: "Color"
            next: "typing.Optional[Item]" = None
        Pair = typing.NamedTuple("Pair", [("a", int)])
        def f(): return 1
        print(pickle.loads(pickle.dumps((Color.RED, Item(Color.RED, Item(Color.RED)), Pair(1), f)))[:3], typing.get_type_hints(Item))
        print(pickle.dumps(Item(Color.RED)))
        """,
    "Ctrl-C while it waits": """
        import os, signal, threading
        def f():
            os.kill(os.getpid(), signal.SIGINT); threading.Event().wait(9)
        f()
        """,
    "own SIGUSR1 handler": """
        import os, signal
        signal.signal(signal.SIGUSR1, lambda *_: print('asked'))
        os.kill(os.getpid(), signal.SIGUSR1); print(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
        """,
    "inspects itself": "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f), inspect.stack()[0].function)",
    "inspects its classes": "import inspect\nclass A:\n    def f(self): return 2\nprint(inspect.getsource(A), inspect.getfile(A))",
    "warns": """
        import warnings
        warnings.warn('old')
        warnings.warn('older', DeprecationWarning)
        def f():
            warnings.warn('caller', stacklevel=2)
        f(); f()
        print(sorted(map(str, __warningregistry__)))
        """,
    "logs": """
        import logging
        logging.basicConfig(format="%(pathname)s %(module)s %(funcName)s %(lineno)d %(processName)s %(threadName)s %(name)s %(message)s")
        def f():
            try:
                1 / 0
            except ZeroDivisionError:
                logging.getLogger(__name__).exception("bad")
        f()
        """,
    "profiles": """
        import cProfile, pstats, io
        def f(): return [g() for _ in range(3)]
        def g(): return 1
        profile = cProfile.Profile(); profile.enable(); f(); profile.disable()
        print(sorted((file, name, data[0]) for (file, _, name), data in pstats.Stats(profile).stats.items()))
        cProfile.run("f()", "out.prof"); print("g" in str(pstats.Stats("out.prof").stats))
        """,
    "traces": """
        import sys, threading
        seen = []
        def look(frame, event, arg):
            seen.append((event, frame.f_code.co_name, frame.f_code.co_filename)); return look
        def f(): return 1
        sys.settrace(look); threading.settrace(look); f()
        t = threading.Thread(target=f); t.start(); t.join()
        sys.settrace(None); sys.setprofile(look); f(); sys.setprofile(None)
        print(seen)
        """,
    "tests itself": """
        import doctest, unittest
        def double(x):
            '>>> double(2)\\n4'
            return 2 * x
        class Case(unittest.TestCase):
            def test(self): self.assertEqual(double(1), 3)
        print(doctest.testmod())
        unittest.main(argv=['x'])
        """,
    "times itself": "import timeit\ndef f(): return 1\nprint(timeit.timeit('f()', 'from __main__ import f', number=3) > 0)",
    "asks for its usage": """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument('--lr')
        parser.print_usage()
        parser.parse_args(['--no'])
        """,
    "how it was started": """
        import sys, threading
        print(sys.flags, sys.warnoptions, sys.stdout.write_through, sys.stdout.line_buffering, sys.stdin.read(), sys.executable)
        print(sys.argv[1:], [thread.name for thread in threading.enumerate()], sys.getrecursionlimit(), __builtins__)
        print(sys.getprofile(), sys.gettrace(), sys.exc_info(), sys.excepthook is sys.__excepthook__, sys.path_hooks[0].__name__)
        """,
    "asyncio": "import asyncio\nasync def f():\n    await asyncio.sleep(0); 1 / 0\nasyncio.run(f())",
    "a process pool": """
        import concurrent.futures, multiprocessing
        class Item: pass
        def work(x): return Item
        if __name__ == "__main__":
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                print(pool.submit(work, 1).result() is Item)
        """,
    "a process raises": """
        import multiprocessing
        def work(): 1 / 0
        if __name__ == "__main__":
            child = multiprocessing.get_context("fork").Process(target=work, name="child")
            child.start(); child.join(); print(child.exitcode)
        """,
    "starts itself again": """
        import os, sys
        if "AGAIN" not in os.environ:
            os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "AGAIN": "1"})
        print(sys.argv, __file__)
        """,
    "forks": "import os\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\n    print('parent')\nelse:\n    print('child')",
    "forked child raises": "import os\npid = os.fork()\nif not pid:\n    raise ValueError('child')\nprint(os.waitpid(pid, 0)[1])",
}
POOLS = """
import multiprocessing as mp
class Item:
    def __init__(self, x): self.x = x
def double(item): return Item(item.x * 2)
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        mp.set_start_method(method, force=True)
        with mp.Pool(1) as pool:
            print(method, [item.x for item in pool.map(double, [Item(1), Item(2)])])
"""


def indented(text: str) -> str:
    lines = text.split("\n")
    cut = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[cut:] for line in lines).strip("\n") + "\n"


def same(bench, *argv: str, **more):
    plain, shim = bench.plain(*argv, **more), bench.shim(*argv, **more)
    assert (shim.returncode, shim.stdout, frames(shim.stderr)) == (plain.returncode, plain.stdout, frames(plain.stderr))
    return shim


def frames(stderr: str) -> str:
    """What no two runs have in common; and how deep a recursion got, because the shim's own frames lie below it."""
    return re.sub(r"repeated \d+ more times|\b0x\w+|\b\d\.\d+s$", "...", stderr, flags=re.MULTILINE)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script(bench, name: str):
    bench.write("train.py", indented(SCRIPTS[name]))
    bench.write("broken.py", "raise OSError('half installed')\n")
    bench.write("bad_syntax.py", "x = (1\n")
    same(bench, "train.py", "--lr", "0.1")


@pytest.mark.parametrize("name", ["returns", "raises", "warns", "thread raises", "what it sees", "a module's own path"])
@pytest.mark.parametrize(
    "setting", [{"PYTHONDEVMODE": "1"}, {"PYTHONWARNINGS": "error"}, {"PYTHONSAFEPATH": "1"}, {"PYTHONOPTIMIZE": "2"}], ids=str
)
def test_a_script_with_pythons_own_settings(bench, name: str, setting: dict[str, str]):
    bench.write("train.py", indented(SCRIPTS.get(name, "import sys; print(sys.path[0])")))
    same(bench, *(["-m", "train"] if name not in SCRIPTS else ["train.py"]), env=setting)


@pytest.mark.parametrize("argv", [["train.py"], ["-m", "pkg.train"]], ids=" ".join)
def test_children_find_what_main_defines(bench, argv: list[str]):
    bench.write("train.py", POOLS)
    bench.write("pkg/__init__.py", "")
    bench.write("pkg/train.py", POOLS)
    assert same(bench, *argv).stdout.count("[2, 4]") == 3


def test_a_missing_script_exits_2_in_pythons_words(bench):
    assert same(bench, "no/such.py").returncode == 2
    assert bench.record()["code"] == 2
    assert "can't open file" in bench.record()["message"]


@pytest.mark.parametrize("name", ["app", "app.zip", "train.pyc", "empty", "gone.zip", "link.py"])
def test_what_else_python_starts(bench, name: str):
    script = bench.write(
        "app/__main__.py", "import sys, beside\nprint(sys.argv, sys.path[0], __file__, __package__, __spec__, beside.x)\n1 / beside.x"
    )
    bench.write("app/beside.py", "x = 0\n")
    with zipfile.ZipFile(bench.home / "work/app.zip", "w") as archive:
        for path in script.parent.iterdir():
            archive.write(path, path.name)
    subprocess.run([PYTHON, "-c", "import py_compile as p; p.compile('app/beside.py', 'train.pyc')"], cwd=bench.home / "work", check=True)
    (bench.home / "work/empty").mkdir()
    (bench.home / "work/link.py").symlink_to("nothing.py")
    plain, shim = bench.plain(name, "a"), bench.shim(name, "a")
    strip = re.compile(r"<\S+ object at \w+>")
    assert (shim.returncode, strip.sub("", shim.stdout)) == (plain.returncode, strip.sub("", plain.stdout))
    assert without_runpy(shim.stderr) == without_runpy(plain.stderr)


def without_runpy(stderr: str) -> str:
    """Python's own way to start a folder; the shim has another one, and shows neither."""
    return re.sub(r'  File "[^"]*runpy[^"]*", line \d+, in \w+\n(    .*\n)*', "", stderr)


@pytest.mark.parametrize("argv", [["-m", "cProfile", "-o", "out.prof", "train.py"], ["-m", "trace", "--count", "-C", ".", "train.py"]])
def test_a_profiler_that_runs_the_script(bench, argv: list[str]):
    bench.write("train.py", "import sys\ndef f(): return sys.argv\nprint(f(), __name__, __file__)\nclass A: pass\nprint(A.__module__)\n")
    plain, shim = bench.plain(*argv, "x"), bench.shim(*argv, "x")
    assert (shim.returncode, shim.stdout, shim.stderr) == (plain.returncode, plain.stdout, plain.stderr) == (0, plain.stdout, "")


def test_importtime_sees_what_the_script_imports(bench):
    bench.write("train.py", "import wave\nprint('on')")
    run = bench.shim("train.py", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert (run.returncode, run.stdout) == (0, "on\n")
    assert re.search(r"\| wave$", run.stderr, re.MULTILINE)


def test_a_linked_script_imports_from_where_it_really_lies(bench):
    bench.write("real/train.py", "import beside, sys\nprint(__file__, sys.path[0])\n")
    bench.write("real/beside.py", "")
    (bench.home / "work/link.py").symlink_to("real/train.py")
    assert same(bench, "link.py").returncode == 0


MODULE = "import sys\nfrom . import near\nprint(sys.argv, sys.path[0], __file__, __name__, __package__, __spec__.name, near.x)\n"


@pytest.mark.parametrize("name", ["pkg", "pkg.deep.train", "pkg.bare", "pkg.no", "pkg.broken.x", "single"])
def test_a_module(bench, name: str):
    bench.write("pkg/__init__.py", "print('package')\n")
    bench.write("pkg/near.py", "x = 1\n")
    bench.write("pkg/__main__.py", MODULE)
    bench.write("pkg/deep/__init__.py", "")
    bench.write("pkg/deep/near.py", "x = 2\n")
    bench.write("pkg/deep/train.py", MODULE)
    bench.write("pkg/bare/__init__.py", "")
    bench.write("pkg/broken.py", "import no_such_module\n")
    bench.write("single.py", "import sys\nprint(sys.argv, __package__, __spec__.name)\n")
    plain, shim = bench.plain("-m", name, "a", "-m"), bench.shim("-m", name, "a", "-m")
    assert (shim.returncode, shim.stdout) == (plain.returncode, plain.stdout)
    assert last_line(shim.stderr) == last_line(plain.stderr)
    assert "ftsup_worker" not in shim.stderr


def test_a_module_of_a_missing_package_is_named(bench):
    shim = bench.shim("-m", "no.such")
    assert (shim.returncode, last_line(shim.stderr).endswith(": No module named no.such")) == (1, True)


def last_line(text: str) -> str:
    return "".join(text.strip().splitlines()[-1:])


def test_without_a_script_it_says_what_it_wants(bench):
    shim = bench.shim()
    assert (shim.returncode, "needs a script" in shim.stderr) == (2, True)
