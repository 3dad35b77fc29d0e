"""`ftsup checkpoints`: what a person sees of a directory, reads back and seals."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.moves import quarantine
from ftsup.checkpoint.pick import Ask, pick
from ftsup.checkpoint.seal import Label
from ftsup.cli.meter import Meter, size_text
from ftsup.events import Epoch
from tests.checkpoint.disks import WRITES, BrokenDisk, fails
from tests.checkpoint.folders import flip, saved, sealed, tear
from tests.cli.checkpointing import Desk, rewrite, rot

pytestmark = [pytest.mark.torch]  # its files are torch.save's

ROOT = Path(__file__).parents[2]


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


def weights_at(path: Path) -> int:
    """Where the tensor's bytes are: the only record that is not tiny."""
    return (
        path.read_bytes().index(b"archive/data/0") + 200
        if b"archive/data/0" in path.read_bytes()
        else path.read_bytes().index(b"data/0") + 200
    )


def test_a_list_tells_how_each_checkpoint_stands_newest_first(desk):
    desk.save(100, 200, 300)
    saved(desk.folder / "step-400.pt", value=4)
    sealed(desk.folder, "step-400.pt", epoch=Epoch(2, 1))
    desk.type("verify", "ck", "step-400.pt")
    tear(saved(desk.folder / "step-500.pt", value=5))
    saved(desk.folder / "step-450.pt", value=4)
    (desk.folder / "step-50").mkdir()
    (desk.folder / "step-50" / "notes.bin").write_bytes(b"x" * 1300)
    desk.type("pin", "ck", "step-300.pt")
    os.utime(desk.folder / "step-200.pt", (1, 1))
    desk.manifest("step-100.pt").write_bytes(b"garbage")
    result = desk.type("list", "ck")
    assert result.exit_code == 0
    head, *rows = result.stdout.splitlines()
    assert head.split() == ["NAME", "KIND", "STEP", "EPOCH", "SIZE", "STATE"]
    told = [row.split(None, 6) for row in rows]
    assert [(line[0], line[1], line[2], line[3]) for line in told] == [
        ("step-500.pt", "torch_zip", "500", "-"),
        ("step-450.pt", "torch_zip", "450", "-"),
        ("step-400.pt", "torch_zip", "400", "2.1"),
        ("step-300.pt", "torch_zip", "300", "-"),
        ("step-200.pt", "torch_zip", "200", "-"),
        ("step-100.pt", "-", "100", "-"),
        ("step-50", "directory", "50", "-"),
    ]
    assert [line[6] for line in told] == [
        "incomplete: torn: it has no zip directory at its end: its writer did not come to its end",
        "unsealed: its zip directory is there and fits",
        told[2][6],
        "sealed, not read since, pinned",
        "changed: the file was written after the seal",
        told[5][6],
        told[6][6],
    ]
    assert told[2][6].startswith("verified 2026-01-02 03:")
    assert told[5][6].startswith("damaged: the manifest cannot be read")
    assert told[6][6].startswith("unsure: a directory in which nothing says that it is whole")
    assert told[6][4:6] == ["1.3", "kB"]


def test_a_list_shows_quarantine_litter_and_the_owner(desk):
    desk.save(100, 200, 300)
    quarantine(RealDisk(), Home(desk.folder), "step-300.pt", why="block 0: other bytes\nand more")
    (desk.folder / ".nfs000000012").write_bytes(b"12345")
    (desk.folder / "step-400.pt.tmp").write_bytes(b"123")
    (desk.folder / ".ftsup" / "trash").mkdir()
    (desk.folder / ".ftsup" / "trash" / "step-1.pt.1").write_bytes(b"x" * 2000)
    (desk.folder / "step-100.pt").unlink()
    (desk.folder / ".ftsup" / "sealed" / ".step-9.pt.json.ab.tmp").write_bytes(b"torn")
    desk.owned(job="77", run="one/1")
    result = desk.type("list", "ck")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["NAME", "step-200.pt"]
    lines = result.stderr.splitlines()
    assert "owner: run one/1, job 77" in lines
    assert [line for line in lines if line.startswith("in quarantine: step-300.pt") and line.endswith("block 0: other bytes and more")]
    litter = [line.split(":")[1] for line in lines if line.startswith("litter:")]
    assert litter == [
        " .nfs000000012 (5 B)",
        " step-400.pt.tmp (3 B)",
        " .ftsup/trash/step-1.pt.1 (2.0 kB)",
        " .ftsup/sealed/.step-9.pt.json.ab.tmp (4 B)",
        " step-100.pt (0 B)",
    ]
    told = json.loads(desk.type("list", "ck", "--json").stdout)
    assert (told["schema"], told["owner"]["job"], len(told["litter"])) == (1, "77", 5)
    assert [(row["name"], row["standing"], row["step"]) for row in told["checkpoints"]] == [("step-200.pt", "sealed", 200)]
    assert told["quarantined"][0]["path"].endswith(".ftsup/quarantine/step-300.pt.1")


def test_an_owner_file_of_garbage_is_a_note(desk):
    desk.save(100)
    desk.owned()
    (desk.folder / ".ftsup" / "owner" / "owner.json").write_bytes(b"\xff{")
    result = desk.type("list", "ck")
    assert result.exit_code == 0
    assert "note: " in result.stderr
    assert "owner.json cannot be read" in result.stderr
    assert desk.type("seal", "ck").exit_code == 1


def test_names_that_a_terminal_would_obey_or_utf8_cannot_hold(desk):
    saved(desk.folder / "step-1\x1b[31m.pt", value=1)
    saved(desk.folder / "step-2.pt", value=1)
    (Path(os.fsdecode(os.fsencode(desk.folder) + b"/step-3\xff.pt"))).write_bytes(b"x")
    for command in ("list", "verify", "seal", "prune"):
        result = desk.type(command, "ck")
        assert result.exit_code == 0, result.stderr
        assert "\x1b" not in result.stdout + result.stderr
        assert "step-3" not in result.stdout
    assert "its name is not UTF-8" in desk.type("list", "ck").stderr
    assert json.loads(desk.type("list", "ck", "--json").stdout)["checkpoints"][1]["name"] == "step-1\x1b[31m.pt"


def test_damage_is_told_by_file_block_and_tensor(desk):
    desk.save(100, 200)
    path = desk.folder / "step-200.pt"
    rot(path, weights_at(path))
    saved(desk.folder / "step-300.pt", value=3)
    flip(desk.folder / "step-300.pt", weights_at(desk.folder / "step-300.pt"))
    result = desk.type("verify", "ck")
    assert result.exit_code == 1
    by_name = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert by_name["step-100.pt"].startswith("verified, ")
    assert by_name["step-200.pt"].startswith("damaged: the file, block 0 (at byte 0): other bytes than were sealed")
    assert by_name["step-200.pt"].endswith("in weights")
    assert by_name["step-300.pt"].startswith("damaged: the file: CRC-32 of data/0")
    assert by_name["step-300.pt"].endswith("in weights")
    assert result.stderr.startswith("2 damaged, 1 verified; ")
    assert "/s)" in result.stderr
    told = json.loads(desk.type("verify", "ck", "step-200.pt", "--json").stdout)
    (found,) = told["checkpoints"]
    assert (found["standing"], found["damages"][0]["block"], found["damages"][0]["tensor"]) == ("damaged", 0, "weights")
    assert told["read_bytes"] >= path.stat().st_size


def test_what_is_whole_exits_with_0_and_incomplete_only_if_it_was_named(desk):
    desk.save(100)
    tear(saved(desk.folder / "step-200.pt", value=2))
    result = desk.type("verify", "ck")
    assert result.exit_code == 0
    assert "step-200.pt: incomplete: torn" in result.stdout
    assert desk.type("verify", "ck", "step-200.pt").exit_code == 1
    assert desk.type("verify", "ck", "step-100.pt").exit_code == 0


def test_verify_says_what_it_could_not_see(desk):
    (desk.folder / "step-5").mkdir(parents=True)
    (desk.folder / "step-5" / "blob").write_bytes(b"x" * 10)
    result = desk.type("verify", "ck", "step-5")
    assert result.exit_code == 0
    assert "step-5: unsure" in result.stdout
    assert "what this could not see: 1 files are of no known kind (blob)" in result.stdout


def test_a_path_that_the_shell_completed_is_a_name(desk):
    desk.save(100, 200)
    result = desk.type("verify", "ck/", "ck/step-100.pt", desk.folder / "step-200.pt", "step-100.pt")
    assert result.exit_code == 0
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["step-100.pt", "step-200.pt"]


def test_one_that_cannot_be_read_does_not_hide_the_others(desk):
    desk.save(100, 200, 300)
    for code in (errno.EIO, errno.EACCES):
        broken = fails(code, calls=("pieces",), below="step-200.pt")
        result = desk.type("verify", "ck", disk=broken)
        assert result.exit_code == 1
        states = {line.split(": ")[0]: line.split(": ")[1].split(",")[0] for line in result.stdout.splitlines()}
        assert states == {"step-300.pt": "verified", "step-200.pt": "unreadable", "step-100.pt": "verified"}


def test_a_new_seal_makes_an_old_verification_void(desk):
    desk.save(100)
    assert desk.type("verify", "ck").exit_code == 0
    saved(desk.folder / "step-100.pt", value=7)
    assert "changed" in desk.type("list", "ck").stdout
    assert desk.type("seal", "ck", "step-100.pt").exit_code == 1
    assert desk.type("seal", "ck", "step-100.pt", "--force").exit_code == 0
    assert desk.type("list", "ck").stdout.splitlines()[1].endswith("  sealed, not read since")
    assert json.loads(desk.type("list", "ck", "--json").stdout)["checkpoints"][0]["sealed"].startswith("2026-01-02T03:")


def test_a_memory_of_garbage_is_no_memory(desk):
    desk.save(100)
    desk.type("verify", "ck")
    (desk.folder / ".ftsup" / "verified.json").write_bytes(b"\xff\x00")
    assert desk.type("list", "ck").stdout.splitlines()[1].endswith("  sealed, not read since")
    assert desk.type("verify", "ck").exit_code == 0
    assert "verified 2026-" in desk.type("list", "ck").stdout


def test_sealing_takes_what_is_whole_and_leaves_the_rest(desk):
    desk.save(100, 200, seal=False)
    tear(saved(desk.folder / "step-300.pt", value=3))
    flip(saved(desk.folder / "step-250.pt", value=3), weights_at(desk.folder / "step-250.pt"))
    before = desk.files()
    assert "would be sealed" in desk.type("seal", "ck", "--dry-run").stdout
    assert desk.files() == before
    result = desk.type("seal", "ck")
    assert result.exit_code == 1  # one is damaged
    said = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert said["step-300.pt"].startswith("not sealed, incomplete: torn")
    assert said["step-250.pt"].startswith("not sealed, damaged: the file: CRC-32")
    assert said["step-200.pt"].startswith("sealed: 1 file, ")
    assert desk.files() - before == {".ftsup/sealed/step-100.pt.json", ".ftsup/sealed/step-200.pt.json"}
    assert desk.type("verify", "ck", "step-200.pt").exit_code == 0
    again = desk.type("seal", "ck", "step-200.pt")
    assert again.exit_code == 0
    assert "left as it is: sealed before" in again.stdout
    told = json.loads(desk.type("seal", "ck", "step-300.pt", "--json").stdout)
    assert [(one["name"], one["outcome"]) for one in told["checkpoints"]] == [("step-300.pt", "incomplete")]


def test_no_word_of_a_person_seals_the_incomplete_or_the_damaged(desk):
    tear(saved(desk.folder / "step-300.pt", value=3))
    flip(saved(desk.folder / "step-200.pt", value=3), weights_at(desk.folder / "step-200.pt"))
    desk.save(100)
    path = desk.folder / "step-100.pt"
    rot(path, weights_at(path))
    before = desk.manifest("step-100.pt").read_bytes()
    assert desk.type("seal", "ck", "step-300.pt", "step-200.pt", "--force").exit_code == 1
    desk.type("seal", "ck", "step-100.pt", "--force")
    assert not desk.manifest("step-300.pt").exists()
    assert not desk.manifest("step-200.pt").exists()
    assert desk.manifest("step-100.pt").read_bytes() == before  # damage since the seal is not sealed over
    assert desk.type("verify", "ck", "step-100.pt").exit_code == 1


def test_force_does_not_seal_over_damage_that_only_the_manifest_can_see(desk):
    (desk.folder / "step-1").mkdir(parents=True)
    (desk.folder / "step-1" / "blob").write_bytes(b"x" * 1000)
    assert desk.type("seal", "ck", "step-1", "--force").exit_code == 0
    rot(desk.folder / "step-1" / "blob", 500)
    assert "left as it is: sealed before, and nobody wrote since" in desk.type("seal", "ck", "step-1", "--force").stdout
    assert "step-1: damaged: blob, block 0 (at byte 0): other bytes than were sealed" in desk.type("verify", "ck").stdout


def test_the_list_says_what_reading_back_last_showed_and_when(desk):
    """Damage that no size and no time tells is not seen by a list; what a read has found is."""
    desk.save(100, 200)
    path = desk.folder / "step-200.pt"

    def states():
        rows = desk.type("list", "ck").stdout.splitlines()[1:]
        assert all(len(row) <= 80 for row in rows if "damaged" not in row)
        return [row.split(None, 6)[6] for row in rows]

    rot(path, 300)
    assert states() == ["sealed, not read since"] * 2
    assert desk.type("verify", "ck").exit_code == 1
    damaged, fine = states()
    assert damaged.startswith("damaged: the file, block 0 (at byte 0): other bytes than were sealed")
    assert damaged.endswith(")")
    assert "(found 2026-01-02 03:" in damaged
    assert fine.startswith("verified 2026-01-02 03:")
    assert "stays  step-200.pt" in desk.type("prune", "ck", "--keep", "1", "--dry-run").stdout
    rot(path, 300)  # whoever wants to be sure reads again
    assert desk.type("verify", "ck").exit_code == 0
    assert [state.split()[0] for state in states()] == ["verified", "verified"]


def test_the_list_knows_what_a_run_has_read_back(desk):
    desk.save(100, 200)
    ask = Ask(label=Label(wall="2026-05-06T07:08:09.123+00:00"), epoch=Epoch(1, 2))
    assert pick(RealDisk(), desk.folder, ask).name == "step-200.pt"
    rows = desk.type("list", "ck").stdout.splitlines()[1:]
    assert [row.split(None, 6)[6] for row in rows] == ["verified 2026-05-06 07:08", "sealed, not read since"]


def test_what_cannot_tell_itself_needs_a_newer_one_a_marker_or_a_person(desk):
    for step in (1, 2):
        (desk.folder / f"step-{step}").mkdir(parents=True)
        (desk.folder / f"step-{step}" / "blob").write_bytes(b"x" * 10)
    (desk.folder / "notes").mkdir()
    (desk.folder / "notes" / "blob").write_bytes(b"x")
    result = desk.type("seal", "ck")
    said = {line.split(": ")[0]: line.split(": ")[1] for line in result.stdout.splitlines()}
    assert said == {"step-2": "not sealed", "step-1": "sealed", "notes": "not sealed"}
    assert "(a newer one exists)" in result.stdout
    assert desk.type("seal", "ck", "step-2").exit_code == 1
    assert desk.type("seal", "ck", "step-2", "--complete", "done").exit_code == 1
    (desk.folder / "step-2" / "done").touch()
    assert "(has done)" in desk.type("seal", "ck", "step-2", "--complete", "done").stdout
    assert "(a person said so)" in desk.type("seal", "ck", "notes", "--force").stdout


def test_a_manifest_of_garbage_is_sealed_over_only_by_force_and_a_newer_one_never(desk):
    desk.save(100, 200)
    desk.manifest("step-100.pt").write_bytes(b"\x00\xff" * 100)
    assert desk.type("seal", "ck", "step-100.pt").exit_code == 1
    assert desk.type("seal", "ck", "step-100.pt", "--force").exit_code == 0
    assert desk.type("verify", "ck", "step-100.pt").exit_code == 0
    rewrite(desk.manifest("step-200.pt"), schema=9)
    written = desk.manifest("step-200.pt").read_bytes()
    assert "newer: the manifest has schema 9, and this ftsup reads 1" in desk.type("list", "ck").stdout
    found = desk.type("verify", "ck", "step-200.pt")
    assert found.exit_code == 0
    assert "schema 9, and this ftsup reads 1; its zip directory is there and fits" in found.stdout
    assert "it stays as it is" in desk.type("seal", "ck", "step-200.pt", "--force").stdout
    assert desk.manifest("step-200.pt").read_bytes() == written


def test_sealing_stops_where_the_disk_takes_nothing_and_passes_over_what_cannot_be_read(desk):
    desk.save(100, 200, seal=False)
    for code, said in ((errno.EROFS, "(read-only"), (errno.ENOSPC, "(full: make room)"), (errno.EDQUOT, "(quota")):
        result = desk.type("seal", "ck", disk=fails(code))
        assert (result.exit_code, result.stdout) == (1, "")
        assert said in result.stderr
        assert "Traceback" not in result.stderr
    result = desk.type("seal", "ck", disk=fails(errno.EIO, calls=("pieces",), below="step-200.pt"))
    assert result.exit_code == 1
    assert "step-200.pt: not sealed, damaged" in result.stdout
    assert "step-100.pt: sealed" in result.stdout


@pytest.mark.parametrize(
    "words, code, said",
    [
        (["list", "nowhere"], 1, "there is no directory nowhere"),
        (["list"], 2, "Give DIR, or --config FILE"),
        (["list", "ck", "x"], 2, "one DIR is allowed, and no NAME: ck x"),
        (["list", "ck/step-100.pt"], 1, "hint: the directory comes first, then the name: ftsup checkpoints verify ck step-100.pt"),
        (["list", "dcp"], 1, "is a checkpoint itself"),
        (["list", "ck", "--pattern", "a*"], 0, "has no checkpoint that matches a*"),
        (["verify", "ck", "step-10.pt"], 1, "hint: did you mean step-100.pt?"),
        (["verify", "ck", "xyz"], 1, "hint: ftsup checkpoints list ck shows the names"),
        (["verify", "ck", "step-100.pt", "--pattern", "a*"], 1, "does not match the pattern a*"),
        (["verify", "ck", "../ck2"], 1, "ck has no checkpoint ../ck2"),
        (["seal", "ck", "--force"], 2, "--force vouches for checkpoints by name"),
        (["pin", "ck"], 2, "Give a NAME after DIR"),
        (["pin", "ck", "step-1000.pt"], 1, "did you mean step-100.pt?"),
        (["pick", "ck", "--pattern", "a*"], 1, "has no checkpoint that matches a*: from the beginning"),
        (["prune", "ck", "--keep", "0"], 2, "0 is not in the range"),
        (["verfy", "ck"], 2, "No such command 'verfy'"),
        (["list", "--config", "none.yaml"], 78, "none.yaml"),
        (["list", "--config", "bare.yaml"], 78, "bare.yaml: checkpoint.dir is not set"),
    ],
)
def test_bad_input_gets_one_message_and_its_exit_code(desk, words, code, said):
    desk.save(100)
    (desk.home / "dcp").mkdir()
    (desk.home / "dcp" / ".metadata").write_bytes(b"x")
    (desk.home / "bare.yaml").write_text("name: a\ncommand: x\n")
    (desk.home / "none.yaml").unlink(missing_ok=True)
    words = [str(desk.home / word) if word.endswith(".yaml") else word for word in words]
    result = desk.type(*words)
    assert result.exit_code == code, result.stderr
    assert said in result.stderr
    assert not result.stdout
    assert "Traceback" not in result.stderr


def test_a_directory_that_cannot_be_listed_is_said(desk):
    desk.save(100)
    for command in ("list", "verify", "seal", "pick", "prune"):
        result = desk.type(command, "ck", disk=fails(errno.EACCES, calls=("names",)))
        assert result.exit_code == 1, command
        assert "(denied: may this user read and write there?)" in result.stderr
        assert "Traceback" not in result.stderr


def test_the_configuration_says_where_and_how(desk):
    text = "name: a\ncommand: x\nworkdir: {}\ncheckpoint: {{dir: ck, pattern: 'step-*', complete: done, keep: 1}}\n"
    file = desk.home / "c.yaml"
    file.write_text(text.format(desk.home))
    desk.save(100, 200, writer="one/1")
    (desk.folder / "step-7").mkdir()
    saved(desk.folder / "other-1.pt", value=1)
    rows = desk.type("list", "--config", file).stdout.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["step-200.pt", "step-100.pt", "step-7"]
    assert [row.split()[0] for row in desk.type("list", "--config", file, "--pattern", "other*").stdout.splitlines()[1:]] == ["other-1.pt"]
    assert desk.type("verify", "--config", file, "step-100.pt").exit_code == 0
    assert "goes   step-100.pt" in desk.type("prune", "--config", file, "--dry-run").stdout  # keep: 1
    assert "goes" not in desk.type("prune", "--config", file, "--dry-run", "--keep", "2").stdout


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a directory somebody else's")
def test_somebody_elses_directory_is_only_looked_at(desk):
    desk.save(100, 200, seal=False)
    os.chown(desk.folder, 12345, 12345)
    before = desk.files()
    assert desk.type("list", "ck").exit_code == 0
    assert desk.type("verify", "ck").exit_code == 0
    for words in (["seal", "ck"], ["pin", "ck", "step-100.pt"], ["prune", "ck"]):
        result = desk.type(*words)
        assert result.exit_code == 1
        assert "ck belongs to the user with id 12345" in result.stderr
    picked = desk.type("pick", "ck")
    assert picked.stdout == f"{desk.folder}/step-200.pt\n"
    assert "nothing is moved or sealed: ck belongs to" in picked.stderr
    assert desk.files() == before


def interrupted(at: int, count: tuple[str, ...] = ()) -> BrokenDisk:
    """Ctrl-C in this call of the disk."""

    def strike(number: int, name: str, path: Path) -> None:
        if number == at:
            raise KeyboardInterrupt

    return BrokenDisk(strike, count=count)


@pytest.mark.parametrize(
    "words", [["seal", "ck"], ["verify", "ck"], ["prune", "ck", "--keep", "1", "--found", "--yes"]], ids=lambda words: words[0]
)
def test_ctrl_c_anywhere_leaves_nothing_that_the_next_call_does_not_mend(desk, words):
    """At each call of the disk that reads or changes something, with the same beginning; then the same command again."""

    def begin() -> None:
        shutil.rmtree(desk.folder, ignore_errors=True)
        desk.save(100, 200, seal=words[0] != "seal")

    begin()
    assert desk.type(*words).exit_code == 0
    right = desk.files()
    for at in range(1, 1000):
        begin()
        disk = interrupted(at, (*WRITES, "sync", "open", "pieces", "names"))
        result = desk.type(*words, disk=disk)
        if disk.calls < at:
            assert at > 15
            assert result.exit_code == 0
            break
        assert result.exit_code == 130, result.stderr
        assert "Traceback" not in result.stderr
        assert "the same command goes on from there" in result.stderr
        assert desk.type(*words).exit_code == 0
        assert desk.files() == right, at
        assert desk.type("verify", "ck").exit_code == 0
    else:
        pytest.fail("it never came to its end")


def test_ctrl_c_to_the_real_command(tmp_path):
    """A file so big that its hashing takes a while, without a byte on the disk."""
    (tmp_path / "ck").mkdir()
    with (tmp_path / "ck" / "step-1.bin").open("wb") as file:
        file.truncate(200 << 30)
    command = [sys.executable, "-m", "ftsup", "checkpoints", "seal", "ck", "step-1.bin", "--force"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 30
    while not reads(process.pid, "step-1.bin"):
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err.startswith("interrupted: ")
    assert "Traceback" not in err
    assert not (tmp_path / "ck" / ".ftsup").exists()


def reads(pid: int, name: str) -> bool:
    """Whether the process has the file open."""
    try:
        return any(str(fd.readlink()).endswith(name) for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def test_a_bar_with_bytes_and_speed_on_a_terminal_and_nothing_elsewhere():
    for terminal in (True, False):
        out = io.StringIO()
        with Meter(console=Console(file=out, force_terminal=terminal, width=120, no_color=True)) as meter:
            meter.begin("verifying", "step-1\x1b[31m.pt", 2_000_000_000)
            for _ in range(100):
                meter.read(10_000_000)
            meter.say("a line")
        said = out.getvalue()
        assert ("verifying step-1" in said) == terminal
        assert ("1.0/2.0 GB" in said) == terminal
        assert ("B/s" in said) == terminal
        assert "\x1b[31m" not in said  # neither a colour nor what a name asks for
        assert meter.read_bytes == 1_000_000_000
        assert meter.summary().startswith("1.0 GB read in ")


@pytest.mark.parametrize(
    "size, said",
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_949, "99.9 kB"),
        (99_960, "100 kB"),
        (999_600, "1.0 MB"),
        (2e9, "2.0 GB"),
        (3e18, "3000 PB"),
    ],
)
def test_sizes_in_three_digits(size, said):
    assert size_text(size) == said
