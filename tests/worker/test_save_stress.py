"""All ranks or none, and never a deadlock: saves on request with ranks as processes, words that take their time, many seeds."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("saving.py")
FEW = [
    {"ranks": 2, "step_s": 0.005, "lead": 1},
    {"ranks": 4, "step_s": 0.014, "delay_s": 0.02, "by": "handler", "lead": 1},
    {"ranks": 8, "step_s": 0.005, "delay_s": 0.02, "jitter": True, "every": 3},
]
MANY = [
    *({"ranks": ranks, "step_s": 0.005, "delay_s": delay_s} for ranks in (2, 4, 8) for delay_s in (0.0, 0.1)),
    *({"ranks": 4, "step_s": 0.014, "delay_s": delay_s, "by": by} for delay_s in (0.0, 0.02, 0.1) for by in ("asked", "handler")),
    *({"ranks": ranks, "step_s": step_s, "delay_s": 0.05, "jitter": True} for ranks in (4, 8) for step_s in (0.005, 0.05)),
    {"ranks": 4, "step_s": 0.014, "delay_s": 0.02, "jitter": True, "every": 10},
    *({"ranks": 4, "step_s": 0.014, "delay_s": delay_s, "lead": lead} for delay_s, lead in ((0.0, 1), (0.02, 1), (0.04, 10))),
    {"ranks": 4, "step_s": 0.014, "delay_s": 0.02, "lead": 2, "by": "handler", "jitter": True},
    {"ranks": 4, "step_s": 0.5, "delay_s": 0.1, "jitter": True, "saves": 1, "lead": 1},
]


def saved(plan: dict[str, object], *, seeds: int = 1) -> list[dict[str, object]]:
    argv = [sys.executable, PROGRAM, json.dumps(plan), str(seeds)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1700, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(plan: dict[str, object], came: dict[str, object]) -> None:
    beats = came["beats"]
    assert came["trouble"] == "", came
    assert beats == [beats[0]] * len(beats), came
    assert came["partial"] == 0, came
    assert len(beats[0]) + came["given_up"] == plan.get("saves", 3), came


@pytest.mark.parametrize("plan", FEW, ids=str)
def test_all_ranks_or_none(plan: dict[str, object]):
    (came,) = saved(plan)
    check(plan, came)
    assert came["beats"][0] != []


@pytest.mark.drill
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("plan", MANY, ids=str)
def test_all_ranks_or_none_with_thirty_seeds(plan: dict[str, object]):
    cames = saved(plan, seeds=30)
    for came in cames:
        check(plan, came)
    last, held = (statistics.median(ms for came in cames for ms in came[name]) for name in ("last_in_ms", "held_ms"))
    tries = [number for came in cames for number in came["proposals"]]
    saves, given_up = sum(len(came["beats"][0]) for came in cames), sum(came["given_up"] for came in cames)
    print(f"{plan}: {saves} saves, {given_up} given up, {statistics.mean(tries):.2f} proposals each (at most {max(tries)}),")
    print(f"    last rank in after {last:.0f} ms, longest hold of a rank {held:.0f} ms (medians)")
