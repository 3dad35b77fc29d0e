"""What `ftsup submit` warns of: things that are allowed and that people regret. Looks at the script, never runs it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from ftsup.config import Config, Launch

_LOCAL = ("/tmp/", "/var/tmp/", "/dev/shm/")  # noqa: S108 - looked for, not used
_LARGEST = 1024 * 1024
_TRAP = re.compile(rb"^\s*trap\s.*\b(?:SIG)?(?:USR1|USR2)\b", re.MULTILINE)


def warnings(config: Config, *, python: str, one_machine: bool, environ: Mapping[str, str]) -> list[str]:
    """Each a sentence. `one_machine`: the nodes are this machine, and see what it sees."""
    found = []
    for what, path in (("runs_dir", config.runs_dir), ("workdir", config.workdir), ("ftsup's own Python", python)):
        if not one_machine and path.startswith(_LOCAL):
            found.append(f"{what} is {path}: do the nodes see it there? A node's /tmp is mostly its own")
    name, text = _script(config)
    signal = config.slurm.warning.signal
    if text is not None and config.launch is Launch.COMMAND and _TRAP.search(text):
        found.append(f"{name} traps {signal}, which a shell cannot: it starts with the signal ignored, as do all that it starts")
    elif text is not None and signal.encode() not in text and not re.search(rb"\basked\s*\(|\bSaveWhenAsked\b", text):
        found.append(
            f"{name} neither handles {signal} nor calls asked(): nothing can be saved on request, "
            "and up to one checkpoint interval is replayed after a requeue"
        )
    if not config.checkpoint.dir:
        found.append("checkpoint.dir is empty: ftsup resumes nothing, and every restart begins where the script itself begins")
    return found + hook_warnings(config, environ=environ)


def hook_warnings(config: Config, *, environ: Mapping[str, str]) -> list[str]:
    """Where notify.command cannot be found, or be executed: here at least."""
    if not config.notify.command:
        return []
    word = config.notify.command[0]
    if "/" not in word:
        there = shutil.which(word, path=environ.get("PATH"))
        return [] if there else [f"notify.command: there is no {word} on PATH here; hint: `ftsup config notify FILE` tries it out"]
    path = Path(config.workdir, word)
    if not path.is_file():
        return [f"notify.command: there is no file {path}; hint: a relative one is looked for below workdir"]
    return [] if os.access(path, os.X_OK) else [f"notify.command: {path} is not executable; hint: chmod +x {path}"]


def _script(config: Config) -> tuple[str, bytes | None]:
    """The script that the ranks run, where it can be found: its name and text."""
    words = list(config.command)
    if words[0] == "-m" and len(words) > 1:
        name = words[1]
        place = Path(config.workdir, *name.split("."))
        candidates = [place.with_suffix(".py"), place / "__main__.py"]
    else:
        name = words[0]
        candidates = [Path(config.workdir, word) for word in words if word.endswith((".py", ".sh"))][:1]
        name = candidates[0].name if candidates else name
    for path in candidates:
        try:
            with path.open("rb") as file:
                return name, file.read(_LARGEST)
        except OSError:
            continue
    return name, None
