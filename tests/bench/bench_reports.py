"""What following the error files of 8 ranks costs a node supervisor: nothing written, a line a second, as much as is ever read.

A look a second. Written to memory, so that it is the reading that is measured; the second look of a quiet second is one `stat` a file.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ftsup.monitors.errorfiles import READ_CAP
from ftsup.supervisor.reports import Reports

RANKS = tuple(range(8))
LINE = "step 123 loss 0.1234 lr 1.0e-4 tokens/s 123456 mem 12.3 GiB error=0.01\n"
QUIET_LIMIT = 0.1


def look_s(reports: Reports, looks: int, write: Callable[[], None]) -> float:
    """CPU seconds of a look."""
    total_s = 0.0
    for _ in range(looks):
        write()
        began = time.process_time()
        found = reports.look(0.0)
        total_s += time.process_time() - began
        assert not found
    return total_s / looks


def main() -> int:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        out = Path(folder)
        for rank in RANKS:
            (out / "torchelastic" / "none_x" / "attempt_0" / str(rank)).mkdir(parents=True)
            (out / f"nccl.{rank}").touch()
        for name in ("torchrun.out", "torchrun.err"):
            (out / name).touch()
        logs = [(out / f"out.{rank}").open("w") for rank in RANKS]
        reports = Reports(out, node="n1", ranks=RANKS)

        def write(lines: int) -> None:
            for log in logs:
                log.write(LINE * lines)
                log.flush()

        shares = {
            "nothing written": look_s(reports, 2000, lambda: None) * 100,
            "a line a second and rank": look_s(reports, 500, lambda: write(1)) * 100,
            f"{READ_CAP // 1024} KiB a second and rank, the most that is read": look_s(reports, 20, lambda: write(READ_CAP // len(LINE)))
            * 100,
        }
        for log in logs:
            log.close()
    for what, share in shares.items():
        print(f"{what}: {share:.3f} % of a core")
    print(f"nothing written: at most {QUIET_LIMIT}")
    return int(shares["nothing written"] > QUIET_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
