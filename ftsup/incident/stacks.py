"""What faulthandler wrote about a process: which thread is the main one, the line of the user's code, whether it only waits for others.

Text in, values out. The rules of thumb are here and nowhere else.
"""

from __future__ import annotations

import re
from pathlib import PurePath

import msgspec

_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+(?: \[[^\]]*\])? \(most recent call first\):$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_LIBRARY = re.compile(r"(^|/)(site-packages|dist-packages|lib/python3(\.\d+)?|ftsup_worker|ftsup/worker)/|^<")
_COLLECTIVE_FILE = re.compile(r"/torch/(distributed/(?!checkpoint/|elastic/)|nn/parallel/distributed\.py$)")
"""torch.distributed's calls, FSDP, and DDP, which broadcasts buffers from its own file; a save is not a wait for others."""
_BACKWARD = "_engine_run_backward"
"""DDP's collectives run inside the backward pass; its Python frame is this one."""
_LOADER_FILE = re.compile(r"/torch/utils/data/(dataloader|_utils/pin_memory)\.py$")
_LOADER_LOOP = "_worker_loop"
_QUEUE_FILE = re.compile(r"/multiprocessing/(queues|connection)\.py$")


class Frame(msgspec.Struct, frozen=True):
    """One line of a stack."""

    file: str
    line: int
    function: str

    @property
    def short(self) -> str:
        """`train.py:41 in forward`."""
        return f"{PurePath(self.file).name}:{self.line} in {self.function}"


def main_thread(text: str) -> list[Frame]:
    """The frames of the thread that got the signal (the main one), innermost first; else of the last thread listed."""
    threads: list[tuple[bool, list[Frame]]] = []
    for line in text.splitlines():
        if head := _THREAD.match(line):
            threads.append((head[1] == "Current thread", []))
        elif threads and (frame := _FRAME.match(line)):
            threads[-1][1].append(Frame(frame[1], int(frame[2]) if frame[2].isdigit() else 0, frame[3]))
    current = [frames for is_current, frames in threads if is_current]
    return current[-1] if current else threads[-1][1] if threads else []


def where(frames: list[Frame]) -> str:
    """The innermost line of the user's own code, else the innermost line."""
    own = [frame for frame in frames if not _LIBRARY.search(frame.file)]
    chosen = own or frames
    return chosen[0].short if chosen else ""


def waits(frames: list[Frame]) -> bool:
    """It stands in a collective: torch.distributed's call, or a backward pass (where DDP's run), with no code of the user's inside."""
    for frame in frames:
        if _COLLECTIVE_FILE.search(frame.file) or frame.function == _BACKWARD:
            return True
        if not _LIBRARY.search(frame.file):
            return False
    return False


def awaits_loader(frames: list[Frame]) -> bool:
    """It stands in a DataLoader's next, with no code of the user's inside: it waits for a worker process."""
    for frame in frames:
        if _LOADER_FILE.search(frame.file):
            return True
        if not _LIBRARY.search(frame.file):
            return False
    return False


def works_for_loader(frames: list[Frame]) -> bool:
    """A DataLoader's worker that has something to do; else it waits for work, or is some other process."""
    names = [frame.function for frame in frames]
    if _LOADER_LOOP not in names:
        return False
    inside = frames[: names.index(_LOADER_LOOP)]
    return bool(inside) and not _QUEUE_FILE.search(inside[-1].file)
