"""The house's layers, read from the source: who may import whom, and where clocks, processes and broad excepts may live.

Each rule is a function from modules to findings. It is held against ftsup, and against a line that breaks it, so that no rule
can go blind. A new exception is a line in a table here, with its reason.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.timeout(300)  # each rule reads the whole source
ROOT = Path(__file__).parent.parent

LAYERS = (
    ("events", "errors", "nearest", "plain", "units", "worker"),
    ("policy",),
    ("ports", "config", "proc", "rundir"),
    ("monitors", "slurm", "mockslurm", "checkpoint", "incident", "eventlog", "sbatch"),
    ("supervisor", "report"),
    ("cli",),
    ("__main__",),
)
LAYER = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
NEIGHBOURS = {  # (who, whom) inside one layer
    ("mockslurm", "slurm"),  # slurm's text helpers
    ("incident", "monitors"),  # evidence is what the monitors see, written down
}

PURE = {
    "__future__",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "itertools",
    "math",
    "operator",
    "re",
    "statistics",
    "typing",
    "zlib",
    "msgspec",
}
PURE_OURS = ("ftsup.policy", "ftsup.events", "ftsup.errors", "ftsup.worker.beatfile")
REQUIRED = {"click", "jinja2", "msgspec", "psutil", "rich", "xxhash", "yaml", "zmq"}

ONLY_IN = {  # name as imported or called -> the places that may
    ("torch",): ("worker/", "checkpoint/"),
    ("pyslurm",): ("slurm/pyslurm.py",),
    ("subprocess", "multiprocessing", "os.system", "os.popen"): ("proc.py", "supervisor/child.py", "mockslurm/"),
    ("click", "rich"): ("cli/", "report/"),
    (
        *(f"time.{name}" for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "clock_gettime")),
        *("time.clock_gettime_ns", "time.sleep", "time.localtime", "time.gmtime", "time.ctime"),
        *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
    ): ("supervisor/clock.py", "worker/", "mockslurm/", "cli/"),
}
LATE = {"torch", "pyslurm"}  # and lazy command groups (cli/), and the worker, which waits for the script's own imports
GUESTS = {  # what a training script imports to work with a framework that it has
    "worker/huggingface.py": {"transformers"},
    "worker/lightning.py": {"lightning", "pytorch_lightning"},
}
FACADES = {  # packages whose __init__ says what the room offers, from its own modules; those never ask it back
    "ftsup.config",  # load and the structs of the configuration
    "ftsup.worker",  # beat, phase, saved, asked: what training scripts import
}
BROAD = {  # broad excepts beside every program's own main: around what must never raise into training
    "cli/__init__.py:run",  # the program's last line: what main exits with
    "worker/torchhook.py:found",  # a version of torch that is not as we know it must not stop the import of it
    "worker/record.py:_text",  # str() of the script's own exception
    "worker/shim.py:excepthook",  # an excepthook of the script's that fails: Python shows both errors, and so do we
    "worker/shim.py:_end",  # the record must not change how the script ended
}


class Import(NamedTuple):
    target: str
    line: int
    late: bool
    relative: bool


class Module(NamedTuple):
    path: str
    """Below ftsup/: `policy/rules.py`."""
    tree: ast.Module

    @property
    def name(self) -> str:
        return ".".join(("ftsup", *self.path.removesuffix(".py").split("/"))).removesuffix(".__init__")

    @property
    def room(self) -> str:
        return self.path.split("/")[0].removesuffix(".py")

    def imports(self) -> Iterator[Import]:
        late = {id(node) for function in functions(self.tree) for node in ast.walk(function)}
        package = self.name.split(".") if self.path.endswith("__init__.py") else self.name.split(".")[:-1]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (Import(alias.name, node.lineno, id(node) in late, relative=False) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                origin = ".".join([*base, *(node.module or "").split(".")]).strip(".")
                for alias in node.names:
                    yield Import(f"{origin}.{alias.name}", node.lineno, id(node) in late, relative=bool(node.level))

    def names(self) -> Iterator[tuple[str, int]]:
        """Every dotted name that is used, spelled from its import: `t.sleep` after `import time as t` is `time.sleep`."""
        known = {item.target.split(".")[0]: item.target.split(".")[0] for item in self.imports()}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                known.update({alias.asname or alias.name: prefix + alias.name for alias in node.names})
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute | ast.Name):
                first, _, rest = ast.unparse(node).partition(".")
                if first in known:
                    yield f"{known[first]}.{rest}".rstrip("."), node.lineno


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def downwards(modules: Iterable[Module]) -> Iterator[str]:
    """Imports go to lower layers, the own room, or a listed neighbour."""
    for module in modules:
        if module.path == "__init__.py":
            yield from (
                f"{module.path}:{item.line} imports; the package itself stays empty" for item in module.imports() if not future(item)
            )
            continue
        if module.room not in LAYER:
            yield f"{module.path} is in no layer"
            continue
        for item in ours(module):
            room = item.target.removeprefix("ftsup").lstrip(".").split(".")[0]
            if room in {module.room, ""} or (module.room, room) in NEIGHBOURS:
                continue
            if LAYER.get(room, len(LAYERS)) >= LAYER[module.room]:
                yield f"{module.path}:{item.line} imports {item.target}, which is not below it"


def future(item: Import) -> bool:
    return item.target.startswith("__future__")


def ours(module: Module) -> Iterator[Import]:
    return (item for item in module.imports() if item.target.split(".")[0] == "ftsup")


def cycles(modules: Iterable[Module]) -> Iterator[str]:
    """No module reaches itself by imports, late ones included. Who imports `a.b.c` runs `a/b/__init__.py` too; a facade is let be."""
    names = {module.name for module in modules}
    graph = {
        module.name: {
            target
            for item in ours(module)
            for named in (item.target if item.target in names else item.target.rpartition(".")[0],)
            for target in (named, *(above for above in parents(named) if above not in FACADES))
            if target in names and target != module.name
        }
        for module in modules
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield " -> ".join(error.args[1])


def parents(name: str) -> list[str]:
    """The packages that a module lies in."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def purity(modules: Iterable[Module]) -> Iterator[str]:
    """policy/ and events.py know values and rules only."""
    for module in modules:
        if module.room not in {"policy", "events"}:
            continue
        for item in module.imports():
            pure = item.target.split(".")[0] in PURE or item.target.startswith(PURE_OURS)
            if not pure:
                yield f"{module.path}:{item.line} imports {item.target}, which is not pure"


def containment(modules: Iterable[Module]) -> Iterator[str]:
    """Some names live in few places only."""
    for module in modules:
        used = {*module.names(), *((item.target, item.line) for item in module.imports())}
        for names, places in ONLY_IN.items():
            if module.path.startswith(places):
                continue
            for name, line in sorted(used, key=lambda pair: pair[1]):
                if any(name == banned or name.startswith(f"{banned}.") for banned in names):
                    yield f"{module.path}:{line} uses {name}; only {', '.join(places)} may"


def lateness(modules: Iterable[Module]) -> Iterator[str]:
    """torch and pyslurm are imported inside functions, and hardly anything else is."""
    for module in modules:
        for item in module.imports():
            optional = item.target.split(".")[0] in LATE
            if optional and not item.late:
                yield f"{module.path}:{item.line} imports {item.target} at once; only a function may"
            if item.late and not optional and module.room not in {"cli", "worker"}:
                yield f"{module.path}:{item.line} imports {item.target} late"


def supply(modules: Iterable[Module]) -> Iterator[str]:
    """Nothing is imported that pyproject.toml does not promise; the worker gets by with the standard library and itself."""
    for module in modules:
        worker = module.room == "worker"
        for item in module.imports():
            root = item.target.split(".")[0]
            if root == "ftsup":
                if worker and not (item.relative and item.target.startswith("ftsup.worker")):
                    yield f"{module.path}:{item.line} imports {item.target}; the worker is copied alone: relative imports of its own only"
            elif root not in sys.stdlib_module_names | LATE | (GUESTS.get(module.path, set()) if worker else REQUIRED):
                yield f"{module.path}:{item.line} imports {item.target}, which is not a dependency"


def broad(modules: Iterable[Module]) -> Iterator[str]:
    """`except Exception` that goes on stands in a program's main, or in BROAD."""
    for module in modules:
        allowed = {
            id(node)
            for function in functions(module.tree)
            if function.name == "main" or f"{module.path}:{function.name}" in BROAD
            for node in ast.walk(function)
        }
        for node in ast.walk(module.tree):
            if id(node) not in allowed and swallows(node):
                yield f"{module.path}:{node.lineno} catches everything; only a program's main may, and the functions in BROAD"


def swallows(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        last = node.body[-1]
        goes_on = not (isinstance(last, ast.Raise) or ast.unparse(last).startswith("os._exit("))
        return goes_on and (node.type is None or everything(node.type))
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress") and any(map(everything, node.args))


def everything(kind: ast.expr) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(ast.unparse(item) in {"Exception", "BaseException"} for item in kinds)


def old_syntax(modules: Iterable[Module]) -> Iterator[str]:
    """The worker runs under the training environment's Python, 3.9 or newer."""
    for module in modules:
        if module.room == "worker":
            try:
                ast.parse(ast.unparse(module.tree), feature_version=(3, 9))
            except SyntaxError as error:
                yield f"{module.path}: {error.msg}"


RULES = (downwards, cycles, purity, containment, lateness, supply, broad, old_syntax)
Rule = Callable[[Iterable[Module]], Iterator[str]]


@pytest.fixture(scope="module")
def house() -> list[Module]:
    files = sorted((ROOT / "ftsup").rglob("*.py"))
    return [Module(file.relative_to(ROOT / "ftsup").as_posix(), ast.parse(file.read_text())) for file in files]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps_the_rule(rule: Rule, house: list[Module]):
    assert list(rule(house)) == []


@pytest.mark.parametrize(
    "rule,path,line",
    [
        (downwards, "policy/judge.py", "from ftsup.ports import Clock"),
        (downwards, "slurm/commands.py", "import ftsup.monitors"),
        (downwards, "report/text.py", "from ftsup import cli"),
        (downwards, "attic/box.py", ""),
        (downwards, "__init__.py", "from ftsup.errors import Exit"),
        (purity, "policy/judge.py", "import os"),
        (purity, "events.py", "from ftsup.worker import shim"),
        (containment, "supervisor/lead.py", "import torch"),
        (containment, "slurm/commands.py", "import pyslurm"),
        (containment, "checkpoint/disk.py", "from subprocess import run"),
        (containment, "incident/bundle.py", "import os\nos.popen('ps')"),
        (containment, "supervisor/loop.py", "import time as t\nnow = t.monotonic"),
        (containment, "supervisor/loop.py", "from time import sleep as nap\nnap(1)"),
        (containment, "eventlog.py", "from datetime import datetime\ndatetime.now()"),
        (containment, "report/../sbatch.py", "import datetime as d\nd.date.today()"),
        (containment, "supervisor/node.py", "from rich.table import Table"),
        (lateness, "worker/hooks.py", "import torch"),
        (lateness, "supervisor/lead.py", "def f():\n    import json"),
        (supply, "config.py", "import requests"),
        (supply, "worker/shim.py", "import psutil"),
        (supply, "worker/huggingface.py", "import lightning"),
        (supply, "worker/shim.py", "from ftsup.worker import beatfile"),
        (supply, "worker/shim.py", "from ..errors import Exit"),
        (broad, "supervisor/loop.py", "try: f()\nexcept Exception: pass"),
        (broad, "supervisor/loop.py", "try: f()\nexcept (OSError, BaseException): pass"),
        (broad, "supervisor/loop.py", "try: f()\nexcept: pass"),
        (broad, "supervisor/loop.py", "import contextlib\nwith contextlib.suppress(Exception): f()"),
        (old_syntax, "worker/shim.py", "match x:\n    case 1: pass"),
    ],
)
def test_the_rule_sees_what_breaks_it(rule: Rule, path: str, line: str):
    assert list(rule([Module(path, ast.parse(line))])) != []


def test_a_cycle_is_seen_and_spelled_out():
    modules = [Module("proc.py", ast.parse("import ftsup.ports")), Module("ports.py", ast.parse("def f():\n    from ftsup import proc"))]
    assert list(cycles(modules)) in (["ftsup.proc -> ftsup.ports -> ftsup.proc"], ["ftsup.ports -> ftsup.proc -> ftsup.ports"])


def test_a_package_that_imports_a_module_of_its_own_makes_a_cycle_and_a_facade_only_if_that_asks_it_back():
    def pair(room, line):
        return [Module(f"{room}/__init__.py", ast.parse(f"from ftsup.{room}.keys import KEY")), Module(f"{room}/keys.py", ast.parse(line))]

    tree = {room: Module(f"{room}/tree.py", ast.parse("import json")) for room in ("incident", "config")}
    assert list(cycles(pair("incident", "import json"))) == []
    assert list(cycles([*pair("incident", "from ftsup.incident.tree import root"), tree["incident"]])) != []
    assert list(cycles([*pair("config", "from ftsup.config.tree import root"), tree["config"]])) == []
    assert list(cycles(pair("config", "from ftsup.config import load"))) != []


@pytest.mark.parametrize(
    "path,line",
    [
        ("cli/__init__.py", "def main():\n    try: run()\n    except Exception: pass"),
        ("proc.py", "import subprocess"),
        ("worker/hooks.py", "import time\nfrom . import beatfile\ndef f():\n    import torch\n    time.sleep(1)"),
        ("checkpoint/disk.py", "import os\ntry: f()\nexcept BaseException:\n    os.close(3)\n    raise"),
        ("supervisor/lead.py", "from ftsup.policy import machine\nimport datetime\nx: datetime.timedelta"),
    ],
)
def test_what_is_allowed_passes_every_rule(path: str, line: str):
    modules = [Module(path, ast.parse(line))]
    assert [finding for rule in RULES for finding in rule(modules)] == []
