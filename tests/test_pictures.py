"""The pictures in docs/ are what the code draws today: `make pictures` draws them anew."""

from __future__ import annotations

import pytest

from docs import pictures


@pytest.mark.parametrize("path", sorted(pictures.HERE.glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_what_the_code_draws(path):
    assert pictures.svg(path.stem) == path.read_text(encoding="utf-8"), "hint: make pictures"


def test_a_picture_loads_nothing_from_elsewhere():
    drawn = pictures.svg("top")
    assert "@font-face" not in drawn
    assert "url(http" not in drawn
    assert "mock2" in drawn
