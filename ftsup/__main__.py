"""`python -m ftsup` is `ftsup`."""

from ftsup.cli import main

main()
