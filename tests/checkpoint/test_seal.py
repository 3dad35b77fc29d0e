from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ftsup.checkpoint.attempts import pending
from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.entries import Entry, entries, manifest_of
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.seal import Label, Outcome, Sign, seal
from ftsup.checkpoint.trouble import Trouble, told, trouble
from ftsup.checkpoint.verify import verify
from ftsup.events import Epoch
from tests.checkpoint.disks import DENIED, FULL, QUOTA, READ_ONLY, SICK, BrokenDisk, fails
from tests.checkpoint.folders import save, sealed, tear, torch_bytes

pytestmark = [pytest.mark.torch]  # its files are torch.save's


def names_of(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_manifest_says_what_was_sealed(tmp_path):
    path = save(tmp_path / "step-7" / "model.pt", size=9 << 20)
    (tmp_path / "step-7" / "DONE").touch()
    entry = entries(RealDisk(), Home(tmp_path), pattern="step-{step}")[0]
    label = Label(epoch=Epoch(1, 2), writer="run-1", wall="2025-01-01T00:00:00.000+00:00")
    sealing = seal(RealDisk(), Home(tmp_path), entry, label=label, marker="DONE")
    assert (sealing.outcome, sealing.files, sealing.size_bytes) == (Outcome.SEALED, 2, path.stat().st_size)
    manifest = manifest_of(RealDisk(), Home(tmp_path), "step-7")
    assert (manifest.step, manifest.epoch, manifest.writer, manifest.whole) == (7, Epoch(1, 2), "run-1", "has DONE")
    assert [(file.path, file.size_bytes, len(file.blocks)) for file in manifest.files] == [
        ("DONE", 0, 0),
        ("model.pt", path.stat().st_size, 3),
    ]
    assert names_of(tmp_path / ".ftsup") == ["sealed", "sealed/step-7.json"]
    assert sealed(tmp_path, "step-7", marker="DONE").outcome is Outcome.ALREADY


@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 0.99])
def test_what_a_writer_left_unfinished_is_never_sealed_however_quiet(share, tmp_path):
    data = torch_bytes(1, 5000)
    path = tmp_path / "step1.pt"
    path.write_bytes(data[: int(len(data) * share)])
    os.utime(path, ns=(0, 0))  # quiet for fifty years
    assert sealed(tmp_path, "step1.pt", sign=Sign.NEWER).outcome is Outcome.INCOMPLETE
    assert sealed(tmp_path, "step1.pt", sign=Sign.ENDED).outcome is Outcome.INCOMPLETE
    path.write_bytes(data)
    assert sealed(tmp_path, "step1.pt").outcome is Outcome.SEALED


WRITER = """
import os, signal, sys
data = os.urandom(1_000_000)
with open(sys.argv[1], "wb", buffering=0) as file:
    file.write(data[:600_000])
    os.kill(os.getpid(), int(sys.argv[2]))
    file.write(data[600_000:])
"""


@pytest.mark.parametrize("kind", ["step1.bin", "step1.d/part"])
def test_a_writer_that_is_stopped_at_60_percent_and_comes_back(kind, tmp_path):
    (tmp_path / kind).parent.mkdir(exist_ok=True)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / kind), str(int(signal.SIGSTOP))])
    os.waitid(os.P_PID, writer.pid, os.WSTOPPED | os.WNOWAIT)
    name = kind.split("/", maxsplit=1)[0]
    assert sealed(tmp_path, name).outcome is Outcome.UNKNOWN
    assert sealed(tmp_path, name, sign=Sign.NEWER).outcome is Outcome.SEALED  # the one thing that can be fooled: it says that it was
    os.kill(writer.pid, signal.SIGCONT)
    writer.wait()
    assert sealed(tmp_path, name).outcome is Outcome.CHANGED
    assert "a writer came back, or there are two" in sealed(tmp_path, name).why
    damages = verify(RealDisk(), tmp_path / name, manifest_of(RealDisk(), Home(tmp_path), name)).damages
    assert "1000000 bytes long, sealed with 600000" in str(damages[0])


@pytest.mark.parametrize("what", ["same size", "longer", "new file", "gone"])
def test_two_writers_are_noticed_while_it_is_read(what, tmp_path):
    save(tmp_path / "step1" / "a.pt")
    second = save(tmp_path / "step1" / "b.pt")
    (tmp_path / "step1" / "DONE").touch()

    def strike(number, name, path):
        if name == "pieces" and path.name == "a.pt":
            if what == "gone":
                second.unlink()
            elif what == "new file":
                (tmp_path / "step1" / "c.pt").write_bytes(b"c")
            else:
                second.write_bytes(bytes(second.stat().st_size + (what == "longer")))

    sealing = sealed(tmp_path, "step1", disk=BrokenDisk(strike), marker="DONE")
    assert (sealing.outcome, "changed while it was read: a writer is at work" in sealing.why) == (Outcome.CHANGING, True)
    assert not (tmp_path / ".ftsup").exists()


def test_a_later_attempt_may_write_a_step_again_and_the_same_one_may_not(tmp_path):
    path = save(tmp_path / "step1.pt")
    sealed(tmp_path, "step1.pt", epoch=Epoch(1, 1))
    save(path)
    assert sealed(tmp_path, "step1.pt", epoch=Epoch(1, 1)).outcome is Outcome.CHANGED
    assert sealed(tmp_path, "step1.pt").outcome is Outcome.CHANGED
    assert sealed(tmp_path, "step1.pt", epoch=Epoch(1, 2)).outcome is Outcome.SEALED


def test_a_name_without_a_step_is_sealed_again_with_every_save(tmp_path):
    for _ in range(2):
        save(tmp_path / "last.pt")
        assert sealed(tmp_path, "last.pt").outcome is Outcome.SEALED


def test_what_is_pending(tmp_path):
    for step in range(1, 9):
        save(tmp_path / f"step{step}.pt")
    for step in (1, 2, 3, 4, 5, 7):
        sealed(tmp_path, f"step{step}.pt")
    found = pending(RealDisk(), Home(tmp_path), pattern="*.pt", look_again=2)
    assert [(one.entry.step, one.sign) for one in found] == [(8, Sign.NONE), (7, Sign.NEWER), (6, Sign.NEWER), (5, Sign.NEWER)]


@pytest.mark.parametrize("code", [FULL, QUOTA, READ_ONLY, DENIED], ids=["ENOSPC", "EDQUOT", "EROFS", "EACCES"])
def test_a_disk_that_takes_nothing_seals_nothing_and_later_it_does(code, tmp_path):
    for at in range(1, 5):
        folder = tmp_path / str(at)
        save(folder / "step1.pt")
        with pytest.raises(OSError, match=os.strerror(code)):
            sealed(folder, "step1.pt", disk=fails(code, at=at))
        assert list(folder.rglob("*.json")) == []
        assert sealed(folder, "step1.pt").outcome is Outcome.SEALED
        assert list(folder.rglob("*.tmp")) == []


def test_eio_once_is_read_again_and_twice_is_said(tmp_path):
    save(tmp_path / "step1.pt")
    assert sealed(tmp_path, "step1.pt", disk=fails(SICK, at=1, calls=("pieces",))).outcome is Outcome.SEALED
    manifest = manifest_of(RealDisk(), Home(tmp_path), "step1.pt")
    assert verify(fails(SICK, at=1, calls=("pieces",)), tmp_path / "step1.pt", manifest).damages == ()
    (damage,) = verify(fails(SICK, calls=("pieces",)), tmp_path / "step1.pt", manifest).damages
    assert (damage.unreadable, damage.what) == (True, "cannot be read: Input/output error")


@pytest.mark.parametrize(
    "code,before,kind",
    [
        (FULL, True, Trouble.FULL),
        (QUOTA, True, Trouble.QUOTA),
        (READ_ONLY, True, Trouble.READ_ONLY),
        (SICK, True, Trouble.MEDIA),
        (DENIED, False, Trouble.DENIED),
        (DENIED, True, Trouble.CREDENTIAL),
        (116, True, Trouble.AWAY),
        (127, False, Trouble.CREDENTIAL),
        (22, True, Trouble.OTHER),
    ],
)
def test_trouble_has_a_name(code, before, kind):
    error = OSError(code, os.strerror(code), "/ckpt/step1.pt")
    assert trouble(error, worked_before=before) is kind
    assert told(error, worked_before=before).startswith(f"/ckpt/step1.pt: {os.strerror(code)}")
    assert (f"({kind.value}: " in told(error, worked_before=before)) is (kind is not Trouble.OTHER)


def test_a_file_that_is_seen_late_is_sealed_late(tmp_path):
    entry = Entry(name="step1.pt", step=1)
    assert seal(RealDisk(), Home(tmp_path), entry, label=Label()).outcome is Outcome.INCOMPLETE
    tear(save(tmp_path / "step1.pt"))
    assert seal(RealDisk(), Home(tmp_path), entry, label=Label()).outcome is Outcome.INCOMPLETE
    save(tmp_path / "step1.pt")
    assert seal(RealDisk(), Home(tmp_path), entry, label=Label()).outcome is Outcome.SEALED


def test_reading_is_told_by_the_byte_and_can_be_ended(tmp_path):
    path = save(tmp_path / "step1.pt", size=3 << 20)
    told_bytes = []
    entry = Entry(name="step1.pt", step=1)
    seal(RealDisk(), Home(tmp_path), entry, label=Label(), each=told_bytes.append)
    assert sum(told_bytes) == path.stat().st_size
    assert max(told_bytes) == 512 << 10
    (tmp_path / ".ftsup" / "sealed" / "step1.pt.json").unlink()

    def enough(size_bytes):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        seal(RealDisk(), Home(tmp_path), entry, label=Label(), each=enough)
    assert list((tmp_path / ".ftsup" / "sealed").iterdir()) == []
