"""A training script as a user's type checker sees it. Read by mypy --strict, never run."""

from __future__ import annotations

from typing_extensions import assert_type

from ftsup.worker import asked, beat, phase, saved


def train(*, steps: int) -> None:
    for step in range(steps):
        assert_type(beat(step=step), None)
        beat()
        with phase("evaluation"):
            pass
        if assert_type(asked(), bool):
            assert_type(saved(step), None)
