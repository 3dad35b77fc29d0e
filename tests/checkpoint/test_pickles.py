"""Pickles that were made to harm: nothing in them runs, and they take neither time nor memory."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import resource
import struct
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftsup import proc
from ftsup.checkpoint import pickles, unpickle

CPU_S, MEMORY_KB = 2.0, 200_000


class Harm:
    """Pickles as a call."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def nested(opening: bytes, times: int, closing: bytes) -> bytes:
    return b"\x80\x04" + opening * times + b"N" + closing * times + b"."


def doubling(times: int, *, wrap: bytes) -> bytes:
    """A tuple of the one before, twice, and so on: 2 ** times leaves in a few bytes; then put to use."""
    return b"\x80\x04K\x01" + b"2\x86" * times + wrap + b"."


def hostile(marker: str) -> dict[str, bytes]:
    """By name."""
    order = f"touch {marker}"
    getattr_chain = b"\x80\x04cos\nsystem\n\x8c" + bytes([len(order)]) + order.encode() + b"\x85R."
    deep_names = b"\x80\x04\x8c\x08builtins\x8c\x18__import__.__call__.evil\x93\x8c\x02os\x85R\x8c\x06system\x86R."
    return {
        "a call": pickle.dumps(Harm(os.system, order)),
        "code": pickle.dumps(Harm(exec, f"open({marker!r}, 'w')")),
        "a call by hand": getattr_chain,
        "a getattr chain": pickle.dumps(Harm(getattr, Harm(__import__, "os"), "system")),
        "dotted names": deep_names,
        "an old INST": b"(S'" + order.encode() + b"'\nios\nsystem\n.",
        "an old OBJ": b"(cos\nsystem\nS'" + order.encode() + b"'\no.",
        "a state with code": b"\x80\x04cbuiltins\nobject\n)\x81}\x8c\x0c__setstate__cos\nsystem\nsb\x8c\x02idb.",
        "a state for a class": b"\x80\x04cbuiltins\nobject\nN}\x8c\x07__new__cos\nsystem\ns\x86b0cbuiltins\nobject\n)R.",
        "an extension": b"\x80\x04\x82\x01.",
        "deep lists": nested(b"(", 1_000_000, b"l"),
        "deep tuples": nested(b"", 500_000, b"\x85"),
        "deep and hashed": b"\x80\x04}K\x01" + b"\x85" * 500_000 + b"Ns.",
        "doubling": doubling(60, wrap=b""),
        "doubling and hashed": b"\x80\x04}K\x01" + b"2\x86" * 60 + b"Ns.",
        "a length bomb": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
        "a length bomb of text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 33) + b"x.",
        "a length bomb of bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 33) + b"x.",
        "a long of many bytes": b"\x80\x04\x8b" + struct.pack("<i", 2**31 - 1) + b"x.",
        "a frame bomb": b"\x80\x04\x95" + struct.pack("<Q", 1 << 50) + b"N.",
        "a memo bomb": b"\x80\x04Nr" + struct.pack("<I", 2**32 - 2) + b"N.",
        "many names": b"\x80\x04" + b"".join(b"ca\n%d\n0" % number for number in range(200_000)) + b"N.",
        "an int of many digits": b"I" + b"9" * 2_000_000 + b"\n.",
        "a long of many digits": b"L" + b"9" * 2_000_000 + b"L\n.",
        "many objects": b"\x80\x04]" + b"(" + b"cos\nx\n)R" * 200_000 + b"e.",
        "no end": b"\x80\x04" + b"N0" * 900_000,
        "no pickle": b"\xff\xfe\x00" * 100,
    }


def asked(kind, path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises(pickles.Unread) as raised:
        pickles.ask(kind, path, offset=0, length=path.stat().st_size if kind is not pickles.Legacy else 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return raised.value.why, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("name", hostile("x"))
def test_a_hostile_pickle_runs_nothing_and_takes_little(tmp_path, name):
    marker = tmp_path / "ran"
    path = tmp_path / "pickle"
    path.write_bytes(hostile(str(marker))[name])
    for kind in (pickles.Dcp, pickles.Legacy):
        why, cpu_s = asked(kind, path)
        assert why
        assert cpu_s < CPU_S
    assert not marker.exists()


MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.parametrize("name", ["deep lists", "a length bomb", "many objects", "many names", "a memo bomb"])
def test_a_hostile_pickle_stays_within_its_memory(tmp_path, name):
    path = tmp_path / "pickle"
    path.write_bytes(hostile("x")[name])
    assert path.stat().st_size <= pickles.ASSUMED_BYTES
    argv = pickles.command(pickles.TorchNames, path, offset=0, length=path.stat().st_size)
    peak_kb = int(proc.run((sys.executable, "-c", MEASURE, *argv), deadline_s=60).out)
    assert 0 < peak_kb < MEMORY_KB


def test_a_call_that_is_harmless_to_read_is_only_written_down():
    record = unpickle.Inert(io.BytesIO(pickle.dumps(Harm(os.system, "touch x")))).load()
    assert isinstance(record, unpickle.Record)
    assert (record.origin[1], record.args) == ("system", ("touch x",))


def test_a_large_pickle_is_not_looked_into(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(pickles.SIZE_CAP + 1)
    with pytest.raises(pickles.Unread, match="only") as raised:
        pickles.ask(pickles.Dcp, path, offset=0, length=pickles.SIZE_CAP + 1)
    assert not raised.value.damaged


def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path):
    with pytest.raises(pickles.Unread, match="No such file") as raised:
        pickles.ask(pickles.Dcp, tmp_path / "none", offset=0, length=5)
    assert not raised.value.damaged


PLAIN_TYPES = (str, bytes, bytearray, int, float, bool, type(None), list, tuple, dict, set, frozenset)


def is_inert(found):
    if isinstance(found, type):
        return issubclass(found, unpickle.Record)
    return isinstance(found, (unpickle.Record, unpickle.Persistent, *PLAIN_TYPES))


@given(st.binary(max_size=200))
def test_random_bytes_give_plain_things_or_an_error(data):
    try:
        found = unpickle.Inert(io.BytesIO(b"\x80\x04" + data)).load()
    except Exception:  # noqa: BLE001 - the C unpickler raises what it likes; the child's main catches all of it
        return
    assert is_inert(found)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=12,
)


@given(PLAIN, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_data_comes_through(value, protocol):
    if protocol < 3 and not isinstance(value, bytes):
        value = str(value)  # bytes are a call there
    data = pickle.dumps(value, protocol=max(protocol, 3) if isinstance(value, bytes) else protocol)
    assert unpickle.Inert(io.BytesIO(data)).load() == value


@contextlib.contextmanager
def little_memory():
    """As the child that reads pickles has it: one byte can ask for 32 GB."""
    now_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now_bytes + (200 << 20), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@given(st.data())
def test_a_mutated_pickle_never_leaves_the_plain_world(data):
    good = pickle.dumps({"a": [1, 2.5, "x", (b"y", None)], "h": Harm(os.getcwd), "o": Harm(dict, ((1, 2),))})
    place = data.draw(st.integers(0, len(good) - 1))
    bad = good[:place] + data.draw(st.binary(max_size=4)) + good[place + data.draw(st.integers(0, 4)) :]
    with little_memory():
        try:
            found = unpickle.Inert(io.BytesIO(bad)).load()
            list(unpickle.tensors(found))
        except Exception:  # noqa: BLE001 - the C unpickler raises what it likes; the child's main catches all of it
            return
    assert is_inert(found)
