"""From the wish to save to the last rank in the save: 4 ranks, steps of 14 ms, two nodes; with asked() and with a handler, against a plain
signal to every rank, which is heard at once and by each rank at a step of its own. Taken in turns, medians; no collective but ours.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.worker import saving

ROUNDS = 15
STEP_S = 0.014
LIMIT_STEPS = 10
"""Count, propose a beat or two ahead, commit: two looks of the node and a few steps."""
PLANS = {
    "asked()": saving.Plan(step_s=STEP_S, saves=4),
    "handler at beat N": saving.Plan(step_s=STEP_S, saves=4, by="handler"),
    "asked(), 20 ms to a node": saving.Plan(step_s=STEP_S, saves=4, delay_s=0.02),
    "a signal to every rank": saving.Plan(step_s=STEP_S, saves=4, by="signal"),
    "a signal, 20 ms to a node": saving.Plan(step_s=STEP_S, saves=4, by="signal", delay_s=0.02),
}


def once(plan: saving.Plan, seed: int) -> saving.Came:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        came = saving.run(replace(plan, seed=seed), Path(name))
    assert not came.trouble, came.trouble
    return came


def main() -> int:
    cames: dict[str, list[saving.Came]] = {name: [] for name in PLANS}
    for seed in range(ROUNDS):
        for name, plan in PLANS.items():
            cames[name].append(once(plan, seed))
    medians = {}
    for name, found in cames.items():
        times = [ms for came in found for ms in came.last_in_ms]
        alike = sum(len(set(beats)) == 1 for came in found for beats in zip(*came.beats, strict=True))
        medians[name] = statistics.median(times)
        print(f"{name:<26}{medians[name]:7.1f} ms until the last rank is in the save; at one step on all ranks: {alike} of {len(times)}")
    limit_ms = LIMIT_STEPS * STEP_S * 1000
    print(f"limit for asked(): {limit_ms:.0f} ms, {LIMIT_STEPS} steps")
    return 1 if medians["asked()"] > limit_ms else 0


if __name__ == "__main__":
    sys.exit(main())
