"""Killed, torn or failing at every single disk call of seal, quarantine and prune: what is picked afterwards is a complete one, whole
byte for byte, and nothing grows.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.entries import entries
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.keep import items, prune, removable
from ftsup.checkpoint.pick import Ask, State, pick
from ftsup.checkpoint.seal import Label, Sign, seal
from tests.checkpoint.disks import FULL, SICK, BrokenDisk, Killed, fails, healthy, kills
from tests.checkpoint.folders import contents, flip, save, sealed

RUN = "run-1"
SMALL = 60


def folder_of(folder: Path, *, steps: int) -> dict[str, bytes]:
    """Checkpoints, of which 1 to 3 are sealed; their bytes."""
    for step in range(1, steps + 1):
        save(folder / f"step{step}.pt", size=SMALL)
        if step <= 3:
            sealed(folder, f"step{step}.pt", writer=RUN)
    return {path.name: path.read_bytes() for path in folder.glob("*.pt")}


def damaged_folder(folder: Path) -> dict[str, bytes]:
    """Three that are sealed, of no kind (to be quick: nothing is asked for tensors), of which the newest two are damaged in silence."""
    folder.mkdir(exist_ok=True)
    for step in range(1, 4):
        path = folder / f"step{step}.pt"
        path.write_bytes(os.urandom(SMALL))
        sealed(folder, path.name, writer=RUN, sign=Sign.ENDED)
        if step > 1:
            times = path.stat()
            flip(path, step)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return {"step1.pt": (folder / "step1.pt").read_bytes()}


def do_seal(disk, folder: Path) -> None:
    for entry in entries(disk, Home(folder), pattern="*.pt"):
        seal(disk, Home(folder), entry, label=Label(writer=RUN))


def do_quarantine(disk, folder: Path) -> None:
    pick(disk, folder, Ask(pattern="*.pt"))


def do_prune(disk, folder: Path) -> None:
    names = [path.name for path in folder.glob("*.pt")]
    gone = removable(items(disk, Home(folder), pattern="*.pt", writer=RUN, verified=names), keep=1)
    prune(disk, Home(folder), [item.name for item in gone])


WORK = {"seal": do_seal, "quarantine": do_quarantine, "prune": do_prune}


def prepare(folder: Path, work: str) -> dict[str, bytes]:
    """The folder before the work; what may be picked afterwards."""
    if work == "quarantine":
        return damaged_folder(folder)
    whole = folder_of(folder, steps=4)
    return whole if work == "seal" else {name: whole[name] for name in ("step3.pt", "step4.pt")}


def calls_of(folder: Path, work: str) -> int:
    prepare(folder, work)
    disk = healthy()
    WORK[work](disk, folder)
    return disk.calls


def good(folder: Path, whole: dict[str, bytes]) -> None:
    """The pick is a complete one, and one of those that may be."""
    picked = pick(RealDisk(), folder, Ask(pattern="*.pt"))
    assert picked.name in whole
    assert Path(picked.path).read_bytes() == whole[picked.name]
    assert picked.name == max(whole)


@pytest.mark.parametrize("torn", [False, True], ids=["killed", "torn"])
@pytest.mark.parametrize("work", WORK)
def test_killed_at_every_call(work, torn, tmp_path):
    count = calls_of(tmp_path / "count", work)
    assert count > 20
    for at in range(1, count + 1):
        folder = tmp_path / str(at)
        whole = prepare(folder, work)
        with contextlib.suppress(Killed):
            WORK[work](kills(at, torn=torn), folder)
            pytest.fail(f"lived through call {at}")
        good(folder, whole)
        WORK[work](RealDisk(), folder)  # another process does it to the end
        good(folder, whole)
        assert list(folder.rglob("*.tmp")) == []
        if work == "quarantine":
            assert len(list((folder / ".ftsup" / "quarantine").glob("*/manifest.json"))) == 2
        if work == "prune":
            assert {path.name for path in folder.glob("*.pt")} <= set(whole)
            assert list((folder / ".ftsup" / "trash").iterdir()) == []
        shutil.rmtree(folder)


@pytest.mark.parametrize("work,code", [("seal", FULL), ("seal", SICK), ("quarantine", SICK), ("prune", FULL)])
def test_each_call_fails_once(work, code, tmp_path):
    count = calls_of(tmp_path / "count", work)
    every = ("look", "names", "open", "pieces", "write_new", "rename", "sync", "mkdir", "unlink", "rmdir")
    for at in range(1, count + 1):
        folder = tmp_path / str(at)
        whole = prepare(folder, work)
        with contextlib.suppress(OSError):
            WORK[work](fails(code, at=at, calls=every), folder)
        good(folder, whole)
        shutil.rmtree(folder)


def test_300_seeded_kills_leave_no_growing_litter(tmp_path):
    """One directory through 300 lives: each saves, seals, picks and prunes until it is killed somewhere."""
    chance = random.Random(20)
    sizes, step = [], 0
    while len(sizes) < 300:
        step += 10
        damage = chance.random() < 0.03
        try:
            live(kills(chance.randrange(1, 140), torn=chance.random() < 0.5), tmp_path, step, damage=damage)
        except Killed:
            sizes.append(sum(1 for path in tmp_path.rglob("*") if "quarantine" not in path.parts))
        picked = pick(RealDisk(), tmp_path, Ask(pattern="*.pt", label=Label(writer=RUN)))
        assert picked.name == f"step{step}.pt" or damage
        assert pick(RealDisk(), tmp_path, Ask(pattern="*.pt")).seen[-1].state is State.VERIFIED
    assert list(tmp_path.rglob("*.tmp")) == []
    assert statistics.median(sizes[200:]) <= statistics.median(sizes[:100]) + 1  # between two prunes there may be a few
    assert max(sizes) < 30
    live(healthy(), tmp_path, step + 10, damage=False)
    assert len(list((tmp_path / ".ftsup" / "sealed").iterdir())) == len(list(tmp_path.glob("*.pt"))) == 3
    assert list((tmp_path / ".ftsup" / "trash").iterdir()) == []


def live(disk: BrokenDisk, folder: Path, step: int, *, damage: bool) -> None:
    path = save(folder / f"step{step}.pt", size=SMALL)
    home = Home(folder)
    seal(disk, home, next(iter(entries(disk, home, pattern="*.pt"))), label=Label(writer=RUN))
    if damage:
        flip(path, 100)
    seen = pick(disk, folder, Ask(pattern="*.pt", label=Label(writer=RUN))).seen
    names = {path.name for path in folder.glob("*.pt")} - {each.name for each in seen if not each.good}
    prune(disk, home, [item.name for item in removable(items(disk, home, pattern="*.pt", writer=RUN, verified=names), keep=3)])


KILL_ME = """
import os, signal, sys
from pathlib import Path
from tests.checkpoint import disks, test_crash
at, work, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
def strike(number, name, path):
    if number == at:
        os.kill(os.getpid(), signal.SIGKILL)
test_crash.WORK[work](disks.BrokenDisk(strike), folder)
"""


@pytest.mark.parametrize("share", [0.3, 0.75, 0.95])
@pytest.mark.parametrize("work", WORK)
def test_a_real_sigkill(work, share, tmp_path):
    count = calls_of(tmp_path / "count", work)
    whole = prepare(tmp_path / "real", work)
    done = subprocess.run(
        [sys.executable, "-c", KILL_ME, str(int(count * share)), work, str(tmp_path / "real")],
        check=False,
        cwd=Path(__file__).parents[2],
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    good(tmp_path / "real", whole)


def test_what_quarantine_holds_is_what_was_there(tmp_path):
    prepare(tmp_path, "quarantine")
    before = contents(tmp_path)
    do_quarantine(RealDisk(), tmp_path)
    after = contents(tmp_path / ".ftsup" / "quarantine")
    for name in ("step2.pt", "step3.pt"):
        assert after[f"{name}.1/{name}"] == before[name]
        assert after[f"{name}.1/manifest.json"] == before[f".ftsup/sealed/{name}.json"]
