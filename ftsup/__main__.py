"""`python -m ftsup` is `ftsup`."""

import sys

from ftsup.cli import main

sys.exit(main())
