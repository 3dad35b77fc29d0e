"""A script under the shim behaves as under Python: same output, same traceback, same end."""

from __future__ import annotations

import re

import pytest

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
    "recursion": "def f():\n    f()\nf()",
    "syntax": "x = 1\ny = = 2\n",
    "latin-1": "# coding: latin-1\nprint(len('\u00e9'))\n",
    "import of what is not there": "import no_such_module",
    "import that fails": "import broken",
    "own excepthook": "import sys\nsys.excepthook = lambda kind, error, trace: print('mine', kind, error, trace.tb_lineno)\n1 / 0",
    "excepthook exits": "import sys\nsys.excepthook = lambda *_: sys.exit(5)\n1 / 0",
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
    "own SIGUSR1 handler": """
        import os, signal
        signal.signal(signal.SIGUSR1, lambda *_: print('asked'))
        os.kill(os.getpid(), signal.SIGUSR1); print(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
        """,
    "inspects itself": "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f), inspect.stack()[0].function)",
    "warns": "import warnings\nwarnings.warn('old')",
    "forks": "import os\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\n    print('parent')\nelse:\n    print('child')",
    "forked child raises": "import os\npid = os.fork()\nif not pid:\n    raise ValueError('child')\nprint(os.waitpid(pid, 0)[1])",
}
POOL = """
import multiprocessing as mp
class Item:
    def __init__(self, x): self.x = x
def double(item): return Item(item.x * 2)
if __name__ == "__main__":
    mp.set_start_method("{method}")
    with mp.Pool(1) as pool:
        print([item.x for item in pool.map(double, [Item(1), Item(2)])])
"""


def indented(text: str) -> str:
    lines = text.split("\n")
    cut = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[cut:] for line in lines).strip("\n") + "\n"


def same(bench, *argv: str):
    plain, shim = bench.plain(*argv), bench.shim(*argv)
    assert (shim.returncode, shim.stdout, frames(shim.stderr)) == (plain.returncode, plain.stdout, frames(plain.stderr))
    return shim


def frames(stderr: str) -> str:
    """How deep a recursion got is the one thing that may differ: the shim's own frames lie below it."""
    return re.sub(r"repeated \d+ more times", "repeated", stderr)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script(bench, name: str):
    bench.write("train.py", indented(SCRIPTS[name]))
    bench.write("broken.py", "raise OSError('half installed')\n")
    same(bench, "train.py", "--lr", "0.1")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_find_what_main_defines(bench, method: str):
    bench.write("train.py", POOL.format(method=method))
    bench.write("pkg/__init__.py", "")
    bench.write("pkg/train.py", POOL.format(method=method))
    assert "[2, 4]" in same(bench, "train.py").stdout
    (bench.beats / "beat.0").unlink()
    assert "[2, 4]" in same(bench, "-m", "pkg.train").stdout


def test_a_missing_script_exits_2_in_pythons_words(bench):
    assert same(bench, "no/such.py").returncode == 2
    assert bench.record()["code"] == 2
    assert "can't open file" in bench.record()["message"]


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
