from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.home import Home, encoded, of_manifest, of_numbered
from ftsup.checkpoint.keep import Item, forget_lost, items, pin, pins, prune, removable, unpin
from ftsup.checkpoint.moves import sweep
from ftsup.errors import Missing
from tests.checkpoint.folders import save, sealed

DISK = RealDisk()
FLAGS = st.booleans()
ITEMS = st.lists(st.builds(Item, name=st.just(""), sealed=FLAGS, verified=FLAGS, pinned=FLAGS, ours=FLAGS), max_size=12).map(
    lambda found: [Item(name=f"n{n}", sealed=i.sealed, verified=i.verified, pinned=i.pinned, ours=i.ours) for n, i in enumerate(found)]
)


@given(ITEMS, st.integers(0, 5), st.sets(st.sampled_from([f"n{n}" for n in range(12)])))
def test_what_goes_may_go_and_what_must_stay_stays(found, keep, needed):
    gone = removable(found, keep=keep, needed=needed)
    stays = [item for item in found if item not in gone]

    def verified(some):
        return [item for item in some if item.sealed and item.verified]

    for item in gone:
        assert item.sealed
        assert item.ours
        assert not item.pinned
        assert item.name not in needed
        assert len(verified(found[: found.index(item)])) >= keep >= 1  # so many newer ones were verified before
    assert verified(stays)[:keep] == verified(found)[:keep]
    assert len(verified(stays)) >= min(keep, len(verified(found)))
    assert removable(stays, keep=keep, needed=needed) == []


@given(ITEMS, st.integers(1, 5))
def test_all_that_may_go_goes(found, keep):
    gone = removable(found, keep=keep)
    good = [item for item in found if item.sealed and item.verified]
    for item in found:
        if item.sealed and item.ours and not item.pinned and len(good) >= keep and found.index(item) > found.index(good[keep - 1]):
            assert item in gone


def folder_of(tmp_path, *, steps=6):
    for step in range(1, steps + 1):
        save(tmp_path / f"step{step}.pt")
        sealed(tmp_path, f"step{step}.pt", writer="" if step == 1 else "run-1")
    return Home(tmp_path)


def listed(home, *, verified):
    return items(DISK, home, pattern="*.pt", writer="run-1", verified=verified)


def test_a_run_keeps_its_newest_its_pins_and_what_it_found(tmp_path):
    home = folder_of(tmp_path)
    save(tmp_path / "step7.pt")
    pin(DISK, home, "step3.pt")
    gone = removable(listed(home, verified={"step5.pt", "step6.pt"}), keep=2)
    assert [item.name for item in gone] == ["step4.pt", "step2.pt"]
    removed = prune(DISK, home, [item.name for item in gone])
    assert removed.names == ("step2.pt", "step4.pt")
    assert removed.size_bytes == sum(item.size_bytes for item in gone)
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["step1.pt", "step3.pt", "step5.pt", "step6.pt", "step7.pt"]
    assert sorted(path.name for path in home.sealed.iterdir()) == [f"step{step}.pt.json" for step in (1, 3, 5, 6)]
    assert removable(items(DISK, home, pattern="*.pt", writer="", verified={"step5.pt", "step6.pt"}), keep=1) == []


def test_nothing_goes_before_enough_newer_ones_are_verified(tmp_path):
    home = folder_of(tmp_path)
    assert removable(listed(home, verified={"step5.pt"}), keep=2) == []
    assert removable(listed(home, verified=()), keep=1) == []


def test_a_manifest_that_cannot_be_read_makes_it_nobody_s(tmp_path):
    home = folder_of(tmp_path)
    home.manifest("step2.pt").write_bytes(b"{}")
    assert "step2.pt" not in [item.name for item in removable(listed(home, verified={"step6.pt"}), keep=1)]


def test_what_nfs_holds_is_reported_passed_over_and_goes_later(tmp_path):
    save(tmp_path / "step1" / "model.pt")
    held = tmp_path / "step1" / "deep" / ".nfs000123"
    held.parent.mkdir()
    held.write_bytes(b"held")
    home = Home(tmp_path)
    removed = prune(DISK, home, ["step1"])
    left = home.trash / "step1.1" / "deep" / ".nfs000123"
    assert (removed.names, removed.held) == ((), (str(left),))
    assert [path.name for path in (home.trash / "step1.1").rglob("*")] == ["deep", ".nfs000123"]
    save(tmp_path / "step1" / "model.pt")  # the same name again, before the old one is gone
    assert prune(DISK, home, ["step1"]).held == (str(left),)
    left.unlink()
    assert sweep(DISK, home).names == ("step1",)
    assert list(home.trash.iterdir()) == []


def test_links_are_removed_and_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").touch()
    (tmp_path / "ckpt" / "step1").mkdir(parents=True)
    (tmp_path / "ckpt" / "step1" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "ckpt" / "step2").symlink_to(tmp_path / "elsewhere")
    assert prune(DISK, Home(tmp_path / "ckpt"), ["step1", "step2"]).names == ("step1", "step2")
    assert (tmp_path / "elsewhere" / "mine").exists()


def test_a_checkpoint_in_a_folder_of_its_own_takes_the_empty_folder_along(tmp_path):
    home = Home(tmp_path)
    for step in (1, 2):
        save(tmp_path / f"global_step{step}" / "model.pt")
    (tmp_path / "global_step2" / "log.txt").touch()
    prune(DISK, home, ["global_step1/model.pt", "global_step2/model.pt"])
    assert not (tmp_path / "global_step1").exists()
    assert [path.name for path in (tmp_path / "global_step2").iterdir()] == ["log.txt"]


def test_manifests_of_what_the_training_rotated_away_go(tmp_path):
    home = folder_of(tmp_path)
    for step in (2, 3, 6):
        (tmp_path / f"step{step}.pt").unlink()
    assert forget_lost(DISK, home, pattern="*.pt") == ["step2.pt", "step3.pt"]  # of the newest it is worth knowing
    assert sorted(path.name for path in home.sealed.iterdir()) == [f"step{step}.pt.json" for step in (1, 4, 5, 6)]


def test_pins_come_and_go(tmp_path):
    home = folder_of(tmp_path, steps=1)
    save(tmp_path / "a" / "step2.pt")
    for name in ("step1.pt", "a/step2.pt", "step1.pt"):
        pin(DISK, home, name)
    assert pins(DISK, home) == {"step1.pt", "a/step2.pt"}
    for _ in range(2):
        unpin(DISK, home, "step1.pt")
    assert pins(DISK, home) == {"a/step2.pt"}
    with pytest.raises(Missing, match=r"has no step9\.pt"):
        pin(DISK, home, "step9.pt")


@given(st.text(min_size=1, max_size=40))
def test_a_name_survives_being_one_file_s_name(name):
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    file = encoded(name)
    assert "/" not in file
    assert not file.startswith(".")
    assert (of_manifest(f"{file}.json"), of_numbered(f"{file}.12")) == (name, name)
