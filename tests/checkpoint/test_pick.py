from __future__ import annotations

import os

import msgspec
import pytest

from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.entries import manifest_of
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.manifest import encode
from ftsup.checkpoint.pick import Ask, State
from ftsup.checkpoint.pick import pick as pick_from
from ftsup.checkpoint.seal import Sign
from ftsup.errors import Damaged
from ftsup.events import Epoch
from tests.checkpoint.folders import contents, flip, save, saved, sealed, tear

pytestmark = [pytest.mark.torch]  # its files are torch.save's


def pick(folder, **ask):
    return pick_from(RealDisk(), folder, Ask(**ask))


def test_the_newest_step_wins_and_numbers_are_numbers(tmp_path):
    for step in (9, 100, 20):
        save(tmp_path / f"step{step}.pt")
    picked = pick(tmp_path, pattern="*.pt")
    assert (picked.path, picked.step) == (str(tmp_path / "step100.pt"), 100)
    assert picked.why == "step100.pt: step 100, its zip directory is there and fits, sealed now"


def test_a_torn_one_is_passed_over_and_said(tmp_path):
    save(tmp_path / "step1.pt")
    tear(save(tmp_path / "step2.pt"))
    (tmp_path / "step3.pt").touch()
    picked = pick(tmp_path, pattern="*.pt")
    assert picked.step == 1
    assert "passed over: step3.pt: empty; step2.pt: torn: it has no zip directory at its end" in picked.why


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


def test_a_sealed_one_whose_name_is_seen_late_is_waited_for(tmp_path):
    for step in (1, 2):
        newest = save(tmp_path / f"step{step}.pt")
        sealed(tmp_path, newest.name)
    newest.rename(tmp_path / "away")
    tries = []

    def again():
        tries.append(1)
        if len(tries) == 3:
            (tmp_path / "away").rename(newest)
        return len(tries) < 5

    ask = Ask(pattern="step*", sealed=("step1.pt", "step2.pt"))
    assert pick_from(RealDisk(), tmp_path, ask, again=again).step == 2
    assert len(tries) == 3
    newest.rename(tmp_path / "away")
    tries += [1]
    picked = pick_from(RealDisk(), tmp_path, ask, again=again)
    assert "step2.pt: sealed, and not there any more" in picked.why
    assert len(tries) == 5, "it is said, once the wait is over"


def test_older_ones_that_the_script_removed_are_not_waited_for(tmp_path):
    for step in (1, 2):
        save(tmp_path / f"step{step}.pt")
        sealed(tmp_path, f"step{step}.pt")
    (tmp_path / "step1.pt").unlink()
    ask = Ask(pattern="step*", sealed=("step1.pt", "step2.pt"))
    assert pick_from(RealDisk(), tmp_path, ask, again=lambda: pytest.fail("waits")).step == 2


def test_all_that_was_sealed_is_gone_is_no_beginning(tmp_path):
    with pytest.raises(Damaged, match=r"this run has sealed 2 checkpoints there, step2\.pt the last, and none is to be seen"):
        pick(tmp_path, pattern="step*", sealed=("step1.pt", "step2.pt"))


def test_nothing_there_is_the_beginning(tmp_path):
    picked = pick(tmp_path / "missing", pattern="*.pt")
    assert picked.path is None
    assert "from the beginning" in picked.why


def test_a_first_save_that_was_killed_is_the_beginning_too(tmp_path):
    tear(save(tmp_path / "step1.pt"))
    picked = pick(tmp_path, pattern="*.pt")
    assert picked.path is None
    assert "step1.pt: torn" in picked.why


def test_several_that_were_never_whole_are_no_damage(tmp_path):
    for step in range(5):
        tear(save(tmp_path / f"step{step}.pt"))
    picked = pick(tmp_path, pattern="*.pt")
    assert picked.path is None
    assert {seen.state for seen in picked.seen} == {State.INCOMPLETE}
    assert "from the beginning; passed over: step4.pt: torn" in picked.why
    assert picked.why.endswith("and 2 more")


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


def test_a_completion_marker_decides_for_directories(tmp_path):
    for step in (1, 2):
        (tmp_path / f"step-{step}").mkdir()
        (tmp_path / f"step-{step}" / "part").write_bytes(b"numbers")
    (tmp_path / "step-1" / "DONE").touch()
    picked = pick(tmp_path, pattern="step-*", complete="DONE")
    assert picked.step == 1
    assert "step-2: has no DONE" in picked.why


def test_what_cannot_say_whether_it_is_whole_counts_when_a_newer_one_exists(tmp_path):
    for step in (1, 2):
        (tmp_path / f"step{step}.bin").write_bytes(b"numbers")
    picked = pick(tmp_path, pattern="*.bin")
    assert picked.step == 1
    assert "a newer one exists" in picked.why
    assert "step2.bin: a file of a kind that cannot say whether it is whole" in picked.why


def test_what_was_cut_off_stays_doubtful_whatever_later_attempts_write(tmp_path):
    torn = tmp_path / "step1.bin"
    torn.write_bytes(b"num")
    assert pick(tmp_path, pattern="*.bin").path is None  # its attempt is dead
    for step in (2, 3):
        (tmp_path / f"step{step}.bin").write_bytes(b"numbers")
    assert pick(tmp_path, pattern="*.bin").step == 2
    (tmp_path / "step2.bin").unlink()
    assert pick(tmp_path, pattern="*.bin").path is None
    torn.write_bytes(b"numbers")  # written again, by an attempt that went on
    (tmp_path / "step4.bin").write_bytes(b"num")
    assert pick(tmp_path, pattern="*.bin").step == 1


def test_an_attempt_that_ended_well_wrote_its_last_one_whole(tmp_path):
    (tmp_path / "step1.bin").write_bytes(b"numbers")
    picked = pick(tmp_path, pattern="*.bin", ended=True)
    assert picked.step == 1
    assert "step 1, its attempt ended by itself with success (" in picked.why


def test_a_look_changes_nothing(tmp_path):
    save(tmp_path / "step1.pt")
    (tmp_path / "step2.bin").write_bytes(b"numbers")
    picked = pick(tmp_path, act=False)
    assert picked.why.startswith("step1.pt: step 1, its zip directory is there and fits, not sealed; passed over: step2.bin")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step1.pt", "step2.bin"]


def test_a_step_that_two_names_hold_is_decided_by_the_epoch(tmp_path):
    for name, attempt, time_ns in (("a-step7.pt", 2, 1), ("b-step7.pt", 1, 2)):
        os.utime(save(tmp_path / name), ns=(time_ns, time_ns))
        sealed(tmp_path, name, epoch=Epoch(1, attempt))
    assert pick(tmp_path).name == "a-step7.pt"


def test_the_older_directory_that_is_newer_by_its_time_is_not_taken(tmp_path):
    for step, time_ns in ((1, 9_000_000_000), (2, 1)):
        save(tmp_path / f"step{step}" / "model.pt")
        (tmp_path / f"step{step}" / "DONE").touch()
        os.utime(tmp_path / f"step{step}", ns=(time_ns, time_ns))
    assert pick(tmp_path, complete="DONE").step == 2


def test_suspects_are_passed_over_and_stay(tmp_path):
    for step in (1, 2):
        save(tmp_path / f"step{step}.pt")
    picked = pick(tmp_path, avoid=["step2.pt"])
    assert picked.step == 1
    assert "step2.pt: passed over: attempts that resumed from it died" in picked.why
    assert (tmp_path / "step2.pt").exists()


def test_a_sealed_one_that_is_gone_is_said(tmp_path):
    for step in (1, 2):
        save(tmp_path / f"step{step}.pt")
        sealed(tmp_path, f"step{step}.pt")
    (tmp_path / "step2.pt").unlink()
    assert pick(tmp_path).why == "step1.pt: step 1, verified against its manifest; step2.pt: sealed, and not there any more"


def test_a_manifest_that_the_caller_knows_of_and_that_is_gone_is_damage(tmp_path):
    for step in (1, 2):
        save(tmp_path / f"step{step}.pt")
    picked = pick(tmp_path, sealed=["step2.pt"])
    assert picked.step == 1
    assert "it was sealed, and its manifest is gone" in picked.why


def test_files_that_come_late_are_waited_for(tmp_path):
    home = Home(tmp_path)
    save(tmp_path / "step1.pt")
    save(tmp_path / "step2" / "model.pt")
    (tmp_path / "step2" / "DONE").touch()
    sealed(tmp_path, "step2", marker="DONE")
    (tmp_path / "step2" / "model.pt").rename(tmp_path / "late")
    now = [0.0]

    def again():
        now[0] += 5
        if now[0] == 30:
            (tmp_path / "late").rename(home.checkpoint("step2") / "model.pt")
        return now[0] <= 60

    picked = pick_from(RealDisk(), tmp_path, Ask(pattern="step*"), again=again)
    assert (picked.name, picked.seen[0].state, now) == ("step2", State.VERIFIED, [30.0])
    (tmp_path / "step2" / "model.pt").unlink()
    picked = pick_from(RealDisk(), tmp_path, Ask(pattern="step*"), again=again)
    assert (picked.name, picked.seen[0].why) == ("step1.pt", "damaged: model.pt: missing")


def test_an_incomplete_one_is_not_waited_for(tmp_path):
    save(tmp_path / "step1.pt")
    tear(save(tmp_path / "step2.pt"))
    assert pick_from(RealDisk(), tmp_path, Ask(), again=lambda: pytest.fail("waits")).step == 1


def test_several_damaged_in_a_row_are_set_aside_and_said(tmp_path):
    for step in range(1, 6):
        save(tmp_path / f"step{step}.pt")
        sealed(tmp_path, f"step{step}.pt")
    for step in (3, 4, 5):
        flip(tmp_path / f"step{step}.pt", 500)
    picked = pick(tmp_path)
    assert picked.step == 2
    assert [seen.state for seen in picked.seen] == [State.DAMAGED] * 3 + [State.VERIFIED]
    for step in (3, 4, 5):
        box = tmp_path / ".ftsup" / "quarantine" / f"step{step}.pt.1"
        assert sorted(path.name for path in box.iterdir()) == ["manifest.json", f"step{step}.pt", "why.txt"]
        assert (box / "why.txt").read_text().startswith(f"step{step}.pt\nthe file, block 0 (at byte 0): other bytes than were sealed")
    assert pick(tmp_path).why == "step2.pt: step 2, verified against its manifest"


def test_all_damaged_is_no_answer_and_stays_none(tmp_path):
    for step in range(5):
        save(tmp_path / f"step{step}.pt")
        sealed(tmp_path, f"step{step}.pt")
        flip(tmp_path / f"step{step}.pt", 500)
    before = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(Damaged, match=r"5 of the 5 checkpoints.*and 2 more\nhint: nothing was moved or deleted"):
            pick(tmp_path)
        assert contents(tmp_path) == before | {".ftsup/attempt.json": contents(tmp_path)[".ftsup/attempt.json"]}


def test_a_new_save_in_the_old_one_s_place_is_taken_where_its_kind_vouches_for_every_byte(tmp_path):
    saved(tmp_path / "step1.pt", value=1)
    sealed(tmp_path, "step1.pt")
    saved(tmp_path / "step1.pt", value=2)
    picked = pick(tmp_path)
    assert picked.why == "step1.pt: step 1, written again after its seal; its zip directory is there and fits, sealed now"
    assert pick(tmp_path).why == "step1.pt: step 1, verified against its manifest"


def test_a_rolling_name_may_be_written_again_by_any_kind(tmp_path):
    (tmp_path / "last.bin").write_bytes(b"numbers")
    sealed(tmp_path, "last.bin", sign=Sign.ENDED)
    (tmp_path / "last.bin").write_bytes(b"other numbers")
    assert pick(tmp_path).seen[0].state is State.INCOMPLETE
    assert pick(tmp_path, ended=True).name == "last.bin"


def test_a_manifest_of_a_newer_ftsup_is_no_damage(tmp_path):
    save(tmp_path / "step1.pt")
    sealed(tmp_path, "step1.pt")
    manifest = manifest_of(RealDisk(), Home(tmp_path), "step1.pt")
    Home(tmp_path).manifest("step1.pt").write_bytes(encode(msgspec.structs.replace(manifest, schema=2)))
    assert pick(tmp_path, act=False).seen[0].state is State.SOUND
