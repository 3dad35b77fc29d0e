"""A real SIGKILL, a torn write and a failing disk at every single disk call of all that changes a directory of checkpoints: what is picked
afterwards is a complete one, loads with plain torch equal to the digest that was taken when it was saved, and nothing grows.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.keep import pin, pins
from ftsup.checkpoint.owner import Life, Owner, claim, read_owner
from ftsup.checkpoint.pick import Ask, Picked, pick
from ftsup.checkpoint.seal import Label, Sign
from tests.checkpoint.disks import FULL, SICK, fails
from tests.checkpoint.folders import contents, flip, saved, sealed, tear
from tests.checkpoint.killing import PATTERN, RUN, WORK

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("checkpoint-samples"), pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
WORKS = ["seal", "quarantine", "prune", "pin", "own"]
NUMBERS = 15
OWN = [".ftsup", "sealed", "trash", "pins", "pins/...", "owner", "owner/owner.json", "attempt.json", "verified.json"]
"""All that ftsup has there beside a manifest for each checkpoint, and what is in quarantine."""


class Helper:
    """A program that answers a line of JSON with one."""

    def __init__(self, *argv: str) -> None:
        self._process = subprocess.Popen([sys.executable, *argv], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, ask):
        self._process.stdin.write(json.dumps(ask) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Rig:
    """Processes beside this one: of those that are killed, and one of plain torch."""

    def __init__(self) -> None:
        self._killing = Helper("-m", "tests.checkpoint.killing")
        self._loading = Helper("-I", str(Path(__file__).with_name("loading.py")))
        self._recorded: dict[int, str] = {}

    def run(self, work: str, folder: Path, *, at: int = 0, torn: bool = False, **more) -> int | None:
        """Do the work in a process of its own, which is killed at this disk call. None: it was; else how many calls it made."""
        code = self._killing({"work": work, "folder": str(folder), "at": at, "torn": torn, "more": more})
        assert code in {0, -signal.SIGKILL}
        return int(folder.with_suffix(".calls").read_text()) if code == 0 else None

    def loads(self, picked: Picked) -> bool:
        """What plain torch loads from there is what was saved, by the digest that was taken then."""
        return self._loading(picked.path) == self.recorded(picked.step)

    def recorded(self, step: int) -> str:
        import torch  # noqa: PLC0415 - most tests need none

        from tests.checkpoint.loading import digest  # noqa: PLC0415 - as above

        if step not in self._recorded:
            self._recorded[step] = digest({"step": step, "weights": torch.full((NUMBERS,), float(step))})
        return self._recorded[step]

    def close(self) -> None:
        self._killing.close()
        self._loading.close()


@pytest.fixture(scope="module")
def rig():
    made = Rig()
    yield made
    made.close()


def torch_folder(folder: Path, *, steps: int) -> None:
    """Checkpoints by torch.save, of which 1 to 3 are sealed."""
    for step in range(1, steps + 1):
        saved(folder / f"step{step}", value=step, numbers=NUMBERS)
        if step <= 3:
            sealed(folder, f"step{step}", writer=RUN)


def damaged_folder(folder: Path) -> None:
    """Three that are sealed; the newest two are damaged in silence, and of no kind (to be quick: nothing is asked for tensors)."""
    saved(folder / "step1", value=1, numbers=NUMBERS)
    for step in range(1, 4):
        path = folder / f"step{step}"
        if step > 1:
            path.write_bytes(os.urandom(60))
        sealed(folder, path.name, writer=RUN, sign=Sign.ENDED)
        if step > 1:
            times = path.stat()
            flip(path, step)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def prepare(folder: Path, work: str) -> int:
    """The folder before the work; the step that has to be picked whenever that ends."""
    if work == "quarantine":
        damaged_folder(folder)
        return 1
    torch_folder(folder, steps=4)
    if work == "pin":
        pin(RealDisk(), Home(folder), "step1")
    if work == "own":
        claim(RealDisk(), Home(folder), Owner(run=RUN, job="7"), life=lambda _: Life.OVER)
    return 4


def tidy(folder: Path, work: str) -> None:
    """Once another process did the work to its end, nothing of the dead one is left."""
    own = folder / ".ftsup"
    there = {path.name for path in folder.glob(PATTERN)}
    assert list(folder.rglob("*.tmp")) == []
    assert not (own / "trash").exists() or list((own / "trash").iterdir()) == [], work
    if work == "quarantine":
        assert (there, len(list((own / "quarantine").glob("*/manifest.json")))) == ({"step1"}, 2)
    if work == "prune":
        assert there == {"step4"}  # which the pick in between has sealed
    if work == "pin":
        assert pins(RealDisk(), Home(folder)) == {"step3"}
    if work == "own":
        assert read_owner(RealDisk(), Home(folder)) == Owner(run="run-3", job="9")


@pytest.mark.parametrize("torn", [False, True], ids=["killed", "torn"])
@pytest.mark.parametrize("work", WORKS)
def test_a_real_sigkill_at_every_call(work, torn, tmp_path, rig):
    prepare(tmp_path / "count", work)
    count = rig.run(work, tmp_path / "count")
    assert count >= 9
    for at in range(1, count + 1):
        folder = tmp_path / str(at)
        step = prepare(folder, work)
        assert rig.run(work, folder, at=at, torn=torn) is None
        for _ in range(2):
            picked = pick(RealDisk(), folder, Ask(pattern=PATTERN))
            assert picked.step == step
            assert rig.loads(picked)
            WORK[work](RealDisk(), folder)  # another process does it to its end
        tidy(folder, work)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def distributed(tmp_path_factory, rig):
    """Four of torch.distributed.checkpoint; their digests are known to the rig."""
    import torch  # noqa: PLC0415 - as above
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415 - as above

    folder = tmp_path_factory.mktemp("distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what torch says of its own
        for step in range(1, 5):
            dcp.save({"step": step, "weights": torch.full((NUMBERS,), float(step))}, checkpoint_id=folder / f"step{step}")
            assert rig.loads(Picked(path=str(folder / f"step{step}"), step=step, why=""))
    return folder


@pytest.mark.parametrize("points", [4, pytest.param(1000, marks=pytest.mark.drill)], ids=["some", "every"])
@pytest.mark.parametrize("work", ["seal", "quarantine", "prune"])
def test_a_real_sigkill_among_distributed_checkpoints(work, points, tmp_path, rig, distributed):
    """At some calls: each reads .metadata in a child."""

    def begin(folder):
        shutil.copytree(distributed, folder)
        for step in range(1, 5 if work == "quarantine" else 4):
            sealed(folder, f"step{step}", writer=RUN)
        if work == "quarantine":
            tear(min((folder / "step4").glob("*.distcp")))
        return 3 if work == "quarantine" else 4

    begin(tmp_path / "count")
    count = rig.run(work, tmp_path / "count")
    for at in range(1, count + 1, max(1, count // points)):
        folder = tmp_path / str(at)
        step = begin(folder)
        assert rig.run(work, folder, at=at) is None
        picked = pick(RealDisk(), folder, Ask(pattern=PATTERN))
        assert picked.step == step
        assert rig.loads(picked)
        assert list(folder.rglob("*.tmp")) == []
        shutil.rmtree(folder)


@pytest.mark.parametrize("work,code", [("seal", FULL), ("seal", SICK), ("quarantine", SICK), ("prune", FULL), ("pin", FULL), ("own", SICK)])
def test_each_call_fails_once(work, code, tmp_path, rig):
    prepare(tmp_path / "count", work)
    every = ("look", "names", "open", "pieces", "write_new", "rename", "sync", "mkdir", "unlink", "rmdir")
    for at in range(1, rig.run(work, tmp_path / "count") + 1):
        folder = tmp_path / str(at)
        step = prepare(folder, work)
        with contextlib.suppress(OSError):
            WORK[work](fails(code, at=at, calls=every), folder)
        picked = pick(RealDisk(), folder, Ask(pattern=PATTERN))
        assert picked.step == step
        assert rig.loads(picked)
        WORK[work](RealDisk(), folder)
        tidy(folder, work)
        shutil.rmtree(folder)


def test_300_seeded_kills_leave_no_growing_litter(tmp_path, rig):
    """One directory through 300 lives, each killed for real: takes it, seals, picks, pins and prunes; saves are torn and bits flip."""
    chance, folder, lives, kills, last = random.Random(20), tmp_path / "c", 0, 0, 0
    left = []
    while kills < 300:
        lives += 1
        step = 10 * lives
        path = saved(folder / f"step{step}", value=step, numbers=NUMBERS)
        ends = lives % 20 == 0  # one that nobody kills
        broken = not ends and chance.random() < 0.05 and tear(path)
        damage = not ends and not broken and chance.random() < 0.05
        at = 0 if ends else chance.randrange(1, 250)
        kills += rig.run("live", folder, at=at, torn=chance.random() < 0.5, step=step, damage=damage) is None
        picked = pick(RealDisk(), folder, Ask(pattern=PATTERN, label=Label(writer=RUN)))
        assert rig.loads(picked)
        assert picked.step == step or broken or damage
        assert picked.step >= last
        last = picked.step
        if broken:  # what the training left unfinished is its own
            path.unlink()
        if ends:
            left.append(sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if "quarantine" not in path.parts))
    assert list(folder.rglob("*.tmp")) == []
    assert len(left) > 10
    for names in left:
        steps = {Path(name).name.partition(".")[0] for name in names if "step" in name}
        assert len(steps) <= 4, names  # the newest 3 that verify, and the one that was pinned before
        assert len(names) == len(steps) * 2 + len(OWN), names


def test_what_quarantine_holds_is_what_was_there(tmp_path):
    prepare(tmp_path, "quarantine")
    before = contents(tmp_path)
    WORK["quarantine"](RealDisk(), tmp_path)
    after = contents(tmp_path / ".ftsup" / "quarantine")
    for name in ("step2", "step3"):
        assert after[f"{name}.1/{name}"] == before[name]
        assert after[f"{name}.1/manifest.json"] == before[f".ftsup/sealed/{name}.json"]
