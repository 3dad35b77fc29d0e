"""Each kind, made by its own library: recognised, complete or torn, its deep check and its names."""

from __future__ import annotations

import json
import os
import shutil
import zipfile

import pytest
import torch

from ftsup.checkpoint.formats import table
from ftsup.checkpoint.formats.kind import Kind, Report, Whole
from ftsup.errors import Missing
from tests.checkpoint import samples

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("checkpoint-samples")]

KINDS = {
    "zip.pt": Kind.TORCH_ZIP,
    "nocrc.pt": Kind.TORCH_ZIP,
    "legacy.pt": Kind.TORCH_LEGACY,
    "dcp": Kind.DCP,
    "dcp-many": Kind.DCP,
    "dcp-safetensors": Kind.DCP,
    "model.safetensors": Kind.SAFETENSORS,
}


@pytest.mark.parametrize("name", KINDS)
def test_what_a_library_wrote_is_recognised_whole_and_clean(originals, disk, name):
    path = originals / name
    kind = table.recognise(disk, path)
    assert kind.kind is KINDS[name]
    assert table.complete(disk, path).whole is Whole.YES
    assert kind.check(disk, path).problems == ()


@pytest.mark.parametrize("part", [0.001, 0.1, 0.3, 0.6, 0.9, 0.99, 0.999999])
@pytest.mark.parametrize("name", [name for name in KINDS if not name.startswith("dcp")])
def test_a_writer_that_stopped_leaves_a_torn_file(sample, disk, name, part):
    path = sample(name)
    os.truncate(path, int(path.stat().st_size * part))
    assert table.complete(disk, path).whole is Whole.NO or table.recognise(disk, path).kind is Kind.FILE


@pytest.mark.parametrize("cut", [1, 20, 22, 23, 42, 60, 98, 99, 200])
def test_the_last_bytes_of_a_zip_are_its_directory(sample, disk, cut):
    path = sample("zip.pt")
    os.truncate(path, path.stat().st_size - cut)
    found = table.complete(disk, path)
    assert (found.whole, found.why.startswith("torn: ")) == (Whole.NO, True)


def test_a_hole_before_the_directory_is_seen(sample, disk):
    path = sample("zip.pt")
    data = path.read_bytes()
    path.write_bytes(data[:3000] + data[3064:])
    assert table.complete(disk, path).whole is Whole.NO
    path.write_bytes(b"x" * 64 + data)
    assert table.complete(disk, path).whole is Whole.NO


def test_more_behind_the_end_is_seen(sample, disk):
    for name in ("zip.pt", "legacy.pt", "model.safetensors"):
        path = sample(name)
        path.write_bytes(path.read_bytes() + b"\0")
        assert table.complete(disk, path).whole is Whole.NO


def test_an_empty_file_is_nothing(tmp_path, disk):
    for name in ("a.pt", "b.ckpt", "c.safetensors", "d.dat"):
        (tmp_path / name).touch()
        assert table.complete(disk, tmp_path / name).whole is Whole.NO
    with pytest.raises(Missing):
        table.recognise(disk, tmp_path / "nothing")


@pytest.mark.parametrize("name", ["dcp", "dcp-many", "dcp-safetensors"])
def test_a_distributed_checkpoint_needs_its_metadata_and_every_byte_it_names(sample, disk, name):
    path = sample(name)
    for file in sorted(path.iterdir())[:3]:
        data, times = file.read_bytes(), file.stat()
        file.unlink()
        assert table.complete(disk, path).whole is Whole.NO, file.name
        file.write_bytes(data[:-1])
        assert table.complete(disk, path).whole is Whole.NO, file.name
        file.write_bytes(b"")
        assert table.complete(disk, path).whole is Whole.NO, file.name
        file.write_bytes(data)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert table.complete(disk, path).whole is Whole.YES, file.name


def test_a_save_over_an_old_one_that_did_not_come_to_its_end_is_not_taken_for_whole(sample, disk):
    path = sample("dcp-many")
    later = (path / ".metadata").stat().st_mtime_ns + 61 * 10**9
    os.utime(path / "__0_1.distcp", ns=(later, later))
    found = table.complete(disk, path)
    assert found.whole is Whole.UNKNOWN
    assert "__0_1.distcp was written after its .metadata" in found.why
    assert table.complete(disk, path, marker=".metadata").whole is Whole.YES


def test_metadata_of_each_rank_cannot_say_how_many_ranks_there_were(sample, disk):
    path = sample("dcp")
    (path / ".metadata").rename(path / "__0.metadata")
    found = table.complete(disk, path)
    assert (found.whole, table.recognise(disk, path).kind) == (Whole.UNKNOWN, Kind.DCP)
    assert table.recognise(disk, path).check(disk, path).problems == ()


@pytest.mark.parametrize("name", ["../zip.pt", "/etc/hostname"])
def test_metadata_that_names_files_elsewhere_is_damaged(sample, disk, name):
    path = sample("dcp")
    sample("zip.pt")
    metadata = (path / ".metadata").read_bytes()
    old, new = b"\x8c\x0c__0_0.distcp", b"\x8c" + bytes([len(name)]) + name.encode()
    assert old in metadata
    (path / ".metadata").write_bytes(metadata[:2] + metadata[11:].replace(old, new))  # without its frame, whose length would be wrong
    found = table.complete(disk, path)
    assert (found.whole, "contradicts itself" in found.why) == (Whole.NO, True)


def test_safetensors_of_several_files_are_as_their_index_says(tmp_path, disk):
    path = tmp_path / "model"
    samples.make_sharded(path)
    shards = sorted(path.glob("*.safetensors"))
    assert len(shards) > 2
    kind = table.recognise(disk, path)
    found = table.complete(disk, path)
    assert (kind.kind, found.whole, len(found.files)) == (Kind.SAFETENSORS, Whole.YES, len(shards) + 1)
    assert kind.check(disk, path).problems == ()
    last = shards[-1].read_bytes()
    shards[-1].write_bytes(last[:-1])
    assert table.complete(disk, path).whole is Whole.NO
    shards[-1].unlink()
    assert "is missing" in table.complete(disk, path).why
    shutil.copy(shards[0], shards[-1])
    (problem,) = kind.check(disk, path).problems
    assert (problem.file, "do not name the same tensors" in problem.what) == (shards[-1].name, True)
    shards[-1].write_bytes(last)
    index = path / "model.safetensors.index.json"
    index.write_text(index.read_text()[:-20])
    assert table.complete(disk, path).whole is Whole.NO
    trained = path.rename(tmp_path / "checkpoint-500")
    assert table.recognise(disk, trained).kind is Kind.DIRECTORY


def trainer_folder(sample, tmp_path):
    """As HF Trainer leaves it: trainer_state.json comes last."""
    folder = tmp_path / "checkpoint-500"
    folder.mkdir()
    shutil.move(sample("model.safetensors"), folder)
    shutil.move(sample("zip.pt"), folder / "optimizer.pt")
    shutil.move(sample("dcp"), folder / "model_fsdp_0")
    (folder / "notes").write_text("anything")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 500}))
    return folder


def test_nobody_knows_whether_any_directory_is_whole_unless_a_marker_says_so(sample, tmp_path, disk):
    folder = trainer_folder(sample, tmp_path)
    kind, found = table.recognise(disk, folder), table.complete(disk, folder)
    assert (kind.kind, found.whole, "checkpoint.complete" in found.why) == (Kind.DIRECTORY, Whole.UNKNOWN, True)
    assert "optimizer.pt" in found.files
    assert table.complete(disk, folder, marker="trainer_state.json").whole is Whole.YES
    assert table.complete(disk, folder, marker="DONE").why == "has no DONE"
    report = kind.check(disk, folder)
    assert report.problems == ()
    assert "2 files are of no known kind (notes)" in report.blind
    (folder / "trainer_state.json").write_text('{"global_s')
    assert table.complete(disk, folder, marker="*.json").why == "trainer_state.json is torn"


@pytest.mark.parametrize("file", ["optimizer.pt", "model.safetensors", "model_fsdp_0/__0_0.distcp", "model_fsdp_0/.metadata"])
def test_a_directory_with_a_torn_part_is_torn_and_no_marker_helps(sample, tmp_path, disk, file):
    folder = trainer_folder(sample, tmp_path)
    os.truncate(folder / file, (folder / file).stat().st_size * 6 // 10)
    found = table.complete(disk, folder, marker="trainer_state.json")
    assert (found.whole, found.why.startswith(file.split("/")[0])) == (Whole.NO, True)
    problems = table.recognise(disk, folder).check(disk, folder).problems
    assert [problem.file for problem in problems][:1] == [file]


def test_an_unknown_file_cannot_say(tmp_path, disk):
    (tmp_path / "weights.npy").write_bytes(b"\x93NUMPY and more")
    assert table.complete(disk, tmp_path / "weights.npy").whole is Whole.UNKNOWN
    assert table.recognise(disk, tmp_path / "weights.npy").check(disk, tmp_path / "weights.npy").blind
    (tmp_path / "empty").mkdir()
    assert table.complete(disk, tmp_path / "empty").whole is Whole.NO


def regions(disk, path, file):
    size = (path / file).stat().st_size
    return table.recognise(disk, path).locate(disk, path, file, range(size))


def test_bytes_are_named_by_the_tensor_that_lies_there(originals, disk):
    zipped = regions(disk, originals / "zip.pt", "")
    named = {place.region: place.tensor for place in zipped if place.tensor}
    assert named["data/0"] == "model.0.weight"
    assert "optimizer.state.0.exp_avg" in named.values()
    assert "zip directory" in {place.region for place in zipped}
    legacy = regions(disk, originals / "legacy.pt", "")
    assert legacy[0].region == "pickle"
    assert {place.tensor for place in legacy} - {None} == {*named.values(), "none"}  # its length, which is 0, is written down there
    assert {place.tensor for place in regions(disk, originals / "model.safetensors", "")} == {None, "a.weight", "a.bias"}
    assert "tail.0" in {place.tensor for place in regions(disk, originals / "dcp", "__0_0.distcp")}
    assert [place.region for place in regions(disk, originals / "dcp", ".metadata")] == [".metadata"]


def test_a_pickled_module_has_the_names_of_its_state_dict(tmp_path, disk):
    torch.save({"net": torch.nn.Sequential(torch.nn.Linear(2, 3))}, tmp_path / "module.pt")
    named = {place.tensor for place in regions(disk, tmp_path / "module.pt", "")}
    assert {"net.0.weight", "net.0.bias"} <= named


def test_a_compressed_record_is_inflated_and_checked(sample, disk, tmp_path):
    path = tmp_path / "deflated.pt"
    with zipfile.ZipFile(sample("zip.pt")) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    kind = table.recognise(disk, path)
    assert kind.check(disk, path).problems == ()
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    assert kind.check(disk, path).problems


@pytest.mark.slow
@pytest.mark.drill
@pytest.mark.timeout(300)
def test_a_file_above_4_gb_has_wide_sizes_and_places(tmp_path, disk):
    path = tmp_path / "big.pt"
    torch.save({"big": torch.zeros((1 << 32) + 4096, dtype=torch.uint8), "behind": torch.ones(3)}, path)
    kind = table.recognise(disk, path)
    assert (table.complete(disk, path).whole, kind.check(disk, path)) == (Whole.YES, Report())
    size = path.stat().st_size
    (behind,) = [place for place in kind.locate(disk, path, "", range(1 << 32, size)) if place.tensor == "behind"]
    assert behind.region == "data/1"
    with path.open("r+b") as file:
        file.seek(size - 1000)
        assert file.write(b"\x55") == 1
    assert kind.check(disk, path).problems


def test_what_has_no_checksum_says_so(originals, disk):
    blind = {name: table.recognise(disk, originals / name).check(disk, originals / name).blind for name in KINDS}
    assert {name for name in KINDS if not blind[name]} == {"zip.pt", "dcp", "dcp-many"}
    assert "set_crc32_options" in blind["nocrc.pt"]
