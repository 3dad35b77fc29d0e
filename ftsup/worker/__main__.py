"""`python -m ftsup_worker script.py args...`: what torchrun is told to start on each rank."""

from __future__ import annotations

import sys

from .rank import THIS
from .shim import main

main(sys.argv[1:], THIS)
