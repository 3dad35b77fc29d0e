"""`python -m ftsup.slurm OP JSON-ARGS` runs one operation of the Slurm port and prints its answer, one line of JSON.

For `ftsup.slurm.call`; the exit code is the error's. It must start fast: no click, no rich, no torch.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec

from ftsup.errors import Exit, SlurmError
from ftsup.slurm.call import COMPOSED, RESULTS, encode
from ftsup.slurm.commands import Commands


def main(words: list[str]) -> int:
    """Run the operation that the words name."""
    if len(words) not in {1, 2} or words[0] not in RESULTS:
        sys.stderr.write(f"usage: python -m ftsup.slurm OP [JSON]; OP is one of {', '.join(RESULTS)}\n")
        return Exit.USAGE
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):  # a requeue's SIGTERM may reach all of a job, and us in the middle of it
        signal.signal(number, signal.SIG_IGN)
    op = words[0]
    args = msgspec.json.decode(words[1] if len(words) > 1 else "{}", type=dict[str, object])
    if isinstance(script := args.get("script"), str):
        args["script"] = Path(script)
    try:
        slurm = Commands(environ=os.environ)
        result = COMPOSED[op](slurm, **args) if op in COMPOSED else getattr(slurm, op)(**args)
    except SlurmError as error:
        sys.stdout.write(encode(op, error) + "\n")
        return error.exit_code
    sys.stdout.write(encode(op, result) + "\n")
    return Exit.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
