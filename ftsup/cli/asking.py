"""How a command asks something of a run's leader: a file in the run directory, and the answer from the log. No Slurm is needed for it."""

from __future__ import annotations

import os
import uuid

import msgspec

from ftsup import eventlog
from ftsup.cli.ports import Ports
from ftsup.events import Asked, Line, Notify
from ftsup.rundir import RunDir
from ftsup.supervisor.requests import Wanted, number

LOOK_S = 0.25
LOOKS = 40
"""The leader looks every two seconds, and the mirror of its log follows at once."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The leader's sentence."""

    text: str
    refused: bool


def ask(ports: Ports, run: RunDir, wanted: Wanted) -> Answer | None:
    """Leave a request and wait for its answer. None: nobody has answered yet; whoever leads the run next finds it."""
    offset = _size(run)
    name = leave(run, wanted)
    for _ in range(LOOKS):
        ports.sleep(LOOK_S)
        try:
            lines, _, offset = eventlog.follow(run.events, offset)
        except OSError:
            continue
        for line in lines:
            if isinstance(line.event, Asked) and line.event.id == name:
                return _answer(line)
    return None


def leave(run: RunDir, wanted: Wanted) -> str:
    """A request that the leader hears once; its name."""
    run.requests.mkdir(mode=0o700, exist_ok=True)
    before = max((number(path.name) for path in run.requests.iterdir()), default=0)
    path = run.requests / f"{before + 1:06}-{uuid.uuid4()}.json"
    part = path.with_suffix(".part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(wanted))
    part.replace(path)
    return path.name


def _size(run: RunDir) -> int:
    try:
        return run.events.stat().st_size
    except OSError:
        return 0


def _answer(line: Line) -> Answer:
    told = [order for order in line.orders if isinstance(order, Notify)]
    return Answer(text=told[0].text if told else "", refused=any(order.kind == "refused" for order in told))
