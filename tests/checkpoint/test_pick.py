from __future__ import annotations

import os
import zipfile

import pytest

from ftsup.checkpoint.pick import pick
from ftsup.errors import Damaged


def save(path, *, size=4000):
    """What torch.save writes is a zip."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"p" * 100)
        archive.writestr("archive/data/0", os.urandom(size))
    return path


def tear(path, cut=30):
    os.truncate(path, path.stat().st_size - cut)
    return path


def test_the_newest_step_wins_and_numbers_are_numbers(tmp_path):
    for step in (9, 100, 20):
        save(tmp_path / f"step{step}.pt")
    picked = pick(tmp_path, pattern="*.pt")
    assert (picked.path, picked.step) == (str(tmp_path / "step100.pt"), 100)
    assert picked.why == "step100.pt: step 100, its directory is whole"


def test_a_torn_one_is_passed_over_and_said(tmp_path):
    save(tmp_path / "step1.pt")
    tear(save(tmp_path / "step2.pt"))
    (tmp_path / "step3.pt").touch()
    picked = pick(tmp_path, pattern="*.pt")
    assert picked.step == 1
    assert "passed over: step3.pt: empty; step2.pt: torn (File is not a zip file)" in picked.why


@pytest.mark.parametrize("cut", [1, 21, 22, 23, 60, 150, 200, 1000, 4000])
def test_a_save_that_was_killed_anywhere_is_not_whole(tmp_path, cut):
    save(tmp_path / "step1.pt")
    tear(save(tmp_path / "step2.pt"), cut)
    assert pick(tmp_path, pattern="*.pt").step == 1


def test_a_hole_before_the_directory_is_seen(tmp_path):
    save(tmp_path / "step1.pt")
    data = save(tmp_path / "step2.pt").read_bytes()
    directory = data.index(b"PK\x01\x02")
    (tmp_path / "step2.pt").write_bytes(data[:1000] + data[directory:])
    assert pick(tmp_path, pattern="*.pt").step == 1


def test_nothing_there_is_the_beginning(tmp_path):
    picked = pick(tmp_path / "missing", pattern="*.pt")
    assert picked.path is None
    assert "from the beginning" in picked.why


def test_a_first_save_that_was_killed_is_the_beginning_too(tmp_path):
    tear(save(tmp_path / "step1.pt"))
    picked = pick(tmp_path, pattern="*.pt")
    assert picked.path is None
    assert "step1.pt: torn" in picked.why


def test_several_and_none_whole_is_no_answer(tmp_path):
    for step in range(5):
        tear(save(tmp_path / f"step{step}.pt"))
    with pytest.raises(Damaged, match=r"none of the 5 checkpoints.*and 2 more") as raised:
        pick(tmp_path, pattern="*.pt")
    assert "hint: move them away" in str(raised.value)


def test_the_placeholder_says_where_the_step_stands(tmp_path):
    save(tmp_path / "v2-100-of-900.pt")
    save(tmp_path / "v2-200-of-900.pt")
    save(tmp_path / "v2-x-of-900.pt")
    picked = pick(tmp_path, pattern="v2-{step}-of-*.pt")
    assert picked.step == 200


@pytest.mark.parametrize(
    "name, step", [("epoch=3-step=1200.ckpt", 1200), ("run7_step_50.pt", 50), ("model-3-70.pt", 70), ("ckpt00012.pt", 12), ("x.pt2", None)]
)
def test_steps_in_names(tmp_path, name, step):
    save(tmp_path / name)
    assert pick(tmp_path, pattern="*").step == step


def test_names_without_a_number_go_by_their_time_behind_those_with_one(tmp_path):
    os.utime(save(tmp_path / "old.pt"), ns=(1, 1))
    os.utime(save(tmp_path / "new.pt"), ns=(2, 2))
    assert pick(tmp_path, pattern="*.pt").path == str(tmp_path / "new.pt")
    os.utime(save(tmp_path / "step5.pt"), ns=(0, 0))
    assert pick(tmp_path, pattern="*.pt").step == 5


def test_temporary_names_are_no_checkpoints(tmp_path):
    save(tmp_path / "step1.pt")
    for name in (".step9.pt", "step9.pt.tmp", "step9.tmp.pt", "step9.pt.part"):
        save(tmp_path / name)
    assert pick(tmp_path, pattern="*").step == 1


def test_a_pattern_may_reach_into_folders(tmp_path):
    save(tmp_path / "global_step10" / "model.pt")
    save(tmp_path / "global_step9" / "model.pt")
    assert pick(tmp_path, pattern="global_step{step}/model.pt").step == 10
    assert pick(tmp_path, pattern="**/*.pt").step == 10


def test_a_distributed_checkpoint_is_whole_with_its_metadata(tmp_path):
    for step in (1, 2):
        (tmp_path / f"step-{step}").mkdir()
        (tmp_path / f"step-{step}" / "__0_0.distcp").write_bytes(b"x")
    (tmp_path / "step-1" / ".metadata").touch()
    assert pick(tmp_path, pattern="step-*").step == 1
    (tmp_path / "step-2" / ".metadata").touch()
    assert pick(tmp_path, pattern="step-*").step == 2


def test_a_completion_marker_decides_for_directories(tmp_path):
    for step in (1, 2):
        (tmp_path / f"step-{step}").mkdir()
        (tmp_path / f"step-{step}" / ".metadata").touch()
    (tmp_path / "step-1" / "DONE").touch()
    picked = pick(tmp_path, pattern="step-*", complete="DONE")
    assert picked.step == 1
    assert "step-2: has no DONE" in picked.why


def test_what_cannot_say_whether_it_is_whole_counts_once_a_newer_one_exists(tmp_path):
    (tmp_path / "step1.bin").write_bytes(b"numbers")
    picked = pick(tmp_path, pattern="*.bin")
    assert picked.path is None
    assert "cannot say whether it is whole" in picked.why
    (tmp_path / "step2.bin").write_bytes(b"numbers")
    picked = pick(tmp_path, pattern="*.bin")
    assert picked.step == 1
    assert "a newer one exists" in picked.why
