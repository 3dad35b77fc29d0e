"""What touches a directory of checkpoints, to be killed at its n-th disk call by a real SIGKILL, each time in a process of its own.

`python -m tests.checkpoint.killing` forks one for every line that asks: a kill costs milliseconds. No torch in here.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path

from ftsup.checkpoint.attempts import pending
from ftsup.checkpoint.home import Home
from ftsup.checkpoint.keep import items, pin, pins, prune, removable, unpin
from ftsup.checkpoint.owner import Life, Owner, claim, release
from ftsup.checkpoint.pick import Ask, pick
from ftsup.checkpoint.seal import Label, seal
from ftsup.events import Epoch
from tests.checkpoint.disks import BrokenDisk, Killed
from tests.checkpoint.folders import flip

RUN = "run-1"
PATTERN = "step*"


def do_seal(disk, folder: Path) -> None:
    for one in pending(disk, Home(folder), pattern=PATTERN):
        seal(disk, Home(folder), one.entry, label=Label(writer=RUN), sign=one.sign)


def do_quarantine(disk, folder: Path) -> None:
    pick(disk, folder, Ask(pattern=PATTERN))


def do_prune(disk, folder: Path) -> None:
    names = [path.name for path in folder.glob(PATTERN)]
    gone = removable(items(disk, Home(folder), pattern=PATTERN, writer=RUN, verified=names), keep=1)
    prune(disk, Home(folder), [item.name for item in gone])


def do_pin(disk, folder: Path) -> None:
    for held in sorted(pins(disk, Home(folder))):
        unpin(disk, Home(folder), held)
    pin(disk, Home(folder), "step3")


def do_own(disk, folder: Path) -> None:
    claim(disk, Home(folder), Owner(run="run-2", job="8"), life=lambda _: Life.OVER)
    release(disk, Home(folder), "run-2")
    claim(disk, Home(folder), Owner(run="run-3", job="9"), life=lambda _: Life.OVER)


def do_live(disk, folder: Path, *, step: int, damage: bool) -> None:
    """The life of a run that saves one checkpoint: takes the directory, seals, picks, pins, prunes; each the next one's dead owner."""
    home = Home(folder)
    claim(disk, home, Owner(run=f"run-{step}"), life=lambda _: Life.OVER)
    do_seal(disk, folder)
    if damage:
        flip(folder / f"step{step}", 700)
    seen = pick(disk, folder, Ask(pattern=PATTERN, epoch=Epoch(1, step), label=Label(writer=RUN, wall="now"))).seen
    for held in sorted(pins(disk, home)):
        unpin(disk, home, held)
    pin(disk, home, seen[-1].name)
    names = {path.name for path in folder.glob(PATTERN)} - {each.name for each in seen if not each.good}
    prune(disk, home, [item.name for item in removable(items(disk, home, pattern=PATTERN, writer=RUN, verified=names), keep=3)])


WORK = {"seal": do_seal, "quarantine": do_quarantine, "prune": do_prune, "pin": do_pin, "own": do_own, "live": do_live}


def kills_itself(at: int, *, torn: bool) -> BrokenDisk:
    """For real, at this call; a write is half done then, if `torn`."""

    def strike(number: int, name: str, path: Path) -> None:
        if number == at and torn and name == "write_new":
            raise Killed("torn")
        if number == at:
            die()

    return BrokenDisk(strike, end=die)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    for line in sys.stdin:
        ask = json.loads(line)
        child = os.fork()
        if child == 0:
            disk, code = kills_itself(ask["at"], torn=ask["torn"]), 1
            try:
                WORK[ask["work"]](disk, Path(ask["folder"]), **ask["more"])
                Path(ask["folder"]).with_suffix(".calls").write_text(str(disk.calls))
                code = 0
            except BaseException:  # noqa: BLE001 - the last line of this process
                traceback.print_exc()
            os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
