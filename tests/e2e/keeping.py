"""A run that keeps checkpoints (keeps.py): submitted, looked at, held still and let go on."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import psutil

from ftsup import events as ev
from tests.e2e.harness import Run, Site, called

KEEPS = Path(__file__).parent / "keeps.py"
ANSWERS_S = 8.0
"""A command that waits for a disk says so after 10 s, and this is less."""
QUICK = {"dir": "ckpt", "pattern": "step*.safetensors", "poll": "0.3s"}


def submit(site: Site, name: str = "a", **config: object) -> Run:
    checkpoint = QUICK | dict(config.pop("checkpoint", {}))  # type: ignore[call-overload]
    return site.submit(
        name, command=[str(KEEPS)], checkpoint=checkpoint, policy={"back_off": "1.5s", "back_off_max": "1.5s", "jitter": 0}, **config
    )


def keeper(run: Run) -> psutil.Process:
    """The process that seals and picks."""
    leader = run.leader()
    found: psutil.Process = run.until(lambda: next((one for one in leader.children() if called(one, "ftsup-keeper")), None))
    return found


def hold(run: Run) -> Path:
    """No more saves; the newest checkpoint, which is sealed by now, as is one before it."""
    run.until(lambda: len(run.events(ev.Sealed)) > 1)
    (run.work / "control" / "hold").touch()
    run.until_trains()  # a save that had begun is through

    def newest() -> Path | None:
        there = max((run.work / "ckpt").glob("step*.safetensors"))
        return there if there.name in {event.name for event in run.events(ev.Sealed)} else None

    found: Path = run.until(newest)
    return found


def go_on(run: Run) -> None:
    """Saves again, and two of them are sealed."""
    (run.work / "control" / "hold").unlink(missing_ok=True)
    sealed_more(run, than=len(run.events(ev.Sealed)) + 1)


def sealed_more(run: Run, *, than: int) -> None:
    run.until(lambda: len(run.events(ev.Sealed)) > than)


def picks(run: Run) -> list[str]:
    return [event.name for event in run.events(ev.CheckpointPicked)]


def status(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(run.site.ftsup("status", str(run.place.root), "--json", cwd=run.work))
    return found


def answers_s(run: Run) -> float:
    """How long `ftsup status` takes, the best of three."""
    begun = [time.monotonic()]
    for _ in range(3):
        status(run)
        begun.append(time.monotonic())
    return min(after - before for before, after in pairwise(begun))


def notes(run: Run) -> list[str]:
    return [event.text for event in run.events(ev.Noted)]
