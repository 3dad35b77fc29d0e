"""Whether the kernel has killed for memory: the count of our own control group, which the ranks are in as well.

One read, no memory. Says nothing about who was killed: that a process died of SIGKILL is known elsewhere.
"""

from __future__ import annotations

import re
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def oom_kills(*, own: Path = _OWN, root: Path = _CGROUPS) -> int:
    """How many processes of our control group the kernel has killed for memory; 0 where it does not say."""
    for path in _counters(own, root):
        try:
            found = _COUNT.search(path.read_text())
        except (OSError, UnicodeDecodeError):
            continue
        if found:
            return int(found[1])
    return 0


def _counters(own: Path, root: Path) -> list[Path]:
    """`0::/path` is version 2; `4:memory:/path` version 1."""
    try:
        lines = own.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    found = []
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        below = path.lstrip("/")
        if controllers == "":
            found.append(root / below / "memory.events")
        elif "memory" in controllers.split(","):
            found.append(root / "memory" / below / "memory.oom_control")
    return found
