"""Durations and sizes: what they mean, what is refused, and that what we write we read."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftsup.units import DURATION_PATTERN, SIZE_PATTERN, duration, seconds, size, size_bytes


@pytest.mark.parametrize(
    "text, expected",
    [
        ("20min", 1200),
        ("1h30m", 5400),
        ("1 h 30 min", 5400),
        ("90s", 90),
        ("2d", 172800),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("0s", 0),
        ("1-12:00:00", 129600),
        ("1-12", 129600),
        ("2-1:30", 178200),
        ("12:00:00", 43200),
        ("100:00:00", 360000),
    ],
)
def test_a_duration_means(text, expected):
    assert seconds(text) == expected
    assert re.search(DURATION_PATTERN, text)


@pytest.mark.parametrize(
    "text", ["", "60", "1:30", "01:00", "-5s", "1h1h", "30m1h", "5 parsecs", "1-24:00:00", "1:99:00", "nan", "1e3s", "s"]
)
def test_a_duration_is_refused_with_what_is_allowed(text):
    with pytest.raises(ValueError, match="allowed is a duration with its unit"):
        seconds(text)


@pytest.mark.parametrize(
    "text, expected",
    [("512MiB", 2**29), ("64G", 2**36), ("64GB", 64 * 10**9), ("1.5GiB", 3 * 2**29), ("0", 0), ("100B", 100), ("7k", 7168)],
)
def test_a_size_means(text, expected):
    assert size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "12", "1iB", "-1G", "G", "1XiB", "1 G B"])
def test_a_size_is_refused_with_what_is_allowed(text):
    with pytest.raises(ValueError, match="allowed is a size with its unit"):
        size_bytes(text)


@given(st.integers(0, 10**15))
def test_a_duration_that_we_write_reads_back(microseconds):
    text = duration(microseconds / 1_000_000)
    assert round(seconds(text) * 1_000_000) == microseconds
    assert re.search(DURATION_PATTERN, text)


@given(st.integers(0, 2**60))
def test_a_size_that_we_write_reads_back(value):
    text = size(value)
    assert size_bytes(text) == value
    assert re.search(SIZE_PATTERN, text)


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text):
    for read in (seconds, size_bytes):
        try:
            assert read(text) >= 0
        except ValueError as error:
            assert "allowed is" in str(error)  # noqa: PT017 - both ends are fine
