"""One bit flipped, region by region: what the deep check of the kind sees by itself, and what only a manifest can.

The table says it for each kind; whatever no deep check sees is in a file whose report says that it is blind there.
"""

from __future__ import annotations

import io
import random

import pytest

from ftsup.checkpoint.formats import table, torch_zip
from ftsup.checkpoint.formats.kind import Span, Whole
from tests.checkpoint import samples

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("checkpoint-samples")]


def flip(path, offset, bit=1):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ bit]))


def check_bytes(data):
    problems, _ = torch_zip.check_span(Span(io.BytesIO(data), begin=0, size=len(data)), file="")
    return problems


def test_one_bit_of_each_byte_of_a_torch_save_file_is_seen(originals):
    """Headers, padding, data, descriptors, the directory and both of its ends: no byte is without a check."""
    data = bytearray((originals / "small.pt").read_bytes())
    assert check_bytes(bytes(data)) == []
    unseen = []
    for offset in range(len(data)):
        bit = 1 << (offset * 5 % 8)
        data[offset] ^= bit
        unseen += [] if check_bytes(bytes(data)) else [(offset, bit)]
        data[offset] ^= bit
    assert unseen == []


@pytest.mark.slow
@pytest.mark.drill
def test_each_bit_of_a_torch_save_file_is_seen(originals):
    data = bytearray((originals / "small.pt").read_bytes())
    unseen = []
    for offset in range(len(data)):
        for bit in (1 << number for number in range(8)):
            data[offset] ^= bit
            unseen += [] if check_bytes(bytes(data)) else [(offset, bit)]
            data[offset] ^= bit
    assert unseen == []


def offset_of(path, disk, file, tensor):
    """The first byte of a tensor, found by halving."""
    locate, begin, end = table.recognise(disk, path).locate, 0, (path / file).stat().st_size
    while end - begin > 1:
        middle = (begin + end) // 2
        front = any(place.tensor == tensor for place in locate(disk, path, file, range(begin, middle)))
        begin, end = (begin, middle) if front else (middle, end)
    return begin


SEEN, BLIND = "by the deep check", "only by a manifest"
TABLE = [
    # sample, file, byte (from the front, from the end, or behind these bytes), which layer sees it
    ("zip.pt", "", 0, SEEN),  # first header
    ("zip.pt", "", 45, SEEN),  # padding of the first record
    ("zip.pt", "", 200, SEEN),  # data.pkl
    ("zip.pt", "", -10, SEEN),  # end of the directory
    ("zip.pt", "", -300, SEEN),  # directory
    ("nocrc.pt", "", 45, SEEN),  # padding
    ("nocrc.pt", "", 200, BLIND),  # data.pkl of a file that was saved without CRC-32
    ("legacy.pt", "", 4, BLIND),  # its magic number: a file of no known kind then
    ("legacy.pt", "", b"FloatStorage", SEEN),
    ("legacy.pt", "", -3, BLIND),  # a weight
    ("dcp", "__0_0.distcp", 0, SEEN),
    ("dcp", "__0_0.distcp", 45, SEEN),  # padding inside of an item
    ("dcp", "__0_0.distcp", -10, SEEN),  # directory of the last item
    ("dcp", ".metadata", 0, SEEN),
    ("dcp", ".metadata", b"__0_0.distcp", SEEN),  # the name of a file
    ("dcp", ".metadata", b"length", SEEN),
    ("dcp", ".metadata", b"MetadataInde", SEEN),
    ("dcp", ".metadata", b"float3", BLIND),  # a type
    ("dcp-safetensors", "__0_0.distcp", 45, SEEN),  # padding of an item that is no tensor
    ("dcp-safetensors", "__0_0.distcp", b'"model.a.bias":', SEEN),
    ("dcp-safetensors", "__0_0.distcp", -1, BLIND),  # a weight
    ("model.safetensors", "", 0, SEEN),  # length of the header
    ("model.safetensors", "", 8, SEEN),  # header
    ("model.safetensors", "", b'"data_offsets":[', SEEN),
    ("model.safetensors", "", b'"a.bia', BLIND),  # a name
    ("model.safetensors", "", -1, BLIND),  # a weight
]


@pytest.mark.parametrize("name,file,place,layer", TABLE)
def test_which_layer_sees_a_flipped_bit(sample, disk, *, name, file, place, layer):
    path = sample(name)
    data = (path / file).read_bytes()
    offset = data.index(place) + len(place) if isinstance(place, bytes) else place % len(data)
    flip(path / file, offset)
    kind = table.recognise(disk, path)
    report = kind.check(disk, path)
    seen = bool(report.problems) or kind.complete(disk, path).whole is Whole.NO
    assert seen == (layer is SEEN)
    if not seen and file != ".metadata":
        assert report.blind


def test_what_the_index_of_a_sharded_model_says_is_held_against_the_shards(tmp_path, disk):
    path = tmp_path / "model"
    samples.make_sharded(path)
    index = path / "model.safetensors.index.json"
    text = index.read_bytes()
    for place in (b"layers.", b"model-0000", b'"weight_ma'):
        flip(index, text.rindex(place) + len(place))
        kind = table.recognise(disk, path)
        assert kind.check(disk, path).problems or kind.complete(disk, path).whole is Whole.NO, place
        index.write_bytes(text)


def test_a_damaged_weight_is_named(sample, disk):
    path = sample("zip.pt")
    flip(path, offset_of(path, disk, "", "model.1.weight"))
    (problem,) = table.recognise(disk, path).check(disk, path).problems
    assert problem.tensor == "model.1.weight"
    assert problem.what.startswith("CRC-32 of data/2 is ")
    path = sample("dcp")
    flip(path / "__0_0.distcp", offset_of(path, disk, "__0_0.distcp", "model.1.weight") + 900)
    (problem,) = table.recognise(disk, path).check(disk, path).problems
    assert (problem.file, problem.tensor) == ("__0_0.distcp", "model.1.weight")


@pytest.mark.parametrize("name", ["zip.pt", "legacy.pt", "model.safetensors", "dcp/__0_0.distcp", "dcp/.metadata"])
def test_no_mutation_makes_a_recogniser_raise(originals, sample, disk, name):
    """Seeded: zeros over a stretch, a piece cut out, a piece twice, a random byte."""
    folder, _, file = name.partition("/")
    path = sample(folder)
    target = path / file
    good = target.read_bytes()
    chance = random.Random(7)
    for number in range(25 if name in {"zip.pt", "model.safetensors"} else 6):
        begin, size = chance.randrange(len(good)), chance.randrange(1, 700)
        middle = (b"\0" * size, b"", good[begin : begin + size] * 2, chance.randbytes(1))[number % 4]
        target.write_bytes(good[:begin] + middle + good[begin + size :])
        kind = table.recognise(disk, path)
        whole, report = table.complete(disk, path).whole, kind.check(disk, path)
        kind.locate(disk, path, file, range(len(good)))
        if target.read_bytes() != good:
            assert whole is not Whole.YES or report.problems or report.blind or file == ".metadata"
