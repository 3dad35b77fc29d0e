"""torchrun starts scripts with the shim and without: all that they say, leave and end with is the same.

A torchrun takes seconds, so one starts all scripts at once, a rank each, through a shell that keeps what each said and its exit code
(one rank that fails would end the others). The second one puts the shim before each.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ftsup.worker import beatfile
from tests.worker.conftest import PYTHON, new

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.slow, pytest.mark.xdist_group("shim_torchrun")]

LOADERS = """
import io, os, pickle
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Squares(Dataset):
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i): return Item(i * i)

class Stream(IterableDataset):
    def __iter__(self): yield from range(3)

class Item:
    def __init__(self, x): self.x = x

class Model(torch.nn.Linear):
    def __init__(self): super().__init__(1, 1)

def collate(items): return torch.tensor([item.x for item in items])
def begin(worker): assert __name__ in ("__main__", "__mp_main__"), __name__

if __name__ == "__main__":
    for method in (None, "fork", "spawn", "forkserver"):
        loader = DataLoader(Squares(4), batch_size=2, collate_fn=collate, num_workers=1 if method else 0,
                            worker_init_fn=begin, multiprocessing_context=method, persistent_workers=bool(method))
        print(method, [batch.tolist() for _ in range(2) for batch in loader])
    print([x.tolist() for x in DataLoader(Stream(), num_workers=1)])
    torch.multiprocessing.set_start_method("spawn", force=True)
    print(torch.multiprocessing.get_start_method())

    file = io.BytesIO()
    torch.save({"model": Model(), "item": Item(3)}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    print(type(loaded["model"]) is Model, type(loaded["item"]) is Item, pickle.dumps(Item(1)))
    for name, flag in sorted(os.environ.items()):
        if name.split("_")[0] in ("TORCHELASTIC", "OMP", "RANK", "LOCAL", "GROUP", "WORLD", "ROLE") and name[-4:] not in ("FILE", "N_ID"):
            print(name, flag)
"""
SCRIPTS = {
    "sees.py --lr 1": """
import os, sys
print(sys.argv, sys.path[0], __file__, sys.flags, sys.stdout.write_through, sys.warnoptions, repr(sys.stdin.read()), os.getcwd())
""",
    "-m pkg.train --lr 1": """
import sys
from .near import x
from . import near
print(sys.argv, sys.path[0], __file__, __package__, __spec__.name, x, near.__name__)
""",
    "loaders.py": LOADERS,
    "exit3.py": "import sys; sys.exit(3)",
    "exit_text.py": "import sys; sys.exit('text')",
    "exit7.py": "import os; print('on'); os._exit(7)",
    "crash.py": "import os, signal; print('on'); os.kill(os.getpid(), signal.SIGSEGV)",
    "interrupted.py": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "no_such.py": None,
    "late.py": """
import atexit, sys, threading
class Data: pass
def late():
    threading.main_thread().join(); print('late', sys.modules['__main__'].Data)
threading.Thread(target=late).start()
atexit.register(lambda: print('atexit', Data().__class__, sys.modules['__main__'].late))
print('body')
""",
    "raises.py": "def f():\n    raise ValueError('no data')\n\nf()\n",
    "recorded.py": """
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError('no data')
main()
""",
}
SHELL = """
case=$(sed -n "$((RANK + 1))p" cases)
{python} -u {shim} $case </dev/null >said/out.$RANK 2>said/err.$RANK
echo $? >said/code.$RANK
[ ! -e "$TORCHELASTIC_ERROR_FILE" ] || cp "$TORCHELASTIC_ERROR_FILE" said/error.$RANK
"""


class Said:
    """What one torchrun's ranks left."""

    def __init__(self, home: Path, *, shim: bool) -> None:
        bench = new(home)
        for name, text in SCRIPTS.items():
            if text is not None:
                bench.write("pkg/train.py" if name.startswith("-m") else name.split()[0], text)
        bench.write("pkg/__init__.py", "")
        bench.write("pkg/near.py", "x = 1\n")
        bench.write("cases", "\n".join(SCRIPTS) + "\n")
        bench.write("case.sh", SHELL.format(python=PYTHON, shim=bench.lib / "ftsup_worker/__main__.py" if shim else ""))
        (bench.home / "work/said").mkdir()
        bench.beats.mkdir()
        for rank in range(len(SCRIPTS)):
            beatfile.create(bench.beats / f"beat.{rank}")
        torchrun = ("-m", "torch.distributed.run", f"--nproc-per-node={len(SCRIPTS)}", "--max-restarts=0", "--master-port=0")
        run = bench.plain(*torchrun, "--no-python", "sh", "case.sh", env={"FTSUP_BEATS": str(bench.beats)}, limit_s=100)
        assert run.returncode == 0, run.stderr
        self.bench = bench

    def of(self, script: str, what: str) -> str:
        path = self.bench.home / f"work/said/{what}.{list(SCRIPTS).index(script)}"
        return re.sub(r"\b0x\w+", "0x", path.read_text().replace(str(self.bench.home), "HOME")) if path.exists() else ""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Said, Said]:
    return Said(tmp_path_factory.mktemp("plain"), shim=False), Said(tmp_path_factory.mktemp("shim"), shim=True)


@pytest.mark.timeout(220)
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_says_and_ends_the_same(both: tuple[Said, Said], script: str):
    plain, shim = both
    assert [shim.of(script, "code"), shim.of(script, "out")] == [plain.of(script, "code"), plain.of(script, "out")]
    assert shim.of(script, "err") == plain.of(script, "err")
    assert shim.of(script, "code") + shim.of(script, "out") != ""


@pytest.mark.timeout(220)
def test_torchruns_error_file_is_written_once_also_without_record(both: tuple[Said, Said]):
    plain, shim = both
    assert plain.of("raises.py", "error") == ""
    for script in ("raises.py", "recorded.py"):
        message = json.loads(shim.of(script, "error"))["message"]
        assert message["message"] == "ValueError: no data"
        assert re.fullmatch(r"\d{10}", message["extraInfo"]["timestamp"])
    assert json.loads(shim.of("raises.py", "error"))["message"]["extraInfo"]["py_callstack"] == shim.of("raises.py", "err")
    recorded = [json.loads(said.of("recorded.py", "error"))["message"]["extraInfo"]["py_callstack"] for said in both]
    assert recorded[0] == recorded[1]  # by @record: its own frame stands in it
    assert shim.bench.record(list(SCRIPTS).index("recorded.py"))["message"] == "no data"
