"""`python .../ftsup_worker/__main__.py script.py args...`: what torchrun starts on each rank.

By its path, because `-m` makes Python import runpy first: 4 ms. `-m ftsup_worker` is the same for everybody else.
"""

from __future__ import annotations

import sys

if not __package__:
    __package__ = "ftsup_worker"

from .rank import THIS
from .shim import main

main(sys.argv[1:], THIS)
