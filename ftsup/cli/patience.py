"""Says so when the disk lets a command wait, and lets Ctrl-C through: whoever reads from a dead NFS server hears no signal. Wiring.

A thread looks at the main one from outside. It decides nothing else, and ends with the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

LOOK_S = 1.0
LOOKS = 10
"""So many looks in a row that find the main thread waiting for a disk are worth a line."""
_DEAF = 2
"""So often in a row a signal may be found untaken; Python takes one between any two lines of its own."""
_ASKS_FUSE = "request_wait_answer"
"""The kernel's function in which a reader of a FUSE file system waits, not in state D."""


def watch() -> None:
    """Begin, for this process and as long as it lives. To be called by the main thread."""
    threading.Thread(target=_look_on, args=(threading.get_native_id(),), name="patience", daemon=True).start()


def _look_on(main: int) -> None:
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # only to see what waits for the main thread
    task = Path(f"/proc/self/task/{main}")
    waits = deaf = 0
    while True:
        time.sleep(LOOK_S)
        waits = waits + 1 if waits_for_disk(task) else 0
        pending = signal.sigpending() & signals
        deaf = deaf + 1 if waits and pending else 0
        if deaf == _DEAF:
            os._exit(128 + min(pending))
        if waits == LOOKS:
            sys.stderr.write(
                f"waiting for the disk, which has not answered for {LOOKS * LOOK_S:g} s\n"
                "hint: Ctrl-C leaves; the run does not need this command. `df` of the same folder shows whether its server is there\n"
            )
            sys.stderr.flush()


def waits_for_disk(task: Path) -> bool:
    """Whether the thread (its folder in /proc) is in a call that only a disk can end."""
    try:
        state = (task / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
        return state == "D" or (state == "S" and (task / "wchan").read_text(encoding="ascii") == _ASKS_FUSE)
    except (OSError, IndexError):
        return False
