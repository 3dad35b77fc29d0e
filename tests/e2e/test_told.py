"""A whole run as somebody sees it who only looks: `logs -f` over a crash, a dead supervisor and a requeue; and what notify.command gets."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter

import pytest

from ftsup.events import Epoch, Notify
from tests.e2e.harness import beside

pytestmark = [pytest.mark.e2e, pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPT = """
import os, sys, time
from pathlib import Path
from ftsup_worker import beat

rank, attempt = os.environ["RANK"], os.environ["FTSUP_MARK"].rpartition("/")[2]
order = Path("control", f"once.{rank}")
step = 0
while not Path("control", "finish").exists():
    step += 1
    beat(step=step)
    print(f"{attempt} {rank} {step}", flush=True)
    Path("control", f"said.{attempt}.{rank}").write_text(str(step))
    if order.exists():
        order.unlink()
        sys.stdout.write("".join(f"{attempt} {rank} {step + n} {'y' * 80}\\n" for n in range(1, 30_001)) + "the end has no newline")
        sys.stdout.flush()
        os._exit(3)
    time.sleep(0.05)
print(f"{attempt} {rank} is done", end="")
"""


def numbers(lines: list[str], attempt: Epoch, rank: int) -> list[int]:
    """What a rank counted to in an attempt, as its lines are shown."""
    return [int(found[1]) for line in lines if (found := re.search(rf"\[rank {rank}\] {attempt} {rank} (\d+)", line))]


def test_a_run_is_followed_from_its_first_line_to_its_last_and_its_news_are_told(site) -> None:
    work = site.folder / "a"
    work.mkdir()
    (work / "counts.py").write_text(SCRIPT)
    (work / "tell.sh").write_text("#!/bin/sh\n{ cat; echo; } >>news\n")
    (work / "tell.sh").chmod(0o755)
    run = site.submit(
        command=["counts.py"],
        resume_args=[],
        checkpoint={"dir": ""},
        slurm={"nodes": 2},
        workers_per_node=1,
        notify={"command": ["./tell.sh"]},
    )
    argv = [sys.executable, "-m", "ftsup", "logs", "-f", str(run.place.root)]
    with (
        (work / "shown").open("wb") as out,
        (work / "said").open("wb") as err,
        beside(site, argv, cwd=work, out=out, err=err) as looking,
    ):
        run.until_trains()
        run.once(1, "burst")
        run.until_trains(epoch=Epoch(1, 2), more=10)

        before = int(run.until((work / "control" / "said.1.2.1").read_text))  # empty for the moment in which it is written
        run.supervisor("mock2").kill()
        run.until_trains(epoch=Epoch(1, 3))

        site.run("scontrol", "requeue", run.job)
        run.until(lambda: run.show().restarts == 1)
        last = run.until_trains(epoch=Epoch(2, 1))
        run.finish()
        assert run.until_over().exit_code == 0
        assert looking.wait(60) == 0

    shown = (work / "shown").read_text().splitlines()
    written = {path: path.read_text().splitlines() for path in run.place.root.glob("logs/*/*.log")}
    assert Counter(shown) == Counter(f"{path.stem}: {line}" for path, lines in written.items() for line in lines)
    for attempt in run.launches():
        for rank in (0, 1):
            found = numbers(shown, attempt, rank)
            assert found == list(range(1, len(found) + 1))
    assert len(numbers(shown, Epoch(1, 1), 1)) > 30_000
    assert sum("the end has no newline" in line for line in shown) == 1
    assert len(numbers(shown, Epoch(1, 2), 1)) >= before
    assert sum(line.endswith(f"{last} 0 is done") for line in shown) == 1
    said = (work / "said").read_text().splitlines()
    assert said[-1] == f"{run.place.id}: finished (training finished)"
    assert f"attempt {last}" in said

    news = [json.loads(line) for line in (work / "news").read_text().splitlines()]
    assert (news[0]["kind"], news[-1]["kind"]) == ("incident", "finished")
    assert news[0]["command"] == f"ftsup explain {run.place.root}"
    told = [(one["kind"], one["text"]) for message in news for one in message["news"]]
    assert told == [(order.kind, order.text) for order in run.orders(Notify)]
