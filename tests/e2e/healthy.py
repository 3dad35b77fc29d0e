"""A healthy training that is slow in every way: `healthy.py SEED STEP_S`. No torch; its ranks meet at each step, as in an all_reduce.

The first step takes 60 steps' time, an evaluation 40, a save 30, by rank 0 alone or by all; ranks are uneven, steps are made of many
parts, and the data comes in bursts.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ftsup_worker import beat, phase

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS = 60


def meeting() -> Callable[[], None]:
    """Wait until all ranks are there; made of sockets, by way of a file."""
    place = Path(f"control/port.{os.environ['MASTER_PORT']}")
    if RANK == 0:
        server = socket.create_server(("127.0.0.1", 0))
        part = place.with_suffix(".part")
        part.write_text(str(server.getsockname()[1]))
        part.replace(place)
        others = [server.accept()[0] for _ in range(WORLD - 1)]
        server.close()
    else:
        while not place.exists():
            time.sleep(0.02)
        others = [socket.create_connection(("127.0.0.1", int(place.read_text())))]

    def meet() -> None:
        if RANK == 0:
            for other in others:
                other.recv(1)
        for other in others:
            other.send(b"x")
        if RANK:
            others[0].recv(1)

    return meet


def work(seconds: float, *, parts: int = 1) -> None:
    """With a sign of life between its parts."""
    for _ in range(parts):
        time.sleep(seconds / parts)
        if parts > 1:
            beat()


def main() -> None:
    seed, step_s = int(sys.argv[1]), float(sys.argv[2])
    chance = random.Random(seed)  # the same for all ranks: what they do differently follows from their number
    habits = {name: chance.random() < 0.5 for name in ("evaluate alone", "save alone", "accumulate", "uneven")}
    slowness = [1.0, *(chance.uniform(1.0, 4.0) for _ in range(WORLD - 1))] if habits["uneven"] else [1.0] * WORLD
    meet = meeting()
    with phase("first_step"):
        work(60 * step_s * chance.uniform(0.5, 1))
        meet()
    for step in range(1, STEPS + 1):
        save_s, evaluate_s = 30 * step_s * chance.uniform(0.3, 1), 40 * step_s * chance.uniform(0.5, 1)
        burst = chance.uniform(5, 15) if chance.random() < 0.05 else 1.0
        parts = chance.randint(8, 16) if habits["accumulate"] else 1
        if step % 20 == 0 and (RANK == 0 or not habits["save alone"]):
            with phase("checkpoint"):
                work(save_s)
        if step % 30 == 0 and (RANK == 0 or not habits["evaluate alone"]):
            with phase("evaluation"):
                work(evaluate_s, parts=40)
        work(step_s * (burst if burst > 1 else slowness[RANK]), parts=parts)
        meet()
        beat(step=step)


main()
