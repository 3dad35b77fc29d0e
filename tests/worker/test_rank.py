"""What a rank says: phases, steps, saves, and the question whether to save."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftsup.worker import beatfile, counters
from ftsup.worker.beatfile import Beat, Phase
from ftsup.worker.rank import Rank


class Optimizer:
    """Anything that can be stepped."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "beat.3"
    beatfile.create(path)
    return path


def joined(file: Path, *, base_step: int | None = 0) -> Rank:
    rank = Rank()
    rank.join(file, pid=1, started=2, base_step=base_step)
    return rank


def said(file: Path) -> Beat:
    beat = beatfile.read(file)
    assert beat is not None
    return beat


def test_steps_count_on_from_the_checkpoint(file: Path):
    rank, optimizer = joined(file, base_step=100), Optimizer()
    assert said(file).step == 100
    rank.optimizer_stepped(optimizer)
    rank.optimizer_stepped(optimizer)
    assert (said(file).step, said(file).beats, said(file).phase) == (102, 2, Phase.STEP)


def test_steps_are_unknown_where_the_start_is_unknown(file: Path):
    rank, optimizer = joined(file, base_step=None), Optimizer()
    rank.optimizer_stepped(optimizer)
    assert (said(file).step, said(file).beats, said(file).activity) == (-1, 1, 1)


def test_a_second_optimizer_is_a_beat_and_no_step(file: Path):
    rank, one, two = joined(file), Optimizer(), Optimizer()
    for _ in range(3):
        rank.optimizer_stepped(one)
        rank.optimizer_stepped(two)
    assert (said(file).step, said(file).beats) == (3, 6)


def test_when_the_first_optimizer_is_gone_the_next_one_counts(file: Path):
    rank, one, two = joined(file), Optimizer(), Optimizer()
    rank.optimizer_stepped(one)
    del one
    rank.optimizer_stepped(two)
    assert said(file).step == 2


def test_a_script_that_counts_itself_is_believed(file: Path):
    rank, optimizer = joined(file), Optimizer()
    rank.beat(step=50)
    rank.optimizer_stepped(optimizer)
    rank.beat()
    assert (said(file).step, said(file).beats, said(file).activity) == (50, 2, 3)  # its own word counts until an optimizer steps


def test_the_start_up_only_goes_forward(file: Path):
    rank, optimizer = joined(file), Optimizer()
    rank.reach(Phase.INIT)
    rank.reach(Phase.IMPORT)
    assert said(file).phase is Phase.INIT
    rank.optimizer_stepped(optimizer)
    rank.reach(Phase.FIRST_STEP)
    assert said(file).phase is Phase.STEP


def test_a_part_with_its_own_limit_ends_also_by_an_error(file: Path):
    rank = joined(file)
    rank.beat(phase="step")
    checkpoint = rank.phase("checkpoint")
    with pytest.raises(OSError, match="CHECKPOINT disk"), checkpoint:
        raise OSError(said(file).phase.name + " disk")
    assert said(file).phase is Phase.STEP


def test_parts_nest(file: Path):
    rank = joined(file)
    rank.beat(phase="step")
    with rank.phase("evaluation"):
        with rank.phase("checkpoint"):
            assert said(file).phase is Phase.CHECKPOINT
        assert said(file).phase is Phase.EVALUATION
    assert said(file).phase is Phase.STEP


def test_an_optimizer_step_ends_a_part_that_was_never_closed(file: Path):
    rank, optimizer = joined(file), Optimizer()
    rank.beat(phase="checkpoint")
    rank.optimizer_stepped(optimizer)
    assert said(file).phase is Phase.STEP


@pytest.mark.parametrize("speak", [lambda rank: rank.beat(phase="chekpoint"), lambda rank: rank.phase("chekpoint")], ids=["beat", "phase"])
def test_an_unknown_phase_names_the_known_ones(speak):
    with pytest.raises(ValueError, match=r"no phase 'chekpoint'; allowed: start, .*checkpoint"):
        speak(Rank())


def test_a_save_is_told(file: Path):
    rank = joined(file)
    rank.saved(40)
    assert (said(file).saved_step, said(file).activity) == (40, 1)


def test_outside_a_run_all_of_it_does_nothing():
    rank = Rank()
    rank.beat(step=3, phase="step")
    rank.saved(3)
    with rank.phase("checkpoint"):
        assert rank.asked() is False


def test_a_script_that_says_its_steps_is_in_the_step_phase_and_beats(tmp_path: Path) -> None:
    """No torch, no optimizer: its own word must count, or it would stand in the start phase for ever."""
    beatfile.create(tmp_path / "beat.0")
    rank = Rank()
    rank.join(tmp_path / "beat.0", pid=1, started=1, base_step=0)
    rank.beat(step=7)
    rank.beat(step=8)
    seen = beatfile.read(tmp_path / "beat.0")
    assert seen is not None
    assert (seen.step, seen.beats, seen.phase) == (8, 2, Phase.STEP)


def test_a_rank_lives_on_when_its_beats_can_be_counted_no_more(file: Path):
    rank, optimizer, steps = joined(file), Optimizer(), 2**32 - 2
    rank.writer.words[counters.BEATS] = steps
    for _ in range(3):
        rank.optimizer_stepped(optimizer)
    assert (said(file).step, said(file).beats, said(file).activity) == (3, 2**32 - 1, 2**32 + 1)
    rank = joined(file)
    rank.writer.words[counters.BEATS] = steps
    for step in range(3):
        rank.beat(step=step)
    assert (said(file).step, said(file).beats, said(file).activity) == (2, 2**32 - 1, 2**32 + 1)
