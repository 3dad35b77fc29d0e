"""What is hung on torch, held against what really happened: steps of every kind of training, batches, evaluations, saves.

The scripts are in cases/, as their users would write them; torch, HF Trainer and Lightning are real.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from ftsup.worker import beatfile
from tests.worker.conftest import finished, new

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240), pytest.mark.xdist_group("hooks")]
CASES = Path(__file__).parent / "cases"
BEATS_A_STEP = {"zero": 2, "gan": 2, "in_backward": 4}
UNKNOWN = {
    "gan_with_five_critic_steps",
    "one_optimizer_and_then_another",
    "own_step_and_that_of_its_parent",
    "own_step_and_later_its_parent",
}
"""Beats that are not the script's steps, and which no rule can turn into them."""


def case(bench, name: str) -> dict:
    """What a case printed as its last line, run as the only rank."""
    for path in CASES.glob("*.py"):
        shutil.copy(path, bench.home / "work")
    ran = finished(bench.start_shim(f"{name}.py", str(bench.home), env={"OMP_NUM_THREADS": "1"}), limit_s=150)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def walked(tmp_path_factory) -> dict:
    """Every way to train, walked by two ranks in turn: way -> what it said."""
    bench = new(tmp_path_factory.mktemp("ways"))
    ways = bench.home / "ways"
    ways.mkdir()
    started = [bench.start_shim(str(CASES / "hooks.py"), str(ways), rank=rank, env={"OMP_NUM_THREADS": "1"}) for rank in range(2)]
    ran = [finished(process, limit_s=200) for process in started]
    assert [one.returncode for one in ran] == [0, 0], ran[0].stderr + ran[1].stderr
    alone, together = (json.loads((ways / f"found.{rank}.json").read_text()) for rank in range(2))
    assert {name: alone[name] for name in together} == together
    return alone


def test_every_step_is_a_beat_and_known(walked) -> None:
    usual = {name: found for name, found in walked.items() if name not in {*BEATS_A_STEP, *UNKNOWN, "without_an_optimizer_of_torch"}}
    if "record_event" in usual["fsdp2"].get("error", ""):  # torch 2.6 has no FSDP2 on the CPU
        del usual["fsdp2"]
    assert len(usual) > 35
    expected = {name: {"steps": 3 if name == "scaler_skips" else 6, "phase": "STEP"} for name in usual}
    assert usual == {name: {**one, "said": one["steps"], "beats": one["steps"]} for name, one in expected.items()}


def test_optimizers_that_take_turns_are_one_step(walked) -> None:
    found = {name: (walked[name]["said"], walked[name]["beats"]) for name in BEATS_A_STEP}
    assert found == {name: (6, 6 * beats) for name, beats in BEATS_A_STEP.items()}


def test_where_beats_are_not_steps_the_step_is_unknown(walked) -> None:
    assert {name: walked[name]["said"] for name in UNKNOWN} == dict.fromkeys(UNKNOWN)
    assert all(walked[name]["beats"] > 0 for name in UNKNOWN)


def test_an_optimizer_that_is_not_torchs_is_no_beat_and_its_steps_are_unknown(walked) -> None:
    assert walked["without_an_optimizer_of_torch"] == {"steps": 6, "said": None, "beats": 0, "phase": "INIT"}


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> dict:
    return case(new(tmp_path_factory.mktemp("phases")), "phases")


def test_every_batch_is_a_sign_of_life(seen) -> None:
    assert set(seen["loaders"]) == {"plain", "workers", "persistent", "iterable", "subclass", "pipe"}
    for life, taken in seen["loaders"].values():
        assert taken >= 4
        assert taken <= life <= taken + 4  # the iterator's own beginning counts too


def test_batches_taken_without_gradients_are_an_evaluation(seen) -> None:
    assert seen["evaluation"] == ["FIRST_STEP", "STEP", "EVALUATION", "EVALUATION", "STEP", "EVALUATION", "STEP"]
    assert seen["evaluation before training"] == ["EVALUATION", "FIRST_STEP"]


def test_loads_and_saves_of_the_start_up_leave_it_where_it_is(seen) -> None:
    assert seen["start-up"] == "INIT"


def test_a_save_is_a_phase_in_the_main_thread_and_in_flight_in_another(seen) -> None:
    saves = seen["saves"]
    assert (saves["main"], saves["after"]) == (["CHECKPOINT", 0], "STEP")
    assert (saves["thread"], saves["after thread"]) == (["STEP", 1], ["STEP", 0])
    assert saves["after error"] == "STEP"


def test_saves_of_torch_distributed_checkpoint(seen) -> None:
    saves = seen["saves"]
    assert (saves["dcp"], saves["after dcp"]) == (["CHECKPOINT", 0], "STEP")
    assert (saves["async"], saves["after async"]) == (["STEP", True], ["STEP", 0, True])


def test_a_forked_child_is_no_rank(seen) -> None:
    assert seen["fork"] is True


def test_torch_compile_goes_through_loaders_and_saves(seen) -> None:
    assert seen["compiled"] == [True, True]


def test_torch_looks_as_before(seen) -> None:
    assert seen["invisible"] == {
        "one function": True,
        "pickles": True,
        "signature": ["obj", "f"],
        "name": ["torch.serialization", "save", "async_save"],
        "loader pickles": [1, 2],
        "frames of a loader": 0,
        "frames of a save": 1,
        "warnings": [False],  # there is one, and it names no line of ours
    }


def installed(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


@pytest.mark.parametrize(
    "name,steps",
    [pytest.param("hf", 10, marks=installed("transformers")), pytest.param("pl", 8, marks=installed("lightning"))],
)
def test_a_framework_as_it_is(bench, name, steps) -> None:
    """Optimizer steps are the trainer's own global steps, although it accumulates; its saves and evaluations are phases."""
    found = case(bench, name)
    beat = beatfile.Beat(*found["beat"])
    assert (found["steps"], beat.step, beat.beats) == (steps, steps, steps)
    assert beat.activity > 3 * steps
    assert found["saves"] == [["CHECKPOINT", 0], ["CHECKPOINT", 0]]
    assert found["evaluating"] == ["EVALUATION"]
    assert bench.beat().phase is beatfile.Phase.EXITED
