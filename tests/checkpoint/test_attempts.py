"""What a dead attempt left behind is never made whole by what a later one writes, whatever is torn, resumed, written again or refused."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys

import pytest

from ftsup.checkpoint.attempts import Began, Left, pending, signs
from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.entries import Entry
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.pick import Ask, pick
from ftsup.checkpoint.seal import Label, Outcome, Sign, seal
from ftsup.errors import Damaged
from ftsup.events import Epoch
from tests.checkpoint.disks import fails
from tests.checkpoint.folders import flip
from tests.checkpoint.folders import save as zipped

NO, NEWER, ENDED = Sign.NONE, Sign.NEWER, Sign.ENDED


def save(folder, step, *, parts=2):
    """A directory of no known kind; 2 parts make it whole."""
    path = folder / f"step{step}"
    path.mkdir(parents=True, exist_ok=True)
    for part in range(parts):
        (path / f"part{part}").write_bytes(os.urandom(50))
    return path


def picked(folder, attempt, *, ended=False, disk=None):
    """What the attempt of this number resumes from."""
    ask = Ask(pattern="step*", epoch=Epoch(1, attempt), label=Label(epoch=Epoch(1, attempt - 1)), ended=ended)
    return pick(disk or RealDisk(), folder, ask).name


def seal_all(folder, attempt, *, disk=None, grant=1, ended=False, began=None):
    """What a pass beside this attempt seals."""
    disk, home = disk or RealDisk(), Home(folder)
    label = Label(epoch=Epoch(grant, attempt), writer="run")
    found = pending(disk, home, pattern="step*", epoch=label.epoch, ended=ended, began=began)
    return [one.entry.name for one in found if seal(disk, home, one.entry, label=label, sign=one.sign).outcome is Outcome.SEALED]


@pytest.mark.parametrize(
    "there,left,ended,said",
    [
        ("30 20 10", "", False, [NO, NEWER, NEWER]),
        ("30 20 10", "", True, [ENDED, ENDED, ENDED]),
        ("30 20 10", "30", False, [NO, NO, NEWER]),  # 20 and 10 came after the 30 that a dead attempt had left
        ("30 20 10", "30 20 10", False, [NO, NO, NO]),
        ("30 20 10", "30 20 10", True, [NO, NO, NO]),  # that this attempt ended well says nothing about them
        ("30 20 10", "10", False, [NO, NEWER, NO]),
        ("30 sealed20 10", "30", False, [NO, NO, NEWER]),
        ("30 sealed20 10", "30 sealed20", False, [NO, NO, NO]),
        ("20 last", "", False, [NO, NO]),
        ("20 last", "", True, [ENDED, ENDED]),
    ],
)
def test_what_speaks_for_each(there, left, ended, said):
    def name(word):
        return word.removeprefix("sealed")

    entries = [
        Entry(name=name(word), step=int(name(word)) if name(word).isdigit() else None, rolling=word == "last") for word in there.split()
    ]
    files = {word: "as it is" for word in there.split() if not word.startswith("sealed")}
    began = Began(
        left={word: Left(files="as it is", sign=NO) for word in left.split() if not word.startswith("sealed")},
        sealed=tuple(name(word) for word in left.split() if word.startswith("sealed")),
    )
    assert list(signs(entries, files, began, ended=ended).values()) == said
    assert set(signs(entries, files, Began(left=began.left, sure=False), ended=ended).values()) == {NO}
    changed = Began(left={word: Left(files="as it was", sign=NO) for word in began.left}, sealed=began.sealed)
    assert next(iter(signs(entries, files, changed, ended=ended).values())) is (ENDED if ended else NO)


def test_a_save_of_a_later_attempt_below_an_older_torn_one_is_not_whole_by_that(tmp_path):
    """The first attempt dies in step 100. The second resumes from 90, and dies in step 97: below 100, and torn too."""
    save(tmp_path, 80)
    save(tmp_path, 90)
    save(tmp_path, 100, parts=1)
    assert picked(tmp_path, 2) == "step90"
    save(tmp_path, 97, parts=1)
    assert seal_all(tmp_path, 2) == ["step80"]
    assert picked(tmp_path, 3) == "step90"


def test_an_attempt_that_ended_well_does_not_make_an_older_torn_one_whole(tmp_path):
    save(tmp_path, 90)
    save(tmp_path, 100, parts=1)
    assert picked(tmp_path, 2) == "step90"
    save(tmp_path, 97)
    assert picked(tmp_path, 3, ended=True) == "step97"


def test_one_that_was_torn_counts_when_a_later_attempt_has_written_it_again(tmp_path):
    save(tmp_path, 10, parts=1)
    assert picked(tmp_path, 2) == ""
    save(tmp_path, 20)
    save(tmp_path, 30)
    assert seal_all(tmp_path, 2) == ["step20"]
    save(tmp_path, 10)
    assert seal_all(tmp_path, 2) == ["step10"]
    assert picked(tmp_path, 3) == "step20"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_takes_no_note_makes_nothing_sure(code, tmp_path):
    """A full disk tears the save, and takes no note of it either."""
    save(tmp_path, 10)
    save(tmp_path, 20)
    assert picked(tmp_path, 2) == "step10"
    save(tmp_path, 30)
    save(tmp_path, 40, parts=1)
    assert picked(tmp_path, 3, disk=fails(code)) == "step30"
    save(tmp_path, 50)
    save(tmp_path, 60)
    assert seal_all(tmp_path, 3, disk=fails(code, calls=("write_new",), below="attempt")) == []
    assert seal_all(tmp_path, 3) == []  # there is room again: from now on it is known what is new
    save(tmp_path, 70)
    save(tmp_path, 80, parts=1)
    assert seal_all(tmp_path, 3) == ["step70"]
    assert picked(tmp_path, 4) == "step70"
    save(tmp_path, 90)
    assert picked(tmp_path, 6) == "step70", "nobody knows which attempt it was"


@pytest.mark.parametrize("garbage", [b"", b"\xff\x00{", b'{"epoch":[1'])
def test_a_note_of_garbage_makes_nothing_sure(garbage, tmp_path):
    for step in (10, 20):
        save(tmp_path, step)
    assert picked(tmp_path, 2) == "step10"
    Home(tmp_path).attempt.write_bytes(garbage)
    for step in (30, 40):
        save(tmp_path, step)
    assert seal_all(tmp_path, 2) == []
    assert picked(tmp_path, 3) == "step10"
    Home(tmp_path).attempt.unlink()
    Home(tmp_path).attempt.mkdir()
    assert picked(tmp_path, 4) == "step10"


def test_a_person_is_told_the_same(tmp_path):
    for step in (10, 20):
        save(tmp_path, step)
    save(tmp_path, 30, parts=1)
    assert picked(tmp_path, 2) == "step20"
    save(tmp_path, 40)
    found = {one.entry.name: one.sign for one in pending(RealDisk(), Home(tmp_path), pattern="step*")}
    assert found == {"step40": NO, "step30": NO, "step20": NEWER, "step10": NEWER}


WRITER = """
import os, signal, sys
os.mkdir(sys.argv[1])
with open(sys.argv[1] + "/part", "wb", buffering=0) as file:
    file.write(bytes(600_000))
    os.kill(os.getpid(), int(sys.argv[2]))
    file.write(bytes(400_000))
"""


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_writer_that_ends_at_60_percent_is_never_sealed_however_long_it_is_quiet(how, tmp_path, request):
    save(tmp_path, 10)
    torn = tmp_path / "step20"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(torn), str(int(how))])
    request.addfinalizer(writer.wait)
    request.addfinalizer(writer.kill)
    os.waitid(os.P_PID, writer.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    os.utime(torn / "part", ns=(0, 0))  # quiet for fifty years
    assert seal_all(tmp_path, 1, began=Began(epoch=Epoch(1, 1))) == ["step10"]
    assert [seal_all(tmp_path, 1) for _ in range(3)] == [[], [], []]
    writer.kill()
    for attempt in range(2, 5):  # each resumes from 10, dies, and is followed by another
        assert picked(tmp_path, attempt) == ("step10" if attempt == 2 else f"step{20 + attempt - 1}")
        save(tmp_path, 20 + attempt)
        save(tmp_path, 60, parts=1)
        assert "step20" not in seal_all(tmp_path, attempt)
        (tmp_path / "step60" / "part0").unlink()
        (tmp_path / "step60").rmdir()
        assert "step20" not in seal_all(tmp_path, attempt, ended=True)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_attempts_do_nothing_torn_is_sealed_or_picked(seed, tmp_path):
    """Attempts that save at odd steps, are killed anywhere, end well, come in new grants, and a disk that now and then takes nothing."""
    chance = random.Random(seed)
    whole: set[str] = set()
    epoch, ended = Epoch(1, 1), False
    for _ in range(8):
        refuses = epoch.attempt > 1 and chance.random() < 0.3
        ask = Ask(pattern="step*", epoch=epoch, label=Label(epoch=Epoch(epoch.grant, epoch.attempt - 1)), ended=ended)
        heard: list[Began] = []
        name = pick(fails(errno.ENOSPC, calls=("write_new",)) if refuses else RealDisk(), tmp_path, ask, noted=heard.append).name
        assert not name or name in whole
        began = heard[0] if chance.random() < 0.8 else None  # the sealer is another process now and then
        ended = train(tmp_path, chance, whole, epoch, step=int(name.removeprefix("step") or 0), began=began)
        another = chance.random() < 0.2 and not refuses
        epoch = Epoch(epoch.grant + 1, 1) if another else Epoch(epoch.grant, epoch.attempt + 1)


def train(folder, chance, whole, epoch, *, step, began) -> bool:
    """One attempt; whether it ended well."""

    def sealer():
        if chance.random() < 0.5:
            disk = fails(errno.ENOSPC, calls=("write_new",)) if chance.random() < 0.2 else RealDisk()
            with contextlib.suppress(OSError):
                assert set(seal_all(folder, epoch.attempt, disk=disk, grant=epoch.grant, began=began)) <= whole

    for _ in range(chance.randrange(4)):
        step += chance.randrange(1, 8)
        whole.discard(f"step{step}")
        for parts in (1, 2):
            save(folder, step, parts=parts)
            sealer()
            if chance.random() < 0.15:
                return False
        whole.add(f"step{step}")
        sealer()
    return chance.random() < 0.3


def test_what_a_pick_found_damaged_is_sealed_by_nobody_until_it_is_written_anew(tmp_path):
    """All are damaged, so they stay in their places: a seal would make them pass the next time."""
    for step in (1, 2):
        zipped(tmp_path / f"step{step}.pt")
        flip(tmp_path / f"step{step}.pt", 500)
    heard: list[Began] = []
    with pytest.raises(Damaged, match="2 of the 2 checkpoints"):
        pick(RealDisk(), tmp_path, Ask(pattern="*.pt", epoch=Epoch(1, 1)), noted=heard.append)
    for began in (None, heard[-1]):  # a keeper that has just been started, and the one that picked
        assert pending(RealDisk(), Home(tmp_path), pattern="*.pt", epoch=Epoch(1, 1), began=began) == []
    zipped(tmp_path / "step2.pt")
    assert [one.entry.name for one in pending(RealDisk(), Home(tmp_path), pattern="*.pt", epoch=Epoch(1, 1))] == ["step2.pt"]
    assert pick(RealDisk(), tmp_path, Ask(pattern="*.pt", epoch=Epoch(1, 2))).name == "step2.pt"
