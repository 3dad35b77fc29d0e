"""The flight recorder's variables under the names that this torch knows.

The supervisor sets the new names and cannot know the training environment's torch; a torch that knows the new ones warns about the old.
"""

from __future__ import annotations

import os

_NAMES = (
    ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
)


def name_for(version: str) -> None:
    """Before torch makes its first process group: what was set counts for torch of this version, too."""
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) >= (2, 9):
        return
    for new, old in _NAMES:
        if new in os.environ:
            os.environ.setdefault(old, os.environ[new])
