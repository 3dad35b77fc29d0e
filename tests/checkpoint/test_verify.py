"""One bit flipped anywhere in a sealed checkpoint of each kind, or in its manifest: verify says so, and pick takes the one before."""

from __future__ import annotations

import os
import random
import shutil

import pytest

from ftsup.checkpoint.disk import RealDisk
from ftsup.checkpoint.entries import manifest_of
from ftsup.checkpoint.formats import zips
from ftsup.checkpoint.formats.kind import Kind, Span
from ftsup.checkpoint.formats.table import recognise
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.manifest import BLOCK_BYTES, decode
from ftsup.checkpoint.pick import Ask, State, pick
from ftsup.checkpoint.seal import Outcome, Sign
from ftsup.checkpoint.verify import glance, verify
from ftsup.errors import Damaged
from tests.checkpoint.folders import flip, save, saved, sealed

pytestmark = [pytest.mark.torch]

KINDS = ["zip.pt", "legacy.pt", "dcp", "dcp-safetensors", "model.safetensors", "sharded", "any"]


@pytest.fixture
def two(originals, tmp_path):
    """Two sealed checkpoints of a kind: step1 and step2."""

    def make(kind):
        for step in (1, 2):
            path = tmp_path / f"step{step}-{kind}"
            if kind == "sharded":
                from tests.checkpoint import samples  # noqa: PLC0415 - takes a second

                samples.make_sharded(path)
            elif kind == "any":
                path.mkdir()
                (path / "part-0").write_bytes(os.urandom(3000))
                (path / "DONE").write_bytes(b"yes\n")
            else:
                (shutil.copytree if (originals / kind).is_dir() else shutil.copy)(originals / kind, path)
            assert sealed(tmp_path, path.name, sign=Sign.ENDED).outcome is Outcome.SEALED
        return tmp_path / f"step2-{kind}"

    return make


def places(path):
    """Every file, and in each a byte of each region that its kind knows."""
    disk, chance = RealDisk(), random.Random(5)
    format_ = recognise(disk, path)
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in files:
        name = file.relative_to(path).as_posix() if file != path else ""
        size = file.stat().st_size
        if format_.kind in {Kind.DIRECTORY, Kind.FILE}:
            offsets = {0, size - 1}
        elif format_.kind is Kind.TORCH_ZIP:
            offsets = set(zip_regions(file).values())
        else:
            regions, offsets = set(), set()
            for offset in chance.sample(range(size), min(size, 25)):
                region = format_.locate(disk, path, name, range(offset, offset + 1))[0]
                if region not in regions:
                    regions.add(region)
                    offsets.add(offset)
        yield from ((file, name, offset) for offset in sorted(offsets))


def zip_regions(path):
    """In the middle of the first record that a tensor lies in, of its header and padding, of the pickle, of the zip's directory."""
    with path.open("rb") as file:
        span = Span(file, begin=0, size=path.stat().st_size)
        pieces = [piece for piece in zips.pieces(span, zips.layout(span)) if piece.end > piece.begin]
    wanted = ["zip header of data/0", "padding before data/0", "data/0", "zip descriptor of data/0", "data.pkl", "version", "zip directory"]
    found = {piece.region: (piece.begin + piece.end) // 2 for piece in pieces if piece.region in wanted}
    assert set(found) == set(wanted)
    return found


def test_what_a_kind_knows_of_a_damaged_block_is_told(two):
    """Of a torch.save file exactly what is hit: its CRC-32 sums and its zip directory tell it."""
    path = two("zip.pt")
    manifest = manifest_of(RealDisk(), Home(path.parent), path.name)
    said = {}
    for region, offset in zip_regions(path).items():
        flip(path, offset)
        (damage,) = verify(RealDisk(), path, manifest).damages
        said[region] = str(damage).removeprefix("the file, block 0 (at byte 0): other bytes than were sealed ")
        flip(path, offset)
    assert said["data/0"].startswith("(CRC-32 of data/0 is ")
    assert said["data/0"].endswith(", in model.0.weight")
    assert said["zip header of data/0"] == "(the zip header of data/0 is not what the directory says)"
    assert said["padding before data/0"] == "(the padding before data/0 is damaged)"
    assert said["zip descriptor of data/0"] == "(the zip descriptor of data/0 is not what the directory says)"
    assert said["data.pkl"].startswith("(CRC-32 of data.pkl is ")
    assert said["version"].startswith("(CRC-32 of version is ")
    assert "its directory" in said["zip directory"]


def test_the_index_and_the_shards_of_a_model_are_told_by_file_and_tensor(two):
    path = two("sharded")
    manifest = manifest_of(RealDisk(), Home(path.parent), path.name)
    shards = sorted(path.glob("*.safetensors"))
    assert len(shards) >= 3
    for file in [*shards, next(path.glob("*.index.json"))]:
        flip(file, file.stat().st_size - 5)
        (damage,) = verify(RealDisk(), path, manifest).damages
        assert damage.file == file.name
        assert ("layers." in damage.tensor) if file in shards else f"its index {file.name} is damaged" in damage.what
        flip(file, file.stat().st_size - 5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_named_by_file_block_and_what_lies_there(kind, two):
    path = two(kind)
    manifest = manifest_of(RealDisk(), Home(path.parent), path.name)
    assert verify(RealDisk(), path, manifest).damages == ()
    for number, (file, name, offset) in enumerate(places(path)):
        before = file.stat()
        flip(file, offset, bit=number % 8)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # silent, as disks do it
        (damage,) = verify(RealDisk(), path, manifest).damages
        assert (damage.file, damage.block, damage.offset) == (name, 0, 0)
        assert kind == "any" or damage.tensor or "(" in damage.what, damage
        flip(file, offset, bit=number % 8)
    assert verify(RealDisk(), path, manifest).damages == ()


@pytest.mark.parametrize("silent", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_pick_takes_the_one_before(kind, silent, two):
    path = two(kind)
    chosen = list(places(path))
    file, name, offset = chosen[len(chosen) // 2]
    before = file.stat()
    flip(file, offset)
    if silent:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    picked = pick(RealDisk(), path.parent, Ask(pattern="step*"))
    assert picked.name == f"step1-{kind}"
    assert [seen.state for seen in picked.seen] == [State.DAMAGED, State.VERIFIED]
    assert f"damaged: {name or 'the file'}, block 0" in picked.why
    assert ("somebody wrote to it after the seal" in picked.why) is not silent
    assert not path.exists()


def test_every_bit_of_a_manifest_counts(tmp_path):
    for step in (1, 2):
        save(tmp_path / f"step{step}.pt")
        sealed(tmp_path, f"step{step}.pt")
    path = Home(tmp_path).manifest("step2.pt")
    data = path.read_bytes()
    assert decode(data).step == 2
    for bit in range(len(data) * 8):
        other = bytearray(data)
        other[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged, match="manifest"):
            decode(bytes(other))
    flip(path, 200)
    picked = pick(RealDisk(), tmp_path, Ask())
    assert picked.name == "step1.pt"
    assert "step2.pt: damaged: step2.pt.json: the manifest" in picked.why


def test_the_block_is_told_where_there_are_many(tmp_path):
    path = saved(tmp_path / "step1.pt", value=1, numbers=3 * BLOCK_BYTES // 4 + 5000)
    sealed(tmp_path, "step1.pt")
    flip(path, 2 * BLOCK_BYTES + 77)
    found = verify(RealDisk(), path, manifest_of(RealDisk(), Home(tmp_path), "step1.pt"))
    assert [(damage.block, damage.offset, damage.tensor) for damage in found.damages] == [(2, 2 * BLOCK_BYTES, "weights")]
    assert found.rewritten == ("",)


@pytest.mark.parametrize("change,said", [(-1, "bytes long, sealed with"), (1, "bytes long, sealed with"), (None, "missing")])
def test_a_look_without_reading_sees_sizes_and_what_is_missing(change, said, two):
    path = two("dcp")
    file = min(path.glob("*.distcp"))
    manifest = manifest_of(RealDisk(), Home(path.parent), path.name)
    assert glance(RealDisk(), path, manifest) == ()
    if change is None:
        file.unlink()
    else:
        os.truncate(file, file.stat().st_size + change)
    (damage,) = glance(RealDisk(), path, manifest)
    assert said in damage.what
    assert damage.absent is (change != 1)


def test_files_that_came_later_are_said_and_are_no_damage(two):
    path = two("dcp")
    (path / "notes.txt").write_text("mine")
    picked = pick(RealDisk(), path.parent, Ask(pattern="step*"))
    assert picked.why == "step2-dcp: step 2, verified against its manifest, beside 1 files that came after the seal (notes.txt)"
