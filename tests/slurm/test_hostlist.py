"""Host lists, both ways. That Slurm reads them so too is checked in tests/contract."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftsup.errors import Unreadable
from ftsup.slurm.hostlist import compress, expand

NAMES = st.from_regex(r"[a-z]{1,3}(-?[0-9]{1,4}){0,2}(-ib)?", fullmatch=True)


@pytest.mark.parametrize(
    "text, names",
    [
        ("n[1-3,07-09],gpu1", "n1 n2 n3 n07 n08 n09 gpu1"),
        ("n[9-11]", "n9 n10 n11"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("r[1-2]c[01-02]-ib", "r1c01-ib r1c02-ib r2c01-ib r2c02-ib"),
        ("head.site-1", "head.site-1"),
        ("", ""),
        ("(null)", ""),
        ("None assigned", ""),
    ],
)
def test_a_list_is_written_out(text, names):
    assert expand(text) == tuple(names.split())


@pytest.mark.parametrize(
    "text",
    [
        "n[1-",
        "n]1[",
        "n[1-2",
        "n[3-1]",
        "n[a-b]",
        "n[]",
        "a,,b",
        ",",
        "two words",
        "n[1-99999999999999]",
        "n[1-2000]m[1-2000]",
        "n[[1-2]]",
        "n[1-2]]",
    ],
)
def test_garbage_is_never_a_list(text):
    with pytest.raises(Unreadable):
        expand(text)


@pytest.mark.parametrize(
    "names, text",
    [
        ("n3 n1 n2", "n[1-3]"),
        ("n1 n3 gpu7 n2", "n[1-3],gpu7"),
        ("n8 n9 n10 n11", "n[8-11]"),
        ("n08 n09 n10", "n[08-10]"),
        ("a a1", "a,a1"),
        ("n1 n1", "n1"),
        ("r1-ib r2-ib", "r[1-2]-ib"),
        ("", ""),
    ],
)
def test_names_are_written_short(names, text):
    assert compress(names.split()) == text


@given(st.lists(NAMES, max_size=40))
def test_what_was_written_short_reads_back(names):
    assert sorted(expand(compress(names))) == sorted(set(names))


@given(st.text(alphabet="n[]-,0129 a", max_size=30))
def test_any_text_is_a_list_or_unreadable(text):
    try:
        names = expand(text)
    except Unreadable:
        return
    assert all(name and " " not in name and "[" not in name for name in names)
